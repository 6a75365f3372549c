"""Makes one operator call a graph, converts it, runs its plan, and compares the results with eager PyTorch."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx

from trt_converters.build import build_block, layers_of
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.support import ConverterSupport
from trt_converters.testing.comparison import compare, rounding_bounds
from trt_core import CompilationSettings, Device, Provider, Verdict, current_provider, device_scope, trt
from trt_core.cached_property import cached_property
from trt_core.dtypes import from_trt
from trt_core.internals import OpOverload
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.nesting import tensors_in, with_leaves
from trt_core.output_allocator import output_allocator
from trt_core.paused_collection import paused_collection
from trt_core.sizes.ranges import Bounds, ShapeRanges

DynamicAxes = Mapping[int, Mapping[int, Bounds]]
"""Position of a tensor among the call's tensors to axis to (min, opt, max)."""


@dataclass(frozen=True)
class ExtentOf:
    """Stands for the size `tensors[tensor].shape[axis]` among the arguments of a call; symbolic when the axis is."""

    tensor: int
    axis: int


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator as a graph.

    Attributes:
        op: The operator.
        args, kwargs: What it is called with; tensors and `ExtentOf` anywhere inside lists.
        block: Graph module with placeholders for tensors (constants are attributes) and one call.
        node: The call.
        input_positions: Which of the call's tensors the placeholders stand for.
        ranges: Ranges of the symbolic dimensions.
        results: Which items of the result are outputs; None for all of them.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    block: fx.GraphModule = field(repr=False)
    node: fx.Node = field(repr=False)
    input_positions: tuple[int, ...]
    ranges: ShapeRanges
    results: tuple[int, ...] | None = None

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Every tensor among the arguments, in the order of the schema's call."""
        return tuple(tensors_in((self.args, self.kwargs)))

    def eager(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Runs the operator in PyTorch on other tensors in the places of its own."""
        args, kwargs = substitute((self.args, self.kwargs), iter(tensors), tensors)
        with torch.no_grad():
            return results_of(self.op(*args, **kwargs), self.results)


def record_call(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    constants: Sequence[int] = (),
    results: Sequence[int] | None = None,
) -> OperatorCall:
    """Makes the graph of one operator call, with metadata; see `check_conversion` for the arguments.

    Raises:
        ValueError: A dimension was to be symbolic, and the operator fixes it to one value, or its extent is 0 or 1.
    """
    from trt_core.internals import FakeTensorMode, ShapeEnv, enable_python_dispatcher

    call_args, call_kwargs = tuple(args), dict(kwargs or {})
    tensors = list(tensors_in((call_args, call_kwargs)))
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)
    root, graph = torch.nn.Module(), fx.Graph()
    nodes: list[fx.Node] = []
    for position, tensor in enumerate(tensors):
        if position in constants:
            root.register_buffer(f"constant_{position}", tensor)
            node = graph.get_attr(f"constant_{position}")
        else:
            node = graph.placeholder(f"input_{position}")
        node.meta["val"] = _fake(mode, tensor, (dynamic or {}).get(position, {}), f"input_{position}")
        nodes.append(node)

    def size_node(size: ExtentOf) -> Any:
        extent = nodes[size.tensor].meta["val"].shape[size.axis]
        if isinstance(extent, int):
            return extent
        node = graph.call_function(torch.ops.aten.sym_size.int, (nodes[size.tensor], size.axis))
        node.meta["val"] = extent
        return node

    node_args, node_kwargs = _replace((call_args, call_kwargs), iter(nodes), size_node)
    node = graph.call_function(op, tuple(node_args), node_kwargs)
    fake_args, fake_kwargs = fx.node.map_arg((tuple(node_args), node_kwargs), lambda item: item.meta["val"])
    with enable_python_dispatcher(), mode, torch.no_grad():  # as torch.export does, or some operators fix extents
        node.meta["val"] = op(*fake_args, **fake_kwargs)
    graph.output(tuple(_result_nodes(graph, node, results)))
    block = fx.GraphModule(root, graph)
    symbols = {}
    for position, axes in (dynamic or {}).items():
        for axis, bounds in axes.items():
            extent = nodes[position].meta["val"].shape[axis]
            if (given := tensors[position].shape[axis]) < 2:
                raise ValueError(
                    f"dimension {axis} of tensor {position} is to vary, and has extent {given}: give a tensor with "
                    "more there, for PyTorch takes 0 and 1 for fixed extents"
                )
            if isinstance(extent, int) or not extent.node.expr.is_Symbol:
                raise ValueError(f"{op} does not take any extent but {extent} in dimension {axis} of tensor {position}")
            symbols[str(extent.node.expr)] = bounds
    positions = tuple(position for position in range(len(tensors)) if position not in constants)
    return OperatorCall(op, call_args, call_kwargs, block, node, positions, ShapeRanges(symbols), _as_tuple(results))


def _fake(mode: Any, tensor: torch.Tensor, axes: Mapping[int, Bounds], name: str) -> torch.Tensor:
    from trt_converters.internals import StatelessSymbolicContext, StrictMinMaxConstraint
    from trt_core.internals import ConstantSource, DimDynamic, ValueRanges

    if not axes:
        fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
        return fake
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if axis in axes else DimDynamic.STATIC for axis in range(tensor.dim())],
        constraint_sizes=[
            StrictMinMaxConstraint(vr=ValueRanges(axes[axis][0], axes[axis][2]), warn_only=False)
            if axis in axes
            else None
            for axis in range(tensor.dim())
        ],
    )
    found: torch.Tensor = mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)
    return found


def _as_tuple(results: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if results is None else tuple(results)


def _result_nodes(graph: fx.Graph, node: fx.Node, results: Sequence[int] | None) -> Iterator[fx.Node]:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        yield node
        return
    for index, item in enumerate(value):
        if isinstance(item, torch.Tensor) and (results is None or index in results):
            part = graph.call_function(operator.getitem, (node, index))
            part.meta["val"] = item
            yield part


def results_of(value: Any, results: Sequence[int] | None = None) -> tuple[torch.Tensor, ...]:
    """Returns the tensors among what an operator returned: all of them, or some of its items."""
    items = (value,) if isinstance(value, torch.Tensor) else tuple(value)
    chosen = items if results is None else [items[index] for index in results]
    return tuple(item for item in chosen if isinstance(item, torch.Tensor))


def substitute(value: Any, tensors: Iterator[torch.Tensor], all_tensors: Sequence[torch.Tensor]) -> Any:
    """Replaces the tensors in arguments by others, in order, and sizes by the extents that those have."""
    return _replace(value, tensors, lambda size: all_tensors[size.tensor].shape[size.axis])


def _replace(value: Any, tensors: Iterator[Any], size: Callable[[ExtentOf], Any]) -> Any:
    """Replaces tensors, in order, and sizes, inside lists, tuples and dicts."""

    def other(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return next(tensors)
        return size(leaf) if isinstance(leaf, ExtentOf) else leaf

    return with_leaves(value, other)


_SEED: Final = 1234  # that of PyTorch's own tests


@dataclass(frozen=True)
class OperatorSample:
    """One call of an operator that PyTorch's own samples lead to.

    Attributes:
        op: The operator overload.
        args, kwargs: What it was called with.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def samples_from_opinfo(name: str, dtype: torch.dtype, limit: int = 8) -> list[OperatorSample]:
    """Returns operator calls that the samples of PyTorch's OpInfo database make, as exported graphs have them.

    Args:
        name: Name of the OpInfo entry, such as `"add"` or `"nn.functional.gelu"`.
        dtype: Type of the samples' tensors.
        limit: Most samples taken; they are spread evenly over those that there are.

    Returns:
        The calls; empty when the entry has no samples of that type.

    Raises:
        ModuleNotFoundError: What PyTorch's samples import is not installed; the extra `samples` brings it.
    """
    samples = []
    for info, sample in _opinfo_samples(name, dtype, limit):
        samples += _calls_of(info, sample)
    return samples


def _opinfo_samples(name: str, dtype: torch.dtype, limit: int) -> Iterator[tuple[Any, Any]]:
    try:
        from trt_converters.internals import op_db  # seconds to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"PyTorch's samples need {error.name}: pip install 'trt-converters[samples]'", name=error.name
        ) from error
    for info in op_db:
        if info.name != name or dtype not in info.supported_dtypes("cpu"):
            continue
        found = list(itertools.islice(_drawn(info, dtype), 200))
        step = max(len(found) / limit, 1.0)
        for index in range(min(limit, len(found))):
            yield info, found[int(index * step)]


def _drawn(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    """PyTorch's samples, each drawn from one seed, without what `OpInfo.sample_inputs` does for PyTorch's own tests.

    That looks for a test case in the source lines of every caller, and seeds devices that are not there.
    """
    from trt_converters.internals import set_rng_seed

    set_rng_seed(_SEED)  # NumPy's and Python's too
    samples = iter(info.sample_inputs_func(info, "cpu", dtype, False))
    while True:
        torch.default_generator.manual_seed(_SEED)
        try:
            sample = next(samples)
        except StopIteration:
            return
        yield sample


def _calls_of(info: Any, sample: Any) -> list[OperatorSample]:
    from trt_core.internals import make_fx

    def function(*tensors: torch.Tensor) -> Any:
        primary, args, kwargs = substitute((sample.input, sample.args, sample.kwargs), iter(tensors), tensors)
        return info.op(primary, *args, **kwargs)

    tensors = list(tensors_in((sample.input, sample.args, sample.kwargs)))
    calls: list[OperatorSample] = []

    class Recorder(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(target, OpOverload) and list(tensors_in((args, kwargs))):
                calls.append(OperatorSample(target, tuple(args), dict(kwargs)))
            return super().call_function(target, args, kwargs)

    with torch.no_grad(), paused_collection():
        # before dispatch, composite operators are still whole, as they are in exported programs
        graph = make_fx(function, pre_dispatch=True)(*tensors)
        Recorder(graph).run(*tensors)
    return calls


def default_settings(tensors: Sequence[torch.Tensor] = ()) -> CompilationSettings:
    """Returns what the kit compiles with: the lowest optimization level, which builds fastest.

    Args:
        tensors: Inputs; the engine is for their device, so that it runs beside eager on the same one. TensorRT has no
            other device than the current GPU.
    """
    device = Device.current()
    if tensors and current_provider() is Provider.PORTABLE:
        device = Device(tensors[0].device)
    return CompilationSettings(optimization_level=0, device=device)


def run_engine(
    plan: Any, input_names: Sequence[str], inputs: Sequence[torch.Tensor], settings: CompilationSettings | None = None
) -> tuple[torch.Tensor, ...]:
    """Deserializes a plan and runs it once.

    Args:
        plan: What the builder returned.
        input_names: Names of the bindings that the inputs belong to.
        inputs: One tensor per name.
        settings: What the plan was compiled with, for the device.

    Raises:
        RuntimeError: The provider refused the plan, an input, or the execution; the message repeats its log.
    """
    device = (settings or default_settings(inputs)).device.torch_device
    forget_errors()
    logger = provider_logger()

    def require(condition: Any, what: str) -> None:
        if not condition:
            raise RuntimeError(f"{what}: {take_errors() or 'the provider gave no reason'}")

    with device_scope(device):
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        require(engine is not None, "the plan was refused")
        context = engine.create_execution_context()
        held = [tensor.to(device).contiguous() for tensor in inputs]
        for name, tensor in zip(input_names, held, strict=True):
            if engine.get_tensor_mode(name) == trt.TensorIOMode.NONE:  # no output depends on it: the builder drops it
                continue
            require(context.set_input_shape(name, tuple(tensor.shape)), f"{name} of shape {tuple(tensor.shape)}")
            # an empty tensor has no memory of its own, yet every binding needs an address
            require(context.set_tensor_address(name, tensor.data_ptr() or _byte_address(held)), f"address of {name}")
        require(not context.infer_shapes(), "not every shape could be inferred")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        readers = [
            _bind_output(engine, context, name, device, require)
            for name in names
            if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
        ]
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        require(context.execute_async_v3(stream), "execution failed")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return tuple(read() for read in readers)


def _byte_address(held: list[torch.Tensor]) -> int:
    """Adds one byte of memory to what is held, and returns its address."""
    held.append(torch.empty(1, dtype=torch.uint8, device=held[0].device))
    return held[-1].data_ptr()


def _bind_output(
    engine: Any, context: Any, name: str, device: torch.device, require: Callable[[Any, str], None]
) -> Callable[[], torch.Tensor]:
    dtype = from_trt(engine.get_tensor_dtype(name))
    shape = tuple(context.get_tensor_shape(name))
    if any(extent < 0 for extent in shape):
        allocator = output_allocator(dtype, device)
        require(context.set_output_allocator(name, allocator), f"output allocator of {name}")
        return lambda: allocator.take(name)
    numel = max(1, torch.Size(shape).numel())
    memory = torch.empty(numel, dtype=dtype, device=device)
    require(context.set_tensor_address(name, memory.data_ptr()), f"address of {name}")
    return lambda: memory[: torch.Size(shape).numel()].reshape(shape)


@dataclass(frozen=True)
class ConversionResult:
    """What came of a conversion.

    Attributes:
        call: The call that was converted.
        verdict: Whether it is supported, and why not.
        outputs: What the engine returned for the call's own tensors; empty when refused.
        expected: What PyTorch returned for them.
        settings: What it was converted with.
    """

    call: OperatorCall = field(repr=False)
    verdict: Verdict
    outputs: tuple[torch.Tensor, ...] = ()
    expected: tuple[torch.Tensor, ...] = ()
    settings: CompilationSettings = field(repr=False, default_factory=CompilationSettings)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Types of the layers that the converter made, such as `("CONSTANT", "ELEMENTWISE")`, in network order."""
        return _layer_types(self.call, self.settings, DYNAMO_CONVERTERS)


def check_conversion(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    constants: Sequence[int] = (),
    expect_supported: bool | None = True,
    rtol: float | None = None,
    atol: float | None = None,
    settings: CompilationSettings | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    results: Sequence[int] | None = None,
) -> ConversionResult:
    """Converts one call of an operator and compares the engine with eager PyTorch.

    Args:
        op: An operator overload, such as `torch.ops.aten.add.Tensor`.
        args: Its positional arguments. Tensors, also inside lists, are counted from 0 in the order they appear;
            `ExtentOf` stands for an extent of one of them.
        kwargs: Its keyword arguments; their tensors are counted after those of `args`.
        dynamic: Axes with symbolic extents, `{tensor: {axis: (min, opt, max)}}`. One engine is then run with tensors
            of the given, the minimal and the maximal extents; rows are repeated or dropped to make them.
        constants: Tensors (by position) that are constants of the graph instead of inputs.
        expect_supported: Whether the verdict must be supported (True), a refusal (False), or either (None).
        rtol, atol: Tolerances instead of those of `TOLERANCES`.
        settings: What to compile with; by default nothing but the lowest optimization level, which builds fastest.
        registry: Where converters are looked up.
        results: Which items of a list or tuple of results are used; by default all of them.

    Returns:
        The verdict and, when supported, the outputs.

    Raises:
        AssertionError: The verdict is not the expected one, or the engine's results differ from eager's.
        ConversionError: The converter accepted the call and failed on it.
        BuildError: The provider refused the network.
    """
    call = record_call(op, args, kwargs, dynamic=dynamic, constants=constants, results=results)
    settings = settings or default_settings(call.tensors)
    verdict = ConverterSupport(settings, registry).verdict(call.node)
    if expect_supported is not None and verdict.supported is not expect_supported:
        found = "is supported" if verdict.supported else f"is refused, {verdict.code}: {verdict.message}"
        raise AssertionError(f"{op} {found}")
    if not verdict.supported:
        return ConversionResult(call, verdict, settings=settings)
    engine = build_block(call.block, settings, call.ranges, "block", registry)
    runs = []
    for tensors in _variants(call, dynamic):
        expected = call.eager(tensors)
        outputs = run_engine(engine.plan, engine.input_names, [tensors[i] for i in call.input_positions], settings)
        compare(
            outputs,
            expected,
            rtol=rtol,
            atol=atol,
            what=f"{op} on {[tuple(t.shape) for t in tensors]}",
            bounds=functools.partial(rounding_bounds, call.eager, tensors, [item.dtype for item in expected]),
        )
        runs.append((outputs, expected))
    return ConversionResult(call, verdict, *runs[0], settings=settings)


def emitted_layers(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicAxes | None = None,
    constants: Sequence[int] = (),
    settings: CompilationSettings | None = None,
) -> tuple[str, ...]:
    """Returns the types of the layers that converting a call makes; nothing is built. See `check_conversion`."""
    call = record_call(op, args, kwargs, dynamic=dynamic, constants=constants)
    return _layer_types(call, settings or default_settings(call.tensors), DYNAMO_CONVERTERS)


def _layer_types(call: OperatorCall, settings: CompilationSettings, registry: ConverterRegistry) -> tuple[str, ...]:
    return tuple(kind for _, kind in layers_of(call.block, settings, call.ranges, registry))


def _variants(call: OperatorCall, dynamic: DynamicAxes | None) -> list[list[torch.Tensor]]:
    """The call's own tensors, then ones of minimal and of maximal extents."""
    variants = [list(call.tensors)]
    if dynamic:
        for choice in (0, 2):
            variants.append(
                [
                    _resize(tensor, {axis: bounds[choice] for axis, bounds in dynamic.get(position, {}).items()})
                    for position, tensor in enumerate(call.tensors)
                ]
            )
    return variants


def _resize(tensor: torch.Tensor, extents: Mapping[int, int]) -> torch.Tensor:
    for axis, extent in extents.items():
        rows = torch.arange(extent, device=tensor.device) % tensor.shape[axis]
        tensor = tensor.index_select(axis, rows)
    return tensor
