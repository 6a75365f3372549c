"""The tactic `inductor`: the whole program compiled by PyTorch's own compiler, recorded as a list of launches.

Ahead of Inductor itself, `torch.compile` traces a graph once more, for gradients and for operators that write in
place. What layers compute has neither as a rule, and is traced with Inductor's decompositions right away, so such a
graph is handed to Inductor as it is: a fifth to a third of the time of a compilation.

With symbolic sizes it serves those of the profile, less what its compiler assumed, which PyTorch writes down as guards:
one of one size narrows its range where it holds for a part of it; all others are conditions, checked when sizes come.

The graph is what the layers' own definitions do on tensors without data. Extents that an engine leaves open stay
symbolic within the ranges of an optimization profile, so sizes that layers compute from shapes become expressions of
the graph. Weights become its attributes.

Inductor emits a Python module that allocates buffers, starts Triton kernels and calls ATen operators. For fixed shapes
it does the same each time, so one run tells everything: allocations and views through the module's own functions,
kernels through their launchers, operators through PyTorch's dispatch. For shapes that vary, the run is one on tensors
without data, whose sizes are symbols: sizes, grids and arguments are expressions then. The list of launches needs
neither Inductor nor Triton.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import fx, nn
from torch.utils.weak import WeakIdKeyDictionary

from trt_core.internals import FakeTensor, OpOverload, TorchDispatchMode, enable_python_dispatcher, pytree
from trt_core.sizes.conditions import Condition, Relation, all_hold
from trt_core.sizes.functions import relation_name
from trt_core.sizes.grid import MOST_COMBINATIONS, SizeGrid, runs
from trt_core.temporary import undone, with_attributes
from trt_portable.builder.autotune.autotuner import trying_all
from trt_portable.builder.inductor.kernel_indices import sizes_in_indices
from trt_portable.builder.inductor.own_operators import (
    KernelCall,
    OwnOperators,
    are_equal,
    teach_cudnn_operators,
)
from trt_portable.builder.inductor.repetition import (
    CompiledGraph,
    part_biases,
    places_of,
    spelled_out,
    split,
    updates,
    whole,
)
from trt_portable.builder.tactic import Subject, Tactic
from trt_portable.enums import LayerType
from trt_portable.errors import PortableError
from trt_portable.execution.launch_list import EXTENT
from trt_portable.execution.loaded_network import FLAT, LoadedNetwork, WeightLayout, load_network, plain_layout
from trt_portable.execution.program import Program
from trt_portable.fusion.cuda_products import is_compiled_depthwise
from trt_portable.fusion.programs import interpreted_program, traced_program
from trt_portable.kernels.device_kernels import POINTER
from trt_portable.layers.collective import OPERATOR
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.low_precision import PreparedKernelLayer, PreparedMatrixLayer
from trt_portable.plan.artifact import Artifact, Varying, machine_of
from trt_portable.plan.engine_info import EngineInfo, IOTensor, Shape, WeightSlot, is_host_constant
from trt_portable.plan.extents import expression_of, sizes_by_symbol
from trt_portable.plan.tables import EXTENT_SYMBOL
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import HOST_LIMIT, HostValues, Value, as_tensor, usual_size

if TYPE_CHECKING:
    from trt_core.internals import FakeTensorMode
    from trt_portable.network.layer import ILayer
    from trt_portable.optimization_profile import Profile
    from trt_portable.runtime.cuda_engine import ICudaEngine


_SEARCH_DEPTH: Final = 8
_ALLOCATIONS: Final = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
)
"""An operator in their place would keep the kernel behind it from starting early, and its memory out of the arena."""
_NONE: Final = OwnOperators()


class RecordingFailure(PortableError):
    """Inductor's output does something that a list of launches cannot say."""


class LaunchRecorder(TorchDispatchMode):
    """Writes down what runs under it.

    Args:
        operands: The tensors that a run starts from, in order; they take the first slots.
        own: Operators of our own.
        sizes: Where operands without data have symbolic sizes: input and axis of each symbol.

    Attributes:
        steps: What ran, in the terms of `trt_portable.execution.launch_list`.
        kernels: The kernels that ran.
        blobs: Machine code by name.
        fakes: The mode of operands without data.
    """

    def __init__(
        self,
        operands: Sequence[torch.Tensor],
        own: OwnOperators = _NONE,
        sizes: Mapping[Any, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own
        self._sizes = sizes
        self.fakes = next((operand.fake_mode for operand in operands if isinstance(operand, FakeTensor)), None)
        self._device_type = next((operand.device.type for operand in operands), "cuda")
        self.steps: list[list[Any]] = []
        self.kernels: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self._kernel_at: dict[int, int] = {}
        self._compiled: list[Any] = []
        self._slots: Any = WeakIdKeyDictionary()
        self.num_slots = 0
        for tensor in operands:
            self._new(tensor)

    def _new(self, tensor: torch.Tensor) -> int:
        slot = self._slots[tensor] = self.num_slots
        self.num_slots += 1
        return slot

    def slot(self, tensor: torch.Tensor) -> int:
        """The slot of a tensor that was seen before.

        Raises:
            RecordingFailure: It was not.
        """
        found = self._slots.get(tensor)
        if found is None:
            raise RecordingFailure(f"a tensor of shape {tuple(tensor.shape)} came from nowhere")
        return int(found)

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocates, as the module's own function does."""
        with _unseen(), self.fakes or contextlib.nullcontext():
            made = torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
        self._note_allocation(made)
        return made

    def reinterpret(
        self, base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
    ) -> torch.Tensor:
        """Takes a view, as the module's own function does.

        Raises:
            RecordingFailure: The view is of another type.
        """
        with _unseen():
            view = torch.as_strided(base, shape, strides, base.storage_offset() + offset)
        if view.dtype is not base.dtype:
            raise RecordingFailure("a view of another type")
        source = self.slot(base)
        self.steps.append(
            ["view", self._new(view), source, self._numbers(shape), self._numbers(strides), self._number(offset)]
        )
        return view

    def launch(self, kernel: Any, load: Callable[[], bytes], grid: Sequence[int], arguments: Sequence[Any]) -> None:
        """Notes a launch of a statically launched kernel."""
        if id(kernel) not in self._kernel_at:
            scratch = POINTER * (bool(kernel.has_global_scratch) + bool(kernel.has_profile_scratch))
            types, sizes = kernel.arg_tys + scratch, (kernel.num_warps, kernel.shared)
            self._note_kernel(kernel, load(), kernel.name, types, *sizes, is_early=False)
        self.steps.append(self._launch_of(kernel, grid, arguments))

    def _note_kernel(
        self, key: Any, code: bytes, name: str, types: str, warps: int, shared: int, *, is_early: bool
    ) -> None:
        """Notes machine code that launches start, once for each object that stands for it."""
        blob = f"kernel {len(self.kernels)}"
        self._kernel_at[id(key)] = len(self.kernels)
        self.blobs[blob] = code
        kernel = {"name": name, "blob": blob, "types": types, "warps": warps, "shared_bytes": shared}
        self.kernels.append({**kernel, "early": is_early})

    def _note_allocation(self, made: torch.Tensor) -> None:
        self._new(made)
        self.steps.append(self._allocation_of(made))

    def _allocation_of(self, made: torch.Tensor) -> list[Any]:
        shape, strides = self._numbers(made.shape), self._numbers(made.stride())
        return ["empty", self.slot(made), shape, strides, str(made.dtype).removeprefix("torch.")]

    def _launch_own(self, operator: Any, arguments: Sequence[Any]) -> None:
        """Starts the kernel of an operator, or compiles it where nothing has data, and notes it.

        Raises:
            RecordingFailure: Extents vary, and what kernels of our own start with follows from extents.
        """
        with _unseen():
            if not (self.fakes is None or operator in self._own.of_any_size or all(map(_is_fixed, arguments))):
                raise RecordingFailure("a kernel of our own is started for one shape")
            call = self._own.launched[operator](*arguments)
            compiled = call.start() if self.fakes is None else call.compile()
        self.steps.append(self._launch_of(self._own_kernel(call, compiled), call.grid, call.arguments))

    def _own_kernel(self, call: KernelCall, kernel: Any) -> Any:
        """A kernel of ours as it was compiled, which is noted."""
        if id(kernel) not in self._kernel_at:
            self._compiled.append(kernel)  # alive, so that nothing else gets its id
            code, facts = kernel.asm["cubin"], kernel.metadata
            sizes = facts.num_warps, facts.shared
            self._note_kernel(kernel, code, facts.name, call.types(kernel), *sizes, is_early=facts.launch_pdl)
        return kernel

    def _launch_of(self, kernel: Any, grid: Sequence[int], arguments: Sequence[Any]) -> list[Any]:
        index = self._kernel_at[id(kernel)]
        missing = len(self.kernels[index]["types"]) - len(arguments)
        given = [0 if argument is None else self._encoded(argument) for argument in arguments]
        return ["kernel", index, self._numbers(grid), [*given, *[0] * missing]]

    def _numbers(self, values: Sequence[Any]) -> list[Any]:
        return [self._number(value) for value in values]

    def _number(self, value: Any) -> Any:
        """An integer, or an expression of the sizes of inputs.

        Raises:
            RecordingFailure: It depends on something else.
        """
        if not isinstance(value, torch.SymInt):
            return int(value)
        found = expression_of(value.node.expr, self._sizes or {})
        if found is None:
            raise RecordingFailure(f"{value} is no expression of the sizes of inputs")
        return found if isinstance(found, int) else {EXTENT: found}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._own.launched:
            self._launch_own(func, args)
            return None
        if func in self._own.composed:
            with self:
                return self._own.composed[func](*args)
        if func in _ALLOCATIONS:
            made = func(*args, **kwargs)
            if made.device.type != self._device_type:
                _refuse()
            self._note_allocation(made)
            return made
        found = func(*args, **kwargs) if self.fakes is None else _without_data(func, args, kwargs)
        leaves = pytree.tree_leaves(found)
        if self.fakes is not None and not _does_anything(func, leaves):
            return found
        arguments = [self._encoded(argument) for argument in args]
        if func.name() == OPERATOR:
            kwargs.pop("behind", None)  # the list is in order
        keywords = {key: self._encoded(value) for key, value in kwargs.items()}
        is_made = isinstance(found, torch.Tensor) and self._slots.get(found) is None
        results: list[int | None] = []
        for value in leaves:
            if not isinstance(value, torch.Tensor):
                results.append(None)
                continue
            known = self._slots.get(value)
            results.append(self._new(value) if known is None else int(known))
        step = ["op", func.name(), arguments, keywords, results]
        unplanned = None
        if self.fakes is not None:
            with _unseen():
                unplanned = self._own.unplanned(func, args, kwargs, found)
        if unplanned is not None:
            kernel = self._own_kernel(unplanned, unplanned.compile())
            launch = self._launch_of(kernel, unplanned.grid, unplanned.arguments)
            step = ["late", step, [*([self._allocation_of(found)] if is_made else []), launch]]
        self.steps.append(step)
        return found

    def _encoded(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return {"slot": self.slot(argument)}
        if isinstance(argument, torch.SymInt):
            return self._number(argument)
        if isinstance(argument, (list, tuple)):
            return [self._encoded(part) for part in argument]
        if isinstance(argument, torch.device):
            return {"device": argument.type}
        for kind, of in (("dtype", torch.dtype), ("memory_format", torch.memory_format), ("layout", torch.layout)):
            if isinstance(argument, of):
                return {kind: str(argument).removeprefix("torch.")}
        if argument is None or isinstance(argument, (bool, int, float, str)):
            return argument
        raise RecordingFailure(f"an argument of type {type(argument).__name__}")


def record(
    compiled: CompiledGraph,
    operands: Sequence[torch.Tensor],
    own: OwnOperators = _NONE,
    sizes: Mapping[Any, tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Runs what Inductor made, and returns what it did.

    Args:
        compiled: The compiled graph; ran once already, so that its kernels are tuned.
        operands: Its arguments; without data where their sizes vary.
        own: Operators of our own.
        sizes: Input and axis of each symbolic size then.

    Returns:
        ``steps``, ``kernels``, ``slots``, ``outputs`` of a launch list, and ``blobs``.

    Raises:
        RecordingFailure: A list of launches cannot say it.
    """
    emitted = [_emitted_function(code.current_callable) for code in compiled.codes]
    recorder = LaunchRecorder(operands, own, sizes)
    fresh = {
        "empty_strided_cuda": recorder.empty_strided,
        "reinterpret_tensor": recorder.reinterpret,
        "alloc_from_pool": _refuse,
        "empty_strided_cpu": _refuse,
        "empty_strided_cpu_pinned": _refuse,
        **({} if sizes is None else dict.fromkeys(("assert_size_stride", "assert_alignment"), _pass)),
    }
    with contextlib.ExitStack() as stack:
        launchers: dict[int, Any] = {}  # codes may share kernels
        for function in emitted:
            stack.enter_context(_replaced(function.__globals__, fresh))
            for value in list(function.__globals__.values()):
                launchers.update((id(each.__globals__), each) for each in getattr(value, "launchers", ()))
        for launcher in launchers.values():
            stack.enter_context(_watched(launcher, recorder, starts=sizes is None))
        stack.enter_context(torch.no_grad())
        if recorder.fakes is not None:
            stack.enter_context(recorder.fakes)
        stack.enter_context(recorder)
        outputs = compiled.split.run(emitted, list(operands))
    return {
        "steps": recorder.steps,
        "kernels": recorder.kernels,
        "slots": recorder.num_slots,
        "outputs": [recorder.slot(output) for output in outputs],
        "blobs": recorder.blobs,
    }


def _is_fixed(argument: Any) -> bool:
    """Whether an argument is the same for all sizes, as far as its extents tell."""
    sizes = (*argument.shape, *argument.stride()) if isinstance(argument, torch.Tensor) else (argument,)
    return not any(isinstance(size, torch.SymInt) for size in sizes)


def _without_data(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operator returns of tensors without data, of whose extents nothing is assumed.

    Shape rules in C++ want numbers, and so fix extents that are symbols. They are not asked where the memory of the
    result is given, and Python's take their place where there are any.
    """
    given = [kwargs[argument.name] for argument in func._schema.arguments if argument.is_out]
    if given:
        return given[0] if len(given) == 1 else tuple(given)
    with enable_python_dispatcher():
        return func(*args, **kwargs)


def _does_anything(func: Any, results: Sequence[Any]) -> bool:
    """Whether an operator makes or changes tensors; others tell sizes and places of tensors without data."""
    return func._schema.is_mutable or any(isinstance(value, torch.Tensor) for value in results)


def _refuse(*_: Any, **__: Any) -> Any:
    raise RecordingFailure("memory of a kind that a list of launches does not know")


def _pass(*_: Any, **__: Any) -> None:
    """Nothing is checked: tensors without data lie nowhere."""


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Runs operators that no mode sees."""
    from trt_portable.internals import without_modes

    with without_modes():
        yield


@contextlib.contextmanager
def _replaced(scope: dict[str, Any], fresh: Mapping[str, Any]) -> Iterator[None]:
    """Puts other values behind names of a scope that has them."""
    old = {name: scope[name] for name in fresh if name in scope}
    with undone(lambda: scope.update(old)):
        scope.update({name: fresh[name] for name in old})
        yield


def _watched(launcher: Any, recorder: LaunchRecorder, *, starts: bool) -> contextlib.AbstractContextManager[None]:
    """Tells a recorder of the launches of one Triton kernel, which start it or do not."""
    from trt_portable.internals import triton_cache_dir

    scope = launcher.__globals__
    runner = scope.get("runner")
    kernel: Any = getattr(runner, "__self__", None)
    if runner is None or not hasattr(kernel, "arg_tys"):
        raise RecordingFailure("a kernel that PyTorch does not launch statically")

    def load() -> bytes:
        directory = triton_cache_dir(torch.cuda.current_device())
        return Path(directory, launcher.cache_hash, f"{kernel.name}.cubin").read_bytes()

    def run(grid_x: int, grid_y: int, grid_z: int, stream: int, *arguments: Any) -> None:
        recorder.launch(kernel, load, (grid_x, grid_y, grid_z), arguments)
        if starts:
            runner(grid_x, grid_y, grid_z, stream, *arguments)

    return _replaced(scope, {"runner": run})


def _emitted_function(call: Any) -> Any:
    """The function of the module that Inductor emitted, under whatever is wrapped around it."""
    seen: set[int] = set()
    level = [call]
    for _ in range(_SEARCH_DEPTH):
        following: list[Any] = []
        for candidate in level:
            if id(candidate) in seen or not callable(candidate):
                continue
            seen.add(id(candidate))
            scope = getattr(getattr(candidate, "__func__", candidate), "__globals__", {})
            if "empty_strided_cuda" in scope and "reinterpret_tensor" in scope:
                return candidate if hasattr(candidate, "__globals__") else _Bound(candidate)
            closure = getattr(getattr(candidate, "__func__", candidate), "__closure__", None) or ()
            following += [cell.cell_contents for cell in closure if _is_filled(cell)]
            following += [getattr(candidate, name, None) for name in ("__wrapped__", "current_callable", "func")]
        level = following
    raise RecordingFailure("no function of an emitted module was found")


class _Bound:
    """A bound method, with the globals of its function."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self.__globals__ = method.__func__.__globals__

    def __call__(self, arguments: list[torch.Tensor]) -> Any:
        return self._method(arguments)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


_LEAST_HINT: Final = 2  # PyTorch takes extents of 0 and 1 for constants


class TraceFailure(PortableError):
    """What an engine computes depends on data in a way that no graph can hold."""


@dataclass(frozen=True)
class Parameter:
    """Data that a graph takes: a use of weights, or what a layer prepared of some.

    Attributes:
        tensor: The data; flat where it is weights.
        use: Index of the use of weights; None for what was prepared.
        layout: How the graph takes weights.
        prepared: The id of the tensor that was prepared; None for weights.
    """

    tensor: torch.Tensor
    use: int | None = None
    layout: WeightLayout = FLAT
    prepared: int | None = None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or one like it, as the graph takes it."""
        return tensor if self.use is None else self.layout.of(tensor)

    @property
    def value(self) -> torch.Tensor:
        """The data as the graph takes it."""
        return self.of(self.tensor)

    def to_json(self) -> dict[str, Any]:
        """The operand of a list of launches."""
        return {"prepared": self.prepared} if self.use is None else {"weights": self.use, **self.layout.to_json()}


@dataclass(frozen=True)
class TracedProgram:
    """A program as a graph.

    Attributes:
        graph: Takes the parameters, then the inputs; a shape input as its numbers. Returns a tuple.
        parameters: Data that the graph takes first.
        guards: What the graph assumes of sizes beyond the profile's ranges, in its symbols' names.
    """

    graph: fx.GraphModule
    parameters: tuple[Parameter, ...]
    guards: tuple[str, ...]


def trace_engine(engine: ICudaEngine, profile_index: int = 0, *, dynamic: bool = True) -> fx.GraphModule:
    """Traces an engine's layers into a graph of ATen operators.

    The module takes the engine's inputs in order, tensors on the engine's device, and returns a tuple of
    its outputs. A shape input is passed as its numbers, one ``int`` argument per element. Weights are
    buffers, with the values that the engine has now.

    Args:
        engine: With all of its weights.
        profile_index: The profile whose ranges hold, and whose optimal shapes are used for what is fixed.
        dynamic: Keep the extents that the engine leaves open, and the numbers of shape inputs, symbolic.
            Otherwise the graph is for the optimal shapes alone.

    Returns:
        A module whose ``meta["guards"]`` lists what the graph assumes of sizes beyond the profile's
        ranges, in the names of the graph's symbols; the list is empty when any sizes in range will do.

    Raises:
        TraceFailure: Weights are missing, or layers need data: a conditional whose condition is
            computed, a loop that tests a condition, a plugin.
        IndexError: There is no such profile.
    """
    state = engine._state
    if state.weights.missing:
        raise TraceFailure(f"{len(state.weights.missing)} weights are missing: refit the engine first")
    loaded, layers = load_network(state.structure, state.info, state.device, in_place=False)
    tensors = [state.weights.tensor(index) for index in range(len(state.weights.slots))]
    traced = trace_program(
        loaded, layers, tensors, state.info, device=state.device, profile_index=profile_index, dynamic=dynamic
    )
    module = _with_weights(traced.graph, traced.parameters)
    module.meta["guards"] = list(traced.guards)
    return module


def trace_program(
    loaded: LoadedNetwork,
    layers: Sequence[ILayer],
    tensors: Sequence[torch.Tensor | None],
    info: EngineInfo,
    *,
    device: torch.device,
    profile_index: int = 0,
    dynamic: bool = True,
    make_program: Callable[[LoadedNetwork], Program] = interpreted_program,
    layout: Callable[[ILayer, WeightSlot], WeightLayout] = lambda layer, slot: FLAT,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> TracedProgram:
    """Traces the layers of an image.

    Args:
        loaded: What is computed.
        layers: Its layers, which nothing else runs: tracing binds weights without data to them.
        tensors: A flat tensor on the device for each of the engine's uses of weights.
        info: The engine part of the plan.
        device: Where the layers live.
        profile_index: The profile whose ranges hold, and whose optimal shapes are used for what is fixed.
        dynamic: Keep open extents symbolic; otherwise the graph is for the optimal shapes alone.
        make_program: What the layers are put together to.
        layout: How the graph is to take the weights of a use.
        decompositions: Operators that are recorded as what they consist of.

    Raises:
        TraceFailure: Layers need data.
        IndexError: There is no such profile.
    """
    profile = info.profiles[profile_index]
    inputs = [tensor for tensor in info.io if tensor.is_input]
    weights = _Weights(layers, tensors, info.weight_slots, layout)
    program = make_program(loaded)
    program.load_constants()  # the numbers of shapes stay; data is replaced by what is bound for the trace
    weights.keep_prepared(program)
    with torch.no_grad():
        mode, given = _placeholders(inputs, profile, device, dynamic)
        graph = _record(program, weights, inputs, device, mode, given, decompositions)
    shape_env = mode.shape_env
    guards = () if shape_env is None else tuple(str(guard.expr) for guard in shape_env.guards)
    return TracedProgram(graph, tuple(weights.parameters), guards)


class _Weights:
    """The weights of layers as the parameters of a graph: one for each tensor and layout, and what is prepared of them.

    Args:
        layers: Layers, which get the weights.
        tensors: A flat tensor for each use.
        slots: The uses.
        layout: How the graph is to take the weights of a use.

    Attributes:
        parameters: What the graph takes.
    """

    def __init__(
        self,
        layers: Sequence[ILayer],
        tensors: Sequence[torch.Tensor | None],
        slots: Sequence[WeightSlot],
        layout: Callable[[ILayer, WeightSlot], WeightLayout],
    ) -> None:
        self._layers = layers
        self.parameters: list[Parameter] = []
        self._places: list[tuple[WeightSlot, int]] = []
        at: dict[tuple[int, WeightLayout], int] = {}
        for index, (slot, tensor) in enumerate(zip(slots, tensors, strict=True)):
            assert tensor is not None
            if is_host_constant(slot):
                continue
            key = (id(tensor), layout(layers[slot.layer], slot))
            if key not in at:
                at[key] = len(at)
                self.parameters.append(Parameter(tensor, index, key[1]))
            self._places.append((slot, at[key]))
        WeightStore(slots, layers, tensors)

    def keep_prepared(self, program: Program) -> None:
        """Makes parameters of what a program has prepared of the weights, so that graphs do not do it in every run."""
        layers = {
            tensor: call.layer
            for call in program.calls
            if isinstance(call.layer, (PreparedMatrixLayer, PreparedKernelLayer))
            for tensor in call.outputs
        }
        self.parameters += [
            Parameter(value, prepared=tensor)
            for tensor, value in program.prepared.items()
            if layers[tensor].is_traceable
        ]

    def bind(self, program: Program, given: Sequence[torch.Tensor]) -> None:
        """Gives the layers other tensors in place of the parameters, in their order."""
        for slot, at in self._places:
            layer = self._layers[slot.layer]
            layer._bound = {**layer._bound, slot.role: given[at]}
        prepared = {
            parameter.prepared: tensor
            for parameter, tensor in zip(self.parameters, given, strict=True)
            if parameter.prepared is not None
        }
        program.load_constants([self._layers[index] for index in {slot.layer for slot, _ in self._places}], prepared)


def _placeholders(
    inputs: Sequence[IOTensor], profile: Profile, device: torch.device, dynamic: bool
) -> tuple[FakeTensorMode, list[torch.Tensor | int | torch.SymInt]]:
    """Arguments without data: a tensor per input, or numbers for shape inputs."""
    from trt_core.internals import FakeTensorMode, ShapeEnv

    shape_env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    _with_known_extents.add(shape_env)
    _teach_strides()
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    mode.cache_enabled = mode.cache_enabled and not dynamic  # to know a call by its symbols takes longer than the call
    given: list[Any] = []
    named: dict[str, Any] = {}  # extents of one name are equal
    for tensor in inputs:
        shapes = profile.shapes.get(tensor.name)
        if tensor.is_host:
            values = profile.values[tensor.name]
            ranges = zip(values.min, values.opt, values.max, strict=True)
            given += [_number(shape_env, *numbers, f"{tensor.name}_{at}", dynamic) for at, numbers in enumerate(ranges)]
            continue
        extents: list[Any] = list(tensor.shape)
        for axis, extent in enumerate(extents):
            if extent == -1:
                assert shapes is not None
                limits = (shapes.min[axis], shapes.opt[axis], shapes.max[axis])
                name = tensor.dimension_names[axis] if tensor.dimension_names else ""
                known = named.get(name) if name else None
                extents[axis] = (
                    _number(shape_env, *limits, f"{tensor.name}_{axis}", dynamic) if known is None else known
                )
                named[name] = extents[axis]
        with mode:
            given.append(torch.empty(extents, dtype=tensor.torch_dtype, device=device))
    return mode, given


_with_known_extents: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Environments whose sizes are within the ranges of a profile from the beginning."""


@functools.cache
def _teach_strides() -> None:
    """Lets strides be products of extents alone where these are never 0.

    PyTorch takes the greater of an extent and 1, and sympy does not know that a row that a convolution has shortened is
    no less. Loops over such a tensor are not joined to one then: a pointwise kernel divides for every element, and took
    six times as long.
    """
    from trt_portable.internals import SymNode

    taught: Any = SymNode
    greater = taught.sym_max

    def sym_max(node: Any, other: Any) -> Any:
        if node.shape_env in _with_known_extents:
            for number, extent in ((node, other), (other, node)):
                if number.maybe_as_int() == 1 and node.shape_env.bound_sympy(extent.expr).lower >= 1:
                    return extent
        return greater(node, other)

    taught.sym_max = sym_max


def traced_hint(low: int, opt: int, high: int) -> int:
    """The size that a graph with symbolic sizes is traced at."""
    return opt if low == high else min(max(opt, _LEAST_HINT), high)


def _number(shape_env: Any, low: int, opt: int, high: int, name: str, dynamic: bool) -> Any:
    """A symbolic number within a range; the optimal one where nothing else is allowed."""
    from trt_core.internals import ConstantSource, DimDynamic, ValueRanges

    if not dynamic or low == high:
        return opt
    source = ConstantSource(name)
    hint = traced_hint(low, opt, high)
    symbol = shape_env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
    shape_env.var_to_range[symbol] = ValueRanges(low, high)
    return shape_env.create_symintnode(symbol, hint=hint, source=source)


def _record(
    program: Program,
    weights: _Weights,
    inputs: Sequence[IOTensor],
    device: torch.device,
    mode: FakeTensorMode,
    given: Sequence[Any],
    decompositions: Mapping[Any, Callable[..., Any]] | None,
) -> fx.GraphModule:
    from trt_core.internals import compile_session, make_fx

    def run(parameters: Sequence[torch.Tensor], *arguments: Any) -> tuple[torch.Tensor, ...]:
        weights.bind(program, parameters)
        return tuple(as_tensor(value) for value in program.run(_values(inputs, arguments, device)))

    flat = [mode.from_tensor(parameter.tensor, static_shapes=True) for parameter in weights.parameters]
    try:
        # Python's shape rules know symbolic extents, some of C++ do not
        with compile_session(), mode, enable_python_dispatcher():
            fakes = [parameter.of(fake) for parameter, fake in zip(weights.parameters, flat, strict=True)]
            graph: fx.GraphModule = make_fx(run, dict(decompositions or {}))(fakes, *given)
    except PortableError as error:
        raise TraceFailure(f"the engine cannot be traced: {error}") from error
    return graph


def _values(inputs: Sequence[IOTensor], arguments: Sequence[Any], device: torch.device) -> list[Value]:
    """What a program takes, from the arguments of a traced module."""
    values: list[Value] = []
    at = 0
    for tensor in inputs:
        if not tensor.is_host:
            values.append(arguments[at])
            at += 1
            continue
        count = 1
        for extent in tensor.shape:
            count *= extent
        values.append(HostValues.of(arguments[at : at + count], tensor.shape, tensor.torch_dtype, device))
        at += count
    return values


def _with_weights(traced: fx.GraphModule, parameters: Sequence[Parameter]) -> fx.GraphModule:
    """Makes buffers of the weights that a graph takes first."""
    graph = traced.graph
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    for at, (node, parameter) in enumerate(zip(holders, parameters, strict=False)):
        if node.users:
            traced.register_buffer(f"w{at}", parameter.value)
            with graph.inserting_after(holders[-1]):
                read = graph.get_attr(f"w{at}")
                read.meta = dict(node.meta)
            node.replace_all_uses_with(read)
        graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    last = graph.output_node()
    last.args = (tuple(last.args[0]),)  # type: ignore[arg-type]
    graph.eliminate_dead_code()
    graph.lint()
    traced.recompile()
    return traced


_CONVOLUTIONS: Final = frozenset({LayerType.CONVOLUTION.name, LayerType.DECONVOLUTION.name})
_STEPS: Final = {"CONSTANT": 0, "SHUFFLE": 0, "IDENTITY": 0, "LINEAR": 2, "GATE": 2, "CLAMP": 3}
"""Layers of the network that a layer of the plan stands for, as a rule; 1 for others."""


class Inductor(Tactic):
    """Inductor on a CUDA device, at a profile's optimal shapes.

    Args:
        name: Stands in the plan and in the timing cache.
        least_level: Builder optimization level from which it is tried.
        options: Inductor's settings beyond its defaults.
        is_planar: Whether activations and kernels of convolutions lie as their extents say, and not with channels last.
    """

    LEAST_STEPS: ClassVar[int] = 12
    """Fewer layers gain less from a compiler than they wait for it; replay serves them."""

    def __init__(self, name: str, least_level: int, options: Mapping[str, Any], *, is_planar: bool = False) -> None:
        super().__init__(name, least_level)
        self._options = {**options, "layout_optimization": False} if is_planar else dict(options)
        self._is_planar = is_planar

    def is_candidate(self, subject: Subject) -> bool:
        """Whether the program runs on CUDA, reads no numbers on the host, and is long enough to gain."""
        if subject.device.type != "cuda" or any(t.is_host for t in subject.info.io) or subject.info.debug_tensors:
            return False
        kinds = [layer["type"] for layer in subject.structure["layers"]]
        if self._is_planar and not _CONVOLUTIONS.intersection(kinds):
            return False
        if {"LOW_PRECISION_PRODUCT", "LOW_PRECISION_CONVOLUTION"}.intersection(kinds):
            return True  # quantizing takes many small kernels otherwise, and one if compiled
        return sum(_STEPS.get(kind, 1) for kind in kinds) >= self.LEAST_STEPS

    def begin(self) -> None:
        """Starts the processes that compile kernels: they load PyTorch, which takes seconds."""
        start_workers()

    def build(self, subject: Subject, profile: int) -> Artifact:
        """Compiles, runs once to tune kernels, and records."""
        if self._is_planar:  # the fused convolutions of the other way want channels last
            with torch.no_grad(), torch.cuda.device(subject.device):
                return self._build(subject, profile, interpreted_program, lambda layer, slot: FLAT, OwnOperators())
        teach_cudnn_operators()
        own = _teach_own_operators()
        with torch.no_grad(), torch.cuda.device(subject.device):
            try:
                return self._build(subject, profile, traced_program, fused_layout, own)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:  # cuDNN lacks a fused convolution: what is compiled cannot step back to the layers
                return self._build(subject, profile, interpreted_program, plain_layout, OwnOperators())

    def build_range(self, subject: Subject, profile: int) -> Artifact | None:
        """Compiles with symbolic sizes, tunes at the optimal shapes, and records what runs on tensors without data."""
        allowed = [subject.info.allowed_shape(tensor, profile) for tensor in subject.info.io if tensor.is_input]
        if all(each.min == each.max for each in allowed):
            return None
        with torch.no_grad(), torch.cuda.device(subject.device):
            if self._is_planar:
                return self._build(
                    subject, profile, interpreted_program, lambda layer, slot: FLAT, OwnOperators(), dynamic=True
                )
            teach_cudnn_operators()
            own = _teach_own_operators()
            try:
                return self._build(subject, profile, traced_program, fused_layout, own, dynamic=True)
            except torch.cuda.OutOfMemoryError:
                raise
            except (RuntimeError, RecordingFailure):  # a kernel of our own, or of cuDNN, is for one shape
                own = OwnOperators(unplanned=own.unplanned)
                return self._build(subject, profile, interpreted_program, plain_layout, own, dynamic=True)

    def _build(
        self,
        subject: Subject,
        profile: int,
        make_program: Callable[[LoadedNetwork], Program],
        layout: Callable[[ILayer, WeightSlot], WeightLayout],
        own: OwnOperators,
        *,
        dynamic: bool = False,
    ) -> Artifact:
        loaded, layers = load_network(subject.structure, subject.info, subject.device, in_place=False)
        traced = trace_program(
            loaded,
            layers,
            subject.tensors,
            subject.info,
            device=subject.device,
            profile_index=profile,
            dynamic=dynamic,
            make_program=make_program,
            layout=layout,
            decompositions=decompositions(),
        )
        graph, read = graph_of(traced)
        written = _end_with_updates(graph, loaded, len(read))
        if own.launched and not dynamic:
            _write_decoding_operators(graph, len(read))
        weights = [traced.parameters[at] for at in read]
        limits = [_limits(subject, tensor, profile) for tensor in subject.info.io if tensor.is_input]
        shapes = tuple(limit.usual for limit in limits) if dynamic else subject.input_shapes(profile)
        inputs = [as_tensor(value) for value in subject.example_inputs(profile, shapes)]
        arguments = [*(parameter.value for parameter in weights), *inputs]
        fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        order_collectives(graph)
        ahead = _compile_ahead(graph, own, subject.device, dynamic=dynamic)
        compiled = compile_graph(graph, arguments, self._options)
        ahead.join()
        compiled(list(arguments))
        varying: tuple[Varying, ...] = ()
        conditions: tuple[Condition, ...] = ()
        if dynamic:
            free = fakes[len(weights) :]
            found = record(compiled, fakes, own, places_of(free))
            varying, conditions = served_sizes(free, limits)
        else:
            found = record(compiled, arguments, own)
        _require_order_of_collectives(graph, found["steps"])
        blobs = found.pop("blobs")
        for output, at in written:
            found["outputs"].insert(output, len(weights) + at)
        found["operands"] = [
            *(parameter.to_json() for parameter in weights),
            *({"input": index} for index in range(len(inputs))),
        ]
        return Artifact(self.name, machine_of(subject.device), shapes, found, blobs, varying, conditions)


def _end_with_updates(graph: fx.GraphModule, loaded: LoadedNetwork, first_input: int) -> list[tuple[int, int]]:
    """Lets a graph write to inputs that are updated in place, as its last acts, instead of returning them.

    Inductor makes writes of few rows in place of copies and writes of all.

    Returns:
        The outputs that are returned no longer, and the inputs that they are, by their numbers.
    """
    written = [
        (output, loaded.inputs.index(loaded.updates[tensor]))
        for output, tensor in enumerate(loaded.outputs)
        if tensor in loaded.updates
    ]
    if not written:
        return []
    holders = [node for node in graph.graph.nodes if node.op == "placeholder"][first_input:]
    last = graph.graph.output_node()
    results: Any = last.args[0]
    with graph.graph.inserting_before(last):
        for output, at in written:
            copied = graph.graph.call_function(torch.ops.aten.copy_.default, (holders[at], results[output]))
            copied.meta["val"] = holders[at].meta["val"]
    gone = {output for output, _ in written}
    last.args = (tuple(result for output, result in enumerate(results) if output not in gone),)
    graph.recompile()
    return written


def order_collectives(graph: fx.GraphModule) -> None:
    """Lets each collective of a graph follow from the one before it: ranks start them in the order of the network.

    Those of weights in parts follow from nothing that the graph computes, and Inductor moves what nothing holds.
    """
    last: fx.Node | None = None
    behind: set[fx.Node] = set()  # what follows from the last collective
    for node in graph.graph.nodes:
        if _is_collective(node):
            if last is not None and node not in behind and behind.isdisjoint(node.all_input_nodes):
                node.update_kwarg("behind", last)
            last, behind = node, {node}
        elif not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    graph.recompile()


def _require_order_of_collectives(graph: fx.GraphModule, steps: Sequence[Sequence[Any]]) -> None:
    """Refuses what another rank may not do: all of them start collectives in the order of the network.

    Raises:
        RecordingFailure: Inductor has moved a collective past another one.
    """
    wanted = [node.args[-1] for node in graph.graph.nodes if _is_collective(node)]
    if wanted != [step[2][-1] for step in steps if step[0] == "op" and step[1] == OPERATOR]:
        raise RecordingFailure("collectives in another order")


def _is_collective(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.name() == OPERATOR


def _limits(subject: Subject, tensor: IOTensor, profile: int) -> Limits:
    """What a profile allows an input; a graph with symbolic sizes is tuned at sizes of two at least."""
    allowed = subject.info.allowed_shape(tensor, profile)
    extents = zip(allowed.min, allowed.opt, allowed.max, strict=True)
    return Limits(allowed.min, tuple(traced_hint(*each) for each in extents), allowed.max)


@functools.cache
def _teach_own_operators() -> OwnOperators:
    """Makes operators of our own known to PyTorch, to traces without data, and to Inductor; once per process."""
    from trt_portable.builder.inductor import convolutions, decoding, depthwise, unaligned_products  # where Triton is

    taught = (
        convolutions.teach_grouped_convolutions(),
        depthwise.teach_depthwise_operator(),
        unaligned_products.teach_unaligned_products(),
        decoding.teach_decoding_operators(),
    )
    return OwnOperators(
        {operator: launch for each in taught for operator, launch in each.launched.items()},
        {operator: compute for each in taught for operator, compute in each.composed.items()},
        convolutions.unplanned,
        frozenset().union(*(each.of_any_size for each in taught)),
    )


def _compile_ahead(
    graph: fx.GraphModule, own: OwnOperators, device: torch.device, *, dynamic: bool
) -> threading.Thread:
    """Starts a thread that compiles our own kernels of a graph; whoever runs the graph waits for it.

    Args:
        graph: Calls the operators.
        own: What they are.
        device: Where it will run.
        dynamic: Whether its sizes vary.
    """
    calls = kernels_of(graph, own, dynamic=dynamic)

    def run() -> None:
        for call in calls:
            with contextlib.suppress(Exception), torch.cuda.device(device):
                call.compile()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class _KernelCalls(TorchDispatchMode):
    """Collects the kernels of operators of ours, in place of starting them."""

    def __init__(self, own: OwnOperators) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own
        self.found: list[KernelCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in self._own.launched:
            return func(*args, **(kwargs or {}))
        self.found.append(self._own.launched[func](*args))
        return None


def kernels_of(graph: fx.GraphModule, own: OwnOperators, *, dynamic: bool) -> list[KernelCall]:
    """The kernels of ours that may compute what a graph calls, for each kind of call once.

    Args:
        graph: Of operators, with metadata.
        own: The operators.
        dynamic: Whether its sizes vary.
    """
    calls, seen = _KernelCalls(own), set()
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        given, named = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta.get("val"))
        kind = (node.target, *map(_described, given))
        if kind in seen:
            continue
        seen.add(kind)
        if node.target in own.composed and (node.target in own.of_any_size or all(map(_is_fixed, given))):
            fakes = next(each.fake_mode for each in given if isinstance(each, FakeTensor))
            with contextlib.suppress(Exception), trying_all(), fakes, calls:  # whoever runs it hears of what is wrong
                own.composed[node.target](*given)
        elif dynamic and (found := own.unplanned(node.target, given, named, node.meta.get("val"))) is not None:
            calls.found.append(found)
    return calls.found


def _described(argument: Any) -> str:
    """What decides which kernels take an argument."""
    if isinstance(argument, torch.Tensor):
        return f"{argument.dtype} {tuple(argument.shape)} {argument.stride()}"
    return repr(argument)


def _write_decoding_operators(graph: fx.GraphModule, weights: int) -> None:
    from trt_portable.builder.inductor.decoding import write_decoding_operators

    write_decoding_operators(graph, weights)


def fused_layout(layer: ILayer, slot: WeightSlot) -> WeightLayout:
    """How graphs with kernels of our own take weights."""
    if slot.role == "KERNEL" and isinstance(layer, IConvolutionLayer) and is_compiled_depthwise(layer):
        return WeightLayout.taps_first((layer.num_output_maps, 1, *layer.kernel_size_nd))
    return plain_layout(layer, slot)


def graph_of(traced: TracedProgram) -> tuple[fx.GraphModule, list[int]]:
    """A traced graph without parameters that nothing reads, which takes the rest one by one and returns a tuple.

    What it returns is dense, with the last axis varying fastest, as memory bound to outputs is.

    Returns:
        The graph, and which of the parameters it takes first; inputs follow them.
    """
    graph = traced.graph.graph
    graph.eliminate_dead_code()
    holders = [node for node in graph.nodes if node.op == "placeholder"][: len(traced.parameters)]
    for holder in holders:
        if not holder.users:
            graph.erase_node(holder)
    graph.set_codegen(fx.graph.CodeGen())
    last = graph.output_node()
    with graph.inserting_before(last):
        last.args = (tuple(_dense(graph, node) for node in last.args[0]),)  # type: ignore[arg-type, union-attr]
    write_out_constants(traced.graph, graph)
    graph.lint()
    read = [at for at, holder in enumerate(holders) if not holder._erased]
    return fx.GraphModule(traced.graph, graph), read


def write_out_constants(module: nn.Module, graph: fx.Graph) -> None:
    """Computes constants of a graph that follow from few numbers, in place of reading them.

    A compiler makes them inside of the kernels that use them. A list of launches has no memory for others.

    Args:
        module: Holds the constants.
        graph: Is changed.
    """
    from trt_core.internals import compile_session, make_fx

    for node in graph.find_nodes(op="get_attr"):
        value, fake = getattr(module, node.target), node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not isinstance(fake, FakeTensor) or not value.numel():
            continue
        compute = _in_equal_steps(value) or _in_few_runs(value)
        if compute is None:
            continue
        with compile_session(), fake.fake_mode:
            made = make_fx(compute, dict(decompositions()))()
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.graph_copy(made.graph, {}))
        graph.erase_node(node)


_FITS_INT32: Final = 1 << 31


def _in_equal_steps(value: torch.Tensor) -> Callable[[], torch.Tensor] | None:
    """What computes integers that are in equal steps along each axis, as tables of windows are; None for others."""
    if value.dtype not in (torch.int32, torch.int64):
        return None
    first = int(value.reshape(-1)[0])
    steps = [int(value.diff(dim=axis).reshape(-1)[0]) if extent > 1 else 0 for axis, extent in enumerate(value.shape)]
    if abs(first) + sum(extent * abs(step) for extent, step in zip(value.shape, steps, strict=True)) >= _FITS_INT32:
        return None

    def compute() -> torch.Tensor:
        total = torch.full(value.shape, first, dtype=value.dtype, device=value.device)
        for axis, step in enumerate(steps):
            if step:
                along = torch.arange(value.shape[axis], dtype=value.dtype, device=value.device) * step
                total = total + along.reshape(-1, *[1] * (value.dim() - axis - 1))
        return total

    return compute if torch.equal(compute(), value) else None


def _in_few_runs(value: torch.Tensor) -> Callable[[], torch.Tensor] | None:
    """What computes numbers of which not many neighbours differ; None for others."""
    flat = value.reshape(-1)
    differs = flat[1:] != flat[:-1]
    if value.is_floating_point():
        differs |= flat[1:].signbit() != flat[:-1].signbit()
    ends = (differs.nonzero().reshape(-1) + 1).tolist()
    if len(ends) >= HOST_LIMIT:  # numbers that the host knows are fewer
        return None
    numbers = [flat[end - 1].item() for end in (*ends, len(flat))]

    def compute() -> torch.Tensor:
        places = torch.arange(len(flat), device=value.device)
        made = torch.full((len(flat),), numbers[-1], dtype=value.dtype, device=value.device)
        for end, number in zip(reversed(ends), reversed(numbers[:-1]), strict=True):
            made = torch.where(places < end, number, made)
        return made.reshape(value.shape)

    return compute


def _dense(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A tensor of a graph in dense memory, copied if it lies in another way."""
    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or value.is_contiguous():
        return node
    dense = torch.contiguous_format
    copied = graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": dense})
    with value.fake_mode:
        copied.meta["val"] = value.clone(memory_format=dense)
    return copied


_TENSOR_CORE_BYTES: Final = 16  # rows of matrices that are multiples of it are read by the fastest kernels
_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm")


_UNASKED: Final = dict.fromkeys(
    (
        "coordinate_descent_tuning",
        "coordinate_descent_check_all_directions",
        "force_fuse_int_mm_with_mul",
        "max_autotune",
        "max_autotune_gemm",
        "max_autotune_pointwise",
    ),
    False,
)
"""Settings of the process that libraries change for `torch.compile`, as torchao does whenever it quantizes a model:
builds would take ten times as long. How long a build may take is what the optimization level says."""


class CompilationFailure(PortableError):
    """Inductor made something else than one compiled graph."""


def start_workers() -> None:
    """Starts Inductor's processes for the compilation of kernels, unless they run."""
    from trt_portable.internals import maybe_warm_pool

    maybe_warm_pool()


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What operators consist of for Inductor.

    PyTorch makes a gather by computed indices of a roll, which Inductor cannot reason about. From its parts it makes
    fewer kernels, and on PyTorch 2.11 takes three quarters of the time for a Swin transformer.
    """
    from trt_portable.internals import select_decomp_table

    return {**select_decomp_table(), torch.ops.aten.roll.default: rolled_by_parts}


def rolled_by_parts(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """`torch.roll` as what it does: along each axis, the end comes before the beginning."""
    if not dims:
        return rolled_by_parts(x.flatten(), shifts, (0,)).reshape(x.shape)
    rolled = x
    for shift, axis in zip(shifts, dims, strict=True):
        extent = x.shape[axis]
        end = shift % extent if extent else 0
        if end:
            parts = rolled.narrow(axis, extent - end, end), rolled.narrow(axis, 0, extent - end)
            rolled = torch.cat(parts, axis)
    return x.clone() if rolled is x else rolled


def compile_graph(
    graph: fx.GraphModule, arguments: Sequence[torch.Tensor], options: Mapping[str, Any]
) -> CompiledGraph:
    """Compiles a graph of ATen operators that was traced with `decompositions`, repeated layers once.

    Args:
        graph: Takes tensors one by one and returns a tuple; it is changed.
        arguments: What it takes.
        options: Inductor's settings beyond its defaults.

    Raises:
        CompilationFailure: One graph became several.
    """
    from trt_portable.internals import inductor_config as config

    fixed = {
        "triton.cudagraphs": False,
        "triton.cudagraph_trees": False,
        "graph_partition": False,
        "fx_graph_cache": False,  # plans and timing caches remember what was built
    }
    with torch.no_grad(), config.patch({**_UNASKED, **fixed, **options}):
        if not _is_functional(graph):
            if any(isinstance(extent, torch.SymInt) for node in graph.graph.nodes for extent in _extents(node)):
                raise CompilationFailure("a graph that writes to tensors is compiled for one shape")
            with config.patch(shape_padding=_has_odd_rows(graph)):
                return CompiledGraph(whole(graph), [_compile_any(graph, arguments)])
        _compute_masks_once(graph.graph)
        part_biases(graph)
        pieces = split(graph)
        with _kernels_compiled_together(), sizes_in_indices():
            return CompiledGraph(pieces, [compile_functional(code) for code in pieces.codes])


def _compute_masks_once(graph: fx.Graph) -> None:
    """Computes what is added to scores for one sequence where it is the same for all of a batch.

    Exporters expand masks before biases are added to them, and what came of it was written and read for each sequence.
    """
    from trt_portable.builder.inductor.decoding import ATTENTIONS

    aten = torch.ops.aten
    known: dict[fx.Node, fx.Node | None] = {}
    for target in ATTENTIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            query, bias = node.args[0], node.args[3]
            if not isinstance(bias, fx.Node) or bias.meta["val"].dim() != _RANK or bias.meta["val"].stride(0) == 0:
                continue
            with graph.inserting_before(node), enable_python_dispatcher():  # which sizes to pad by that vary need
                single = _of_one_sequence(graph, bias, known)
                if single is None or single is bias:
                    continue
                if target is aten._scaled_dot_product_efficient_attention.default:  # which takes whole ones
                    single = _called(graph, aten.expand.default, single, [_extent(graph, query, 0), -1, -1, -1])
                node.replace_input_with(bias, single)
    graph.eliminate_dead_code()


_RANK: Final = 4  # of scores: batch, heads, queries, keys


def _of_one_sequence(graph: fx.Graph, node: fx.Node, known: dict[fx.Node, fx.Node | None]) -> fx.Node | None:
    """A tensor along whose first axis all is alike, with an extent of 1 there; None where that may differ."""
    if node not in known:
        with graph.inserting_before(node):
            known[node] = _made_of_one_sequence(graph, node, known)
    return known[node]


def _made_of_one_sequence(graph: fx.Graph, node: fx.Node, known: dict[fx.Node, fx.Node | None]) -> fx.Node | None:
    shape, target = node.meta["val"].shape, node.target
    if isinstance(shape[0], int) and shape[0] == 1:
        return node
    if not _leaves_first_axis(node, len(shape)) and target is not torch.ops.aten.expand.default:
        return None
    given = list(node.args)
    for place, each in enumerate(given):
        value = each.meta["val"] if isinstance(each, fx.Node) else None
        if isinstance(each, fx.Node) and isinstance(value, torch.Tensor) and value.dim() == len(shape):
            given[place] = _of_one_sequence(graph, each, known)
            if given[place] is None:
                return None
    if target is torch.ops.aten.expand.default:
        given[1] = [1, *given[1][1:]]  # type: ignore[index,misc]
    made: fx.Node = _called(graph, target, *given, **node.kwargs)
    return made


def _leaves_first_axis(node: fx.Node, rank: int) -> bool:
    """Whether what an operator makes at a place of the first axis is of what it is given at that place alone."""
    aten = torch.ops.aten
    if node.target is aten.constant_pad_nd.default:
        return len(node.args[1]) < 2 * rank  # type: ignore[arg-type]
    if node.target is aten.slice.Tensor:
        return node.args[1:2] not in ((), (0,), (-rank,))
    tags = node.target.tags if isinstance(node.target, OpOverload) else ()
    is_pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return is_pointwise or node.target is aten.clone.default


@contextlib.contextmanager
def _kernels_compiled_together() -> Iterator[None]:
    """Lets the kernels of several graphs be compiled side by side: each graph waits for its own otherwise."""
    from trt_portable.internals import AsyncCompile

    waiting: list[tuple[Any, Any]] = []
    wait: Any = AsyncCompile.wait
    with with_attributes(AsyncCompile, wait=lambda compiler, scope: waiting.append((compiler, scope))):
        yield
    for compiler, scope in waiting:
        wait(compiler, scope)


def _extents(node: fx.Node) -> Sequence[Any]:
    """The extents of what a node of a graph takes from outside."""
    return node.meta["val"].shape if node.op == "placeholder" else ()


def compile_functional(graph: fx.GraphModule) -> Any:
    """Compiles as it is a graph whose outputs are to have the strides that they were traced with.

    Inductor pads rows of other tensors, and an output that it padded would be copied to where it belongs.

    Args:
        graph: Takes sizes and tensors one by one, writes to none, and returns a tuple; it is changed.

    Returns:
        Inductor's compiled graph: takes a list of arguments, which it empties.
    """
    from trt_portable.internals import V, compile_fx_inner, joint_graph_passes
    from trt_portable.internals import inductor_config as config

    arguments = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    (mode,) = {argument.fake_mode for argument in arguments if isinstance(argument, FakeTensor)}
    last = graph.graph.output_node()
    last.meta["user_visible_output_idxs"] = list(range(len(last.args[0])))  # type: ignore[arg-type]
    choices = {"shape_padding": _has_odd_rows(graph), "force_layout_optimization": _wants_channels_last(graph)}
    with V.set_fake_mode(mode), config.patch(choices):
        if config.layout_optimization:
            _lay_single_channels_last(graph.graph)
        joint_graph_passes(graph)
        return compile_fx_inner(graph, arguments, is_inference=True)


def _lay_single_channels_last(graph: fx.Graph) -> None:
    """Has convolutions of one channel write their maps last.

    Images of one channel lie in either way, so their strides tell nothing, and are taken for planes: sounds were
    written as planes, and turned around by cuDNN and again by a kernel that wrote each number by itself. What Inductor
    makes itself it lays out as convolutions want it; only what the graph takes lies as it is.
    """
    aten = torch.ops.aten
    targets = (aten.convolution.default, aten.cudnn_convolution_relu.default, aten.cudnn_convolution_add_relu.default)
    for node in [node for target in targets for node in graph.find_nodes(op="call_function", target=target)]:
        given = node.args[0]
        x, kernel = given.meta["val"], node.args[1].meta["val"]
        if kernel.dim() != 4 or x.itemsize != 2 or x.shape[1] != 1 or len(kernel) == 1 or not _is_dense_input(given):
            continue
        with graph.inserting_before(node), x.fake_mode:
            batch, _, height, width = (_extent(graph, given, axis) for axis in range(4))
            pixels = _called(graph, operator.mul, height, width)
            lying = ([batch, 1, height, width], [pixels, 1, width, 1])
            node.replace_input_with(given, _called(graph, aten.as_strided.default, given, *lying))


def _is_dense_input(node: fx.Node) -> bool:
    """Whether a tensor is all that the graph takes in one of its inputs, dense, with other axes at most."""
    aten = torch.ops.aten
    while node.target in (aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim):
        node = node.args[0]  # type: ignore[assignment]
    value = node.meta["val"]
    dense = [math.prod(value.shape[axis + 1 :]) for axis in range(value.dim())]
    return node.op == "placeholder" and are_equal(value.stride(), dense)


def _extent(graph: fx.Graph, tensor: fx.Node, axis: int) -> fx.Node | int:
    """An extent of a tensor, as a number or as a node."""
    extent = tensor.meta["val"].shape[axis]
    return extent if isinstance(extent, int) else _called(graph, torch.ops.aten.sym_size.int, tensor, axis)


def _called(graph: fx.Graph, target: Any, *given: Any, **named: Any) -> Any:
    """What a function returns: as a node where arguments are some, which knows what it stands for."""
    values = fx.map_arg(given, lambda node: node.meta["val"])
    if not any(isinstance(each, fx.Node) for each in pytree.tree_leaves(given)):
        return target(*values, **named)
    made = graph.call_function(target, given, named)
    made.meta["val"] = target(*values, **named)
    return made


def _compile_any(graph: fx.GraphModule, arguments: Sequence[torch.Tensor]) -> Any:
    """The way of `torch.compile`, which replaces operators that write in place."""
    from trt_portable.internals import compile_fx, compile_fx_inner, functorch_config

    compiled: list[Any] = []

    def keep(*arguments: Any, **keywords: Any) -> Any:
        compiled.append(compile_fx_inner(*arguments, **keywords))
        return compiled[-1]

    with functorch_config.patch(enable_autograd_cache=False):
        compile_fx(graph, list(arguments), inner_compile=keep)
    if len(compiled) != 1:
        raise CompilationFailure(f"one graph became {len(compiled)}")
    return compiled[0]


def _is_functional(graph: fx.GraphModule) -> bool:
    """Whether no operator writes to what it is given.

    Copies to what the graph takes, at its end, do not count, and operators of our own that are all that read it.
    """
    written = updates(graph)
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and node not in written]
    mutable = [call for call in calls if isinstance(call.target, OpOverload) and call.target._schema.is_mutable]
    return all(call.target._schema.name.startswith(_OWN) for call in mutable)


_OWN: Final = "trt_portable::"
"""Namespace of our own operators."""


def _has_odd_rows(graph: fx.GraphModule) -> bool:
    """Whether rows of a product's matrices begin at places that the fastest kernels do not read.

    Inductor can pad them. To learn whether that pays it times products, of any extents, so it is not asked otherwise,
    nor for products of a few columns.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.name.partition("::")[2] in _PRODUCTS:
            matrices = [*(argument.meta["val"] for argument in node.args[-2:]), node.meta["val"]]
            row_bytes = [matrix.shape[-1] * matrix.element_size() for matrix in matrices]
            is_wide = not isinstance(row_bytes[-1], int) or row_bytes[-1] >= _TENSOR_CORE_BYTES
            if is_wide and any(isinstance(count, int) and count % _TENSOR_CORE_BYTES for count in row_bytes):
                return True
    return False


_NODES_PER_CONVOLUTION: Final = 300
_MOST_GROUPED: Final = 1 / 3
"""Part of what convolutions of a graph compute that may be in groups, where cuDNN is slower with channels last."""


def _wants_channels_last(graph: fx.GraphModule) -> bool:
    """Whether sizes of images vary, and convolutions are fastest with channels last.

    For one size Inductor finds out by itself; where sizes vary, it leaves images as they lie.
    """
    convolutions = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    nodes = len(graph.graph.nodes)
    if all(_is_fixed(node.meta["val"]) for node in convolutions) or nodes >= _NODES_PER_CONVOLUTION * len(convolutions):
        return False
    total = grouped = 0
    for node in convolutions:
        weight = node.args[1].meta["val"]
        products = weight[0].numel() * math.prod(usual_size(extent) for extent in node.meta["val"].shape)
        total += products
        grouped += products if node.args[8] > 1 and weight.shape[1] > 1 else 0
    return grouped <= total * _MOST_GROUPED


TACTICS = (
    Inductor("inductor", 3, {}),
    Inductor("inductor-planar", 4, {}, is_planar=True),
    Inductor("inductor-max-autotune", 4, {"max_autotune": True}),
    Inductor("inductor-coordinate-descent", 5, {"max_autotune": True, "coordinate_descent_tuning": True}),
)


class FixedSizes(PortableError):
    """A graph with symbolic sizes serves the usual ones alone."""


@dataclass(frozen=True)
class Limits:
    """What a profile allows an input.

    Attributes:
        least: The smallest extents.
        usual: Those that the graph is tuned at.
        most: The largest extents.
    """

    least: Shape
    usual: Shape
    most: Shape


def served_sizes(
    inputs: Sequence[torch.Tensor], limits: Sequence[Limits]
) -> tuple[tuple[Varying, ...], tuple[Condition, ...]]:
    """The extents that may vary, and what else is asked of them.

    Args:
        inputs: Tensors without data, with symbolic sizes, after all that asks something of these.
        limits: What the profile allows each of them.

    Raises:
        FixedSizes: The guards leave nothing to vary, or cannot be kept.
    """
    places = places_of(inputs)
    spans: Mapping[Any, range] = {
        symbol: range(limits[at].least[axis], limits[at].most[axis] + 1) for symbol, (at, axis) in places.items()
    }
    usual = {symbol: limits[at].usual[axis] for symbol, (at, axis) in places.items()}
    varying: list[Varying] = []
    conditions: list[Condition] = []
    for guard in _guards(inputs):
        spans, condition = _kept(guard, spans, places, usual)
        conditions += [] if condition is None else [condition]
    for index, (tensor, limit) in enumerate(zip(inputs, limits, strict=True)):
        for axis, extent in enumerate(tensor.shape):
            low, high = limit.least[axis], limit.most[axis]
            if low == high:
                continue
            expr = extent.node.expr if isinstance(extent, torch.SymInt) else extent
            span = spans.get(expr, range(low, high + 1))
            if places.get(expr) != (index, axis):
                said = expression_of(expr, places)
                if said is None:
                    raise FixedSizes(f"axis {axis} of input {index} has to be {expr}")
                if isinstance(said, int):
                    span = range(said, said + 1)
                else:
                    conditions.append((Relation(EXTENT_SYMBOL.format(index, axis), "eq", said),))
            # tensors without elements are left to the layers
            varying.append(Varying(index, axis, max(1, low, span.start), min(high, span.stop - 1)))
    if all(each.least == each.most for each in varying):
        raise FixedSizes("what was compiled assumes the usual sizes")
    is_usual = all(each.least <= limits[each.source].usual[each.axis] <= each.most for each in varying)
    if not is_usual or not all_hold(conditions, sizes_by_symbol([limit.usual for limit in limits])):
        raise FixedSizes("what was compiled assumes other sizes than the usual ones")
    return tuple(varying), tuple(conditions)


def _guards(inputs: Sequence[torch.Tensor]) -> list[Any]:
    """What PyTorch asked of sizes, each once, in terms of the symbols that are left."""
    env = next(mode.shape_env for mode in (getattr(tensor, "fake_mode", None) for tensor in inputs) if mode is not None)
    asked = dict.fromkeys(_told(spelled_out(env.replace(guard.expr), env)) for guard in env.guards)
    return [guard for guard in asked if guard != True]  # noqa: E712 - as sympy has it


def _told(guard: Any) -> Any:
    """A guard without what holds for all sizes, as `a * (b + 1) == a * b + a`, which PyTorch takes to be open."""
    import sympy  # PyTorch has imported it where sizes vary

    def told(relation: Any) -> Any:
        return relation.func(0, 0) if sympy.expand(relation.lhs - relation.rhs) == 0 else relation

    return guard.replace(lambda part: isinstance(part, sympy.core.relational.Relational), told)


def _kept(
    guard: Any, spans: Mapping[Any, range], places: Mapping[Any, tuple[int, int]], usual: Mapping[Any, int]
) -> tuple[Mapping[Any, range], Condition | None]:
    """The sizes that a guard leaves, and a condition where it holds for sizes here and there, or for too many to try.

    Raises:
        FixedSizes: It cannot be said.
    """
    symbols = sorted(guard.free_symbols, key=str)
    if not spans.keys() >= set(symbols):  # data tells some of them
        raise FixedSizes(f"it is assumed that {guard}")
    tried = _thinned(spans, symbols)
    holds = SizeGrid({str(symbol): span for symbol, span in tried.items()}).holds(guard)
    is_of_1 = holds is not None and _holds_beyond_1(holds, tried, usual)
    if all(tried[symbol] == spans[symbol] for symbol in symbols):
        if is_of_1 or not symbols:
            return spans, None
        found = list(runs(holds.reshape(-1))) if holds is not None and len(symbols) == 1 else []
        if len(found) == 1:
            (begin, end), start = found[0], spans[symbols[0]].start
            return {**spans, symbols[0]: range(start + begin, start + end + 1)}, None
    name = relation_name(guard)
    left, right = (None, None) if name is None else (expression_of(side, places) for side in guard.args)
    if name is None or left is None or right is None:
        raise FixedSizes(f"it is assumed that {guard}")
    small = [symbol for symbol in symbols if is_of_1 and spans[symbol].start == 1 < usual[symbol]]
    ones = (Relation(EXTENT_SYMBOL.format(*places[symbol]), "eq", 1) for symbol in small)
    return spans, (Relation(left, name, right), *ones)


def _thinned(spans: Mapping[Any, range], symbols: Sequence[Any]) -> dict[Any, range]:
    """Sizes of symbols, of so many that not all can be tried some, the least among them."""
    tried = {symbol: spans[symbol] for symbol in symbols}
    while math.prod(map(len, tried.values())) > MOST_COMBINATIONS:
        longest = max(tried, key=lambda symbol: len(tried[symbol]))
        tried[longest] = tried[longest][::2]
    return tried


def _holds_beyond_1(holds: torch.Tensor, tried: Mapping[Any, range], usual: Mapping[Any, int]) -> bool:
    """Whether a guard holds for all sizes but 1, which matters to operands that are repeated and to strides.

    Values will tell there.
    """
    large = tuple(slice(span.start == 1 < usual[symbol], None) for symbol, span in tried.items())
    return bool(holds[large].all())
