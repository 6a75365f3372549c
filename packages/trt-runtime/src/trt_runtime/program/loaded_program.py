"""A loaded program as a module, and what runs its steps over numbered slots.

A slot is freed after the step that reads it last.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core.attributes import part_at
from trt_core.cached_property import cached_property
from trt_core.dtypes import dtype_name
from trt_core.errors import ExecutionError, InputError, TrtError
from trt_core.graph_search import last_uses
from trt_core.internals import FakeTensor, OpOverload
from trt_core.nesting import reach_of, with_leaves
from trt_core.process_groups import COLLECTIVES, LOOK_AT_OTHERS, WAIT, own_rank
from trt_core.remembered import Remembered
from trt_core.sizes.expressions import Extent, evaluate_extent, functions_in, symbols_in
from trt_core.sizes.functions import bounded
from trt_core.wording import counted, kind_of
from trt_runtime.module import TRTModule
from trt_runtime.plan_notes import Bounds
from trt_runtime.program.fields import FACTS, MAX_EXTENT, UNTOLD, malformed
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    CapturedProgram,
    ControlFlowCall,
    EngineCall,
    ItemCall,
    NumberCall,
    NumberType,
    OperatorCall,
    Program,
    SequenceType,
    SizeCall,
    Step,
    StoredEngine,
    StoredTensor,
    TensorInput,
    TensorType,
    ValueType,
    WriteCall,
    depends_on_data,
    operator_calls,
    values_read,
)
from trt_runtime.program.input_memory import HeldTensor
from trt_runtime.program.input_reader import InputReader
from trt_runtime.program.literals import Value, leaves, replace_values, values_in
from trt_runtime.program.model_call import ModelCall, SoleEngine, made_of, refuse_moves

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trt_core.limits import Account, Usage
    from trt_runtime.program.interface import Spec
    from trt_runtime.program.model_facts import ModelFacts


Symbols = Mapping[str, int]
"""Values of the symbols in one call."""

CheckResult = Callable[[Any, Symbols], None]
"""Raises `ExecutionError` where a result is not what is declared."""


def declares_symbols(program: Program) -> bool:
    """Whether the result of a step is declared with extents that a call computes."""

    def has_symbols(kind: ValueType | None) -> bool:
        if isinstance(kind, TensorType):
            return any(symbols_in(extent) for extent in kind.shape)
        return isinstance(kind, SequenceType) and any(has_symbols(item) for item in kind.items)

    def reads_symbols(steps: Sequence[Step]) -> bool:
        return any(
            (isinstance(step, OperatorCall | ControlFlowCall) and has_symbols(step.result))
            or (isinstance(step, ControlFlowCall) and any(map(body_reads_symbols, step.bodies)))
            for step in steps
        )

    def body_reads_symbols(body: Body) -> bool:
        return any(map(has_symbols, body.inputs)) or reads_symbols(body.steps)

    return reads_symbols(program.steps)


def has_operators(program: Program) -> bool:
    """Whether anything runs beside engines."""
    return any(not isinstance(step, EngineCall | ItemCall | SizeCall) for step in program.steps)


def elements_told(kind: ValueType | None, symbols: Symbols) -> int | None:
    """Returns the elements of the largest tensor that a program declares; None where that depends on data."""
    if isinstance(kind, SequenceType):
        counts = [elements_told(item, symbols) for item in kind.items if item is not None]
        return max((count for count in counts if count is not None), default=0) if None not in counts else None
    if not isinstance(kind, TensorType):
        return 0
    count = 1
    for extent in kind.shape:  # in one loop: it is asked of each operator in the first call
        if extent is None:
            return None
        count *= extent if type(extent) is int else int(evaluate_extent(extent, symbols))
    return count


def result_checker(kind: ValueType | None, title: str) -> CheckResult:
    """Returns what compares a result with what the program declares.

    Args:
        kind: What it declares.
        title: How messages call the operator.
    """

    def wrong(found: str, declared: object) -> ExecutionError:
        return ExecutionError(f"{title} made {found}, the program declares {declared}")

    if isinstance(kind, TensorType):
        dtype, rank = kind.dtype, len(kind.shape)
        extents = [(axis, extent) for axis, extent in enumerate(kind.shape) if extent is not None]
        fixed = tuple(kind.shape) if all(isinstance(extent, int) for extent in kind.shape) else None

        def check_tensor(result: Any, symbols: Symbols) -> None:
            if not isinstance(result, torch.Tensor) or result.dtype is not dtype:
                raise wrong(f"a {getattr(result, 'dtype', type(result).__name__)}", dtype_name(dtype))
            shape = result.shape
            if fixed is not None:
                fits = shape == fixed
            else:
                fits = len(shape) == rank and all(
                    _may_equal(shape[axis], _evaluate(extent, symbols)) for axis, extent in extents
                )
            if not fits:
                raise wrong(f"a tensor of shape {tuple(shape)}", f"the shape {kind.shape}")

        return check_tensor
    if isinstance(kind, NumberType):
        wanted = kind.kind

        def check_number(result: Any, symbols: Symbols) -> None:
            if type(result) is not wanted and not isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise wrong(kind_of(result), wanted.__name__)

        return check_number
    if isinstance(kind, SequenceType):
        checks = [result_checker(item, f"{title}, result {index},") for index, item in enumerate(kind.items)]

        def check_sequence(result: Any, symbols: Symbols) -> None:
            if not isinstance(result, (tuple, list)) or len(result) != len(checks):
                raise wrong(kind_of(result), f"{len(checks)} results")
            for check, item in zip(checks, result, strict=True):
                check(item, symbols)

        return check_sequence

    def check_nothing(result: Any, symbols: Symbols) -> None:
        if result is not None:
            raise wrong(kind_of(result), "nothing")

    return check_nothing


def list_checker(kind: ValueType | None, title: str) -> CheckResult:
    """Returns what compares the types in a list with what the program declares.

    How many tensors a split makes, and how large the last ones are, follows from the sizes of the call; programs
    declare it for the sizes that they were captured with. Taking one that is not there fails.

    Args:
        kind, title: See `result_checker`.
    """
    if not isinstance(kind, SequenceType):
        return result_checker(kind, title)
    unsized = [
        replace(item, shape=(None,) * len(item.shape)) if isinstance(item, TensorType) else item for item in kind.items
    ]
    checks = [result_checker(item, f"{title}, result {index},") for index, item in enumerate(unsized)]

    def check_list(result: Any, symbols: Symbols) -> None:
        if not isinstance(result, (tuple, list)):
            raise ExecutionError(f"{title} made {kind_of(result)}, the program declares a list")
        for check, item in zip(checks, result, strict=False):
            check(item, symbols)

    return check_list


def _may_equal(found: int | torch.SymInt, declared: int | torch.SymInt) -> bool:
    """Whether two sizes are equal, or one is a symbol of whoever traces the program."""
    return not (isinstance(found, int) and isinstance(declared, int)) or found == declared


def _evaluate(extent: Extent, symbols: Symbols) -> int | torch.SymInt:
    return extent if isinstance(extent, int) else evaluate_extent(extent, symbols)


Run = Callable[[list[Any], Symbols], Any]
"""One step: reads slots, returns what goes to its own."""

Engine = Callable[..., Any]
"""Runs an engine on tensors and returns its output or the tuple of them."""


class _Steps:
    """Steps that are ready to run one after the other: those of a program, or of a body.

    Args:
        steps: What they are.
        first: Slot of what the first one makes.
        output: Tree of what is returned.
        engines: What runs each engine.
        stored: The engines themselves.
        calls: What runs each step that calls an operator, in the order of `operator_calls`.

    Attributes:
        steps: Of each step what runs it, its slot, and the slots that die with it.
        output: Builds the result from the slots.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        first: int,
        output: Any,
        engines: Sequence[Engine],
        stored: Sequence[StoredEngine],
        calls: Iterator[Run],
    ) -> None:
        self.first = first
        runs = [_run_of(step, engines, calls) for step in steps]
        own = ([first + at, *(each for each in values_read(step) if each >= first)] for at, step in enumerate(steps))
        dying = last_uses(own, set(values_in(output)))
        self.steps = [(run, first + at, tuple(dead)) for at, (run, dead) in enumerate(zip(runs, dying, strict=True))]
        self.output = _picker(output)
        self._titles = [_title(step, stored) for step in steps]
        for index, step in enumerate(steps):  # waiting is where a collective fails
            given = step.args[0] if isinstance(step, OperatorCall) and step.name == WAIT and step.args else None
            started = given.index - first if isinstance(given, Value) else -1
            if 0 <= started < index:
                self._titles[index] += f" for {self._titles[started]}"

    def run(self, slots: list[Any], symbols: Symbols) -> Any:
        """Runs all of them and returns the result."""
        at = self.first
        try:
            for run, at, dying in self.steps:
                slots[at] = run(slots, symbols)
                for dead in dying:
                    slots[dead] = None
            return self.output(slots)
        except TrtError:
            raise
        except Exception as error:  # whatever an operator raises
            raise self.failure(at, error) from error

    def title(self, at: int) -> str:
        """What messages call the step that fills a slot."""
        return self._titles[at - self.first]

    def failure(self, at: int, error: Exception) -> ExecutionError:
        """The error for a step that raised."""
        title, hint = self.title(at), ""
        if f"{COLLECTIVES}::" in title:
            title, hint = f"{title} on {own_rank()}", LOOK_AT_OTHERS
        return ExecutionError(f"{title} failed", why=f"{type(error).__name__}: {error}", hint=hint)


class Executor:
    """A program that is ready to run. Any number of threads may run it at once.

    Args:
        program: The steps.
        engines: What runs each engine.
        operators: The operator of each `OperatorCall`, in order.
        device: What `"cuda"` among the arguments of operators means.
        untold: Elements that an operator may make whose result has sizes that depend on data.
        bounds: What each call may use; None for all.
    """

    def __init__(
        self,
        program: Program,
        engines: Sequence[Engine],
        operators: Sequence[OpOverload],
        device: torch.device,
        untold: int,
        bounds: Bounds | None = None,
    ) -> None:
        calls = _operator_runs(program, operators, device, untold)
        self._all = _Steps(program.steps, program.first_result, program.output, engines, program.engines, calls)
        self._run = self._all.run
        # the account of a single engine says all that there is to be said, if what it is given is what is there
        is_one = not has_operators(program) and sum(isinstance(step, EngineCall) for step in program.steps) < 2
        is_real = not any(math.prod(held.shape) > reach_of(held.shape, held.strides) for held in program.tensors)
        is_watched = bounds is not None and (not (is_one and is_real) or bounds.limits.is_timed)
        self._watch = _Watch(program, operators, bounds) if bounds is not None and is_watched else None

    def run(self, inputs: Sequence[Any], tensors: Sequence[torch.Tensor], symbols: Symbols) -> Any:
        """Runs the program.

        Args:
            inputs: The flat inputs, which fit the signature.
            tensors: The held tensors.
            symbols: Values of the symbols; may be empty where no step declares extents with symbols.

        Raises:
            InputError: An engine refuses its inputs.
            PlanError: An engine cannot run here.
            ExecutionError: A step failed, or made something else than the program declares.
        """
        slots = [*inputs, *tensors]
        slots.extend(itertools.repeat(None, len(self._all.steps)))
        if self._watch is None or torch.compiler.is_compiling():
            return self._run(slots, symbols)
        return self._run_bounded(slots, symbols, self._watch)

    def _run_bounded(self, slots: list[Any], symbols: Symbols, watch: _Watch) -> Any:
        """Runs the program, watching what is not known to stay inside of the limits for inputs of these sizes."""
        sizes = watch.sizes_of(slots)
        if sizes is None:
            return self._run(slots, symbols)
        steps = watch.to_watch(sizes)
        if steps is None and not watch.is_timed:
            return self._run(slots, symbols)
        with watch.charging(slots) as account:
            result = self._run_watched(slots, symbols, watch, steps or (), account)
        watch.passed(sizes, has_loose_engines=account.has_loose_parts)
        return result

    def _run_watched(
        self, slots: list[Any], symbols: Symbols, watch: _Watch, steps: Collection[int], account: Account
    ) -> Any:
        at = self._all.first
        account.settle_by(lambda: slots[self._all.first :])
        is_known, is_timed = steps is not watch.calls, watch.is_timed
        try:
            for run, at, dying in self._all.steps:
                if is_timed:
                    account.look_at_clock(self._all.title(at))
                if at in steps:
                    estimate = watch.estimates.get(at)
                    if estimate is not None and account.assume(*estimate(slots, symbols)):
                        slots[at] = run(slots, symbols)
                        account.made_by_assumption(slots[at])
                    elif (alike := watch.alike(at, slots)) is not None:
                        self._run_alike(slots, symbols, at, run, account, watch, alike)
                    else:
                        account.settle(slots[self._all.first :])
                        with account.watching():
                            slots[at] = run(slots, symbols)
                elif at in watch.engine_calls:
                    laid_out = account.lay_out([slots[read] for read in watch.reads[at]], self._all.title(at))
                    if laid_out:
                        account.lend(laid_out)
                        slots[at] = run(slots, symbols)
                        account.lend(-laid_out)
                    else:
                        slots[at] = run(slots, symbols)
                    self._note(slots, at, account)
                else:
                    slots[at] = run(slots, symbols)
                    if is_known and at in watch.makers:
                        self._note(slots, at, account)
                for dead in dying:
                    slots[dead] = None
            return self._all.output(slots)
        except TrtError:
            raise
        except Exception as error:  # whatever an operator raises
            raise self._all.failure(at, error) from error

    def _run_alike(
        self, slots: list[Any], symbols: Symbols, at: int, run: Run, account: Account, watch: _Watch, alike: Any
    ) -> None:
        """Runs an operator that is watched once for all calls that use as much."""
        used = watch.used.get(alike)
        if used is not None and account.use_again(used):
            slots[at] = run(slots, symbols)
        else:
            with watch.charging_part() as part, part.watching():
                slots[at] = run(slots, symbols)
            if not part.has_seen_data:
                watch.used[alike] = part.used
        made = account.made
        self._note(slots, at, account)
        account.made = made  # the result is in what was used

    def _note(self, slots: list[Any], at: int, account: Account) -> None:
        """Counts what a step has made that nobody watched."""
        if not account.assume_alive(slots[at]):
            account.settle(slots[self._all.first :])
            account.note(slots[at])


class _Watch:
    """Which steps of a program are charged to an account: once for inputs of the same sizes, or in each call.

    Args:
        program: The program.
        operators: The operator of each `OperatorCall`, in order, those of branches and loops included.
        bounds: What each call may use.

    Attributes:
        calls: Slots of what operators make, branches and loops among them.
        engine_calls: Slots of what engines make, which keep accounts of their own.
        reads: Slots that the step reads which fills a slot.
        is_timed: Whether calls whose sizes have passed are watched as well, for the clock.
        used: What calls of operators have used that are watched one by one, by what decides about it; see `alike`.
    """

    def __init__(self, program: Program, operators: Sequence[OpOverload], bounds: Bounds) -> None:
        self._program, self._operators = program, operators
        self._bounds = bounds
        self.is_timed = bounds.limits.is_timed
        plans = {engine.section: engine.header.payload_bytes for engine in program.engines}
        self._held = sum(plans.values()) + sum(storage.size for storage in program.storages)
        self._first = program.first_result
        self._inputs = program.first_tensor
        slots = list(enumerate(program.steps, self._first))
        self.engine_calls = frozenset(at for at, step in slots if isinstance(step, EngineCall))
        self.calls = frozenset(at for at, step in slots if isinstance(step, OperatorCall | ControlFlowCall))
        loose = {at for at, step in slots if isinstance(step, ControlFlowCall)}  # which branch, and how many turns
        self.reads = {at: values_read(step) for at, step in slots}
        for at, step in slots:
            if not loose.isdisjoint(self.reads[at]) or _depends_on_data(step, program):
                loose.add(at)
        self._loose = self.calls & loose
        self._is_loose = bool(self._loose | (self.engine_calls & loose))
        self._passed: Remembered[tuple[Any, ...], bool] = Remembered()
        self.used: Remembered[tuple[Any, ...], Usage] = Remembered()

    @cached_property
    def _named(self) -> Mapping[int, tuple[Any, ...]]:
        """Of operators that no estimate is known of, by slot: which one it is, and its arguments but for operands."""
        found = {}
        for at, step, operator in self._not_loose:
            if at not in self.estimates:
                place = {index: Value(number) for number, index in enumerate(self.reads[at])}
                found[at] = operator, repr(replace_values((step.args, step.kwargs), place.__getitem__))
        return found

    def alike(self, at: int, slots: Sequence[Any]) -> tuple[Any, ...] | None:
        """What decides about how much an operator uses, in this step or in another; None where that is not known."""
        named = self._named.get(at)
        if named is None:
            return None
        sizes: list[Any] = []
        for read in self.reads[at]:
            value = slots[read]
            if type(value) is torch.Tensor:
                sizes.append((value.dtype, value.shape, value.stride()))
            elif type(value) in (int, float):
                sizes.append((type(value), value))
            else:
                return None
        return (*named, *sizes)

    @cached_property
    def estimates(self) -> Mapping[int, Estimate]:
        """What the operators in slots use at most, where sizes of operands and results tell."""
        found = {at: _estimate(operator, step, self.reads[at]) for at, step, operator in self._not_loose}
        return {at: estimate for at, estimate in found.items() if estimate is not None}

    @cached_property
    def makers(self) -> frozenset[int]:
        """Slots that hold memory which operators have made that are watched once for the same sizes."""
        return frozenset(at for at, _, operator in self._not_loose if not operator.is_view)

    @cached_property
    def _not_loose(self) -> list[tuple[int, OperatorCall, OpOverload]]:
        calls = zip(operator_calls(self._program.steps), self._operators, strict=True)
        slots = {id(step): at for at, step in enumerate(self._program.steps, self._first) if at not in self._loose}
        found = ((slots.get(id(step)), step, operator) for step, operator in calls)
        return [(at, step, operator) for at, step, operator in found if at is not None]

    def sizes_of(self, slots: Sequence[Any]) -> tuple[Any, ...] | None:
        """What sizes follow from in a call: shapes, and numbers as they are; None where a call is traced."""
        sizes: list[Any] = []
        for value in slots[: self._inputs]:
            if isinstance(value, torch.Tensor):
                if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                    return None
                sizes.append(value.shape)
            elif isinstance(value, (int, float)):  # others are the same in each call, and may be lists
                sizes.append(value)
        return tuple(sizes)

    def to_watch(self, sizes: tuple[Any, ...]) -> Collection[int] | None:
        """Slots of the operators that are to be watched; None where nothing is, nor what engines make."""
        has_loose_engines = self._passed.get(sizes)
        if has_loose_engines is None:
            return self.calls
        return self._loose if self._is_loose or has_loose_engines else None

    def passed(self, sizes: tuple[Any, ...], *, has_loose_engines: bool) -> None:
        """Notes that a call stayed inside of the limits, and whether what engines use depends on data."""
        self._passed[sizes] = has_loose_engines

    def charging_part(self) -> AbstractContextManager[Account]:
        """A part of a call that begins, charged to an account of its own."""
        from trt_core.limits import Account, charging

        return charging(Account(self._bounds.limits, is_exempt=self._bounds.is_exempt))

    def charging(self, slots: Sequence[Any]) -> AbstractContextManager[Account]:
        """A call that begins, charged to an account of its own."""
        from trt_core.limits import Account, charging  # which programs that are engines never need

        given = self._held + sum(value.nbytes for value in slots[: self._inputs] if isinstance(value, torch.Tensor))
        return charging(Account(self._bounds.limits, given, is_exempt=self._bounds.is_exempt))


Estimate = Callable[[Sequence[Any], Symbols], tuple[float, float]]
"""Bytes and elements that a step uses at most, by the slots that it reads."""

_WIDEST: Final = 16
"""Bytes of an element."""


def _estimate(operator: OpOverload, step: OperatorCall, reads: Sequence[int]) -> Estimate | None:
    """Returns what a step uses at most; None where what it is given and declares does not tell.

    Its result has as many elements as it declares, or it fails; the contracts of reviewed operators and
    `operator_growth` see to it that no more is made than twice that, or some times of what it is given.

    Args:
        operator: What is called.
        step: Its arguments, and what the program declares of its result.
        reads: Slots of its operands.
    """
    result, adds_up = step.result, _adds_up(operator)
    if adds_up is None or depends_on_data(result):
        return None
    if operator.is_view:
        return _nothing
    fixed = elements_told(result, {}) if _is_fixed(result) else None
    work = _work(operator, step) if adds_up else None

    def estimate(slots: Sequence[Any], symbols: Symbols) -> tuple[float, float]:
        given = 0
        for at in reads:
            value = slots[at]
            if isinstance(value, torch.Tensor):
                given += value.numel()
        made = elements_told(result, symbols) if fixed is None else fixed
        assert made is not None
        most = max(1 << 16, 2 * made + 4 * given)  # any operator may make so many
        added, scratch = (0.0, 0.0) if work is None else work(slots, made)
        return _WIDEST * (most + given + scratch), most + given + added

    return estimate


def _work(operator: OpOverload, step: OperatorCall) -> Callable[[Sequence[Any], int], tuple[float, float]]:
    """Returns what counts the elements that a call adds up and lays out, from what slots hold and how many it makes."""
    from trt_core.operator_counts import scratch_of, work_of

    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
    first = given.get(names[0])

    def work(slots: Sequence[Any], made: int) -> tuple[float, float]:
        def shape_or_number(index: int) -> Any:
            value = slots[index]
            return tuple(value.shape) if isinstance(value, torch.Tensor) else value

        told = {name: replace_values(value, shape_or_number) for name, value in given.items()}
        operands = {name: value for name, value in told.items() if value is not None}
        scratch = scratch_of(operator, operands, made, slots[first.index]) if type(first) is Value else 0.0
        return work_of(operator, operands, made), scratch

    return work


def _nothing(slots: Sequence[Any], symbols: Symbols) -> tuple[float, float]:
    return 0.0, 0.0


@functools.cache
def _adds_up(operator: OpOverload) -> bool | None:
    """Whether what an operator makes are sums of products or of windows; None where it is not estimated."""
    from trt_core.limits import is_plain  # which programs that are engines never need
    from trt_core.operator_counts import has_depth
    from trt_runtime.program.allowed_operators import needs_trust

    if needs_trust(operator) or not is_plain(operator):
        return None
    return has_depth(operator)


def _is_fixed(kind: ValueType | None) -> bool:
    """Whether all extents are numbers."""
    if isinstance(kind, SequenceType):
        return all(map(_is_fixed, kind.items))
    return not isinstance(kind, TensorType) or all(isinstance(extent, int) for extent in kind.shape)


def _depends_on_data(step: Step, program: Program) -> bool:
    """Whether sizes or numbers that a step makes come from data."""
    if isinstance(step, EngineCall):
        return any(None in binding.shape for binding in program.engines[step.engine].header.outputs)
    return isinstance(step, OperatorCall | ControlFlowCall) and depends_on_data(step.result)


def _operator_runs(
    program: Program, operators: Sequence[OpOverload], device: torch.device, untold: int
) -> Iterator[Run]:
    """The steps that call operators, in order."""
    if not operators:
        return

    is_settled = program.is_static  # then sizes were compared when the program was loaded
    for operator, step in zip(operators, operator_calls(program.steps), strict=True):
        yield operator_run(operator, step, device, is_settled, untold)


def _run_of(step: Step, engines: Sequence[Engine], calls: Iterator[Run]) -> Run:
    if isinstance(step, OperatorCall):
        return next(calls)
    if isinstance(step, ControlFlowCall):
        return control_flow_run(step, [_body_run(body, calls) for body in step.bodies])
    if isinstance(step, EngineCall):
        return _engine_run(engines[step.engine], step.inputs)
    if isinstance(step, NumberCall):
        return _number_run(step)
    if isinstance(step, SizeCall):
        tensor, axis = step.tensor, step.axis
        return lambda slots, symbols: slots[tensor].shape[axis]
    if isinstance(step, ItemCall):
        sequence, index = step.sequence, step.index
        return lambda slots, symbols: slots[sequence][index]
    assert isinstance(step, WriteCall)
    return _write_run(step)


def _engine_run(engine: Engine, inputs: tuple[int, ...]) -> Run:
    if len(inputs) == 1:
        (only,) = inputs
        return lambda slots, symbols: engine(slots[only])
    return lambda slots, symbols: engine(*[slots[index] for index in inputs])


def _number_run(step: NumberCall) -> Run:
    function, args = bounded(step.function), step.args
    return lambda slots, symbols: function(*[slots[arg.index] if type(arg) is Value else arg for arg in args])


def _write_run(step: WriteCall) -> Run:
    target, source = step.target, step.source

    def run(slots: list[Any], symbols: Symbols) -> None:
        written, value = slots[target], slots[source]
        if value.shape != written.shape:
            raise ExecutionError(
                f"the program writes a tensor of shape {tuple(value.shape)} into one of {tuple(written.shape)}"
            )
        written.copy_(value)

    return run


def _picker(tree: Any) -> Callable[[list[Any]], Any]:
    """Returns what builds the output from the slots."""
    if type(tree) is Value:
        index = tree.index
        return lambda slots: slots[index]
    if type(tree) is tuple and all(type(item) is Value for item in tree):
        indices = [item.index for item in tree]
        return lambda slots: tuple([slots[index] for index in indices])
    return lambda slots: replace_values(tree, slots.__getitem__)


# Slots -------------------------------------------------------------------------------------------------------------


def _title(step: Step, engines: Sequence[StoredEngine]) -> str:
    if isinstance(step, EngineCall):
        return engines[step.engine].header.title
    if isinstance(step, ControlFlowCall):
        return f"the operator {step.operator}"
    if isinstance(step, OperatorCall):
        return f"the operator {step.name}.{step.overload or 'default'}"
    if isinstance(step, NumberCall):
        return f"the function {step.function!r} of numbers"
    return {SizeCall: "reading a size", ItemCall: "taking a result", WriteCall: "writing back"}[type(step)]


OperatorRun = Callable[[list[Any], Symbols], Any]
"""Reads slots, and returns the result."""


def operator_run(
    operator: OpOverload, step: OperatorCall, device: torch.device, is_settled: bool, untold: int
) -> OperatorRun:
    """Returns what runs a step that calls an operator.

    Args:
        operator: The operator.
        step: The step.
        device: What `"cuda"` among the arguments means.
        is_settled: Whether all sizes were compared when the program was loaded.
        untold: Elements that the operator may make where how many depends on data.
    """
    from trt_core.operator_counts import can_grow  # which programs that are engines never need, and the checks neither
    from trt_runtime.program.allowed_operators import integers_read
    from trt_runtime.program.operand_checks import checked

    call = checked(operator, untold)
    bound = None if is_settled or not can_grow(operator) else _bound(operator, step, untold)
    args, kwargs = with_leaves(
        (list(step.args), step.kwargs),  # the program names a kind of device alone
        lambda leaf: device if isinstance(leaf, torch.device) and leaf.type == device.type else leaf,
    )
    title = f"{step.name}.{step.overload or 'default'}"
    check = list_checker(step.result, title) if _makes_list(operator) else result_checker(step.result, title)
    run = _operator_run(call, args, kwargs, bound, check)
    told = integers_read(operator, step.args, step.kwargs)
    if not told:
        return run

    def run_if_few(slots: list[Any], symbols: Symbols) -> Any:
        for index in told:
            number = slots[index]
            if type(number) is int and not -MAX_EXTENT <= number <= MAX_EXTENT:
                raise ExecutionError(f"{title} is given the number {number}, more than any tensor has elements")
        return run(slots, symbols)

    return run_if_few


def _operator_run(
    call: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    bound: Callable[[Sequence[Any], Mapping[str, Any], Symbols], None] | None,
    check: CheckResult,
) -> OperatorRun:
    """What calls an operator with what slots hold, after `bound` and before `check` have looked."""
    if not kwargs and all(type(value) is Value or not values_in(value) for value in args):
        places = [(place, value.index) for place, value in enumerate(args) if type(value) is Value]

        def run(slots: list[Any], symbols: Symbols) -> Any:
            given = args.copy()
            for place, index in places:
                given[place] = slots[index]
            if bound is not None:
                bound(given, kwargs, symbols)
            result = call(*given)
            check(result, symbols)
            return result

        return run

    def run_nested(slots: list[Any], symbols: Symbols) -> Any:
        given, named = (replace_values(tree, slots.__getitem__) for tree in (args, kwargs))
        if bound is not None:
            bound(given, named, symbols)
        result = call(*given, **named)
        check(result, symbols)
        return result

    return run_nested


def _bound(
    operator: OpOverload, step: OperatorCall, untold: int
) -> Callable[[Sequence[Any], Mapping[str, Any], Symbols], None]:
    """Returns what refuses a call that would make far more than the program says, or than is there."""
    from trt_core.operator_counts import elements_in, elements_made, operands_of
    from trt_runtime.program.operator_growth import how_to_allow, most_elements

    def check(args: Sequence[Any], kwargs: Mapping[str, Any], symbols: Symbols) -> None:
        operands = operands_of(operator, args, kwargs)
        if torch.compiler.is_compiling() or any(isinstance(leaf, torch.SymInt) for leaf in leaves(operands)):
            return  # whoever traces has no numbers
        made = elements_made(operator, operands)
        told = None if made is None else elements_told(step.result, symbols)
        if made is not None and not made <= most_elements(told, operands, untold):
            raise ExecutionError(
                f"{step.name}.{step.overload or 'default'} would make {made:.0f} elements",
                why=f"the program declares {step.result}, and its operands have {elements_in(operands)}",
                hint="" if told is not None else how_to_allow(made),
            )

    return check


def _makes_list(operator: OpOverload) -> bool:
    """Whether an operator makes one list of tensors: splits do."""
    returns = operator._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


# Branches and loops ------------------------------------------------------------------------------------------------

BodyRun = Callable[[Sequence[Any], Symbols], list[Any]]
"""Runs a body on what it is given."""


def _body_run(body: Body, calls: Iterator[Run]) -> BodyRun:
    steps = _Steps(body.steps, len(body.inputs), list(body.output), (), (), calls)
    checks = [result_checker(kind, f"what gives a body its input {number}") for number, kind in enumerate(body.inputs)]
    room = [None] * len(body.steps)
    unwatched = _unwatched_steps(body)
    from trt_core.limits import open_account  # which other programs need only where nobody trusts them

    def run(given: Sequence[Any], symbols: Symbols) -> list[Any]:
        account = open_account()
        if account is not None:
            account.run_steps(unwatched, "a branch or a loop")
        for check, value in zip(checks, given, strict=True):
            check(value, symbols)
        made: list[Any] = steps.run([*given, *room], symbols)
        return made

    return run


_LEAVES: Final = 8
"""Leaves of an operator's arguments that it is called with in no more time than without."""


def _unwatched_steps(body: Body) -> int:
    """What a body does that no operator does, in as many steps as take the time of an operator at most.

    That are steps of other kinds, what goes in and out, long arguments, and extents of what is declared.
    """
    count = len(body.inputs) + len(leaves(body.output)) + sum(map(_parts_of, body.inputs))
    for step in body.steps:
        if isinstance(step, OperatorCall):
            count += len(leaves([list(step.args), list(step.kwargs.values())])) // _LEAVES + _parts_of(step.result)
        elif isinstance(step, ControlFlowCall):
            count += 1 + len(leaves(step.operands)) + _parts_of(step.result)
        else:
            count += 1 + (len(step.args) // _LEAVES if isinstance(step, NumberCall) else 0)
    return count


def _parts_of(kind: ValueType | None) -> int:
    """Items, and functions of extents, that are computed to compare a result with what is declared."""
    if isinstance(kind, SequenceType):
        return len(kind.items) + sum(map(_parts_of, kind.items))
    return sum(map(functions_in, kind.shape)) if isinstance(kind, TensorType) else 0


def control_flow_run(step: ControlFlowCall, bodies: Sequence[BodyRun]) -> Run:
    """Returns what runs a branch or a loop.

    Args:
        step: The step.
        bodies: What runs each of its bodies.
    """
    kinds = CONTROL_FLOW[step.operator]
    check = result_checker(step.result, step.operator)
    from trt_core.limits import open_account  # as above

    operate = {"cond": _branch, "while_loop": _loop, "map": _over_sequences, "scan": _over_sequences}[step.operator]

    def run(slots: list[Any], symbols: Symbols) -> Any:
        lists: dict[str, list[Any]] = {"carried": [], "sequence": []}
        for kind, operands in zip(kinds, step.operands, strict=True):
            lists[kind] = [slots[value.index] if type(value) is Value else value for value in operands]
        if any(_is_traced(value) for values in lists.values() for value in values):
            raise ExecutionError(
                f"a program with {step.operator} outside of engines cannot be traced",
                why="which way it goes is decided while it runs",
                hint="trace the model that it was compiled from",
            )
        account = open_account()
        charge = None if account is None else functools.partial(account.turn, step.operator)
        result = tuple(operate(step, bodies, lists, symbols, charge))
        check(result, symbols)
        return result

    return run


def _is_traced(value: Any) -> bool:
    return torch.compiler.is_compiling() or isinstance(value, (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool))


Operands = Mapping[str, list[Any]]
"""Lists of operands by what they are, as `CONTROL_FLOW` says."""

Charge = Callable[[], None] | None
"""Counts a turn; None where nothing is counted."""


def _branch(
    step: ControlFlowCall, bodies: Sequence[BodyRun], lists: Operands, symbols: Symbols, charge: Charge
) -> list[Any]:
    (predicate,) = lists["predicate"]
    return bodies[0 if _truth(predicate, step) else 1](lists["same"], symbols)


def _loop(
    step: ControlFlowCall, bodies: Sequence[BodyRun], lists: Operands, symbols: Symbols, charge: Charge
) -> list[Any]:
    goes_on, turn = bodies
    same = lists["same"]
    # a loop without a turn hands out copies, as eager does: writes to a result reach no input
    carried, is_first = lists["carried"], True
    while _truth(goes_on([*carried, *same], symbols)[0], step):
        if charge is not None:
            charge()
        carried, is_first = turn([*carried, *same], symbols), False
    return [value.clone() if is_first and isinstance(value, torch.Tensor) else value for value in carried]


def _over_sequences(
    step: ControlFlowCall, bodies: Sequence[BodyRun], lists: Operands, symbols: Symbols, charge: Charge
) -> list[Any]:
    """`scan` and `map`: a turn for each item of sequences, whose further results are stacked."""
    carried, sequences, same = lists["carried"], lists["sequence"], lists["same"]
    (turn,) = bodies
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1 or 0 in lengths:
        raise ExecutionError(f"{step.operator} takes sequences of one length, with at least one item")
    collected: list[list[Any]] = []
    for index in range(lengths.pop()):
        if charge is not None:
            charge()
        made = turn([*carried, *(sequence[index] for sequence in sequences), *same], symbols)
        carried = made[: len(carried)]
        collected.append(made[len(carried) :])
    return [*carried, *(torch.stack(values) for values in zip(*collected, strict=True))]


def _truth(value: Any, step: ControlFlowCall) -> bool:
    """What decides a branch or a turn.

    Raises:
        ExecutionError: It is not one value.
    """
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise ExecutionError(f"{step.operator} is decided by one value, not by a tensor of shape {tuple(value.shape)}")
    return bool(value)


_NO_SYMBOLS: dict[str, int] = {}
_NOTHING: Final = object()
_PLAIN: Final = nn.Module()
_MOST_MADE_UP: Final = 512 << 20


def _never() -> bool:
    """Whether a program generates text by itself, as pipelines ask: a `TextGenerator` does."""
    return False


class LoadedProgram(nn.Module):
    """A saved program, called like the model that was compiled.

    Its parameters, buffers and engines have the names that they had in the model. It computes no gradients, and it
    stays on the device and in the types that it was compiled for. Copies share engines; pickling it, saving it with
    `torch.save` and sending it to another process go through the program format.

    Args:
        program: What it computes.
        tensors: The tensors that it holds.
        engines: Its engines.
        operators: The operator of each `OperatorCall`, in order.
        device: Where it runs.
        untold: Elements that an operator may make whose result has sizes that depend on data.
        result_types: Classes to make of parts of the result; see `load`.
        bounds: What operators of each call may use; None for all.

    Attributes:
        meta: What whoever saved the program says of it.
        inputs, outputs: What it takes and returns: names, types, sizes and their ranges.
        device: Where it runs.
        dtype, config, generation_config, main_input_name: Those of the model, where it had them; dicts are `Record`s.
            A part of the model of such a name comes first.
    """

    if TYPE_CHECKING:
        inputs: tuple[Spec, ...]
        outputs: tuple[Spec, ...]
        device: torch.device

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Is called like the model that was compiled."""

    def __init__(
        self,
        program: Program,
        tensors: Sequence[torch.Tensor],
        engines: Sequence[TRTModule],
        operators: Sequence[OpOverload],
        device: torch.device,
        untold: int = UNTOLD,
        result_types: Collection[Any] = (),
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__()
        self.meta = {name: text for name, text in program.metadata.items() if name != FACTS}
        self.__facts: ModelFacts | None = None
        self.__result_types = tuple(result_types)
        self.__rebuild: Callable[[Any], Any] | None = None
        if FACTS in program.metadata or self.__result_types:
            from trt_runtime.program.model_facts import ModelFacts, rebuilder  # for programs that say something

            self.__facts = ModelFacts.of(program.metadata)
            self.__rebuild = rebuilder(program.output, self.__facts, self.__result_types)
        self.__untold = untold
        self.__bounds = bounds
        self.__program = program
        self.__operators = tuple(operators)
        self.__engines = tuple(engines)
        self.__place(device)
        self.__needs_symbols = declares_symbols(program)
        self.__held: list[HeldTensor] = []
        written = program.written
        # names of the program come last, when every attribute that they may not hide is there
        pairs = zip(program.tensors, tensors, strict=True)
        for number, (entry, tensor) in enumerate(pairs, program.first_tensor):
            self.__held.append(self.__register(entry, tensor, number in written))
        for stored, engine in zip(program.engines, engines, strict=True):
            owner, name = self.__owner(stored.name)
            owner._modules[name] = engine
        self.__call = self.__new_call()
        self.eval()
        self.__is_complete = True

    def __getattr__(self, name: str) -> Any:
        # no methods and properties, which would refuse models with attributes of these names
        if "_LoadedProgram__is_complete" in self.__dict__ and name[:1] != "_":
            own = name in self._modules or name in self._parameters or name in self._buffers
            found = _NOTHING if own else self._says_of_itself(name)
            if found is not _NOTHING:
                return found
        return super().__getattr__(name)

    def _says_of_itself(self, name: str) -> Any:
        """What the program says of itself under a name."""
        if name == "module":
            return lambda: self  # scripts ask an exported program for its module
        if name == "device":
            return self.__device
        facts = self.__facts
        if name in ("inputs", "outputs"):
            from trt_runtime.program.interface import SizeNames, inputs_of, outputs_of  # for whoever asks
            from trt_runtime.program.model_facts import ModelFacts

            sizes = SizeNames(self.__program.signature, self.__program.symbols, facts or ModelFacts())
            if name == "inputs":
                return inputs_of(self.__program.signature, sizes)
            return outputs_of(self.__program, sizes, self.__device.type)
        if facts is None:
            return _NOTHING
        if name == "can_generate" and "config" in facts.attributes:
            return _never
        if name in facts.attributes:
            from trt_runtime.program.model_facts import as_record

            return as_record(facts.attributes[name])
        return _NOTHING

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Args:
            args: What the model took by position.
            kwargs: What it took by name.

        Returns:
            What the model returned. Results of classes of the model's library are dicts with their parts as attributes
            (tuples, where they were named tuples), or of those classes that `load` was given as `result_types`.

        Raises:
            InputError: An input does not fit; the message names it.
            ExecutionError: A step failed.
        """
        if type(args) is not tuple:  # a stand-in of `torch.fx`, which traces a call with no inputs
            raise InputError(
                "a loaded program cannot be traced symbolically",
                hint="torch.export.export takes it, with example inputs",
            )
        return self.__call(self, args, kwargs)

    def extra_repr(self) -> str:
        """Describes the inputs and the number of steps."""
        inputs = ", ".join(self.__program.signature.names)
        engines, steps = counted(len(self.__program.engines), "engine"), counted(len(self.__program.steps), "step")
        return f"({inputs}), {engines}, {steps} on {self.__device}"

    def _repr_html_(self) -> str:
        from trt_runtime.program.interface import notebook_html  # for whoever asks

        return notebook_html(
            f"LoadedProgram{self.extra_repr()}", self._says_of_itself("inputs"), self._says_of_itself("outputs")
        )

    def __compute(self, *flat: Any) -> Any:
        symbols = self.__reader.symbols(flat) if self.__needs_symbols else _NO_SYMBOLS
        return self.__executor.run(flat, [held.tensor() for held in self.__held], symbols)

    def __place(self, device: torch.device) -> None:
        """Prepares the steps for a device."""
        program = self.__program
        self.__device = device
        self.__reader = InputReader.of(program, device)
        # `forward`, since the hooks and the tracing of `__call__` belong to the module that is called
        engines = [engine.forward for engine in self.__engines]
        self.__executor = Executor(program, engines, self.__operators, device, self.__untold, self.__bounds)

    def __new_call(self) -> ModelCall:
        """What calls the program, with tensors and engines where they are now."""
        return ModelCall(
            self.__reader,
            self.__held,
            LoadedProgram.__compute,
            self.__rebuild,
            has_engines=bool(self.__engines),
            has_operators=has_operators(self.__program),
            sole_engine=self.__sole_engine(),
        )

    def __sole_engine(self) -> SoleEngine | None:
        """The engine that is the whole program, and checks inputs as strictly as the program does."""
        found = _sole_call(self.__program)
        if found is None:
            return None
        engine, taken = found
        owner, _, name = self.__program.engines[engine].name.rpartition(".")
        children, rebuild = part_at(self, owner)._modules, self.__rebuild

        def take(made: Sequence[torch.Tensor]) -> Any:
            result = tuple([made[index] for index in taken])
            return result if rebuild is None else rebuild(result)

        return SoleEngine(children, name, take if taken else rebuild)

    def __tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(held.tensor().detach() for held in self.__held)

    def __owner(self, path: str) -> tuple[nn.Module, str]:
        """The module that a dotted name belongs to, made where it is missing, and the last part of the name."""
        *parts, name = path.split(".")
        owner: nn.Module = self
        for part in parts:
            if part not in owner._modules:
                _refuse_taken(owner, part)
                owner._modules[part] = nn.Module()
            owner = owner._modules[part]  # type: ignore[assignment]
        _refuse_taken(owner, name)
        return owner, name

    def __register(self, entry: StoredTensor, tensor: torch.Tensor, is_written: bool) -> HeldTensor:
        """Registers a tensor under its names; returns where it is found at a call."""
        value = nn.Parameter(tensor, requires_grad=False) if entry.is_parameter else tensor
        held = HeldTensor({"": value}, "", "", is_written)
        for path in reversed(entry.names):
            owner, name = self.__owner(path)
            kept: Any = owner._parameters if entry.is_parameter else owner._buffers
            kept[name] = value
            held = HeldTensor.of(owner, name, path, is_written)
        return held

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> LoadedProgram:
        """Moves to another GPU; refuses all else: engines and operators were compiled for a device and for types."""
        target = made_of(torch.empty(0, device=self.__device), fn, "a saved program").device
        if not target.type == self.__device.type == "cuda" or target == self.__device:
            refuse_moves(self, fn, "a saved program", self.__device)
            return self
        before = self.__device
        refuse_moves(self, lambda tensor: fn(tensor).to(tensor.device), "a saved program", before)  # types stay
        for held in self.__held:
            if held.tensor().device == before:
                held.move(target)
        self.__place(target)
        self.__call = self.__new_call()
        return self

    def _takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self.__call.takes(args, kwargs)

    @property
    def _operators(self) -> tuple[OpOverload, ...]:
        return self.__operators

    @property
    def _most_untold(self) -> int:
        return self.__untold

    @property
    def _bounds(self) -> Bounds | None:
        return self.__bounds

    def _captured_program(self) -> CapturedProgram:
        plans = tuple(engine.plan for engine in self.__engines)
        headers = [engine.header for engine in self.__engines]
        engines = tuple(
            replace(stored, header=header) for stored, header in zip(self.__program.engines, headers, strict=True)
        )
        return CapturedProgram(replace(self.__program, engines=engines), self.__tensors(), plans)

    def __with(self, tensors: Sequence[torch.Tensor], engines: Sequence[TRTModule]) -> LoadedProgram:
        return LoadedProgram(
            self.__program,
            tensors,
            engines,
            self.__operators,
            self.__device,
            self.__untold,
            self.__result_types,
            self.__bounds,
        )

    def __copy__(self) -> LoadedProgram:
        return self.__with(self.__tensors(), self.__engines)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedProgram:
        tensors = [copied.detach() for copied in copy.deepcopy([held.tensor() for held in self.__held], memo)]
        twin = self.__with(tensors, [copy.deepcopy(engine, memo) for engine in self.__engines])
        memo[id(self)] = twin
        return twin


def _refuse_taken(owner: nn.Module, name: str) -> None:
    """A name of the model must not hide anything that a module is made of.

    What a program has beyond that (`meta`) may be a name of the model, too, among its parameters, buffers and children.
    """
    taken = any(name in held for held in (owner._modules, owner._parameters, owner._buffers))
    if taken or hasattr(_PLAIN, name) or name.startswith(f"_{LoadedProgram.__name__}__"):
        raise malformed("names", f"{name!r:.80} is an attribute of modules")


def captured_from(loaded: LoadedProgram) -> CapturedProgram:
    """A loaded program with its present tensors and plans, as it is saved."""
    return loaded._captured_program()


def require_room_for_made_up(loaded: LoadedProgram, size: int) -> None:
    """Sees whether inputs are made up that a program asks for: rows that fill a batch, and those of an example.

    Args:
        loaded: The program.
        size: How many bytes they take.

    Raises:
        InputError: They are more than a program asks for that nobody trusts.
    """
    bounds = loaded._bounds
    if bounds is None:
        return
    most = _MOST_MADE_UP if bounds.limits.bytes_alive is None else bounds.limits.bytes_alive
    if size > most and not bounds.is_exempt():
        raise InputError(
            f"the program takes inputs of {size:.4g} bytes or more, which nobody has given",
            why=f"for a program that is not trusted, {most:.0f} bytes are made up at most",
            hint="give the inputs whole, or limits=CallLimits(bytes_alive=...)",
        )


def takes(loaded: LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a program can be called with inputs; nothing runs."""
    return loaded._takes(args, kwargs)


def said_by(loaded: LoadedProgram, name: str) -> Any:
    """What a program says of itself as an attribute, though a part of the model may be called so; None for nothing."""
    found = loaded._says_of_itself(name)
    return None if found is _NOTHING else found


def _sole_call(program: Program) -> tuple[int, list[int]] | None:
    """The engine that is a whole program, and which of its outputs that returns; None for a program of more.

    Where it returns what the engine does, there is nothing to take.
    """
    if not program.steps or program.tensors or not isinstance(program.steps[0], EngineCall):
        return None
    call, *rest = program.steps
    assert isinstance(call, EngineCall)
    leaves, header = program.signature.leaves, program.engines[call.engine].header
    if not leaves or call.inputs != tuple(range(len(leaves))):
        return None
    for leaf, binding, shape in zip(leaves, header.inputs, header.ranges, strict=True):
        if not isinstance(leaf, TensorInput) or leaf.dtype is not binding.dtype or leaf.device != header.device:
            return None
        if any(low < ours.low or high > ours.high for ours, (low, _, high) in zip(leaf.shape, shape, strict=True)):
            return None
    result = program.first_result
    if not rest and program.output == Value(result):
        return call.engine, []
    if not rest or not all(isinstance(step, ItemCall) and step.sequence == result for step in rest):
        return None
    if type(program.output) is not tuple or not all(type(value) is Value for value in program.output):
        return None
    taken = [_item(rest, value.index - result - 1) for value in program.output]
    known = [index for index in taken if index is not None]
    if len(known) < len(taken):
        return None
    return call.engine, [] if known == list(range(len(header.outputs))) else known


def _item(items: Sequence[Step], number: int) -> int | None:
    """Which output of the engine a step takes; None where there is no such step."""
    step = items[number] if 0 <= number < len(items) else None
    return step.index if isinstance(step, ItemCall) else None
