"""A network as a model in ONNX's format, for Netron, ONNX Runtime, OpenVINO and others that read it.

One function per kind of layer, in one table. What a layer computes and ONNX does not say is refused with the layer's
name. Needs the `onnx` package (the extra `trt-portable[onnx]`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trt_core.temporary import with_attributes
from trt_portable.dtypes import CARRIERS, FLOATS, storage_bytes
from trt_portable.enums import (
    ActivationType,
    AttentionIOForm,
    AttentionNormalizationOp,
    BoundingBoxFormat,
    CausalMaskKind,
    DataType,
    ElementWiseOperation,
    FillOperation,
    GatherMode,
    InterpolationMode,
    KVCacheMode,
    LayerType,
    LoopOutput,
    MatrixOperation,
    PaddingMode,
    PoolingType,
    ReduceOperation,
    ResizeSelector,
    SampleMode,
    ScaleMode,
    ScatterMode,
    TopKOperation,
)
from trt_portable.errors import PortableError, present, strict
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.region import Scope
from trt_portable.network.serialization import layers_from_json, schedule
from trt_portable.onnx_parser.diagnostics import require_onnx
from trt_portable.onnx_parser.initializers import TYPES
from trt_portable.onnx_parser.operators.convolution import AUTO_PADDINGS
from trt_portable.onnx_parser.operators.movement import PAD_MODES
from trt_portable.onnx_parser.operators.pointwise import ACTIVATIONS, BINARY, UNARY
from trt_portable.onnx_parser.operators.reductions import REDUCTIONS
from trt_portable.onnx_parser.operators.resampling import COORDINATES, GRID_PADDING, MODES, ROUNDING
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from onnx import ModelProto

    from trt_portable.network.network import INetworkDefinition

OPSET: Final = 21
"""The opset of exported models."""
_IR: Final = 10
NUMBERS: Final = {dtype: number for number, dtype in TYPES.items()}
"""What ``TensorProto.DataType`` calls the types of TensorRT."""
_MOST: Final = (1 << 63) - 1


class ExportError(PortableError):
    """A network that has no form in ONNX.

    Args:
        layer: Name of the layer that has none; empty if it is the whole network's.
        reason: What ONNX does not say.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"layer {layer!r} has no form in ONNX: {reason}" if layer else reason)
        self.layer = layer
        self.reason = reason


def export_onnx(network: INetworkDefinition) -> ModelProto:
    """A network as an ONNX model, layer by layer.

    Inputs and outputs keep their names, dynamic dimensions those that inputs have, or ``name_axis``.

    Args:
        network: A complete network: every layer's shape is known, and something is marked as an output.

    Returns:
        A model of opset 21 that ONNX's checker accepts.

    Raises:
        ExportError: A layer has no form in ONNX, or the network is not complete.
        MissingPackage: The `onnx` package is not installed.
    """
    require_onnx()
    with strict():
        found = _Exporter(
            network.name,
            [present(network.get_input(index)) for index in range(network.num_inputs)],
            [present(network.get_output(index)) for index in range(network.num_outputs)],
            list(network),
            network._scopes,
        ).run()
    from onnx import checker

    checker.check_model(found)
    return found


@dataclass(frozen=True)
class ExportedPlan:
    """The network part of a plan as a model.

    Attributes:
        model: The model; initializers of `weights` have types and extents, but no data.
        weights: Those that are large, by name, in the memory that they have.
    """

    model: ModelProto
    weights: Mapping[str, Weights]


_APART_BYTES: Final = 1 << 16
"""Weights of more bytes are not copied into a model, which has room for two gigabytes at most."""


def export_plan(
    structure: Mapping[str, Any], weights: Sequence[Mapping[str, torch.Tensor]], shapes: Mapping[str, Sequence[int]]
) -> ExportedPlan:
    """The network part of a plan, as the builder has rewritten it, as an ONNX model for a library that is at hand.

    Args:
        structure: The network part.
        weights: Flat tensors on the host by role, of each layer.
        shapes: Extents of inputs by name, where they are fixed and the plan leaves them open.

    Raises:
        ExportError: A layer has no form in ONNX.
        MissingPackage: The `onnx` package is not installed.
    """
    require_onnx()
    restored = layers_from_json(structure)
    for layer, bound in zip(restored.layers, weights, strict=True):
        layer._roles = {role: _weights(tensor, *layer._weight_specs[role]) for role, tensor in bound.items()}
    inputs, outputs = ([restored.tensors[at] for at in ids] for ids in (restored.inputs, restored.outputs))
    for tensor in inputs:
        tensor._extents = tuple(shapes.get(tensor.name, tensor._extents or ()))
    exporter = _Exporter(restored.name, inputs, outputs, restored.layers, keeps_apart=True)
    return ExportedPlan(exporter.run(), exporter.apart)


def _weights(tensor: torch.Tensor, dtype: DataType, count: int) -> Weights:
    """A flat tensor on the host as weights, which keep it alive."""
    tensor = tensor.contiguous()  # what a pass computed may have strides
    made = Weights(dtype, tensor.data_ptr(), count) if count else Weights(dtype)
    made._owner = tensor
    return made


class _Exporter:
    """The model as it grows.

    Args:
        title: The network's name.
        inputs: Its inputs.
        outputs: Its outputs.
        layers: Its layers.
        scopes: Its loops and conditionals.
        keeps_apart: Whether large weights are named only, and collected in `apart`.
    """

    def __init__(
        self,
        title: str,
        inputs: Sequence[ITensor],
        outputs: Sequence[ITensor],
        layers: Sequence[ILayer],
        scopes: Sequence[Scope] = (),
        *,
        keeps_apart: bool = False,
    ) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.layer: ILayer | None = None
        self.apart: dict[str, Weights] = {}
        self._title = title
        self._inputs = inputs
        self._outputs = outputs
        self._layers = layers
        self._scopes = scopes
        self._keeps_apart = keeps_apart
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._count = 0

    def run(self) -> ModelProto:
        """Exports every layer."""
        from onnx import helper

        if not self._outputs:
            raise ExportError("", "the network has no outputs")
        for tensor in (*self._inputs, *self._outputs):
            self.name(tensor)
        for layer in self._layers:
            if layer._KIND not in _OF_SCOPES and _writer_of(layer) is None:
                raise ExportError(layer.name, f"layers of the kind {layer._PLAN_TYPE} are not exported")
        self.write(schedule(self._layers, self._scopes))
        inputs, outputs = ([self._value(x) for x in tensors] for tensors in (self._inputs, self._outputs))
        read = {self.name(x) for x in self._outputs} | _read_by(self.nodes)
        kept = [weights for weights in self.initializers if weights.name in read]
        self.apart = {name: weights for name, weights in self.apart.items() if name in read}
        graph = helper.make_graph(self.nodes, self._title or "network", inputs, outputs, kept)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)

    def write(self, layers: Iterable[ILayer]) -> None:
        """Adds the nodes of layers, which stand in executable order."""
        before = self.layer
        for layer in layers:
            self.layer = layer
            write = present(_writer_of(layer))
            write(self, layer, *(None if x is None else self.name(x) for x in layer._inputs))
        self.layer = before

    def names_as(self, names: Mapping[ITensor, str]) -> contextlib.AbstractContextManager[None]:
        """Gives tensors other names inside the block; what is made there has a name there only."""
        return with_attributes(self, _names={**self._names, **{id(tensor): name for tensor, name in names.items()}})

    @contextlib.contextmanager
    def subgraph(self) -> Iterator[list[Any]]:
        """Collects the nodes that are added inside the block; constants go to the model's own graph."""
        with with_attributes(self, nodes=[]):
            yield self.nodes

    def bound(self, name: str, tensor: ITensor) -> Any:
        """What a subgraph says of one of its ends: the type and the known extents of a tensor."""
        from onnx import helper

        extents = [None if extent < 0 else extent for extent in tensor.shape]
        return helper.make_tensor_value_info(name, self.number_of(tensor.dtype), extents)

    def name(self, tensor: ITensor) -> str:
        """The name of a tensor; no two have the same."""
        found = self._names.get(id(tensor))
        if found is None:
            found = self._names[id(tensor)] = self.unique(tensor.name)
        return found

    def forget(self, tensor: ITensor) -> None:
        """Has a tensor named anew, where what makes it is written once more."""
        self._names.pop(id(tensor), None)

    def unique(self, name: str) -> str:
        """A name that nothing has yet."""
        chosen, number = name, 0
        while chosen in self._taken:
            number += 1
            chosen = f"{name}_{number}"
        self._taken.add(chosen)
        return chosen

    def _value(self, tensor: ITensor) -> Any:
        from onnx import helper

        name = self.name(tensor)
        extents = [
            extent if extent >= 0 else tensor.get_dimension_name(axis) or f"{name}_{axis}"
            for axis, extent in enumerate(tensor.shape)
        ]
        return helper.make_tensor_value_info(name, self.number_of(tensor.dtype), extents)

    def number_of(self, dtype: DataType) -> int:
        """ONNX's number of a type."""
        return NUMBERS[dtype]

    def refuse(self, reason: str) -> ExportError:
        """The error that refuses the layer at hand."""
        return ExportError("" if self.layer is None else self.layer.name, reason)

    def add(self, kind: str, inputs: Sequence[str | None], outputs: str | Sequence[str] = "", **attributes: Any) -> str:
        """Adds a node; without a name for its output one is made. Returns the (first) output."""
        from onnx import helper

        self._count += 1
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        names = [name or self.unique(f"{kind}_{self._count}") for name in names]
        used = [name or "" for name in inputs]
        while used and not used[-1]:
            used.pop()
        layer = "" if self.layer is None else self.layer.name
        kept = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(kind, used, names, name=f"{layer}/{kind}_{self._count}", **kept))
        return names[0]

    def cast(self, x: str, dtype: DataType = DataType.INT64) -> str:
        """A tensor in another type."""
        return self.add("Cast", [x], to=self.number_of(dtype))

    def constant(self, numbers: Any, dtype: DataType = DataType.INT64) -> str:
        """A constant of the exporter's own."""
        from onnx import numpy_helper

        kinds = {DataType.INT64: np.int64, DataType.INT32: np.int32, DataType.HALF: np.float16, DataType.INT8: np.int8}
        name = self.unique(f"constant_{self._count}_{len(self.initializers)}")
        array = np.asarray(numbers, dtype=kinds.get(dtype, np.float32))
        self.initializers.append(numpy_helper.from_array(array, name))
        if dtype in (DataType.BF16, DataType.BOOL):
            return self.cast(name, dtype)
        return name

    def times(self, x: str, number: float, dtype: DataType) -> str:
        """A tensor times a number, of which every digit counts, whatever its type holds of it."""
        held, whole = (torch.tensor(number, dtype=kind, device="cpu") for kind in (CARRIERS[dtype], torch.float32))
        if held.item() == whole.item():
            return self.add("Mul", [x, self.constant(number, dtype)])
        wide = self.add("Mul", [self.cast(x, DataType.FLOAT), self.constant(number, DataType.FLOAT)])
        return self.cast(wide, dtype)

    def weights(self, weights: Weights, shape: Sequence[int], name: str = "") -> str:
        """Weights of a layer as an initializer."""
        from onnx import TensorProto

        name = name or self.unique(f"weights_{self._count}_{len(self.initializers)}")
        proto = TensorProto(name=name, data_type=self.number_of(weights.dtype), dims=list(shape))
        self.initializers.append(proto)
        if self._keeps_apart and weights.nbytes > _APART_BYTES:
            self.apart[name] = weights
            return name
        data = bytes(weights._buffer()) if weights.size else b""
        assert len(data) == storage_bytes(weights.dtype, weights.size)
        proto.raw_data = data
        return name

    def out(self, index: int = 0) -> str:
        """The name of an output of the layer at hand."""
        assert self.layer is not None
        return self.name(self.layer._outputs[index])


def _read_by(nodes: Iterable[Any]) -> set[str]:
    """Names of what nodes read, those of their subgraphs too."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for graph in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            found.update(_read_by(graph.node), (end.name for end in graph.output))
    return found


def _tensor(layer: ILayer, index: int = 0) -> ITensor:
    return present(layer.get_input(index))


# --- sources and types ------------------------------------------------------------------------------------------------


def _constant(e: _Exporter, layer: Any) -> None:
    weights = layer._roles["CONSTANT"]
    e.weights(weights, tuple(present(layer.get_output(0)).shape), e.out())


def _fill(
    e: _Exporter, layer: Any, shape: str | None = None, alpha: str | None = None, beta: str | None = None
) -> None:
    if layer.operation is not FillOperation.LINSPACE:
        _random(e, layer, shape, alpha)
        return
    output = present(layer.get_output(0))
    if len(output.shape) != 1:
        raise e.refuse("a ramp along more than one axis")
    kind = layer.to_type
    start = e.constant(layer.alpha, kind) if alpha is None else alpha
    step = e.constant(layer.beta, kind) if beta is None else e.add("Squeeze", [beta, e.constant([0])])
    extent = e.constant(list(layer.shape or ())) if shape is None else shape
    count = e.cast(e.add("Squeeze", [extent, e.constant([0])]), kind)
    places = e.add("Range", [e.constant(0, kind), count, e.constant(1, kind)])
    e.add("Add", [e.add("Mul", [places, step]), start], e.out())


def _random(e: _Exporter, layer: Any, shape: str | None, alpha: str | None) -> None:
    if alpha is not None:
        raise e.refuse("random numbers whose range is computed")
    extents = e.constant(list(layer.shape or ())) if shape is None else shape
    like = e.add("ConstantOfShape", [extents])
    kind = e.number_of(layer.to_type)
    if layer.operation is FillOperation.RANDOM_UNIFORM:
        e.add("RandomUniformLike", [like], e.out(), dtype=kind, low=float(layer.alpha), high=float(layer.beta))
    else:
        e.add("RandomNormalLike", [like], e.out(), dtype=kind, mean=float(layer.alpha), scale=float(layer.beta))


# --- element by element -----------------------------------------------------------------------------------------------

_ACTIVATIONS: Final = {kind: (name, parameters) for name, (kind, parameters) in ACTIVATIONS.items()}


def _activation(e: _Exporter, layer: Any, x: str) -> None:
    kind, dtype = layer.type, _tensor(layer).dtype
    if kind in _ACTIVATIONS:
        name, parameters = _ACTIVATIONS[kind]
        values = dict(zip(parameters, (float(layer.alpha), float(layer.beta)), strict=False))
        e.add(name, [x], e.out(), **values)
    elif kind in (ActivationType.GELU_ERF, ActivationType.GELU_TANH):
        e.add("Gelu", [x], e.out(), approximate="tanh" if kind is ActivationType.GELU_TANH else "none")
    elif kind is ActivationType.CLIP:
        e.add("Clip", [x, e.constant(layer.alpha, dtype), e.constant(layer.beta, dtype)], e.out())
    else:
        function = "Softplus" if kind is ActivationType.SOFTPLUS else "Tanh"  # of SCALED_TANH
        inner = e.add(function, [e.times(x, layer.beta, dtype)])
        e.add("Identity", [e.times(inner, layer.alpha, dtype)], e.out())


_UNARY: Final = {op: name for name, op in UNARY.items()}
_BINARY: Final = {op: name for name, op in BINARY.items()}


def _elementwise(e: _Exporter, layer: Any, left: str, right: str) -> None:
    if layer.op is not ElementWiseOperation.FLOOR_DIV:
        e.add(_BINARY[layer.op], [left, right], e.out())
    elif _tensor(layer).dtype in FLOATS:
        e.add("Floor", [e.add("Div", [left, right])], e.out())
    else:  # what ONNX rounds towards zero is one too many where signs differ; nothing on the way leaves the type
        dtype = _tensor(layer).dtype
        zero = e.constant(0, dtype)
        has_rest = e.add("Not", [e.add("Equal", [e.add("Mod", [left, right]), zero])])
        differ = e.add("Xor", [e.add("Less", [left, zero]), e.add("Less", [right, zero])])
        more = e.cast(e.add("And", [has_rest, differ]), dtype)
        e.add("Sub", [e.add("Div", [left, right]), more], e.out())


def _gate(e: _Exporter, layer: Any, x: str) -> None:
    if layer.activation is ActivationType.SIGMOID:
        e.add("Mul", [x, e.add("Sigmoid", [x])], e.out())
    else:
        e.add("HardSwish", [x], e.out())


def _clamp(e: _Exporter, layer: Any, x: str) -> None:
    dtype = _tensor(layer).dtype
    e.add("Clip", [x, e.constant(layer.low, dtype), e.constant(layer.high, dtype)], e.out())


# --- movement ---------------------------------------------------------------------------------------------------------


def _shuffle(e: _Exporter, layer: Any, x: str, target: str | None = None) -> None:
    rank = len(_tensor(layer).shape)
    first, dims = tuple(layer.first_transpose)[:rank], layer.reshape_dims
    reshaped = len(present(layer.get_output(0)).shape)
    second = tuple(layer.second_transpose)[:reshaped]
    steps: list[Callable[[str, str], str]] = []
    if first != tuple(range(rank)):
        steps.append(lambda x, out: e.add("Transpose", [x], out, perm=list(first)))
    if target is not None or dims is not None:
        shape = target if target is not None else e.constant(list(dims))
        zero = int(not layer.zero_is_placeholder)
        steps.append(lambda x, out: e.add("Reshape", [x, shape], out, allowzero=zero))
    if second != tuple(range(reshaped)):
        steps.append(lambda x, out: e.add("Transpose", [x], out, perm=list(second)))
    if not steps:
        steps.append(lambda x, out: e.add("Identity", [x], out))
    for step in steps[:-1]:
        x = step(x, "")
    steps[-1](x, e.out())


def _slice(
    e: _Exporter,
    layer: Any,
    x: str,
    start: str | None = None,
    size: str | None = None,
    stride: str | None = None,
    fill: str | None = None,
    axes: str | None = None,
) -> None:
    rank = len(_tensor(layer).shape)
    starts, sizes, strides = (None if part is None else list(part) for part in (layer.start, layer.shape, layer.stride))
    chosen = [axis % rank for axis in layer.axes or range(rank)]
    if axes is not None:
        raise e.refuse("a slice of axes that are computed")
    ones = stride is None and set(strides or ()) == {1}
    if start is None and size is None and stride is None and starts and sizes and strides and 0 not in strides:
        extents = [_tensor(layer).shape[axis] for axis in chosen]
        if layer.mode is SampleMode.STRICT_BOUNDS:
            _plain_slice(e, x, chosen, starts, sizes, strides)
            return
        if layer.mode is SampleMode.WRAP and ones and sizes == extents:
            _rolled(e, x, chosen, starts, extents)
            return
        if layer.mode in _PADDING_MODES and ones and -1 not in extents:
            ends = [size + start - extent for start, size, extent in zip(starts, sizes, extents, strict=True)]
            before, after = dict(zip(chosen, starts, strict=True)), dict(zip(chosen, ends, strict=True))
            pads = [-before.get(axis, 0) for axis in range(rank)] + [after.get(axis, 0) for axis in range(rank)]
            e.add("Pad", [x, e.constant(pads), fill], e.out(), mode=_PADDING_MODES[layer.mode])
            return
    if layer.mode in _PADDING_MODES and ones:
        _padded(e, layer, x, start, size, fill, chosen if layer.axes else None)
    elif layer.mode in (SampleMode.STRICT_BOUNDS, SampleMode.WRAP):
        vectors = [
            e.constant(part) if tensor is None else e.cast(tensor)
            for tensor, part in ((start, starts), (size, sizes), (stride, strides))
        ]
        _gathered(e, layer, x, vectors, chosen)
    else:
        raise e.refuse(f"a slice in mode {layer.mode.name} with strides")


_PADDING_MODES: Final = {mode: name for name, mode in PAD_MODES.items() if mode is not SampleMode.WRAP}


def _plain_slice(
    e: _Exporter,
    x: str,
    axes: Sequence[int],
    starts: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    out: str | None = None,
) -> str:
    ends = [start + size * stride for start, size, stride in zip(starts, sizes, strides, strict=True)]
    ends = [-_MOST if end < 0 else end for end in ends]
    return e.add("Slice", [x, *(e.constant(list(part)) for part in (starts, ends, axes, strides))], out or e.out())


def _rolled(e: _Exporter, x: str, axes: Sequence[int], starts: Sequence[int], extents: Sequence[int]) -> None:
    """Axes turned around: what lies before the start comes last."""
    turned = [each for each in zip(axes, starts, extents, strict=True) if each[2] and each[1] % each[2]]
    for place, (axis, start, extent) in enumerate(turned):
        start %= extent
        parts = [(start, extent - start), (0, start)]
        pieces = [_plain_slice(e, x, [axis], [low], [size], [1], e.unique("piece")) for low, size in parts]
        x = e.add("Concat", pieces, e.out() if place == len(turned) - 1 else "", axis=axis)
    if not turned:
        e.add("Identity", [x], e.out())


def _padded(
    e: _Exporter,
    layer: Any,
    x: str,
    start: str | None,
    size: str | None,
    fill: str | None,
    chosen: Sequence[int] | None,
) -> None:
    """Elements around a tensor: what lies before the start, and what is left behind the end; along all axes or some."""
    first = e.constant(list(layer.start)) if start is None else e.cast(start)
    whole = e.constant(list(layer.shape)) if size is None else e.cast(size)
    axes = None if chosen is None else e.constant(list(chosen))
    extents = e.add("Shape", [x]) if axes is None else e.add("Gather", [e.add("Shape", [x]), axes])
    after = e.add("Sub", [e.add("Add", [first, whole]), extents])
    pads = e.add("Concat", [e.add("Neg", [first]), after], axis=0)
    e.add("Pad", [x, pads, fill, axes], e.out(), mode=_PADDING_MODES[layer.mode])


def _gathered(e: _Exporter, layer: Any, x: str, vectors: Sequence[str], axes: Sequence[int]) -> None:
    """Axis after axis, the elements at start + index * stride."""
    for place, axis in enumerate(axes):
        start, size, stride = (e.add("Gather", [vector, e.constant(place)]) for vector in vectors)
        steps = e.add("Range", [e.constant(0), size, e.constant(1)])
        places = e.add("Add", [e.add("Mul", [steps, stride]), start])
        if layer.mode is SampleMode.WRAP:
            places = e.add("Mod", [places, e.add("Gather", [e.add("Shape", [x]), e.constant(axis)])])
        x = e.add("Gather", [x, places], e.out() if place == len(axes) - 1 else "", axis=axis)


def _padding(e: _Exporter, layer: Any, x: str) -> None:
    rank = len(_tensor(layer).shape)
    zeros = [0] * (rank - 2)
    pads = [*zeros, *layer.pre_padding_nd, *zeros, *layer.post_padding_nd]
    e.add("Pad", [x, e.constant(pads)], e.out())


def _select(e: _Exporter, layer: Any, condition: str, chosen: str, other: str) -> None:
    if _tensor(layer, 1).dtype is not DataType.BOOL:
        e.add("Where", [condition, chosen, other], e.out())
        return
    taken = e.add("And", [condition, chosen])  # ONNX Runtime has no Where of bool
    e.add("Or", [taken, e.add("And", [e.add("Not", [condition]), other])], e.out())


def _gather(e: _Exporter, layer: Any, data: str, indices: str) -> None:
    if layer.mode is GatherMode.ELEMENT:
        e.add("GatherElements", [data, indices], e.out(), axis=layer.axis)
    elif layer.mode is GatherMode.ND:
        e.add("GatherND", [data, e.cast(indices)], e.out(), batch_dims=layer.num_elementwise_dims)
    elif layer.num_elementwise_dims:
        raise e.refuse("a gather with a shared axis")
    else:
        e.add("Gather", [data, indices], e.out(), axis=layer.axis)


def _scatter(e: _Exporter, layer: Any, data: str, indices: str, updates: str) -> None:
    if layer.mode is ScatterMode.ELEMENT:
        e.add("ScatterElements", [data, indices, updates], e.out(), axis=layer.axis)
    else:
        e.add("ScatterND", [data, e.cast(indices), updates], e.out())


# --- windows ----------------------------------------------------------------------------------------------------------

_AUTO_PADS: Final = {mode: name for name, mode in AUTO_PADDINGS.items()}


def _window_attributes(layer: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"strides": list(layer.stride_nd)}
    if layer.padding_mode in _AUTO_PADS:
        found["auto_pad"] = _AUTO_PADS[layer.padding_mode]
    else:
        found["pads"] = [*layer.pre_padding, *layer.post_padding]
    return found


def _filter(e: _Exporter, layer: Any, x: str, kernel: str | None = None, bias: str | None = None) -> None:
    transposed = layer._KIND is LayerType.DECONVOLUTION
    if layer.padding_mode is PaddingMode.EXPLICIT_ROUND_UP and not transposed:
        raise e.refuse("a convolution whose padding is rounded up")
    channels = _tensor(layer).shape[1]
    if kernel is None:
        kernel = e.weights(layer._roles["KERNEL"], layer._kernel_shape(channels))
    if bias is None and layer._roles["BIAS"].size:
        bias = e.weights(layer._roles["BIAS"], (layer.num_output_maps,))
    e.add(
        "ConvTranspose" if transposed else "Conv",
        [x, kernel, bias],
        e.out(),
        kernel_shape=list(layer.kernel_size_nd),
        dilations=list(layer.dilation_nd),
        group=layer.num_groups,
        **_window_attributes(layer),
    )


def _pooling(e: _Exporter, layer: Any, x: str) -> None:
    if layer.type is PoolingType.MAX_AVERAGE_BLEND:
        raise e.refuse("a blend of two kinds of pooling")
    attributes = _window_attributes(layer)
    attributes["kernel_shape"] = list(layer.window_size_nd)
    if layer.padding_mode is PaddingMode.EXPLICIT_ROUND_UP:
        attributes["ceil_mode"] = 1
    if layer.type is PoolingType.MAX:
        e.add("MaxPool", [x], e.out(), **attributes)
    else:
        e.add(
            "AveragePool", [x], e.out(), count_include_pad=int(not layer.average_count_excludes_padding), **attributes
        )


_COORDINATES: Final = {mapping: name for name, mapping in COORDINATES.items()}
_MODES: Final = {mode: name for name, mode in MODES.items()}
_ROUNDING: Final = {rounding: name for name, rounding in ROUNDING.items()}
_GRID_PADDING: Final = {mode: name for name, mode in GRID_PADDING.items()}


def _resize(e: _Exporter, layer: Any, x: str, target: str | None = None) -> None:
    mapping = _COORDINATES[layer.coordinate_transformation]
    if layer.selector_for_single_pixel is ResizeSelector.UPPER and mapping == "half_pixel":
        mapping = "pytorch_half_pixel"
    scales = sizes = None
    if target is not None:
        sizes = e.cast(target)
    elif layer.shape is not None:
        sizes = e.constant(list(layer.shape))
    else:
        scales = e.constant(list(layer.scales), DataType.FLOAT)
    e.add(
        "Resize",
        [x, None, scales, sizes],
        e.out(),
        mode=_MODES[layer.resize_mode],
        coordinate_transformation_mode=mapping,
        nearest_mode=_ROUNDING[layer.nearest_rounding] if layer.resize_mode is InterpolationMode.NEAREST else None,
        cubic_coeff_a=layer.cubic_coeff,
        exclude_outside=int(layer.exclude_outside),
    )


def _grid_sample(e: _Exporter, layer: Any, x: str, grid: str) -> None:
    e.add(
        "GridSample",
        [x, grid],
        e.out(),
        mode=_MODES[layer.interpolation_mode],
        padding_mode=_GRID_PADDING[layer.sample_mode],
        align_corners=int(layer.align_corners),
    )


# --- reductions and products ------------------------------------------------------------------------------------------

_REDUCTIONS: Final = {op: name for name, op in REDUCTIONS.items()}


def _bits(mask: int) -> list[int]:
    return [axis for axis in range(mask.bit_length()) if mask >> axis & 1]


def _reduce(e: _Exporter, layer: Any, x: str) -> None:
    source, places = _tensor(layer), _bits(layer.axes)
    is_global = layer.op is ReduceOperation.AVG and source.dtype in FLOATS and places[0] == 2
    axes = e.constant(places)
    if is_global and places == list(range(2, len(source.shape))):  # which has kernels for blocks of channels
        pooled = e.add("GlobalAveragePool", [x], e.out() if layer.keep_dims else "")
        if not layer.keep_dims:
            e.add("Squeeze", [pooled, axes], e.out())
        return
    e.add(_REDUCTIONS[layer.op], [x, axes], e.out(), keepdims=int(layer.keep_dims))


def _top_k(e: _Exporter, layer: Any, x: str, k: str | None = None) -> None:
    count = e.constant([layer.k]) if k is None else e.add("Reshape", [e.cast(k), e.constant([1])])
    found = e.unique("indices")
    largest = int(layer.op is TopKOperation.MAX)
    e.add("TopK", [x, count], [e.out(0), found], axis=_bits(layer.axes)[0], largest=largest)
    e.add("Cast", [found], e.out(1), to=e.number_of(present(layer.get_output(1)).dtype))


def _matrix_multiply(e: _Exporter, layer: Any, left: str, right: str) -> None:
    operands, squeezed = [], []
    rank = len(present(layer.get_output(0)).shape)
    vectors = [op is MatrixOperation.VECTOR for op in (layer.op0, layer.op1)]
    for place, (name, op) in enumerate(((left, layer.op0), (right, layer.op1))):
        width = len(_tensor(layer, place).shape)
        if op is MatrixOperation.TRANSPOSE:
            name = e.add("Transpose", [name], perm=[*range(width - 2), width - 1, width - 2])
        elif op is MatrixOperation.VECTOR:
            name = e.add("Unsqueeze", [name, e.constant([width - 1 if place == 0 else width])])
        operands.append(name)
    if vectors[0]:
        squeezed.append(rank - 1 + vectors[1])
    if vectors[1]:
        squeezed.append(rank + vectors[0])
    if not squeezed:
        e.add("MatMul", operands, e.out())
    else:
        axes = sorted({axis if axis >= 0 else 0 for axis in squeezed})
        e.add("Squeeze", [e.add("MatMul", operands), e.constant(axes)], e.out())


def _linear(e: _Exporter, layer: Any, x: str, matrix: str, bias: str | None = None) -> None:
    extents = _tensor(layer, 1).shape
    ones = e.constant(list(range(len(extents) - 2)))
    if len(extents) > 2:
        matrix = e.add("Squeeze", [matrix, ones])
    if layer.is_transposed:
        matrix = e.add("Transpose", [matrix], perm=[1, 0])
    product = e.add("MatMul", [x, matrix], e.out() if bias is None else "")
    if bias is not None:
        columns = extents[-2] if layer.is_transposed else extents[-1]
        e.add("Add", [product, e.add("Reshape", [bias, e.constant([columns])])], e.out())


# --- normalization ----------------------------------------------------------------------------------------------------


def _normalization(e: _Exporter, layer: Any, x: str, scale: str, bias: str) -> None:
    source = _tensor(layer)
    rank, axes = len(source.shape), _bits(layer.axes)
    if layer.num_groups == 1 and axes == list(range(axes[0], rank)) and axes:
        for_scale = [_tensor(layer, place).shape for place in (1, 2)]
        if all(extent == 1 for shape in for_scale for extent in tuple(shape)[: axes[0]]):
            trimmed = [
                e.add("Squeeze", [name, e.constant(list(range(axes[0])))]) if axes[0] else name
                for name in (scale, bias)
            ]
            e.add("LayerNormalization", [x, *trimmed], e.out(), axis=axes[0], epsilon=layer.epsilon)
            return
    if layer.num_groups != 1 and not layer.is_v2:
        raise e.refuse("a normalization with numbers per group")
    shape = e.add("Shape", [x])
    x = e.cast(x, DataType.FLOAT)  # squares and epsilon leave the range of 16 bits
    if layer.num_groups != 1:
        x = e.add("Reshape", [x, e.constant([0, layer.num_groups, -1])])
        axes = [2]
    where = e.constant(axes)
    centered = e.add("Sub", [x, e.add("ReduceMean", [x, where], keepdims=1)])
    variance = e.add("ReduceMean", [e.add("Mul", [centered, centered]), where], keepdims=1)
    root = e.add("Sqrt", [e.add("Add", [variance, e.constant(layer.epsilon, DataType.FLOAT)])])
    normalized = e.cast(e.add("Div", [centered, root]), source.dtype)
    if layer.num_groups != 1:
        normalized = e.add("Reshape", [normalized, shape])
    e.add("Add", [e.add("Mul", [normalized, scale]), bias], e.out())


def _scale(e: _Exporter, layer: Any, x: str) -> None:
    source = _tensor(layer)
    rank = len(source.shape)
    first = layer.channel_axis
    last = {ScaleMode.UNIFORM: first, ScaleMode.CHANNEL: first + 1}.get(layer.mode, rank)
    shape = [source.shape[axis] if first <= axis < last else 1 for axis in range(rank)]
    steps = (("Mul", "SCALE"), ("Add", "SHIFT"), ("Pow", "POWER"))
    given = [(kind, layer._roles[role]) for kind, role in steps if layer._roles[role].size]
    for place, (kind, weights) in enumerate(given):
        x = e.add(kind, [x, e.weights(weights, shape)], e.out() if place == len(given) - 1 else "")
    if not given:
        e.add("Identity", [x], e.out())


# --- quantization -----------------------------------------------------------------------------------------------------


def _scaled(e: _Exporter, layer: Any, x: str, scale: str, zero: str | None = None) -> None:
    """QuantizeLinear and DequantizeLinear; ONNX's zero point, which is 0, tells the type."""
    quantizes = layer._KIND is LayerType.QUANTIZE
    factor, source = _tensor(layer, 1), _tensor(layer)
    rank, attributes = len(factor.shape), {}
    if factor.dtype is DataType.E8M0:
        raise e.refuse("scales of type E8M0")
    blocked = [
        (axis, whole // part)
        for axis, (whole, part) in enumerate(zip(source.shape, factor.shape, strict=False))
        if rank == len(source.shape) and rank > 1 and part != whole
    ]
    if rank == 1 and factor.shape[0] != 1:
        attributes["axis"] = layer.axis
    elif rank == 1:
        scale = e.add("Squeeze", [scale, e.constant([0])])
    elif rank > 1:
        if len(blocked) != 1:
            raise e.refuse(f"blocks along {len(blocked)} axes")
        attributes.update(axis=blocked[0][0], block_size=blocked[0][1])
    output = present(layer.get_output(0))
    wanted = source.dtype if quantizes else output.dtype
    if factor.dtype is not wanted:
        scale = e.cast(scale, wanted)
    if quantizes:
        attributes["output_dtype"] = e.number_of(output.dtype)
    e.add("QuantizeLinear" if quantizes else "DequantizeLinear", [x, scale], e.out(), **attributes)


# --- selection ----------------------------------------------------------------------------------------------------


def _ragged_softmax(e: _Exporter, layer: Any, x: str, bounds: str) -> None:
    dtype = _tensor(layer).dtype
    places = e.add("Range", [e.constant(0), _extent(e, x, 2), e.constant(1)])
    inside = e.add("Less", [places, e.cast(bounds)])
    weights = e.add("Softmax", [e.add("Where", [inside, x, e.constant(-np.inf, dtype)])], axis=-1)
    e.add("Where", [inside, weights, e.constant(0, dtype)], e.out())


def _extent(e: _Exporter, x: str, axis: int) -> str:
    """An extent of a tensor as a number."""
    return e.add("Gather", [e.add("Shape", [x]), e.constant(axis)])


def _nms(
    e: _Exporter, layer: Any, boxes: str, scores: str, most: str, overlap: str | None = None, floor: str | None = None
) -> None:
    """NonMaxSuppression, whose boxes are sorted by class, and sorted as the layer has them: by falling score."""
    if len(_tensor(layer).shape) != 3:
        raise e.refuse("boxes that differ by class")
    if _tensor(layer).dtype is not DataType.FLOAT:
        boxes, scores = (e.cast(x, DataType.FLOAT) for x in (boxes, scores))
    _, count, classes = _tensor(layer, 1).shape
    if min(count, classes) < 0 or count * classes > layer.topk_box_limit:
        scores = _highest(e, scores, layer.topk_box_limit)
    zero = e.constant(0, DataType.FLOAT)
    by_class = e.add("Transpose", [scores], perm=[0, 2, 1])
    found = e.add(
        "NonMaxSuppression",
        [boxes, by_class, e.cast(most), overlap or zero, floor or zero],
        center_point_box=int(layer.bounding_box_format is BoundingBoxFormat.CENTER_SIZES),
    )
    size = e.add("Slice", [e.add("Shape", [found]), e.constant([0]), e.constant([1])])
    batch, label, box = (e.add("Gather", [found, e.constant(column)], axis=1) for column in range(3))
    flat = e.add("Add", [e.add("Mul", [box, _extent(e, scores, 2)]), label])
    score = e.add("GatherND", [by_class, found])
    order = _sorted(e, flat, size, largest=False)
    order = e.add("Gather", [order, _sorted(e, e.add("Gather", [score, order]), size, largest=True)])
    order = e.add("Gather", [order, _sorted(e, e.add("Gather", [batch, order]), size, largest=False)])
    kind = e.number_of(present(layer.get_output(0)).dtype)
    e.add("Cast", [e.add("Gather", [found, order])], e.out(0), to=kind)
    e.add("Cast", [e.add("Squeeze", [size, e.constant([0])])], e.out(1), to=e.number_of(DataType.INT32))


def _highest(e: _Exporter, scores: str, limit: int) -> str:
    """Scores of which those are lost in each batch element that are not among the highest."""
    flat = e.add("Reshape", [scores, e.constant([0, -1])])
    count = e.add(
        "Min", [e.constant([limit]), e.add("Slice", [e.add("Shape", [flat]), e.constant([1]), e.constant([2])])]
    )
    best = e.add("TopK", [flat, count], ["", ""], axis=1)
    last = e.add("ReduceMin", [best, e.constant([1])], keepdims=1)
    lost = e.constant(-np.inf, DataType.FLOAT)
    kept = e.add("Where", [e.add("GreaterOrEqual", [flat, last]), flat, lost])
    return e.add("Reshape", [kept, e.add("Shape", [scores])])


def _sorted(e: _Exporter, keys: str, count: str, *, largest: bool) -> str:
    """The order of keys, equal ones as they stand: TopK takes the earlier one first."""
    order = e.unique("order")
    e.add("TopK", [keys, count], ["", order], largest=int(largest))
    return order


# --- control flow -----------------------------------------------------------------------------------------------------


def _conditional(e: _Exporter, region: Any, *inputs: str) -> None:
    """If: what enters the branches has the name that it has outside."""
    from onnx import helper

    results = [tensor for layer in region._exits() for tensor in layer._outputs]
    entered = {layer._outputs[0]: e.name(_tensor(layer)) for layer in region._entries}
    branches = []
    for tensors, layers in region._branches:
        with e.names_as(entered), e.subgraph() as nodes:
            e.write(layers)
            ends = [e.bound(e.add("Identity", [e.name(tensor)]), tensor) for tensor in tensors]
        branches.append(helper.make_graph(nodes, e.unique("branch"), [], ends))
    e.add(
        "If",
        [e.name(region._condition)],
        [e.name(tensor) for tensor in results],
        then_branch=branches[0],
        else_branch=branches[1],
    )


def _loop(e: _Exporter, region: Any, *inputs: str) -> None:
    """Loop: its condition is computed before it, and at the end of each turn for the next one."""
    from onnx import helper

    carried = region._recurrences
    if any(layer in region._test for layer in _readers(region, region._iterators)):
        raise e.refuse("a loop whose condition reads what it walks along")
    first = {layer._outputs[0]: e.name(_tensor(layer)) for layer in carried}
    condition = e.constant(True, DataType.BOOL) if region._while is None else _condition(e, region, first)
    count = None
    if region._count is not None:
        count = e.cast(e.name(region._count))
    trip, going = e.unique("trip"), e.unique("going")
    inside = {layer._outputs[0]: e.unique(f"{region.name}_carried") for layer in carried}
    collected = [layer for layer in region._results if layer.kind is not LoopOutput.LAST_VALUE]
    with e.names_as(inside), e.subgraph() as nodes:
        with e.names_as({layer._outputs[0]: _element(e, layer, trip, count) for layer in region._iterators}):
            e.write(region._body)
            following = {layer._outputs[0]: e.name(_tensor(layer, 1)) for layer in carried}
            values = [e.add("Identity", [e.name(_tensor(layer))]) for layer in collected]
        ends = [e.add("Identity", [name]) for name in following.values()]
        again = e.add("Identity", [going]) if region._while is None else _condition(e, region, following)
    body = helper.make_graph(
        nodes,
        e.unique("body"),
        [
            helper.make_tensor_value_info(trip, e.number_of(DataType.INT64), []),
            helper.make_tensor_value_info(going, e.number_of(DataType.BOOL), []),
            *(e.bound(name, tensor) for tensor, name in inside.items()),
        ],
        [
            helper.make_tensor_value_info(again, e.number_of(DataType.BOOL), []),
            *(e.bound(name, tensor) for name, tensor in zip(ends, inside, strict=True)),
            *(e.bound(name, _tensor(layer)) for name, layer in zip(values, collected, strict=True)),
        ],
    )
    made = [e.unique(f"{region.name}_last") for _ in carried] + [e.unique(f"{region.name}_all") for _ in collected]
    e.add("Loop", [count, condition, *first.values()], made, body=body)
    last = dict(zip(inside, made, strict=False))
    stacked = iter(made[len(carried) :])
    for layer in region._results:
        if layer.kind is LoopOutput.LAST_VALUE:
            e.add("Identity", [last[_tensor(layer)]], e.name(layer._outputs[0]))
        else:
            _stacked(e, region, layer, next(stacked))


def _readers(region: Any, sources: Sequence[ILayer]) -> list[ILayer]:
    """The layers of a region's body that depend on some layers."""
    known = {id(tensor) for layer in sources for tensor in layer._outputs}
    found = []
    for layer in region._body:
        if any(id(tensor) in known for tensor in layer._inputs):
            found.append(layer)
            known.update(id(tensor) for tensor in layer._outputs)
    return found


def _condition(e: _Exporter, region: Any, state: Mapping[ITensor, str]) -> str:
    """What a loop tests before a turn, of the values that the turn begins with."""
    with e.names_as(state):
        for layer in region._test:
            for tensor in layer._outputs:
                e.forget(tensor)
        e.write(region._test)
        return e.add("Identity", [e.name(region._while)])


def _element(e: _Exporter, layer: Any, trip: str, count: str | None) -> str:
    """What a turn reads of a tensor that a loop walks along."""
    whole = e.name(_tensor(layer))
    if layer.reverse:
        length = _extent(e, whole, layer.axis) if count is None else count
        trip = e.add("Sub", [e.add("Sub", [length, e.constant(1)]), trip])
    return e.add("Gather", [whole, trip], axis=layer.axis)


def _stacked(e: _Exporter, region: Any, layer: Any, values: str) -> None:
    """The values of all turns, of which the first axis counts turns, as the layer has them."""
    rank = len(_tensor(layer).shape)
    if region._while is not None or layer._inputs[1] is not region._count:  # zeros where there were fewer turns
        length = e.cast(e.name(_tensor(layer, 1)))
        missing = e.add("Unsqueeze", [e.add("Sub", [length, _extent(e, values, 0)]), e.constant([0])])
        pads = e.add("Concat", [e.constant([0]), missing], axis=0)
        values = e.add("Pad", [values, pads, None, e.constant([0])])
    if layer.kind is LoopOutput.REVERSE:
        values = e.add("Slice", [values, e.constant([-1]), e.constant([-_MOST]), e.constant([0]), e.constant([-1])])
    order = [*range(1, layer.axis + 1), 0, *range(layer.axis + 1, rank + 1)]
    e.add("Transpose", [values], e.name(layer._outputs[0]), perm=order)


# --- attention --------------------------------------------------------------------------------------------------------


def _attention_input(e: _Exporter, layer: Any, *inputs: str | None) -> None:
    for index in range(layer.num_outputs):
        e.add("Identity", [inputs[index]], e.out(index))


def _attention(
    e: _Exporter, layer: Any, query: str, key: str, value: str, mask: str | None = None, *rest: str | None
) -> None:
    forms = {layer.query_form, layer.key_value_form}
    plain = forms == {AttentionIOForm.PADDED_BHND} and layer.norm_op is AttentionNormalizationOp.SOFTMAX
    if not plain or any(rest):
        raise e.refuse("an attention of packed or quantized sequences")
    q, k = _tensor(layer, 0), _tensor(layer, 1)
    repeats = q.shape[1] // k.shape[1]
    if repeats != 1:
        key, value = (_repeated(e, name, k.shape[1], repeats) for name in (key, value))
    if layer._factor != 1.0:
        query = e.times(query, layer._factor, q.dtype)
    scores = e.add("MatMul", [query, e.add("Transpose", [key], perm=[0, 1, 3, 2])])
    low = e.constant(-np.inf, q.dtype)
    if layer.causal_kind is not CausalMaskKind.NONE:
        scores = e.add("Where", [_causal(e, query, key, layer.causal_kind), scores, low])
    if mask is not None:
        bool_mask = _tensor(layer, 3).dtype is DataType.BOOL
        scores = e.add("Where", [mask, scores, low]) if bool_mask else e.add("Add", [scores, mask])
    weights = e.add("Softmax", [scores], axis=-1)
    if mask is not None:  # a query that sees no key attends to nothing
        weights = e.add("Where", [e.add("IsNaN", [weights]), e.constant(0, q.dtype), weights])
    e.add("MatMul", [weights, value], e.out())


def _repeated(e: _Exporter, name: str, heads: int, repeats: int) -> str:
    """Each head as often as query heads share it."""
    places = e.constant(np.repeat(np.arange(heads), repeats))
    return e.add("Gather", [name, places], axis=1)


def _causal(e: _Exporter, query: str, key: str, kind: CausalMaskKind) -> str:
    """(rows, columns): whether a key is seen."""
    rows, columns = (e.add("Gather", [e.add("Shape", [name]), e.constant(2)]) for name in (query, key))
    row = e.add("Range", [e.constant(0), rows, e.constant(1)])
    column = e.add("Range", [e.constant(0), columns, e.constant(1)])
    if kind is CausalMaskKind.LOWER_RIGHT:
        row = e.add("Add", [row, e.add("Sub", [columns, rows])])
    return e.add("LessOrEqual", [column, e.add("Unsqueeze", [row, e.constant([1])])])


def _rotary_embedding(e: _Exporter, layer: Any, x: str, cosines: str, sines: str, ids: str | None = None) -> None:
    if ids is not None:
        cosines, sines = (e.add("Gather", [cache, ids]) for cache in (cosines, sines))
    part = layer.rotary_embedding_dim or _tensor(layer).shape[-1]
    if part < 0:
        raise e.refuse("a rotation of a part whose size is not known")
    shape = e.add("Shape", [x])
    heads = e.add("Slice", [shape, e.constant([0]), e.constant([3])])
    turned, half = x, part // 2
    if layer.rotary_embedding_dim:
        turned = _columns(e, x, 0, part)
    if layer.interleaved:
        pairs = e.add("Reshape", [turned, e.add("Concat", [heads, e.constant([half, 2])], axis=0)])
        first, second = (e.add("Gather", [pairs, e.constant(place)], axis=4) for place in (0, 1))
    else:
        first, second = _columns(e, turned, 0, half), _columns(e, turned, half, part)
    cosines, sines = (e.add("Unsqueeze", [cache, e.constant([1])]) for cache in (cosines, sines))
    real = e.add("Sub", [e.add("Mul", [first, cosines]), e.add("Mul", [second, sines])])
    imaginary = e.add("Add", [e.add("Mul", [first, sines]), e.add("Mul", [second, cosines])])
    if layer.interleaved:
        sides = [e.add("Unsqueeze", [side, e.constant([4])]) for side in (real, imaginary)]
        flat = e.add("Concat", [heads, e.constant([part])], axis=0)
        pieces = [e.add("Reshape", [e.add("Concat", sides, axis=4), flat])]
    else:
        pieces = [real, imaginary]
    if layer.rotary_embedding_dim:
        pieces.append(_columns(e, x, part, _MOST))
    e.add("Concat", pieces, e.out(), axis=3)


def _columns(e: _Exporter, x: str, start: int, end: int) -> str:
    return e.add("Slice", [x, e.constant([start]), e.constant([end]), e.constant([3])])


def _kv_cache_update(
    e: _Exporter, layer: Any, cache: str, update: str, places: str, lengths: str | None = None
) -> None:
    """Each row of the cache is the row of the update that falls there, or what it was."""
    if layer.update_form is not AttentionIOForm.PADDED_BHND or layer.cache_mode is not KVCacheMode.LINEAR:
        raise e.refuse("an update of packed sequences, or of a cache that wraps")
    rows = e.add("Range", [e.constant(0), _extent(e, cache, 2), e.constant(1)])
    starts = e.add("Unsqueeze", [e.cast(places), e.constant([1])])
    steps = e.add("Sub", [rows, starts])  # (batch, rows)
    count = _extent(e, update, 2)
    end = count if lengths is None else e.add("Unsqueeze", [e.cast(lengths), e.constant([1])])
    written = e.add("And", [e.add("GreaterOrEqual", [steps, e.constant(0)]), e.add("Less", [steps, end])])
    nearest = e.add("Max", [e.add("Min", [steps, e.add("Sub", [count, e.constant(1)])]), e.constant(0)])
    nearest, written = (e.add("Unsqueeze", [x, e.constant([1, 3])]) for x in (nearest, written))
    moved = e.add("GatherElements", [update, e.add("Expand", [nearest, e.add("Shape", [cache])])], axis=2)
    e.add("Where", [written, moved, cache], e.out())


_EXPORTS: Final[dict[LayerType, Callable[..., None]]] = {
    LayerType.ACTIVATION: _activation,
    LayerType.ATTENTION_INPUT: _attention_input,
    LayerType.ATTENTION_OUTPUT: _attention,
    LayerType.CAST: lambda e, layer, x: e.add("Cast", [x], e.out(), to=e.number_of(layer.to_type)),
    LayerType.CONCATENATION: lambda e, layer, *inputs: e.add("Concat", inputs, e.out(), axis=layer.axis),
    LayerType.CONDITIONAL_OUTPUT: _conditional,
    LayerType.CONSTANT: _constant,
    LayerType.CONVOLUTION: _filter,
    LayerType.CUMULATIVE: lambda e, layer, x, axis: e.add(
        "CumSum", [x, axis], e.out(), exclusive=int(layer.exclusive), reverse=int(layer.reverse)
    ),
    LayerType.DECONVOLUTION: _filter,
    LayerType.DEQUANTIZE: _scaled,
    LayerType.EINSUM: lambda e, layer, *inputs: e.add("Einsum", inputs, e.out(), equation=layer.equation),
    LayerType.ELEMENTWISE: _elementwise,
    LayerType.FILL: _fill,
    LayerType.GATHER: _gather,
    LayerType.GRID_SAMPLE: _grid_sample,
    LayerType.IDENTITY: lambda e, layer, x: e.add("Identity", [x], e.out()),
    LayerType.KV_CACHE_UPDATE: _kv_cache_update,
    LayerType.LOOP_OUTPUT: _loop,
    LayerType.LRN: lambda e, layer, x: e.add(
        "LRN", [x], e.out(), size=layer.window_size, alpha=layer.alpha, beta=layer.beta, bias=layer.k
    ),
    LayerType.MATRIX_MULTIPLY: _matrix_multiply,
    LayerType.NMS: _nms,
    LayerType.NON_ZERO: lambda e, layer, x: e.add(
        "Cast", [e.add("NonZero", [x])], e.out(), to=e.number_of(layer.get_output(0).dtype)
    ),
    LayerType.NORMALIZATION: _normalization,
    LayerType.ONE_HOT: lambda e, layer, indices, values, depth: e.add(
        "OneHot", [indices, depth, values], e.out(), axis=layer.axis
    ),
    LayerType.PADDING: _padding,
    LayerType.PARAMETRIC_RELU: lambda e, layer, x, slopes: e.add("PRelu", [x, slopes], e.out()),
    LayerType.POOLING: _pooling,
    LayerType.QUANTIZE: _scaled,
    LayerType.RAGGED_SOFTMAX: _ragged_softmax,
    LayerType.REDUCE: _reduce,
    LayerType.RESIZE: _resize,
    LayerType.REVERSE_SEQUENCE: lambda e, layer, x, lengths: e.add(
        "ReverseSequence", [x, e.cast(lengths)], e.out(), batch_axis=layer.batch_axis, time_axis=layer.sequence_axis
    ),
    LayerType.ROTARY_EMBEDDING: _rotary_embedding,
    LayerType.SCALE: _scale,
    LayerType.SCATTER: _scatter,
    LayerType.SELECT: _select,
    LayerType.SHAPE: lambda e, layer, x: e.add("Shape", [x], e.out()),
    LayerType.SHUFFLE: _shuffle,
    LayerType.SLICE: _slice,
    LayerType.SOFTMAX: lambda e, layer, x: e.add("Softmax", [x], e.out(), axis=_bits(layer.axes)[0]),
    LayerType.SQUEEZE: lambda e, layer, x, axes=None: e.add("Squeeze", [x, axes and e.cast(axes)], e.out()),
    LayerType.TOPK: _top_k,
    LayerType.UNARY: lambda e, layer, x: e.add(_UNARY[layer.op], [x], e.out()),
    LayerType.UNSQUEEZE: lambda e, layer, x, axes: e.add("Unsqueeze", [x, e.cast(axes)], e.out()),
}
"""How each kind of layer is written; loops and conditionals by what leaves them."""

_OF_SCOPES: Final = {
    LayerType.CONDITION,
    LayerType.CONDITIONAL_INPUT,
    LayerType.ITERATOR,
    LayerType.RECURRENCE,
    LayerType.TRIP_LIMIT,
}
"""What is written with the loop or conditional that it belongs to."""
_OF_PLANS: Final[dict[str, Callable[..., None]]] = {
    "CLAMP": _clamp,
    "GATE": _gate,
    "LINEAR": _linear,
    "SCALED_ATTENTION": _attention,
}
"""The same of layers that only plans have, by the name of their type."""

PLAN_TYPES: Final = frozenset({kind.name for kind in _EXPORTS}.union(_OF_PLANS))
"""The types of layers in plans that `export_plan` writes."""


def _writer_of(layer: ILayer) -> Callable[..., None] | None:
    """What writes a layer of a network, or of a plan, which has others of the same kind."""
    name = layer._PLAN_TYPE
    is_plain = name == layer._KIND.name or name in _SCOPES
    return _EXPORTS.get(layer._KIND) if is_plain else _OF_PLANS.get(name)


_SCOPES: Final = ("CONDITIONAL", "LOOP")


def exported_kinds() -> Iterable[LayerType]:
    """The kinds of layers that have a form in ONNX."""
    return _EXPORTS.keys() | _OF_SCOPES
