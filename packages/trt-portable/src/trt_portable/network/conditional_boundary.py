"""The layers on the boundary of an if-conditional: its condition, inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import Refusal
from trt_portable.network.rules import (
    require_equal_ranks,
    require_equal_types,
    require_rank,
    require_type,
)
from trt_portable.network.scope import BoundaryLayer
from trt_portable.network.tensor import Facts, ITensor
from trt_portable.values import Value

if TYPE_CHECKING:
    from trt_portable.network.conditional import IIfConditional
    from trt_portable.network.inference import Symbols


class IIfConditionalBoundaryLayer(BoundaryLayer):
    """A layer on the boundary of a conditional."""

    @property
    def conditional(self) -> IIfConditional | None:
        """The conditional."""
        return self._scope  # type: ignore[no-any-return]


class IConditionLayer(IIfConditionalBoundaryLayer):
    """The condition: a 0-D bool."""

    _KIND = LayerType.CONDITION
    _NUM_OUTPUTS = 0

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        assert inputs[0] is not None
        require_type(inputs[0], {DataType.BOOL}, "the condition")
        require_rank(inputs[0], {0}, "the condition")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return ()


class IIfConditionalInputLayer(IIfConditionalBoundaryLayer):
    """A tensor on its way into the branches; what depends on it runs only if its branch does."""

    _KIND = LayerType.CONDITIONAL_INPUT

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        return (inputs[0],)


class IIfConditionalOutputLayer(IIfConditionalBoundaryLayer):
    """A tensor from the branch that the condition chose. Inputs: 0 if true, 1 if false."""

    _KIND = LayerType.CONDITIONAL_OUTPUT
    _CACHEABLE = False

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        chosen, other = inputs
        assert chosen is not None and other is not None
        require_equal_types((chosen, other), "the branches")
        require_type(chosen, FLOATS | INDICES | {DataType.BOOL}, "a branch")
        require_equal_ranks((chosen, other), "the branches")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        chosen, other = self._inputs
        assert chosen is not None and other is not None
        extents = tuple(
            left if left == right else symbols.create()
            for left, right in zip(chosen._extents or (), other._extents or (), strict=True)
        )
        return (Facts(extents, chosen._dtype, None),)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        raise Refusal("the output of a conditional has no meaning outside it")
