"""One operator call as a graph with metadata, and the calls that PyTorch's own samples lead to."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_core.nesting import tensors_in
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
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, ExtentOf):
        return size(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_replace(item, tensors, size) for item in value])
    if isinstance(value, dict):
        return {key: _replace(item, tensors, size) for key, item in value.items()}
    return value


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
