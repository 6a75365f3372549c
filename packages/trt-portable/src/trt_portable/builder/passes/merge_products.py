"""Several products of one tensor with constant matrices as one: query, key and value; gate and up.

One large product fills a device better than three small ones, and reads the tensor once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from trt_portable.dims import Dims
from trt_portable.enums import ElementWiseOperation, LayerType, MatrixOperation, SampleMode
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
    start = 0
    for product in group:
        values = {
            ISliceLayer.start: Dims((start,)),
            ISliceLayer.shape: Dims((product.columns,)),
            ISliceLayer.stride: Dims((1,)),
            ISliceLayer.axes: Dims((len(shape) - 1,)),
            ISliceLayer.mode: SampleMode.STRICT_BOUNDS,
        }
        fresh.append(Node(ISliceLayer, f"{product.node.name} part", (result,), (product.output,), values))
        start += product.columns
    parts = [node for product in group for node in (product.node, product.addition) if node is not None]
    return NodeFusion(fresh, parts, first.node)
