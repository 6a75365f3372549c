"""Several products of one tensor with constant matrices as one: query, key and value; gate and up.

One large product fills a device better than three small ones, and reads the tensor once.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from trt_portable.attributes import Attribute
from trt_portable.dims import Dims
from trt_portable.dtypes import PACKED
from trt_portable.enums import DataType, ElementWiseOperation, LayerType, MatrixOperation, SampleMode
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
from trt_portable.layers.pointwise import IElementWiseLayer
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.network.loop import LoopRegion
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPattern


class MergeProducts(PlanPattern):
    """Merges products of the same tensor, each with its bias or all without, into one product and slices of it.

    Kernels for other sizes may add in another order. What a loop reads stays a product of its own, since there may be
    a kernel for both.
    """

    name = "merge_products"
    kinds = frozenset({LayerType.MATRIX_MULTIPLY})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """One product where the first one stood, and slices behind it."""
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
    if addition is None or not addition.is_a(IElementWiseLayer) or addition.outputs[0] in graph.visible:
        return product
    if addition[IElementWiseLayer.op] is not ElementWiseOperation.SUM:
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


class MergeQuantizedProducts(PlanPattern):
    """Merges products of the same tensor of floats with matrices of codes into one product of codes, and slices of it.

    Codes stay codes. Products whose left operand is quantized too keep what they quantize their results by, so they
    stay apart; so do those that rectify. A scale of a whole matrix becomes one for each of its rows.
    """

    name = "merge_quantized_products"
    kinds = frozenset({LowPrecisionProductLayer._KIND})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """One product of codes where the first one stood, and slices behind it."""
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
        codes: (N, K), in the carrier of their type.
        scales: (N / rows, K / depth) float32, of which each serves a block of codes.
        offsets: As the scales, what is subtracted; or None.
        bias: (N,), or None.
    """

    node: Node
    preparation: Node
    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def columns(self) -> int:
        """How many columns the result has."""
        return self.codes.shape[0]

    @property
    def form(self) -> Hashable:
        """Equal for products of a tensor that can be merged."""
        layer = LowPrecisionProductLayer
        attributes: tuple[Attribute[Any], ...] = (
            layer.depth,
            layer.code_type,
            layer.left_type,
            layer.result_type,
            layer.output_type,
            layer.has_offset,
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
    read = graph.elements if node[layer.code_type] in PACKED else functools.partial(graph.constant, in_place=True)
    codes, scales = read(preparation.inputs[0]), graph.constant(preparation.inputs[1])
    given = preparation.inputs[_OFFSET] if node[layer.has_offset] else None
    offsets = None if given is None else graph.constant(given)
    if (offsets is None) is not (given is None):
        return None
    bias = None if node.inputs[BIAS] is None else graph.constant(node.inputs[BIAS])
    if codes is None or scales is None or (bias is None) is not (node.inputs[BIAS] is None):
        return None
    if any(reader.is_a(LoopRegion) for reader in graph.all_readers(node.outputs[0])):
        return None
    codes = codes.reshape(codes.shape[-2:])
    if preparation[PreparedMatrixLayer.is_transposed]:
        codes = codes.t()
    scales = _scales(scales, preparation, len(codes))
    offsets = None if offsets is None else _scales(offsets, preparation, len(codes))
    return _CodedProduct(node, preparation, codes, scales, offsets, None if bias is None else bias.reshape(-1))


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
    dtype, matrices = first[layer.code_type], [each.codes for each in group]
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
