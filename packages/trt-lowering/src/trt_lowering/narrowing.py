"""What becomes of numbers that a narrower floating-point type cannot hold.

`finfo(float32).min` is how models write "masked out". Cast to float16 it would be minus infinity, and a row that is
masked out as a whole would become NaN. So constants stop at the largest finite number of the narrower type. Tensors
that are added to scores may say the same (`may_mask`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch
from torch import fx

from trt_core import SettingsError
from trt_core.dtypes import dtype_name
from trt_core.internals import FakeTensor, OpOverload
from trt_core.provenance import node_location
from trt_lowering.moving_operators import moves
from trt_lowering.node_metadata import cast_value, insert_call
from trt_lowering.operator_traits import argument

aten = torch.ops.aten

_NUMBERS: Final = frozenset({"number", "float", "Optional[number]", "Optional[float]", "Tensor", "Optional[Tensor]"})
"""Types of arguments that may be numbers: a traced graph gives one where the schema says tensor, too."""
_SIZED_BY_NUMBERS: Final = frozenset({"aten::arange", "aten::range"})
"""Operators whose numbers say how many elements there are."""


class Narrowing:
    """From one floating-point type to a narrower one.

    Reducing precision is asked for to compute in fewer bits, so every constant beyond the narrower type stops at its
    largest number. Truncation is asked for to compute the same, so there only the extremes of the wider type, which
    stand for "as far as numbers go", do; any other number is an error.

    Args:
        source: The wider type.
        target: The narrower type.
    """

    def __init__(self, source: torch.dtype, target: torch.dtype) -> None:
        self._source = source
        self._target = target
        self._most = torch.finfo(target).max
        self._extreme = torch.finfo(source).max
        self._stops_at_limit = source != torch.float64

    def fit_arguments(self, node: fx.Node) -> None:
        """Brings the numbers among the arguments of an operator into the range of the narrower type.

        Raises:
            SettingsError: A number would not be the same afterwards, and truncation was asked for.
        """
        if not isinstance(node.target, OpOverload) or node.target._schema.name in _SIZED_BY_NUMBERS:
            return
        names = _number_arguments(node.target)
        for position, name in enumerate(names):
            if name and position < len(node.args) and self._is_beyond(node.args[position]):
                node.update_arg(position, self._fit(node.args[position], node))
            elif name and name in node.kwargs and self._is_beyond(node.kwargs[name]):
                node.update_kwarg(name, self._fit(node.kwargs[name], node))

    def limit_of(self, value: Any, node: fx.Node) -> float | None:
        """Returns where the values of a constant or an input have to stop; None when all of them fit.

        An input whose values are not known stops where it may be a mask, and where precision was asked to be reduced.

        Args:
            value: The tensor, None for an input. Of a tensor without data, all is taken to fit.
            node: The node that reads it, for the message.

        Raises:
            SettingsError: See `fit_arguments`.
        """
        if value is None:
            return self._most if self._stops_at_limit and may_mask(node) else None
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.is_meta or not value.numel():
            return None
        size = value.detach().abs()
        beyond = size[torch.isfinite(size) & (size > self._most)]
        if not beyond.numel():
            return None
        for number in (beyond.min(), beyond.max()):
            self._fit(float(number), node)
        return self._most

    def _is_beyond(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return math.isfinite(value) and self._most < abs(value) <= self._extreme

    def _fit(self, value: Any, node: fx.Node) -> float:
        if not self._stops_at_limit and abs(value) != self._extreme:
            raise SettingsError(
                f"truncate_long_and_double would change the constant {value}",
                where=node_location(node),
                why=f"{dtype_name(self._target)} holds numbers up to {self._most}",
                hint=f"compile without it: what computes in {dtype_name(self._source)} then runs in PyTorch",
            )
        return math.copysign(self._most, value)


def saturate(graph: fx.Graph, node: fx.Node, limit: float) -> fx.Node:
    """Adds, at the graph's insertion point, what brings finite values to at most `limit` in size; others stay."""
    value = node.meta["val"]
    clamped = insert_call(graph, aten.clamp.default, (node, -limit, limit), value=value, origin=node)
    infinite = insert_call(graph, aten.isinf.default, (node,), value=cast_value(value, torch.bool), origin=node)
    return insert_call(graph, aten.where.self, (infinite, node, clamped), value=value, origin=node)


@functools.cache
def _number_arguments(target: OpOverload) -> tuple[str, ...]:
    """Names of the arguments that may be numbers, empty for the others, by position."""
    return tuple(item.name if str(item.type) in _NUMBERS else "" for item in target._schema.arguments)


_ADDING: Final = frozenset({"aten::add", "aten::where"})


def may_mask(node: fx.Node) -> bool:
    """Whether a tensor is added to another one, taken for elements of one, or given to attention as a mask."""
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        for user in current.users:
            if not isinstance(user.target, OpOverload) or user in seen:
                continue
            seen.add(user)
            if user.target._schema.name in _ADDING or is_attention_mask(current, user):
                return True
            if moves(user):
                pending.append(user)
    return False


def is_attention_mask(operand: fx.Node, node: fx.Node) -> bool:
    """Whether an operand is what attention adds to its scores."""
    if not isinstance(node.target, OpOverload) or node.target._schema.name != "aten::scaled_dot_product_attention":
        return False
    return argument(node, "attn_mask") is operand
