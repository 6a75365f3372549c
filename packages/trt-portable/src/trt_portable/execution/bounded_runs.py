"""Runs of plans that nobody trusts, inside of limits.

The first run with inputs of some sizes is charged to an account, operator by operator. What it makes follows from these
sizes, but for steps that read data; so later runs charge those alone. Engines of the same structure make as much, such
as those of equal layers of a model: one of them is charged like this, and the others with what it used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from trt_core.cached_property import cached_property
from trt_core.errors import InputError
from trt_core.files.typed import digits
from trt_core.limits import Account, CallLimits, Usage, charging, open_account
from trt_core.remembered import Remembered
from trt_portable.enums import LayerType
from trt_portable.errors import Refusal
from trt_portable.execution.program import LayerCall, LayerFailure, Observer, Program, Step
from trt_portable.layers.collective import IDistCollectiveLayer
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.layers.contracts import Contract
    from trt_portable.network.layer import ILayer


TURNS_VARIABLE: Final = "TRT_PORTABLE_MAX_LOOP_TURNS"
TURNS: Final = 1 << 20
"""What holds where the environment says nothing, and nothing else is counted."""


def told_number(variable: str) -> int | None:
    """Returns what the environment says; None if it says nothing.

    Raises:
        InputError: That is no number from 0.
    """
    said = os.environ.get(variable, "").strip()
    if not said:
        return None
    number = digits(said)
    if number is None:
        raise InputError(f"{variable}={said!r:.60} is no number from 0", hint="write a whole number, or unset it")
    return number


_HINT: Final = (
    "if you trust whoever built the plan, give it more: Runtime.call_limits = CallLimits({field}=...), None for all, "
    "limits= of what loads it; of loops, " + TURNS_VARIABLE + " says how many turns they may take"
)


@dataclass(frozen=True)
class RunBounds:
    """What runs of an engine may use.

    Attributes:
        limits: Of each run.
        is_exempt: Asked once a limit is reached: whether the plan turns out to be trusted.
        held: Bytes of the plan.
        unused_kernels_are_said: Whether the user knows that compiled kernels of the plan are not used.
        may_reach: Asked of the ranks of each collective: whether the plan may talk to them.
    """

    limits: CallLimits
    is_exempt: Callable[[], bool]
    held: int
    unused_kernels_are_said: bool = False
    may_reach: Callable[[frozenset[int]], bool] = lambda ranks: True

    def require_reachable(self, layers: Iterable[ILayer]) -> None:
        """Sees whether a plan may talk to the ranks that its collectives name.

        Raises:
            Refusal: It may not.
        """
        for layer in layers:
            if layer._KIND is not LayerType.DIST_COLLECTIVE:
                continue
            assert isinstance(layer, IDistCollectiveLayer)
            if not self.may_reach(frozenset(layer.members)):
                raise Refusal(
                    f"layer {layer.name!r} talks to the ranks {list(layer.members)[:9]}, which nobody gave it; "
                    "it is not trusted: load the folder that save_sharded wrote, name the library of collectives "
                    "(operators=['_c10d_functional']), or trust whoever wrote it"
                )


class BoundedRuns:
    """An executable whose runs stay inside of limits.

    Args:
        program: What runs.
        bounds: What each run may use.
        likeness: What is equal for programs that differ in nothing but names and the values of their weights. None
            where nothing is said: what others used is then not looked at.

    Attributes:
        program: As given.
    """

    def __init__(self, program: Program, bounds: RunBounds, likeness: Hashable = None) -> None:
        self.program = program
        self._bounds = bounds
        self._is_timed = bounds.limits.is_timed
        self._passed: Remembered[tuple[Any, ...], _Passed] = Remembered()
        self._constants: object = None
        self._likeness = likeness

    @cached_property
    def _contracts(self) -> list[Contract | None]:
        """What is known of each step, of use where no program of the same structure ran before."""
        return contracts_of(self.program)

    @property
    def constants(self) -> object:
        """See `Executable`."""
        return self.program.constants

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> Sequence[Value]:
        """See `Executable`."""
        sizes, passed = self._known(values)
        if passed is not None and not passed.loose and not self._is_timed:
            return self.program.run(values, targets)
        return self._watched(values, sizes, passed)

    def run_observed(self, values: Sequence[Value], observer: Observer) -> list[Value]:
        """As `run`, telling an observer. Layers may write to inputs, so there is no other run to try it first."""
        sizes, passed = self._known(values)
        if passed is not None and not passed.loose and not self._is_timed:
            return self.program.run_observed(values, observer)
        return self._watched(values, sizes, passed, observer)

    def _known(self, values: Sequence[Value]) -> tuple[tuple[Any, ...], _Passed | None]:
        """What decides about sizes, and what is known of runs with these, which the call around this one is charged.

        It is nothing where the call has no room for as much, which is then found out operator by operator.
        """
        sizes = tuple([value.shape if type(value) is torch.Tensor else _numbers(value) for value in values])
        constants = self.program.constants
        passed = self._passed.get(sizes) if self._constants is constants else None
        call = open_account()
        if call is None:
            return sizes, passed
        found = passed
        if passed is None and self._likeness is not None:
            found = _of_all.get(self._alike(sizes, constants))
        if found is None or not call.use_again(found.used):
            return sizes, None
        if passed is None:
            self._remember(sizes, found, constants)
        return sizes, found

    def _alike(self, sizes: tuple[Any, ...], constants: Sequence[Value | None]) -> tuple[Any, ...]:
        """What is equal for all runs that use as much: the structure, and numbers that sizes may follow from."""
        numbers = [_numbers(value) for value in constants if type(value) is HostValues]
        return (self._likeness, sizes, *numbers)

    def _watched(
        self, values: Sequence[Value], sizes: tuple[Any, ...], passed: _Passed | None, observer: Observer | None = None
    ) -> list[Value]:
        """Runs what is to be watched on an account, all steps or those that depend on data.

        Raises:
            LayerFailure: A layer refused its operands or failed, or a limit was reached.
        """
        program = self.program
        constants = program.constants
        is_part = open_account() is not None
        limits, watched = (self._bounds.limits, None) if passed is None else (passed.limits, passed.loose)
        with charging(self._account(values, limits)) as account:
            watcher = _Watcher(program, self._contracts, account, watched, observer)
            results = watcher.run(values)
            account.lay_out(results, "an output")  # a view makes nothing, and is written whole
            account.has_loose_parts = bool(watcher.loose)
        if passed is None:
            found = _Passed(frozenset(watcher.loose), account.limits, account.used)
            self._remember(sizes, found, constants)
            # what has no contract may make as much as weights say
            if self._likeness is not None and is_part and not found.loose and None not in self._contracts:
                _of_all[self._alike(sizes, constants)] = found
        return results

    def _remember(self, sizes: tuple[Any, ...], passed: _Passed, constants: object) -> None:
        """Keeps what later runs with inputs of these sizes use, and what they are watched for."""
        if constants is not self._constants:
            self._passed = Remembered()  # other constants may mean other sizes
            self._constants = constants
        self._passed[sizes] = passed

    def _account(self, values: Sequence[Value], limits: CallLimits) -> Account:
        bounds, given = self._bounds, 0
        turns = told_number(TURNS_VARIABLE) if None in self._contracts else None
        if open_account() is None:
            given = bounds.held + sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
        if turns is not None:
            limits = replace(limits, loop_turns=turns if limits.loop_turns is None else min(turns, limits.loop_turns))
        return Account(limits, given, is_exempt=bounds.is_exempt, hint=_HINT)


class _Passed(NamedTuple):
    """What is known of runs with inputs of some sizes.

    Attributes:
        loose: Steps that are watched in each run, since what they make depends on data.
        limits: Those of the first run; where that was a part of a call, those of the call.
        used: What the first run used.
    """

    loose: frozenset[int]
    limits: CallLimits
    used: Usage


_of_all: Final[Remembered[tuple[Any, ...], _Passed]] = Remembered(1 << 10)
"""What is known of programs that are parts of calls, by likeness and sizes."""


class _Watcher:
    """Charges the steps of a run, and finds those that depend on data.

    Args:
        program: What runs.
        contracts: What is known of each of its steps.
        account: What is charged.
        watched: The steps that are charged; None for all.
        observer: Who else watches; what it does is not charged.

    Attributes:
        loose: The steps whose results, or their sizes, depend on data.
    """

    def __init__(
        self,
        program: Program,
        contracts: Sequence[Contract | None],
        account: Account,
        watched: Collection[int] | None,
        observer: Observer | None,
    ) -> None:
        self.loose: set[int] = set()
        self._observer = observer
        self._program = program
        self._account = account
        self._watched = watched
        self._contracts = contracts

    def run(self, values: Sequence[Value]) -> list[Value]:
        """Runs the program; see `Program.run_observed`."""
        with self._program.running_steps() as steps:
            return self._walk(values, steps)

    def _walk(self, values: Sequence[Value], steps: Sequence[Step]) -> list[Value]:
        program, account, observer, watched = self._program, self._account, self._observer, self._watched
        contracts, reads = self._contracts, program.reads
        is_timed, is_told = account.is_timed, observer is not None
        slots = program.start(values)
        given = slots.copy()
        unknown: set[int] = set()
        account.has_seen_data = False
        # steps take their bounds of the account's room here: asking it for each takes as long as all else
        most_bytes, most_elements, most_steps = account.room()
        took_bytes = took_elements = took_steps = made_so_far = 0.0
        for at, (compute, read, outputs, dying, call) in enumerate(steps):
            is_watched = watched is None or at in watched
            contract = contracts[at] if is_watched else None
            try:
                operands = read(slots)
                if is_told:
                    observer.before(call, operands)  # type: ignore[union-attr]  # there is one
                if is_timed:
                    account.look_at_clock(call.name)
                is_assumed = False
                if contract is not None:
                    try:
                        bound = contract(operands)
                    except Exception:  # operands that no layer takes: it will say so itself
                        bound = None
                    if bound is not None:
                        size, elements = bound
                        size += took_bytes
                        elements += took_elements
                        if size <= most_bytes and elements <= most_elements and took_steps < most_steps:
                            took_bytes, took_elements = size, elements
                            took_steps += 1
                            is_assumed = True
                if is_assumed or not is_watched:
                    results = compute(operands)
                    if not is_watched:
                        took_bytes += sum([made.nbytes for made in results if type(made) is torch.Tensor])
                else:
                    account.took(took_bytes, took_elements, took_steps, made_so_far)
                    account.settle([value for value, before in zip(slots, given, strict=True) if value is not before])
                    with account.watching():
                        results = compute(operands)
                    most_bytes, most_elements, most_steps = account.room()
                    took_bytes = took_elements = took_steps = made_so_far = 0.0
            except Exception as error:
                raise LayerFailure(call.name, error) from error
            try:
                for slot, made in zip(outputs, results, strict=True):
                    slots[slot] = made
                    if is_assumed and type(made) is torch.Tensor:
                        made_so_far += made.nbytes
            except ValueError as error:
                wrong = ValueError(f"it makes {len(results)} results, and has {len(outputs)}")
                raise LayerFailure(call.name, wrong) from error
            if call.layer._DATA_DEPENDENT or account.has_seen_data or (unknown and not unknown.isdisjoint(reads[at])):
                account.has_seen_data = False
                self.loose.add(at)
                unknown.update(outputs)
            if is_told:
                observer.after(call, results)  # type: ignore[union-attr]
            for slot in dying:
                slots[slot] = None
        account.took(took_bytes, took_elements, took_steps, made_so_far)
        return [slots[slot] for slot in program.output_slots]  # type: ignore[misc]


def contracts_of(program: Program) -> list[Contract | None]:
    """What is known of each step of a program."""
    return [contract_of(call) for *_, call in program.steps]


def contract_of(call: LayerCall) -> Contract | None:
    """What is known of a call: by its layer, or by what took the place of the layer's own computation."""
    compute: Any = call.compute
    layer = call.layer
    if type(compute) is not MethodType:
        contract: Contract | None = getattr(compute, "contract", None)
        return contract
    return layer._contract if compute.__func__ is type(layer)._compute else None


def _numbers(value: Value) -> Any:
    return (value.shape, *value.numbers()) if isinstance(value, HostValues) else value.shape
