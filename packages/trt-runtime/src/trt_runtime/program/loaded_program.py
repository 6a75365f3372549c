"""A loaded program as a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core.attributes import part_at
from trt_core.errors import InputError
from trt_core.internals import OpOverload
from trt_runtime.module import TRTModule
from trt_runtime.plan_notes import Bounds
from trt_runtime.program.executor import Executor, declares_symbols, has_operators
from trt_runtime.program.fields import FACTS, UNTOLD, malformed
from trt_runtime.program.graph import (
    CapturedProgram,
    EngineCall,
    ItemCall,
    Program,
    Step,
    StoredTensor,
    TensorInput,
    Value,
)
from trt_runtime.program.input_memory import HeldTensor
from trt_runtime.program.input_reader import InputReader
from trt_runtime.program.model_call import ModelCall, SoleEngine, refuse_moves

if TYPE_CHECKING:
    from trt_runtime.program.interface import Spec
    from trt_runtime.program.model_facts import ModelFacts

_NO_SYMBOLS: dict[str, int] = {}
_NOTHING: Final = object()
_PLAIN: Final = nn.Module()


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
            found = _NOTHING if own else self.__said(name)
            if found is not _NOTHING:
                return found
        return super().__getattr__(name)

    def __said(self, name: str) -> Any:
        """What the program says of itself under a name."""
        if name == "module":
            return lambda: self  # scripts ask an exported program for its module
        if name == "device":
            return self.__device
        facts = self.__facts
        if name in ("inputs", "outputs"):
            from trt_runtime.program.interface import SizeNames, inputs_of, outputs_of  # for whoever asks

            named = {} if facts is None else facts.dimensions
            sizes = SizeNames(self.__program.signature, self.__program.symbols, named)
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
            What the model returned. Results of classes of the model's library are dicts with their parts as attributes,
            or of those classes that `load` was given as `result_types`.

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
        return (
            f"({inputs}), {len(self.__program.engines)} engines, {len(self.__program.steps)} steps on {self.__device}"
        )

    def _repr_html_(self) -> str:
        from trt_runtime.program.interface import notebook_html  # for whoever asks

        return notebook_html(f"LoadedProgram{self.extra_repr()}", self.__said("inputs"), self.__said("outputs"))

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
        target = fn(torch.empty(0, device=self.__device)).device
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


def operators_of(loaded: LoadedProgram) -> tuple[OpOverload, ...]:
    """The operator of each `OperatorCall` of a program, in order."""
    return loaded._operators


def takes(loaded: LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a program can be called with inputs; nothing runs."""
    return loaded._takes(args, kwargs)


def most_untold(loaded: LoadedProgram) -> int:
    """Elements that its operators may make where that depends on data."""
    return loaded._most_untold


def bounds_of_calls(loaded: LoadedProgram) -> Bounds | None:
    """What operators of each call may use; None for all."""
    return loaded._bounds


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
