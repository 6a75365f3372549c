"""Keeps operators that look up indices in PyTorch, which refuses indices that are out of range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core import OperatorSupport, Reason, Verdict

_PARAMETERS: Final = frozenset({"index", "indices", "target"})
"""Schema parameters that hold places of another tensor, as in `gather`, `embedding` and `nll_loss_forward`."""

_PLACES: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


@dataclass(frozen=True)
class CheckedIndices:
    """Refuses operators that take indices which are known at run time only; an engine would not check them."""

    inner: OperatorSupport

    def verdict(self, node: fx.Node) -> Verdict:
        """Returns `FORCED_OPERATOR` for a node that looks up computed indices, else the wrapped verdict."""
        name = _computed_indices(node)
        if name:
            message = f"check_indices: {name} may be out of range, which PyTorch checks and an engine does not"
            return Verdict.refuse(Reason.FORCED_OPERATOR, message)
        return self.inner.verdict(node)


def _computed_indices(node: fx.Node) -> str:
    """Name of the parameter that holds computed indices; empty where there is none."""
    schema = getattr(node.target, "_schema", None)
    for position, parameter in enumerate(schema.arguments if schema is not None else ()):
        if parameter.name not in _PARAMETERS:
            continue
        given = node.args[position] if position < len(node.args) else node.kwargs.get(parameter.name)
        if any(_is_computed(item) for item in (given if isinstance(given, (list, tuple)) else [given])):
            return str(parameter.name)
    return ""


def _is_computed(value: Any) -> bool:
    """Whether a value is a tensor of integers that no constant of the graph holds; masks select, and point nowhere."""
    if not isinstance(value, fx.Node) or value.op == "get_attr":
        return False
    meta = value.meta.get("val")
    return isinstance(meta, torch.Tensor) and meta.dtype in _PLACES
