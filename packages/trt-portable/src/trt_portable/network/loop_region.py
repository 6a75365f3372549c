"""Running a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from trt_portable.enums import ErrorCodeTRT, LayerType, LoopOutput, TripLimit
from trt_portable.errors import Refusal
from trt_portable.network.layer import ILayer
from trt_portable.network.loop_boundary import (
    IIteratorLayer,
    ILoopOutputLayer,
    IRecurrenceLayer,
    ITripLimitLayer,
)
from trt_portable.network.region import Region, Values
from trt_portable.network.tensor import ITensor
from trt_portable.values import Value, as_tensor, host_numbers

_Slices = tuple[Any, Callable[[int], torch.Tensor]]
"""The extent of an axis, and what gives the slices of a tensor along it."""


def _slices(whole: torch.Tensor, axis: int) -> _Slices:
    """All slices at once, except while tracing: one by one they take several times as long."""
    is_real = type(whole) is torch.Tensor
    return whole.shape[axis], whole.unbind(axis).__getitem__ if is_real else partial(whole.select, axis)


class LoopRegion(Region):
    """A loop as one layer of a plan."""

    _KIND = LayerType.LOOP_OUTPUT

    _count: ITensor | None = None
    _while: ITensor | None = None

    @classmethod
    def _plan_type(cls) -> str:
        return "LOOP"

    def _exits(self) -> Sequence[ILayer]:
        return self._of(ILoopOutputLayer)

    def _of(self, kind: type[Any]) -> list[Any]:
        return [layer for layer in self._boundary if isinstance(layer, kind)]

    def _prepare(self) -> None:
        self._recurrences: list[IRecurrenceLayer] = self._of(IRecurrenceLayer)
        self._iterators: list[IIteratorLayer] = self._of(IIteratorLayer)
        self._results: list[ILoopOutputLayer] = self._of(ILoopOutputLayer)
        for limit in self._of(ITripLimitLayer):
            if limit.kind is TripLimit.COUNT:
                self._count = limit._inputs[0]
            else:
                self._while = limit._inputs[0]
        self._test = self._ancestors([self._while]) if self._while is not None else []

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return self._iterate(
            inputs, lambda values: self._run(self._test, values), lambda values: self._run(self._body, values)
        )

    def _iterate(
        self, inputs: Sequence[Value | None], test: Callable[[Values], None], body: Callable[[Values], None]
    ) -> tuple[Value, ...]:
        """Runs the loop.

        Args:
            inputs: In order.
            test: Adds what the condition needs to the values of an iteration.
            body: Adds all that follows.
        """
        outside = self._start(inputs)
        state = [outside[id(layer._inputs[0])] for layer in self._recurrences]
        if any(isinstance(v, torch.Tensor) and v.device.type == "meta" for v in inputs):
            return self._shapes(outside, state)
        count = None if self._count is None else host_numbers(outside[id(self._count)])[0]
        walked = [_slices(as_tensor(outside[id(layer._inputs[0])]), layer.axis) for layer in self._iterators]
        collected: list[list[torch.Tensor]] = [[] for _ in self._results]
        trip = 0
        while count is None or trip < count:
            values = self._begin(outside, state, walked, trip, count)
            if self._while is not None:
                test(values)
                if not host_numbers(values[id(self._while)])[0]:
                    break
            body(values)
            for kept, layer in zip(collected, self._results, strict=True):
                if layer.kind is not LoopOutput.LAST_VALUE:
                    kept.append(as_tensor(values[id(layer._inputs[0])]))
            state = [values[id(layer._inputs[1])] for layer in self._recurrences]
            trip += 1
        final = {id(layer._outputs[0]): value for layer, value in zip(self._recurrences, state, strict=True)}
        return tuple(
            final[id(layer._inputs[0])] if layer.kind is LoopOutput.LAST_VALUE else self._stack(layer, kept, outside)
            for layer, kept in zip(self._results, collected, strict=True)
        )

    def _begin(
        self, outside: Values, state: list[Any], walked: Sequence[_Slices], trip: int, count: int | None
    ) -> Values:
        """The values at the start of an iteration."""
        values = dict(outside)
        for layer, value in zip(self._recurrences, state, strict=True):
            values[id(layer._outputs[0])] = value
        for iterator, (extent, slice_at) in zip(self._iterators, walked, strict=True):
            at = trip
            if iterator.reverse:
                at = (extent if count is None else count) - 1 - trip
            if not 0 <= at < extent:
                raise Refusal(
                    f"iteration {trip} of loop {self.name!r} reads element {at} of an axis of {extent}",
                    ErrorCodeTRT.FAILED_EXECUTION,
                )
            values[id(iterator._outputs[0])] = slice_at(at)
        return values

    def _stack(self, layer: ILoopOutputLayer, kept: list[torch.Tensor], outside: Values) -> torch.Tensor:
        """The values of all iterations along a new axis, padded with zeros to its extent."""
        assert layer._inputs[1] is not None and layer._inputs[0] is not None
        length = host_numbers(outside[id(layer._inputs[1])])[0]
        if len(kept) > length:
            raise Refusal(
                f"loop {self.name!r} made {len(kept)} values for an axis of {length}",
                ErrorCodeTRT.FAILED_EXECUTION,
            )
        if not kept:
            return self._no_values(layer, length, outside)
        missing = [torch.zeros_like(kept[0])] * (length - len(kept))
        values = [*kept, *missing]
        if layer.kind is LoopOutput.REVERSE:
            values.reverse()
        return torch.stack(values, layer.axis)

    def _no_values(self, layer: ILoopOutputLayer, length: int, outside: Values) -> torch.Tensor:
        """What a loop without iterations leaves: its extents are those that an iteration would have made."""
        source = layer._inputs[0]
        assert source is not None
        extents = list(source._extents or ())
        if any(extent < 0 for extent in extents):
            extents = list(self._imagined(source, outside).shape)
        extents.insert(layer.axis, length)
        return torch.zeros(extents, dtype=self._carrier(source._dtype), device=self._device)

    def _imagined(self, wanted: ITensor, outside: Values) -> torch.Tensor:
        """A value of an iteration that never happens, on zeros in place of what iterators would read."""
        values = dict(outside)
        for layer in self._recurrences:
            values[id(layer._outputs[0])] = outside[id(layer._inputs[0])]
        for iterator in self._iterators:
            whole = as_tensor(outside[id(iterator._inputs[0])])
            shape = [extent for axis, extent in enumerate(whole.shape) if axis != iterator.axis]
            values[id(iterator._outputs[0])] = whole.new_zeros(shape)
        self._run(self._ancestors([wanted]), values)
        return as_tensor(values[id(wanted)])

    def _shapes(self, outside: Values, state: list[Any]) -> tuple[Value, ...]:
        """Outputs without data: shapes do not change between iterations, so one tells them."""
        values = dict(outside)
        for layer, value in zip(self._recurrences, state, strict=True):
            values[id(layer._outputs[0])] = torch.empty_like(as_tensor(value), device="meta")
        for iterator in self._iterators:
            whole = as_tensor(outside[id(iterator._inputs[0])])
            shape = [e for axis, e in enumerate(whole.shape) if axis != iterator.axis]
            values[id(iterator._outputs[0])] = torch.empty(shape, dtype=whole.dtype, device="meta")
        self._run(self._body, values)
        results = []
        for result in self._results:
            value = as_tensor(values[id(result._inputs[0])])
            if result.kind is not LoopOutput.LAST_VALUE:
                assert result._inputs[1] is not None
                length = host_numbers(outside[id(result._inputs[1])])[0]
                shape = [*value.shape]
                shape.insert(result.axis, length)
                value = torch.empty(shape, dtype=value.dtype, device="meta")
            results.append(value)
        return tuple(results)
