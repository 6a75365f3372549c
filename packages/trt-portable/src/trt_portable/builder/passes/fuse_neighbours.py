"""Layers that are computed at once: neighbours as one layer, in loops and conditionals too, and products of one tensor.

Several products of one tensor with constant matrices (query, key and value; gate and up) are one: a large product fills
a device better than three small ones, and reads the tensor once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from trt_portable.dims import Dims
from trt_portable.dtypes import CARRIERS, PACKED
from trt_portable.enums import (
    ActivationType,
    DataType,
    ElementWiseOperation,
    LayerType,
    MatrixOperation,
    SampleMode,
    UnaryOperation,
)
from trt_portable.errors import present
from trt_portable.layer_properties import Attribute
from trt_portable.layers.fused import ClampLayer, GateLayer, LinearLayer
from trt_portable.layers.low_precision import (
    BIAS,
    LEFT,
    LEFT_SCALE,
    MATRIX,
    OUTPUT_SCALE,
    SCALE,
    LowPrecisionProductLayer,
    PreparedMatrixLayer,
)
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    IUnaryLayer,
    is_usual_hard_sigmoid,
    representable,
)
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.network.control_flow import LoopRegion
from trt_portable.network.layer import ILayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPass, pattern


@pattern(LayerType.MATRIX_MULTIPLY)
def merge_products(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Merges products of the same tensor, each with its bias or all without, into one product and slices of it.

    Kernels for other sizes may add in another order. What a loop reads stays a product of its own, since there may be
    a kernel for both.
    """
    first = _product(operation, graph)
    if first is None:
        return None
    readers = graph.all_readers(operation.inputs[0])
    others = (_product(node, graph) for node in readers if node.is_a(IMatrixMultiplyLayer))
    group = [other for other in others if other is not None and other.form == first.form]
    return _merged(group, graph) if len(group) > 1 else None


@dataclass(frozen=True)
class _Product:
    """A product with a constant matrix, and the constant bias that is added to it, if there is one.

    Attributes:
        node: The product.
        matrix: (..., K, N) or, transposed, (..., N, K), with leading extents of 1.
        addition: The sum with the bias; None where there is none.
        bias: (..., N), with leading extents of 1.
    """

    node: Node
    matrix: torch.Tensor
    addition: Node | None = None
    bias: torch.Tensor | None = None

    @property
    def output(self) -> int:
        """The tensor that stands for product and bias."""
        last = self.node if self.addition is None else self.addition
        return last.outputs[0]

    @property
    def columns_axis(self) -> int:
        """The axis of the matrix that has the columns of the result."""
        return -2 if self.node[IMatrixMultiplyLayer.op1] is MatrixOperation.TRANSPOSE else -1

    @property
    def columns(self) -> int:
        """How many columns the result has."""
        return self.matrix.shape[self.columns_axis]

    @property
    def form(self) -> Hashable:
        """Equal for products of a tensor that can be merged."""
        rank = None if self.bias is None else self.bias.dim()
        return (self.node.inputs[0], self.columns_axis, self.matrix.dtype, self.matrix.dim(), rank)


def _product(node: Node, graph: PlanGraph) -> _Product | None:
    """A product that may be merged, with its bias."""
    if node[IMatrixMultiplyLayer.op0] is not MatrixOperation.NONE or node.outputs[0] in graph.visible:
        return None
    matrix = graph.constant(node.inputs[1], in_place=True)
    if node[IMatrixMultiplyLayer.op1] is MatrixOperation.VECTOR or matrix is None:
        return None
    if not matrix.dtype.is_floating_point or any(extent != 1 for extent in matrix.shape[:-2]):
        return None
    found = _with_bias(_Product(node, matrix), graph)
    return None if any(reader.is_a(LoopRegion) for reader in graph.all_readers(found.output)) else found


def _with_bias(product: _Product, graph: PlanGraph) -> _Product:
    output = product.output
    addition = graph.all_readers(output)[0] if graph.is_private(output) else None
    is_sum = addition is not None and addition.has(IElementWiseLayer.op, ElementWiseOperation.SUM)
    if addition is None or not is_sum or addition.outputs[0] in graph.visible:
        return product
    bias = graph.constant(addition.inputs[1 - addition.inputs.index(output)])
    if bias is None or bias.shape[-1:] != (product.columns,) or bias.numel() != product.columns:
        return product
    return replace(product, addition=addition, bias=bias)


def _merged(group: list[_Product], graph: PlanGraph) -> NodeFusion:
    first = group[0]
    name = " | ".join(product.node.name for product in group)
    dtype, axis = graph.dtype(first.output), first.columns_axis
    shape = [*graph.shape(first.node.outputs[0])[:-1], sum(product.columns for product in group)]
    matrix = graph.new_joined_constant(f"{name} matrix", dtype, [product.matrix for product in group], axis)
    result = graph.new_tensor(name, dtype, shape)
    inputs = (first.node.inputs[0], *matrix.outputs)
    fresh = [matrix, replace(first.node, name=name, inputs=inputs, outputs=(result,))]
    if first.addition is not None:
        biases = [product.bias for product in group if product.bias is not None]
        bias = graph.new_joined_constant(f"{name} bias", dtype, biases, -1)
        biased = graph.new_tensor(f"{name} biased", dtype, shape)
        inputs = (result, *bias.outputs)
        fresh += [bias, replace(first.addition, name=f"{name} bias sum", inputs=inputs, outputs=(biased,))]
        result = biased
    outputs = [(product.node.name, product.output, product.columns) for product in group]
    fresh += _slices(result, outputs, len(shape) - 1)
    parts = [node for product in group for node in (product.node, product.addition) if node is not None]
    return NodeFusion(fresh, parts, first.node)


def _slices(tensor: int, parts: Sequence[tuple[str, int, int]], axis: int) -> list[Node]:
    """Slices that follow each other along an axis.

    Args:
        tensor: What is taken apart.
        parts: Of each, the name of what it stands for, the tensor that it makes, and its extent.
        axis: The axis.
    """
    fresh, start = [], 0
    for name, output, extent in parts:
        values = {
            ISliceLayer.start: Dims((start,)),
            ISliceLayer.shape: Dims((extent,)),
            ISliceLayer.stride: Dims((1,)),
            ISliceLayer.axes: Dims((axis,)),
            ISliceLayer.mode: SampleMode.STRICT_BOUNDS,
        }
        fresh.append(Node(ISliceLayer, f"{name} part", (tensor,), (output,), values))
        start += extent
    return fresh


@pattern(LowPrecisionProductLayer._KIND)
def merge_quantized_products(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Merges products of the same tensor of floats with matrices of codes into one product of codes, and slices of it.

    Codes stay codes. Products whose left operand is quantized too keep what they quantize their results by, so they
    stay apart; so do those that rectify. A scale of a whole matrix becomes one for each of its rows.
    """
    first = _coded_product(operation, graph)
    if first is None:
        return None
    others = (_coded_product(node, graph) for node in graph.all_readers(operation.inputs[LEFT]))
    group = [other for other in others if other is not None and other.form == first.form]
    return _merged_codes(group, graph) if len(group) > 1 else None


@dataclass(frozen=True)
class _CodedProduct:
    """A product of floats with a constant matrix of codes.

    Attributes:
        node: The product.
        preparation: What brings its matrix into the form of a kernel.
        columns: N, how many columns the result has.
        read: Returns the codes, (N, K), in the carrier of their type.
        scales: (N / rows, K / depth) float32, of which each serves a block of codes.
        offsets: As the scales, what is subtracted; or None.
        bias: (N,), or None.
    """

    node: Node
    preparation: Node
    columns: int
    read: Callable[[], torch.Tensor]
    scales: torch.Tensor
    offsets: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def form(self) -> Hashable:
        """Equal for products of a tensor that can be merged."""
        layer = LowPrecisionProductLayer
        attributes: tuple[Attribute[Any], ...] = (
            *(layer.depth, layer.code_type, layer.left_type, layer.result_type, layer.output_type, layer.has_offset),
            layer.levels,
        )
        rows = self.columns // self.scales.shape[0]
        bias = None if self.bias is None else self.bias.dtype
        return (*(self.node[each] for each in attributes), self.scales.shape[1], rows, bias)


def _coded_product(node: Node, graph: PlanGraph) -> _CodedProduct | None:
    """A product of floats and constant codes that may be merged."""
    layer = LowPrecisionProductLayer
    if not node.is_a(layer) or node.outputs[0] in graph.visible or node[layer.rectify]:
        return None
    if node.inputs[LEFT_SCALE] is not None or node.inputs[OUTPUT_SCALE] is not None:
        return None
    preparation = graph.private_maker(node.inputs[MATRIX])
    if preparation is None or any(tensor is not None for tensor in preparation.inputs[2:_OFFSET]):
        return None
    if node[layer.left_type] is not node[layer.result_type] or not graph.is_private(node.inputs[SCALE]):
        return None
    source, scales = preparation.inputs[0], graph.constant(preparation.inputs[1])
    given = preparation.inputs[_OFFSET] if node[layer.has_offset] else None
    offsets = None if given is None else graph.constant(given)
    if (offsets is None) is not (given is None):
        return None
    bias = None if node.inputs[BIAS] is None else graph.constant(node.inputs[BIAS])
    if not graph.is_fixed_constant(source) or scales is None or (bias is None) is not (node.inputs[BIAS] is None):
        return None
    if any(reader.is_a(LoopRegion) for reader in graph.all_readers(node.outputs[0])):
        return None

    def read() -> torch.Tensor:
        is_packed = node[layer.code_type] in PACKED
        codes = present(graph.elements(source) if is_packed else graph.constant(source, in_place=True))
        codes = codes.reshape(codes.shape[-2:])
        return codes.t() if preparation[PreparedMatrixLayer.is_transposed] else codes

    columns = graph.shape(source)[-1 if preparation[PreparedMatrixLayer.is_transposed] else -2]
    scales = _scales(scales, preparation, columns)
    offsets = None if offsets is None else _scales(offsets, preparation, columns)
    return _CodedProduct(node, preparation, columns, read, scales, offsets, None if bias is None else bias.reshape(-1))


_OFFSET: Final = 4
"""Input of a preparation: what is subtracted."""


def _scales(scales: torch.Tensor, preparation: Node, columns: int) -> torch.Tensor:
    """The scales of a preparation, (N blocks, K blocks) float32; one for every column, if there is one for all."""
    rows, depths = preparation[PreparedMatrixLayer.blocks]
    wide = scales.to(torch.float32)
    is_turned = preparation[PreparedMatrixLayer.is_transposed]
    wide = wide.reshape(depths, rows).t() if is_turned else wide.reshape(rows, depths)
    return wide.expand(columns, -1) if rows == 1 else wide


def _merged_codes(group: list[_CodedProduct], graph: PlanGraph) -> NodeFusion:
    first, layer = group[0].node, LowPrecisionProductLayer
    name = " | ".join(product.node.name for product in group)
    dtype, matrices = first[layer.code_type], [each.read() for each in group]
    if dtype in PACKED:
        codes = graph.new_constant(f"{name} codes", dtype, torch.cat(matrices))
    else:
        codes = graph.new_joined_constant(f"{name} codes", dtype, matrices, 0)
    scales = torch.cat([each.scales for each in group])
    scale = graph.new_constant(f"{name} scales", DataType.FLOAT, scales)
    offsets = [each.offsets for each in group if each.offsets is not None]
    shifts = [graph.new_constant(f"{name} offsets", DataType.FLOAT, torch.cat(offsets))] if offsets else []
    columns = sum(product.columns for product in group)
    form: dict[Attribute[Any], Any] = {layer.columns: columns, layer.blocks: Dims(tuple(scales.shape))}
    prepared = Node(
        PreparedMatrixLayer,
        f"{name} [matrix]",
        (codes.outputs[0], scale.outputs[0], None, None, *(node.outputs[0] for node in shifts)),
        (
            graph.new_tensor(f"{name} matrix", dtype, (columns, first[layer.depth])),
            graph.new_tensor(f"{name} matrix scale", DataType.FLOAT, scales.shape),
        ),
        {**group[0].preparation.values, **form, PreparedMatrixLayer.is_transposed: False},
    )
    fresh = [codes, scale, *shifts, prepared]
    inputs = list(first.inputs)
    inputs[MATRIX], inputs[SCALE] = prepared.outputs
    if inputs[BIAS] is not None:
        biases = torch.cat([each.bias for each in group if each.bias is not None])
        bias = graph.new_constant(f"{name} bias", graph.dtype(inputs[BIAS]), biases)
        inputs[BIAS] = bias.outputs[0]
        fresh.append(bias)
    shape = [*graph.shape(first.outputs[0])[:-1], columns]
    result = graph.new_tensor(name, graph.dtype(first.outputs[0]), shape)
    fresh.append(replace(first, name=name, inputs=tuple(inputs), outputs=(result,)).having(form))
    outputs = [(product.node.name, product.node.outputs[0], product.columns) for product in group]
    fresh += _slices(result, outputs, len(shape) - 1)
    parts = [node for product in group for node in (product.preparation, product.node)]
    return NodeFusion(fresh, parts, first)


class FuseNeighbours(PlanPass):
    """Makes linear maps, gates and clamps of the layers that write them out.

    Weights may be refitted: only their extents matter. Comes last, since no other pass knows these layers. Gates round
    once less.
    """

    name = "fuse_neighbours"

    def call(self, graph: PlanGraph) -> int:
        """Rewrites the layers, and then those inside of each."""
        changes = sum(each.call(graph) for each in (_linear_product, _linear_bias, _clamp_with_nan, _gate))
        nodes = graph.nodes
        for at, node in enumerate(nodes):
            if "body" in node.nested:
                body = graph.body_of(node)
                inside = self.call(body)
                if inside:
                    nodes[at] = replace(node, nested={**node.nested, "body": tuple(body.nodes)})
                    changes += inside
        graph.nodes = nodes
        return changes


def _fused(
    nodes: Sequence[Node], layer: type[ILayer], inputs: tuple[int | None, ...], values: Mapping[Attribute[Any], Any]
) -> NodeFusion:
    """One layer where the last of several stood."""
    last = nodes[-1]
    metadata = " ".join(node.metadata for node in nodes if node.metadata)
    name = " + ".join(node.name for node in nodes)
    fused = replace(last, layer=layer, name=name, metadata=metadata, inputs=inputs, values=values)
    return NodeFusion([fused], nodes, last)


def _has_only_ones(extents: Collection[int]) -> bool:
    return all(extent == 1 for extent in extents)


@pattern(LayerType.MATRIX_MULTIPLY)
def _linear_product(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """A product with a constant matrix on the right is a linear map."""
    if not operation.is_a(IMatrixMultiplyLayer) or not graph.is_constant(operation.inputs[1]):
        return None
    how, shape = operation[IMatrixMultiplyLayer.op1], graph.shape(operation.inputs[1])
    if operation[IMatrixMultiplyLayer.op0] is not MatrixOperation.NONE or how is MatrixOperation.VECTOR:
        return None
    if len(shape) < 2 or not _has_only_ones(shape[:-2]):
        return None
    values = {LinearLayer.is_transposed: how is MatrixOperation.TRANSPOSE}
    return _fused([operation], LinearLayer, operation.inputs, values)


@pattern(LayerType.ELEMENTWISE)
def _linear_bias(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """A linear map takes the constant along that is added to it, if that is one number per column."""
    if operation[IElementWiseLayer.op] is not ElementWiseOperation.SUM:
        return None
    for output, bias in (operation.inputs, operation.inputs[::-1]):
        linear = graph.private_maker(output)
        if linear is None or not linear.is_a(LinearLayer) or len(linear.inputs) > 2 or not graph.is_constant(bias):
            continue
        columns = graph.shape(linear.inputs[1])[-2 if linear[LinearLayer.is_transposed] else -1]
        added = graph.shape(bias)
        if added[-1:] == (columns,) and _has_only_ones(added[:-1]):
            return _fused([linear, operation], LinearLayer, (*linear.inputs, bias), linear.values)
    return None


@pattern(LayerType.SELECT)
def _clamp_with_nan(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """``x if isnan(x) else clip(x)``, as a clamp that keeps NaN is written in layers, is one kernel."""
    condition, x, clipped = operation.inputs
    test, clip = graph.private_maker(condition), graph.private_maker(clipped)
    if test is None or clip is None or not test.inputs == clip.inputs == (x,):
        return None
    if not test.has(IUnaryLayer.op, UnaryOperation.ISNAN):
        return None
    if not clip.has(IActivationLayer.type, ActivationType.CLIP):
        return None
    low, high = clip[IActivationLayer.alpha], clip[IActivationLayer.beta]
    if low > high:
        return None
    dtype = CARRIERS[graph.dtype(clip.outputs[0])]
    values = {ClampLayer.low: representable(low, dtype), ClampLayer.high: representable(high, dtype)}
    return _fused([test, clip, operation], ClampLayer, (x,), values)


@pattern(LayerType.ELEMENTWISE)
def _gate(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """``x * sigmoid(x)`` and ``x * hard_sigmoid(x)`` are one kernel each."""
    if operation[IElementWiseLayer.op] is not ElementWiseOperation.PROD:
        return None
    for x, gate in (operation.inputs, operation.inputs[::-1]):
        node = graph.private_maker(gate)
        if node is None or not node.is_a(IActivationLayer) or node.inputs != (x,) or not _is_gate(node):
            continue
        return _fused([node, operation], GateLayer, (x,), {GateLayer.activation: node[IActivationLayer.type]})
    return None


def _is_gate(activation: Node) -> bool:
    kind = activation[IActivationLayer.type]
    if kind is ActivationType.HARD_SIGMOID:
        return is_usual_hard_sigmoid(activation[IActivationLayer.alpha], activation[IActivationLayer.beta])
    return kind is ActivationType.SIGMOID


_TOLERANCE: Final = 1e-6  # of coefficients as they are written down; their type rounds them once more


@pattern(LayerType.ELEMENTWISE)
def fuse_gelu(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Turns ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` into one layer, which rounds once.

    It stands in place of the last product of the chain; the rest dies where nothing else reads it.
    """
    x = _Chain(graph).gelu(operation)
    if x is None:
        return None
    values = {IActivationLayer.type: ActivationType.GELU_TANH}
    gelu = replace(operation, layer=IActivationLayer, inputs=(x,), values=values)
    return NodeFusion([gelu], [operation], operation)


class _Chain:
    """Reads chains of elementwise layers upwards."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph

    def gelu(self, node: Node) -> int | None:
        """The tensor of which a product is the GELU, if it is one."""
        for half, rest in _operands(node, ElementWiseOperation.PROD):
            for x in self._scaled(half, 0.5):
                for tanh in self._shifted(rest, 1.0):
                    if self._is_gate(tanh, x):
                        return x
        return None

    def _is_gate(self, tanh: int, x: int) -> bool:
        node = self._graph.maker(tanh)
        if node is None or not node.has(IActivationLayer.type, ActivationType.TANH):
            return False
        for inner in self._scaled(node.inputs[0], math.sqrt(2 / math.pi)):
            for first, second in self._made_by(inner, ElementWiseOperation.SUM):
                if first == x and any(self._is_cube(cube, x) for cube in self._scaled(second, 0.044715)):
                    return True
        return False

    def _is_cube(self, tensor: int, x: int) -> bool:
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if first == x and (x, x) in list(self._made_by(second, ElementWiseOperation.PROD)):
                return True
        powers = list(self._made_by(tensor, ElementWiseOperation.POW))
        return bool(powers) and powers[0][0] == x and self._is_number(powers[0][1], 3.0)

    def _made_by(self, tensor: int | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
        return _operands(self._graph.maker(tensor), operation)

    def _scaled(self, tensor: int | None, factor: float) -> Iterator[int]:
        """What a tensor is a multiple of."""
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if self._is_number(second, factor):
                yield first

    def _shifted(self, tensor: int, shift: float) -> Iterator[int]:
        for first, second in self._made_by(tensor, ElementWiseOperation.SUM):
            if self._is_number(second, shift):
                yield first

    def _is_number(self, tensor: int, value: float) -> bool:
        constant = self._graph.constant(tensor)
        if constant is None or constant.numel() != 1 or not constant.dtype.is_floating_point:
            return False
        tolerance = _TOLERANCE + torch.finfo(constant.dtype).eps / 2
        return math.isclose(float(constant.reshape(())), value, rel_tol=tolerance)


def _operands(node: Node | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
    """The operands of an elementwise operation, both ways round where the order does not matter."""
    if node is None or not node.has(IElementWiseLayer.op, operation):
        return
    first, second = map(present, node.inputs)
    yield first, second
    if operation is not ElementWiseOperation.POW:
        yield second, first
