"""Control flow of a network: loops, conditionals, and assertions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.files import records
from trt_core.limits import UNLIMITED, Account, charging, open_account
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import DataType, ErrorCodeTRT, LayerType, LoopOutput, TripLimit
from trt_portable.errors import Refusal, UnknownExtents, optional, present
from trt_portable.execution.bounded_runs import TURNS, TURNS_VARIABLE, told_number
from trt_portable.layer_properties import boolean, integer, member, text
from trt_portable.network.definition import LayerFactory
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.recurrence import Recurrence
from trt_portable.network.region import BoundaryLayer, Region, Scope, Values
from trt_portable.network.rules import (
    require,
    require_axis,
    require_equal_ranks,
    require_equal_types,
    require_rank,
    require_tensor,
    require_type,
)
from trt_portable.plan import tables
from trt_portable.shape_tensors import HostValues, Value, as_tensor, host_numbers

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols


BYTES_VARIABLE: Final = "TRT_PORTABLE_MAX_LOOP_BYTES"
_BYTES: Final = 4 << 30
_LAYERS: Final = 2
"""Layers that are computed on the host in the time of an operator at least; those that call some count beside."""
_COPIED: Final = 16
"""Values that are copied in that time."""


@contextlib.contextmanager
def account() -> Iterator[Account]:
    """The account of the run; one of turns and of what loops collect, where nothing else is counted."""
    found = open_account()
    if found is not None:
        yield found
        return
    most_bytes, turns = told_number(BYTES_VARIABLE), told_number(TURNS_VARIABLE)
    limits = replace(
        UNLIMITED,
        bytes_made=_BYTES if most_bytes is None else most_bytes,
        loop_turns=TURNS if turns is None else turns,
    )
    hint = f"set {TURNS_VARIABLE} or {BYTES_VARIABLE} if a model that you trust needs more"
    with charging(Account(limits, hint=hint)) as made:
        yield made


def _unwatched_steps(layers: Sequence[ILayer], outside: Values) -> int:
    """What running layers of a region takes that is no operator, in as many operators as take the time at most."""
    return len(layers) // _LAYERS + len(outside) // _COPIED


_Slices = tuple[Any, Callable[[int], torch.Tensor]]
"""The extent of an axis, and what gives the slices of a tensor along it."""


def _slices(whole: torch.Tensor, axis: int) -> _Slices:
    """All slices at once, except while tracing: one by one they take several times as long."""
    is_real = type(whole) is torch.Tensor
    return whole.shape[axis], whole.unbind(axis).__getitem__ if is_real else partial(whole.select, axis)


class LoopRegion(Region):
    """A loop as one layer of a plan."""

    _KIND = LayerType.LOOP_OUTPUT
    _PLAN_TYPE = "LOOP"

    _NESTED = tables.LOOP

    _count: ITensor | None = None
    _while: ITensor | None = None
    _recurrence: Recurrence | None = None
    """The recurrent layer that the loop runs, if the builder has found that it runs one."""

    def _exits(self) -> Sequence[ILayer]:
        return self._of(ILoopOutputLayer)

    def _nested(self, write: Callable[[ILayer], dict[str, Any]], id_of: Callable[[ITensor], int]) -> dict[str, Any]:
        mark = None if self._recurrence is None else records.write(self._recurrence)
        return {**super()._nested(write, id_of), "recurrence": mark}

    def _restore_nested(
        self, entry: Mapping[str, Any], read: Callable[[Mapping[str, Any]], ILayer], tensors: Mapping[int, ITensor]
    ) -> None:
        super()._restore_nested(entry, read, tensors)
        if entry["recurrence"] is not None:
            self._recurrence = Recurrence.read(entry["recurrence"], self._inputs, len(self._outputs))

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
        with account() as budget:
            return self._take_turns(outside, state, test, body, budget)

    def _take_turns(
        self,
        outside: Values,
        state: list[Any],
        test: Callable[[Values], None],
        body: Callable[[Values], None],
        budget: Account,
    ) -> tuple[Value, ...]:
        count = None if self._count is None else host_numbers(outside[id(self._count)])[0]
        walked = [_slices(as_tensor(outside[id(layer._inputs[0])]), layer.axis) for layer in self._iterators]
        collected: list[list[torch.Tensor]] = [[] for _ in self._results]
        trip, unwatched = 0, _unwatched_steps(self._children(), outside)
        while count is None or trip < count:
            budget.turn(self.name)
            budget.run_steps(unwatched, f"loop {self.name!r}")
            values = self._begin(outside, state, walked, trip, count)
            if self._while is not None:
                test(values)
                if not host_numbers(values[id(self._while)])[0]:
                    break
            body(values)
            for kept, layer in zip(collected, self._results, strict=True):
                if layer.kind is not LoopOutput.LAST_VALUE:
                    kept.append(as_tensor(values[id(layer._inputs[0])]))
                    budget.collect(kept[-1].nbytes, self.name)
            state = [values[id(layer._inputs[1])] for layer in self._recurrences]
            trip += 1
        final = {id(layer._outputs[0]): value for layer, value in zip(self._recurrences, state, strict=True)}
        return tuple(
            final[id(layer._inputs[0])]
            if layer.kind is LoopOutput.LAST_VALUE
            else self._stack(layer, kept, outside, budget)
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

    def _stack(
        self, layer: ILoopOutputLayer, kept: list[torch.Tensor], outside: Values, budget: Account
    ) -> torch.Tensor:
        """The values of all iterations along a new axis, padded with zeros to its extent."""
        length = host_numbers(outside[id(layer._inputs[1])])[0]
        if len(kept) > length:
            raise Refusal(
                f"loop {self.name!r} made {len(kept)} values for an axis of {length}", ErrorCodeTRT.FAILED_EXECUTION
            )
        size = max(kept[0].nbytes, 1) if kept else 1
        budget.collect(size * length, self.name)
        if not kept:
            return self._no_values(layer, length, outside)
        if layer.kind is LoopOutput.REVERSE:
            kept.reverse()
        made = torch.stack(kept, layer.axis)
        if len(kept) == length:
            return made
        rest = [*made.shape]
        rest[layer.axis] = length - len(kept)
        parts = [made, made.new_zeros(rest)]
        return torch.cat(parts[::-1] if layer.kind is LoopOutput.REVERSE else parts, layer.axis)

    def _no_values(self, layer: ILoopOutputLayer, length: int, outside: Values) -> torch.Tensor:
        """What a loop without iterations leaves: its extents are those that an iteration would have made."""
        source = present(layer._inputs[0])
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
                length = host_numbers(outside[id(result._inputs[1])])[0]
                shape = [*value.shape]
                shape.insert(result.axis, length)
                value = torch.empty(shape, dtype=value.dtype, device="meta")
            results.append(value)
        return tuple(results)


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

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (tensor,) = inputs
        require_rank(tensor, {0}, "the trip limit")
        counts = self._limit is TripLimit.COUNT
        require_type(tensor, INDICES if counts else {DataType.BOOL}, "the trip limit")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return ()


class IIteratorLayer(ILoopBoundaryLayer):
    """One slice of a tensor per iteration, the axis removed."""

    _KIND = LayerType.ITERATOR
    _DEFERRED = True

    axis = integer(0, "The axis that iterations walk along.")
    reverse = boolean(False, "Whether they walk from the end.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        require_axis(self.axis, inputs[0]._rank)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
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
        tensor = present(inputs[0])
        if self._output_kind is LoopOutput.LAST_VALUE:
            require(isinstance(tensor._producer, IRecurrenceLayer), "LAST_VALUE takes the output of a recurrence")
            return
        require_axis(self.axis, tensor._rank + 1)

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        if self._output_kind is LoopOutput.LAST_VALUE:
            return
        length = optional(inputs, 1)
        require(length is not None, "the extent of the new axis is missing: set_input(1, tensor)")
        assert length is not None
        require_tensor(length, "the extent of the new axis", INDICES, ranks={0})

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        source = present(self._inputs[0])
        extents = list(source._extents or ())
        if self._output_kind is not LoopOutput.LAST_VALUE:
            extent = present(present(self._inputs[1])._host)[0]
            require(not isinstance(extent, int) or extent >= 0, f"the new axis has an extent of {extent}")
            extents.insert(self.axis, extent)
        return (Facts(tuple(extents), source._dtype, None),)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        raise Refusal("a loop output has no meaning outside its loop")


class ILoop(Scope):
    """A loop. What depends on its recurrences and iterators is inside; it ends in loop outputs."""

    _network: LoopLayers

    def add_recurrence(self, initial_value: ITensor) -> IRecurrenceLayer | None:
        """Adds a carried value; give the next one with ``set_input(1, tensor)``.

        Args:
            initial_value: The value before the first iteration.
        """
        return self._add(IRecurrenceLayer._create(), initial_value=initial_value)

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
        return self._add(layer, tensor=tensor)

    def add_iterator(self, tensor: ITensor, axis: int = 0, reverse: bool = False) -> IIteratorLayer | None:
        """Adds slices of a tensor, one per iteration.

        Args:
            tensor: Rank 1 or more.
            axis: The axis that iterations walk along.
            reverse: Whether they walk from the end.
        """
        return self._add(IIteratorLayer._create(axis=axis, reverse=reverse), tensor=tensor)

    def add_loop_output(self, tensor: ITensor, kind: LoopOutput, axis: int = 0) -> ILoopOutputLayer | None:
        """Adds a value that leaves the loop; CONCATENATE and REVERSE need ``set_input(1, extent)``.

        Args:
            tensor: A value inside; for LAST_VALUE the output of a recurrence.
            kind: What is made of the values of all iterations.
            axis: Where the new axis is.
        """
        return self._add(ILoopOutputLayer._create(_output_kind=kind, axis=axis), tensor=tensor)

    def _entries(self) -> Sequence[ILayer]:
        return [*self._of(IRecurrenceLayer), *self._of(IIteratorLayer)]

    def _exits(self) -> Sequence[ILayer]:
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


class ConditionalRegion(Region):
    """A conditional as one layer of a plan; only the branch that the condition chooses runs."""

    _KIND = LayerType.CONDITIONAL_OUTPUT
    _PLAN_TYPE = "CONDITIONAL"

    def _exits(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalOutputLayer)

    def _prepare(self) -> None:
        (condition,) = self._of(IConditionLayer)
        tensor = present(condition._inputs[0])
        self._condition: ITensor = tensor
        self._entries = self._of(IIfConditionalInputLayer)
        results = self._of(IIfConditionalOutputLayer)
        self._branches = []
        for index in (0, 1):
            wanted = [layer._inputs[index] for layer in results]
            tensors = [tensor for tensor in wanted if tensor is not None]
            self._branches.append((tensors, self._ancestors(tensors)))

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        outside = self._start(inputs)
        condition = outside[id(self._condition)]
        self._run(self._entries, outside)
        if isinstance(condition, torch.Tensor) and condition.device.type == "meta":
            return self._shapes(outside)
        tensors, layers = self._branches[0 if host_numbers(condition)[0] else 1]
        budget = open_account()
        if budget is not None:
            budget.run_steps(_unwatched_steps(layers, outside), f"conditional {self.name!r}")
        self._run(layers, outside)
        return tuple(outside[id(tensor)] for tensor in tensors)

    def _shapes(self, outside: dict[int, Any]) -> tuple[Value, ...]:
        """Outputs without data, if both branches agree on their extents."""
        found = self._of_both(outside)
        if any(chosen.shape != other.shape for chosen, other in found):
            raise UnknownExtents("the extents depend on the condition")
        return tuple(chosen for chosen, _ in found)

    def _greatest(self, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, ...]:
        """Outputs without data, as large along each axis as that of the larger branch.

        Args:
            inputs: Operands without data.
        """
        outside = self._start(inputs)
        self._run(self._entries, outside)
        return tuple(
            chosen.new_empty([max(extents) for extents in zip(chosen.shape, other.shape, strict=True)])
            for chosen, other in self._of_both(outside)
        )

    def _of_both(self, outside: dict[int, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What each of the branches makes of operands without data, for each output."""
        found: list[list[torch.Tensor]] = []
        for tensors, layers in self._branches:
            values = dict(outside)
            self._run(layers, values)
            made = (values[id(tensor)] for tensor in tensors)
            found.append([as_tensor(value) if isinstance(value, HostValues) else value for value in made])
        return list(zip(*found, strict=True))


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

    def _check(self, inputs: Sequence[ITensor]) -> None:
        require_tensor(inputs[0], "the condition", {DataType.BOOL}, ranks={0})

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return ()


class IIfConditionalInputLayer(IIfConditionalBoundaryLayer):
    """A tensor on its way into the branches; what depends on it runs only if its branch does."""

    _KIND = LayerType.CONDITIONAL_INPUT

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return (inputs[0],)


class IIfConditionalOutputLayer(IIfConditionalBoundaryLayer):
    """A tensor from the branch that the condition chose. Inputs: 0 if true, 1 if false."""

    _KIND = LayerType.CONDITIONAL_OUTPUT
    _CACHEABLE = False

    def _check(self, inputs: Sequence[ITensor]) -> None:
        chosen, other = inputs
        require_equal_types((chosen, other), "the branches")
        require_type(chosen, FLOATS | INDICES | {DataType.BOOL}, "a branch")
        require_equal_ranks((chosen, other), "the branches")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        chosen, other = map(present, self._inputs)
        extents = tuple(
            left if left == right else symbols.create()
            for left, right in zip(chosen._extents or (), other._extents or (), strict=True)
        )
        return (Facts(extents, chosen._dtype, None),)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        raise Refusal("the output of a conditional has no meaning outside it")


class IIfConditional(Scope):
    """A conditional. Its branches are what its outputs depend on and its inputs lead to."""

    _network: ConditionalLayers

    def set_condition(self, condition: ITensor) -> IConditionLayer | None:
        """Sets the condition; once only.

        Args:
            condition: 0-D bool.
        """
        if self._of(IConditionLayer):
            rule = "the condition is already set"
            self._network._reporter.refuse(f"conditional {self.name!r}", Refusal(rule))
            return None
        return self._add(IConditionLayer._create(), condition=condition)

    def add_input(self, input: ITensor) -> IIfConditionalInputLayer | None:
        """Adds a tensor that the branches use."""
        return self._add(IIfConditionalInputLayer._create(), input=input)

    def add_output(
        self, true_subgraph_output: ITensor, false_subgraph_output: ITensor
    ) -> IIfConditionalOutputLayer | None:
        """Adds a result.

        Args:
            true_subgraph_output: The result if the condition holds.
            false_subgraph_output: The result otherwise; same type and rank.
        """
        return self._add(
            IIfConditionalOutputLayer._create(),
            true_subgraph_output=true_subgraph_output,
            false_subgraph_output=false_subgraph_output,
        )

    def _entries(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalInputLayer)

    def _exits(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalOutputLayer)

    def _region(self, body: list[ILayer]) -> ILayer:
        require(bool(self._of(IConditionLayer)), f"conditional {self.name!r} has no condition")
        return ConditionalRegion._of_scope(self.name, self._boundary, body)


class ConditionalLayers(LayerFactory):
    """The method that adds conditionals."""

    _scopes: list[Scope]

    def add_if_conditional(self) -> IIfConditional:
        """Adds a conditional."""
        conditional = IIfConditional(self, f"(Unnamed Conditional* {len(self._scopes)})")
        self._scopes.append(conditional)
        return conditional


class IAssertionLayer(ILayer):
    """Fails the build if the condition is false for certain, else the run in which it is false."""

    _KIND = LayerType.ASSERTION
    _HOST_INPUTS = frozenset({0})
    _NUM_OUTPUTS = 0

    message = text("", "What the error says.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (condition,) = inputs
        require_tensor(condition, "the condition", {DataType.BOOL}, ranks={0, 1})

    def _check_complete(self) -> None:
        condition = present(self._inputs[0])
        for truth in condition._host or ():
            if truth is False:
                raise Refusal(f"the assertion is false: {self.message}")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (condition,) = inputs
        if condition.device.type != "meta" and not all(host_numbers(condition)):
            raise Refusal(f"assertion failed: {self.message}", ErrorCodeTRT.FAILED_EXECUTION)
        return ()


class AssertionLayers(LayerFactory):
    """The method that adds assertions."""

    def add_assertion(self, condition: ITensor, message: str) -> IAssertionLayer | None:
        """Adds an assertion.

        Args:
            condition: 0-D or 1-D bool shape tensor.
            message: What the error says.
        """
        return self._add(IAssertionLayer._create(message=message), condition=condition)
