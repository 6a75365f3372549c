"""Asking support checks, whoever wrote them: a check that fails refuses its own candidate, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import fx

from trt_converters.call import Call
from trt_converters.converter import Check, Converter
from trt_core import Reason, Verdict


def ask_check(check: Check, call: Call, candidate: Converter) -> Verdict | None:
    """Returns what a check of a candidate says, None when it has nothing against the call.

    A check that raises, or that returns something else, refuses its candidate; others may take the call. Checks of
    other packages get arguments of their own, and the node is as before when they have returned.
    """
    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not candidate.is_builtin:
        call, guard = Call(call.node, call.settings), _unchanged(call.node)
    try:
        with guard:
            found = check(call)
    except (Exception, SystemExit) as error:
        return _failed(candidate, f"{type(error).__name__}: {error}")
    if found is None or (isinstance(found, Verdict) and found.supported):
        return None
    return found if isinstance(found, Verdict) else _failed(candidate, f"it returned {found!r}, not a Verdict")


def _failed(candidate: Converter, why: str) -> Verdict:
    return Verdict.refuse(Reason.CHECK_FAILED, f"a check of {candidate.described} failed: {why}")


@contextlib.contextmanager
def _unchanged(node: fx.Node) -> Iterator[None]:
    """Undoes what is done to a node meanwhile, and says that it was done.

    Raises:
        RuntimeError: The node was changed.
    """
    args, kwargs, target, meta = node.args, node.kwargs, node.target, dict(node.meta)
    try:
        yield
    finally:
        is_changed = node.args != args or node.kwargs != kwargs or node.target is not target
        if is_changed:
            node.args, node.kwargs, node.target = args, kwargs, target
        if node.meta.keys() != meta.keys() or any(node.meta[key] is not value for key, value in meta.items()):
            node.meta.clear()
            node.meta.update(meta)
            is_changed = True
    if is_changed:
        raise RuntimeError("it changed the node that it was asked about")
