"""The computation of an engine as an FX graph, for compilers and for reading.

The layers' own definitions are run once on tensors without data, and PyTorch records what they do. Extents
that an engine leaves open stay symbolic within the ranges of an optimization profile, so sizes that
layers compute from shapes become expressions of the graph. Weights become its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import LoadedNetwork, load_network
from trt_portable.execution.program import Program
from trt_portable.execution.weight_layout import FLAT, WeightLayout
from trt_portable.fusion.programs import interpreted_program
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import HostValues, Value, as_tensor

if TYPE_CHECKING:
    from trt_core.internals import FakeTensorMode
    from trt_portable.network.layer import ILayer
    from trt_portable.optimization_profile import Profile
    from trt_portable.plan.engine_info import EngineInfo, IOTensor, WeightSlot
    from trt_portable.runtime.engine import ICudaEngine

_LEAST_HINT: Final = 2  # PyTorch takes extents of 0 and 1 for constants


class TraceFailure(PortableError):
    """What an engine computes depends on data in a way that no graph can hold."""


@dataclass(frozen=True)
class TracedProgram:
    """A program as a graph.

    Attributes:
        graph: Takes the parameters, then the inputs; a shape input as its numbers. Returns a tuple.
        parameters: Data that the graph takes first, by name; flat.
        uses: Index of one use of weights for each of the parameters.
        layouts: How the graph takes each of them.
        guards: What the graph assumes of sizes beyond the profile's ranges, in its symbols' names.
    """

    graph: fx.GraphModule
    parameters: dict[str, torch.Tensor]
    uses: tuple[int, ...]
    layouts: tuple[WeightLayout, ...]
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
    with torch.no_grad():
        mode, given = _placeholders(inputs, profile, device, dynamic)
        graph = _record(program, weights, inputs, device, mode, given, decompositions)
    shape_env = mode.shape_env
    guards = () if shape_env is None else tuple(str(guard.expr) for guard in shape_env.guards)
    return TracedProgram(graph, weights.parameters, tuple(weights.uses), tuple(weights.layouts), guards)


class _Weights:
    """The weights of layers as the parameters of a graph: one for each tensor and layout.

    Args:
        layers: Layers, which get the weights.
        tensors: A flat tensor for each use.
        slots: The uses.
        layout: How the graph is to take the weights of a use.

    Attributes:
        parameters: Tensors by name.
        uses: A use of each.
        layouts: How the graph takes each.
    """

    def __init__(
        self,
        layers: Sequence[ILayer],
        tensors: Sequence[torch.Tensor | None],
        slots: Sequence[WeightSlot],
        layout: Callable[[ILayer, WeightSlot], WeightLayout],
    ) -> None:
        self._layers = layers
        self.parameters: dict[str, torch.Tensor] = {}
        self.uses: list[int] = []
        self.layouts: list[WeightLayout] = []
        self._places: list[tuple[WeightSlot, int]] = []
        at: dict[tuple[int, WeightLayout], int] = {}
        for index, (slot, tensor) in enumerate(zip(slots, tensors, strict=True)):
            assert tensor is not None
            if is_host_constant(slot):
                continue
            key = (id(tensor), layout(layers[slot.layer], slot))
            if key not in at:
                at[key] = len(at)
                self.parameters[f"w{len(self.uses)}"] = tensor
                self.uses.append(index)
                self.layouts.append(key[1])
            self._places.append((slot, at[key]))
        WeightStore(slots, layers, tensors)

    def bind(self, program: Program, given: Sequence[torch.Tensor]) -> None:
        """Gives the layers other tensors in place of the parameters, in their order."""
        for slot, at in self._places:
            layer = self._layers[slot.layer]
            layer._bound = {**layer._bound, slot.role: given[at]}
        program.load_constants([self._layers[index] for index in {slot.layer for slot, _ in self._places}])


def _placeholders(
    inputs: Sequence[IOTensor], profile: Profile, device: torch.device, dynamic: bool
) -> tuple[FakeTensorMode, list[torch.Tensor | int | torch.SymInt]]:
    """Arguments without data: a tensor per input, or numbers for shape inputs."""
    from trt_core.internals import FakeTensorMode, ShapeEnv

    shape_env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
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
    from trt_core.internals import compile_session, enable_python_dispatcher, make_fx

    def run(parameters: Sequence[torch.Tensor], *arguments: Any) -> tuple[torch.Tensor, ...]:
        weights.bind(program, parameters)
        return tuple(as_tensor(value) for value in program.run(_values(inputs, arguments, device)))

    flat = [mode.from_tensor(tensor, static_shapes=True) for tensor in weights.parameters.values()]
    try:
        # Python's shape rules know symbolic extents, some of C++ do not
        with compile_session(), mode, enable_python_dispatcher():
            fakes = [layout.of(fake) for fake, layout in zip(flat, weights.layouts, strict=True)]
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


def _with_weights(traced: fx.GraphModule, parameters: dict[str, torch.Tensor]) -> fx.GraphModule:
    """Makes buffers of the weights that a graph takes first."""
    graph = traced.graph
    holders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, (name, tensor) in zip(holders, parameters.items(), strict=False):
        if node.users:
            traced.register_buffer(name, tensor)
            with graph.inserting_after(holders[-1]):
                read = graph.get_attr(name)
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
