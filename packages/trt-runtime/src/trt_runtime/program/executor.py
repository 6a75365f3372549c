"""Runs the steps of a program over numbered slots; a slot is freed after the step that reads it last."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trt_core.errors import ExecutionError, TrtError
from trt_core.internals import OpOverload
from trt_core.sizes.functions import bounded
from trt_runtime.program.declared_results import Symbols
from trt_runtime.program.graph import (
    EngineCall,
    ItemCall,
    NumberCall,
    OperatorCall,
    Program,
    SizeCall,
    Step,
    Value,
    WriteCall,
)
from trt_runtime.program.literals import replace_values, values_in

Run = Callable[[list[Any], Symbols], Any]
"""One step: reads slots, returns what goes to its own."""

Engine = Callable[..., Any]
"""Runs an engine on tensors and returns its output or the tuple of them."""


class Executor:
    """A program that is ready to run. Any number of threads may run it at once.

    Args:
        program: The steps.
        engines: What runs each engine.
        operators: The operator of each `OperatorCall`, in order.
        device: What `"cuda"` among the arguments of operators means.
        untold: Elements that an operator may make whose result has sizes that depend on data.
    """

    def __init__(
        self,
        program: Program,
        engines: Sequence[Engine],
        operators: Sequence[OpOverload],
        device: torch.device,
        untold: int,
    ) -> None:
        self._first_result = program.first_result
        calls = _operator_runs(program, operators, device, untold)
        runs = [next(calls) if isinstance(step, OperatorCall) else _run_of(step, engines) for step in program.steps]
        dying = _deaths(program)
        self._steps = [(run, self._first_result + index, dying.get(index, ())) for index, run in enumerate(runs)]
        self._output = _picker(program.output)
        self._computes_gradients = any(not isinstance(step, EngineCall | ItemCall | SizeCall) for step in program.steps)
        self._named = [_title(step, program) for step in program.steps]

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
        slots.extend(itertools.repeat(None, len(self._steps)))
        if self._computes_gradients and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            with torch.no_grad():
                return self._run(slots, symbols)
        return self._run(slots, symbols)

    def _run(self, slots: list[Any], symbols: Symbols) -> Any:
        at = self._first_result
        try:
            for run, at, dying in self._steps:
                slots[at] = run(slots, symbols)
                for dead in dying:
                    slots[dead] = None
            return self._output(slots)
        except TrtError:
            raise
        except Exception as error:  # whatever an operator raises
            raise ExecutionError(
                f"{self._named[at - self._first_result]} failed",
                why=f"{type(error).__name__}: {error}",
            ) from error


def _operator_runs(
    program: Program, operators: Sequence[OpOverload], device: torch.device, untold: int
) -> Iterator[Run]:
    """The steps that call operators, in order."""
    if not operators:
        return
    from trt_runtime.program.operator_runs import operator_run  # few programs need all that is looked at

    steps = (step for step in program.steps if isinstance(step, OperatorCall))
    is_settled = program.is_static  # then sizes were compared when the program was loaded
    for operator, step in zip(operators, steps, strict=True):
        yield operator_run(operator, step, device, is_settled, untold)


def _run_of(step: Step, engines: Sequence[Engine]) -> Run:
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


def values_read(step: Step) -> list[int]:
    """Numbers of the values that a step reads."""
    if isinstance(step, EngineCall):
        return list(step.inputs)
    if isinstance(step, OperatorCall):
        return values_in([list(step.args), list(step.kwargs.values())])
    if isinstance(step, NumberCall):
        return values_in(list(step.args))
    if isinstance(step, SizeCall):
        return [step.tensor]
    if isinstance(step, ItemCall):
        return [step.sequence]
    return [step.target, step.source]


def _deaths(program: Program) -> dict[int, tuple[int, ...]]:
    """Slots of results that die with each step: read there last, or made there and never read."""
    first = program.first_result
    last: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        last[first + index] = index
        for value in values_read(step):
            if value >= first:
                last[value] = index
    deaths: dict[int, list[int]] = {}
    for value in set(last) - set(values_in(program.output)):
        deaths.setdefault(last[value], []).append(value)
    return {index: tuple(sorted(values)) for index, values in deaths.items()}


def _title(step: Step, program: Program) -> str:
    if isinstance(step, EngineCall):
        return program.engines[step.engine].header.title
    if isinstance(step, OperatorCall):
        return f"the operator {step.name}.{step.overload or 'default'}"
    if isinstance(step, NumberCall):
        return f"the function {step.function!r} of numbers"
    return {SizeCall: "reading a size", ItemCall: "taking a result", WriteCall: "writing back"}[type(step)]
