"""Runs of plans that nobody trusts, inside of limits.

The first run with inputs of some sizes is charged to an account, operator by operator. What it makes follows from these
sizes, but for steps that read data; so later runs charge those alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.limits import Account, CallLimits, charging
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.network.loop import TURNS, TURNS_VARIABLE
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.execution.program import Observer

_MOST_SIZES: Final = 256
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
    """

    limits: CallLimits
    is_exempt: Callable[[], bool]
    held: int
    unused_kernels_are_said: bool = False


class BoundedRuns:
    """An executable whose runs stay inside of limits.

    Args:
        program: What runs.
        bounds: What each run may use.

    Attributes:
        program: As given.
    """

    def __init__(self, program: Program, bounds: RunBounds) -> None:
        self.program = program
        self._bounds = bounds
        self._passed: dict[tuple[Any, ...], frozenset[int]] = {}
        self._constants: object = None

    @property
    def constants(self) -> object:
        """See `Executable`."""
        return self.program.constants

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> Sequence[Value]:
        """See `Executable`."""
        sizes = tuple([value.shape if type(value) is torch.Tensor else _numbers(value) for value in values])
        loose = self._passed.get(sizes) if self._constants is self.program.constants else None
        if loose is not None and not loose:
            return self.program.run(values, targets)
        return self._watched(values, sizes, loose)

    def run_observed(self, values: Sequence[Value], observer: Observer) -> list[Value]:
        """As `run`, telling an observer; a run that nobody observes comes first, where it may not stay inside."""
        self.run(values)
        return self.program.run_observed(values, observer)

    def _watched(
        self, values: Sequence[Value], sizes: tuple[Any, ...], watched: Collection[int] | None
    ) -> Sequence[Value]:
        """Runs what is to be watched on an account, all steps or some.

        Raises:
            LayerFailure: A layer refused its operands or failed, or a limit was reached.
        """
        program = self.program
        constants = program.constants
        slots = program.start(values)
        loose: set[int] = set()
        unknown: set[int] = set()
        name = ""
        try:
            with charging(self._account(values)) as account:
                for at, (compute, read, outputs, dying, call) in enumerate(program.steps):
                    name = call.name
                    account.has_seen_data = False
                    with account.watching() if watched is None or at in watched else nullcontext():
                        results = compute(read(slots))
                    depends = call.layer._DATA_DEPENDENT or not unknown.isdisjoint(program.reads[at])
                    if depends or account.has_seen_data:
                        loose.add(at)
                        unknown.update(outputs)
                    for slot, result in zip(outputs, results, strict=False):
                        slots[slot] = result
                    for slot in dying:
                        slots[slot] = None
        except Exception as error:
            raise LayerFailure(name, error) from error
        if watched is None:
            self._remember(sizes, frozenset(loose), constants)
        return [slots[slot] for slot in program.output_slots]  # type: ignore[misc]

    def _remember(self, sizes: tuple[Any, ...], loose: frozenset[int], constants: object) -> None:
        if constants is not self._constants or len(self._passed) >= _MOST_SIZES:
            self._passed = {}  # other constants may mean other sizes
            self._constants = constants
        self._passed[sizes] = loose

    def _account(self, values: Sequence[Value]) -> Account:
        bounds = self._bounds
        given = bounds.held + sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
        turns = min(bounds.limits.loop_turns, int(os.environ.get(TURNS_VARIABLE, TURNS)))
        limits = replace(bounds.limits, loop_turns=turns)
        return Account(limits, given, is_exempt=bounds.is_exempt, hint=_HINT)


def _numbers(value: Value) -> Any:
    return (value.shape, *value.numbers()) if isinstance(value, HostValues) else value.shape
