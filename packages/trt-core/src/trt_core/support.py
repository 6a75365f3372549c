"""The question that partitioners ask about a node, and how its answer is made total."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from torch import fx

from trt_core.provenance import source_line
from trt_core.verdicts import Reason, Verdict


class OperatorSupport(Protocol):
    """Says whether a node can run in an engine. Total: it never raises, any doubt is a refusal."""

    def verdict(self, node: fx.Node) -> Verdict:
        """Returns the verdict of a `call_function` node."""
        ...


def total_verdict(decide: Callable[[fx.Node], Verdict], node: fx.Node) -> Verdict:
    """Returns what `decide` says of a node; never raises.

    An exception, or a result that is no verdict, is a refusal with `Reason.CHECK_FAILED`. Refusals get the node's
    source line.
    """
    try:
        verdict = decide(node)
    except (Exception, SystemExit) as error:  # whoever wrote the check must not end the process
        verdict = Verdict.refuse(Reason.CHECK_FAILED, f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        verdict = Verdict.refuse(Reason.CHECK_FAILED, f"the check returned {verdict!r}, not a Verdict")
    if verdict.supported or verdict.source:
        return verdict
    return dataclasses.replace(verdict, source=source_line(node))
