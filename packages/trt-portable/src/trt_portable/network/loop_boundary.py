"""The layers on the boundary of a loop: recurrences, trip limits, iterators and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trt_portable.attributes import boolean, integer, member
from trt_portable.dtypes import INDICES
from trt_portable.enums import DataType, LayerType, LoopOutput, TripLimit
from trt_portable.errors import Refusal
from trt_portable.network.rules import require, require_axis, require_rank, require_type
from trt_portable.network.scope import BoundaryLayer
from trt_portable.network.tensor import Facts, ITensor
from trt_portable.values import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.inference import Symbols
    from trt_portable.network.loop import ILoop


class ILoopBoundaryLayer(BoundaryLayer):
    """A layer on the boundary of a loop."""

    @property
    def loop(self) -> ILoop | None:
        """The loop."""
        return self._scope  # type: ignore[no-any-return]


class IRecurrenceLayer(ILoopBoundaryLayer):
    """A value carried from one iteration to the next.

    Inputs: 0 the value before the first iteration, from outside; 1 the next value, from inside.
    """

    _KIND = LayerType.RECURRENCE
    _MAX_INPUTS = 2

    def _facts_source(self) -> Sequence[ITensor | None]:
        return self._inputs[:1]

    def _check_complete(self) -> None:
        initial, following = self._input(0), self._input(1)
        require(following is not None, "a recurrence needs its next value: set_input(1, tensor)")
        assert initial is not None and following is not None
        require(
            initial.dtype is following.dtype and len(initial.shape) == len(following.shape),
            f"the next value {following._describe()} differs from the first {initial._describe()}",
        )
        for have, want in zip(following.shape, initial.shape, strict=True):
            require(
                -1 in (have, want) or have == want,
                f"the next value {following._describe()} differs from the first {initial._describe()}",
            )

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        return (as_tensor(inputs[0]),)


class ITripLimitLayer(ILoopBoundaryLayer):
    """What ends a loop: a count known before it, or a condition tested before each iteration."""

    _KIND = LayerType.TRIP_LIMIT
    _NUM_OUTPUTS = 0

    _limit = member(TripLimit, TripLimit.COUNT)

    @property
    def _HOST_INPUTS(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset({0}) if self._limit is TripLimit.COUNT else frozenset()

    @property
    def kind(self) -> TripLimit:
        """COUNT or WHILE."""
        return self._limit

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        (tensor,) = inputs
        assert tensor is not None
        require_rank(tensor, {0}, "the trip limit")
        counts = self._limit is TripLimit.COUNT
        require_type(tensor, INDICES if counts else {DataType.BOOL}, "the trip limit")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return ()


class IIteratorLayer(ILoopBoundaryLayer):
    """One slice of a tensor per iteration, the axis removed."""

    _KIND = LayerType.ITERATOR
    _DEFERRED = True

    axis = integer(0, "The axis that iterations walk along.")
    reverse = boolean(False, "Whether they walk from the end.")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        assert inputs[0] is not None
        require_axis(self.axis, inputs[0]._rank)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        return (as_tensor(inputs[0]).select(self.axis, 0),)


class ILoopOutputLayer(ILoopBoundaryLayer):
    """A value that leaves a loop: the last one, or those of all iterations along a new axis.

    Inputs: 0 the value; 1 the extent of the new axis (0-D shape tensor from outside).
    """

    _KIND = LayerType.LOOP_OUTPUT
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})
    _CACHEABLE = False
    _DEFERRED = True

    _output_kind = member(LoopOutput, LoopOutput.LAST_VALUE)
    axis = integer(0, "Where the new axis is.")

    @property
    def kind(self) -> LoopOutput:
        """LAST_VALUE, CONCATENATE or REVERSE."""
        return self._output_kind

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        tensor = inputs[0]
        assert tensor is not None
        if self._output_kind is LoopOutput.LAST_VALUE:
            require(
                isinstance(tensor._producer, IRecurrenceLayer),
                "LAST_VALUE takes the output of a recurrence",
            )
            return
        require_axis(self.axis, tensor._rank + 1)

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        if self._output_kind is LoopOutput.LAST_VALUE:
            return
        length = inputs[1] if len(inputs) > 1 else None
        require(length is not None, "the extent of the new axis is missing: set_input(1, tensor)")
        assert length is not None
        require_type(length, INDICES, "the extent of the new axis")
        require_rank(length, {0}, "the extent of the new axis")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        source = self._inputs[0]
        assert source is not None
        extents = list(source._extents or ())
        if self._output_kind is not LoopOutput.LAST_VALUE:
            length = self._inputs[1]
            assert length is not None and length._host is not None
            extents.insert(self.axis, length._host[0])
        return (Facts(tuple(extents), source._dtype, None),)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        raise Refusal("a loop output has no meaning outside its loop")
