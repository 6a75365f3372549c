"""Loops: what is repeated, how often, and what leaves them."""

from __future__ import annotations

from typing import Any

from trt_portable.enums import LoopOutput, TripLimit
from trt_portable.errors import Refusal
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer
from trt_portable.network.loop_boundary import IIteratorLayer, ILoopOutputLayer, IRecurrenceLayer, ITripLimitLayer
from trt_portable.network.loop_region import LoopRegion
from trt_portable.network.rules import require
from trt_portable.network.scope import Scope
from trt_portable.network.tensor import ITensor


class ILoop(Scope):
    """A loop. What depends on its recurrences and iterators is inside; it ends in loop outputs."""

    _network: LoopLayers

    def add_recurrence(self, initial_value: ITensor) -> IRecurrenceLayer | None:
        """Adds a carried value; give the next one with ``set_input(1, tensor)``.

        Args:
            initial_value: The value before the first iteration.
        """
        layer = IRecurrenceLayer._create()
        added: IRecurrenceLayer | None = self._join(
            self._network._add(layer, expect_tensor(initial_value, "initial_value"))
        )
        return added

    def add_trip_limit(self, tensor: ITensor, kind: TripLimit) -> ITripLimitLayer | None:
        """Adds what ends the loop; at most one of each kind.

        Args:
            tensor: 0-D, int32 or int64 for COUNT, bool for WHILE.
            kind: COUNT or WHILE.
        """
        layer = ITripLimitLayer._create(_limit=kind)
        if any(isinstance(b, ITripLimitLayer) and b.kind is kind for b in self._boundary):
            rule = f"the loop already has a trip limit of kind {kind.name}"
            self._network._reporter.refuse(f"loop {self.name!r}", Refusal(rule))
            return None
        added: ITripLimitLayer | None = self._join(self._network._add(layer, expect_tensor(tensor, "tensor")))
        return added

    def add_iterator(self, tensor: ITensor, axis: int = 0, reverse: bool = False) -> IIteratorLayer | None:
        """Adds slices of a tensor, one per iteration.

        Args:
            tensor: Rank 1 or more.
            axis: The axis that iterations walk along.
            reverse: Whether they walk from the end.
        """
        layer = IIteratorLayer._create(axis=axis, reverse=reverse)
        added: IIteratorLayer | None = self._join(self._network._add(layer, expect_tensor(tensor, "tensor")))
        return added

    def add_loop_output(self, tensor: ITensor, kind: LoopOutput, axis: int = 0) -> ILoopOutputLayer | None:
        """Adds a value that leaves the loop; CONCATENATE and REVERSE need ``set_input(1, extent)``.

        Args:
            tensor: A value inside; for LAST_VALUE the output of a recurrence.
            kind: What is made of the values of all iterations.
            axis: Where the new axis is.
        """
        layer = ILoopOutputLayer._create(_output_kind=kind, axis=axis)
        added: ILoopOutputLayer | None = self._join(self._network._add(layer, expect_tensor(tensor, "tensor")))
        return added

    def _of(self, kind: type[Any]) -> list[Any]:
        return [layer for layer in self._boundary if isinstance(layer, kind)]

    def _entries(self) -> list[ILayer]:
        return [*self._of(IRecurrenceLayer), *self._of(IIteratorLayer)]

    def _exits(self) -> list[ILayer]:
        return self._of(ILoopOutputLayer)

    def _region(self, body: list[ILayer]) -> ILayer:
        require(bool(self._of(ITripLimitLayer)), f"loop {self.name!r} has no trip limit")
        return LoopRegion._of_scope(self.name, self._boundary, body)


class LoopLayers(LayerFactory):
    """The method that adds loops."""

    _scopes: list[Scope]

    def add_loop(self) -> ILoop:
        """Adds a loop."""
        loop = ILoop(self, f"(Unnamed Loop* {len(self._scopes)})")
        self._scopes.append(loop)
        return loop
