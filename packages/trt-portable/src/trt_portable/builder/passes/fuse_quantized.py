"""Products and convolutions with dequantized constant operands, as those of few bits.

TensorRT's explicit quantization puts Q/DQ around a product: ``DQ(Q(x)) @ DQ(codes)``. Taken literally that is a float
product with much conversion before it; meant is a product of the codes. The kernel is chosen later, by measurement.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from trt_portable.device_choice import current_device
from trt_portable.dims import Dims
from trt_portable.dtypes import FLOATS, storage_bytes, volume
from trt_portable.enums import (
    ActivationType,
    DataType,
    ElementWiseOperation,
    FillOperation,
    GatherMode,
    LayerType,
    MatrixOperation,
    PaddingMode,
    ReduceOperation,
)
from trt_portable.errors import present
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, REFERENCE, ProductForm
from trt_portable.layer_properties import Attribute
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.indexing import IGatherLayer
from trt_portable.layers.low_precision import (
    ChosenCodesProductLayer,
    ChosenProductLayer,
    LowPrecisionConvolutionLayer,
    LowPrecisionProductLayer,
    PreparedKernelLayer,
    PreparedMatrixLayer,
)
from trt_portable.layers.movement import IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.quantization import IDequantizeLayer, IQuantizeLayer, spread
from trt_portable.layers.reduction import IReduceLayer
from trt_portable.layers.sources import ICastLayer, IFillLayer, IIdentityLayer
from trt_portable.network.layer import ILayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, pattern

_MOVEMENT: Final = (IShuffleLayer, ISqueezeLayer, IUnsqueezeLayer, IIdentityLayer)
_LEVELS: Final = 16
_QUANTIZED_RESULTS: Final = frozenset({DataType.INT8, DataType.FP8})


@dataclass(frozen=True)
class Dequantized:
    """A tensor that a dequantization made, moved but not changed since then.

    Attributes:
        node: The dequantization.
        movement: Layers between it and the tensor, in order, but for casts between float types.
    """

    node: Node
    movement: tuple[Node, ...]

    @property
    def codes(self) -> int:
        """The tensor that was dequantized."""
        return present(self.node.inputs[0])

    @property
    def scale(self) -> int:
        """The tensor of its scale."""
        return present(self.node.inputs[1])

    @property
    def axis(self) -> int:
        """The axis of scales per channel."""
        return self.node[IDequantizeLayer.axis]

    @property
    def has_zero_point(self) -> bool:
        """Whether there is a zero point, which can only be zero, but may be anything before a refit."""
        return len(self.node.inputs) > 2


@dataclass(frozen=True)
class Decoded(Dequantized):
    """As `Dequantized`, with what else makes numbers of codes: ``levels[codes] * scale - offset``.

    Attributes:
        before: How many layers of the movement come before `factors` and `offset`.
        factors: Tensor of what levels are multiplied by, or None.
        offset: Tensor of what is subtracted, or None.
        levels: What the sixteen codes stand for, the least first; none where they stand for themselves.
    """

    before: int = 0
    factors: int | None = None
    offset: int | None = None
    levels: tuple[float, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether codes times their own scale are all."""
        return self.factors is None and self.offset is None


def dequantized(graph: PlanGraph, tensor: int | None) -> Dequantized | None:
    """What a tensor is moved from, if that is a dequantization."""
    movement, node = _moved_from(graph, tensor)
    return Dequantized(node, movement) if node is not None and node.is_a(IDequantizeLayer) else None


def decoded(graph: PlanGraph, tensor: int | None) -> Decoded | None:
    """What a tensor is moved from, if that is made of codes and constants: dequantized, shifted, or looked up."""
    plain = dequantized(graph, tensor)
    if plain is not None:
        return Decoded(plain.node, plain.movement)
    behind, node = _moved_from(graph, tensor)
    if node is None or not node.is_a(IElementWiseLayer) or graph.constant(node.inputs[1]) is None:
        return None
    constant = present(node.inputs[1])
    if node[IElementWiseLayer.op] is ElementWiseOperation.SUB:
        inner = dequantized(graph, node.inputs[0])
        if inner is None:
            return None
        return Decoded(inner.node, (*inner.movement, *behind), len(inner.movement), offset=constant)
    if node[IElementWiseLayer.op] is not ElementWiseOperation.PROD:
        return None
    before, lookup = _moved_from(graph, node.inputs[0])
    found = None if lookup is None else _looked_up(graph, lookup)
    if found is None:
        return None
    return Decoded(found[0], (*before, *behind), len(before), constant, levels=found[1])


def _moved_from(graph: PlanGraph, tensor: int | None) -> tuple[tuple[Node, ...], Node | None]:
    """The movement that ends in a tensor, and what makes what is moved."""
    movement: list[Node] = []
    while (node := graph.maker(tensor)) is not None and (node.is_a(*_MOVEMENT) or is_float_cast(graph, node)):
        if node.is_a(*_MOVEMENT):
            movement.append(node)
        tensor = node.inputs[0]
    return tuple(reversed(movement)), node


def _looked_up(graph: PlanGraph, lookup: Node) -> tuple[Node, tuple[float, ...]] | None:
    """The dequantization that makes places of codes, and what is looked up there, if a node does so."""
    if not lookup.has(IGatherLayer.mode, GatherMode.DEFAULT):
        return None
    levels, places = graph.constant(lookup.inputs[0]), graph.maker(lookup.inputs[1])
    if levels is None or levels.shape != (_LEVELS,) or not bool(levels.isfinite().all()):
        return None
    if lookup[IGatherLayer.num_elementwise_dims] or places is None or not places.is_a(ICastLayer):
        return None
    shift = graph.maker(places.inputs[0])
    if shift is None or not shift.has(IElementWiseLayer.op, ElementWiseOperation.SUM):
        return None
    made, half = graph.maker(shift.inputs[0]), graph.constant(shift.inputs[1])
    if made is None or not made.is_a(IDequantizeLayer) or len(made.inputs) > 2 or half is None:
        return None
    one = graph.constant(made.inputs[1])
    is_plain = one is not None and one.numel() == 1 and float(one) == 1 and half.numel() == 1
    is_plain = is_plain and float(half) == _LEVELS // 2 and graph.dtype(made.inputs[0]) is DataType.INT4
    return (made, tuple(levels.tolist())) if is_plain else None


def is_float_cast(graph: PlanGraph, node: Node) -> bool:
    """Whether a layer changes one float type to another."""
    return node.is_a(ICastLayer) and {graph.dtype(node.inputs[0]), graph.dtype(node.outputs[0])} <= FLOATS


class Tail:
    """What follows a product and can join it: bias, rectification, quantization, each read by nothing else.

    Args:
        graph: The layers.
        product: A product or convolution.
        channels: Number of columns or output channels.
        axis: The axis that these are on, from the end; no axis takes a bias if it is 0.

    Attributes:
        result: Float type of the product.
        bias: Tensor of the bias, a constant, or None.
        scale: Tensor of the scale of the quantization, or None.
        rectifies: Whether negative numbers become 0.
    """

    def __init__(self, graph: PlanGraph, product: Node, channels: int, axis: int = -1) -> None:
        self._graph = graph
        self._nodes = [product]
        self.bias: int | None = None
        self.scale: int | None = None
        self.rectifies = False
        self.result = graph.dtype(self.output)
        if axis:
            self._take_bias(channels, axis)
        following = self._next(self.output)
        if following is not None and following.is_a(IActivationLayer):
            self.rectifies = following[IActivationLayer.type] is ActivationType.RELU
            self._nodes += [following] if self.rectifies else []
        self._take_quantization()

    @property
    def output(self) -> int:
        """The tensor that the last layer makes."""
        return self._nodes[-1].outputs[0]

    @property
    def dtype(self) -> DataType:
        """Type of the output."""
        return self._graph.dtype(self.output)

    @property
    def name(self) -> str:
        """Names of all layers that are replaced."""
        return " + ".join(node.name for node in self._nodes)

    def replaced_by(self, fresh: Sequence[Node]) -> NodeFusion:
        """Layers where the last one of those that they replace was: all that they read is there by then."""
        return NodeFusion(fresh, self._nodes, self._nodes[-1])

    def _next(self, tensor: int) -> Node | None:
        """The only reader of a tensor that nobody outside wants."""
        return self._graph.all_readers(tensor)[0] if self._graph.is_private(tensor) else None

    def _take_bias(self, channels: int, axis: int) -> None:
        addition = self._next(self.output)
        if addition is None or not addition.has(IElementWiseLayer.op, ElementWiseOperation.SUM):
            return
        other = addition.inputs[1 - addition.inputs.index(self.output)]
        shape = self._graph.shape(other)
        if not self._graph.is_constant(other) or volume(shape) != channels:
            return
        if len(shape) >= -axis and shape[axis] == channels:
            self.bias = other
            self._nodes.append(addition)

    def _take_quantization(self) -> None:
        taken: list[Node] = []
        following = self._next(self.output)
        if following is not None and is_float_cast(self._graph, following):
            taken.append(following)
            following = self._next(following.outputs[0])
        if following is None or not following.is_a(IQuantizeLayer) or len(following.inputs) > 2:
            return
        scale = following.inputs[1]
        if not self._graph.is_constant(scale) or volume(self._graph.shape(scale)) != 1:
            return
        if self._graph.dtype(following.outputs[0]) not in _QUANTIZED_RESULTS:
            return
        self.scale = scale
        self._nodes += [*taken, following]


_MULTIPLIED: Final = frozenset({DataType.INT8, DataType.FP8})
"""Types that kernels multiply with each other."""


@dataclass(frozen=True)
class _Matrix:
    """The constant operand of a product.

    Attributes:
        codes: Tensor of the codes.
        scale: Tensor of their scale.
        dtype: Type of the codes.
        is_transposed: Whether the codes are (K, N) instead of (N, K).
        extents: (N, K).
        blocks: Extents of the scale as a matrix that divides (N, K).
        outer: Tensor of the scale of the scales, or None.
        offset: Tensor of what is subtracted, or None.
        levels: What codes stand for, the least first; none where they stand for themselves.
        fresh: Constants that stand for codes, scale and offset, where these were rewritten.
    """

    codes: int
    scale: int
    dtype: DataType
    is_transposed: bool
    extents: tuple[int, int]
    blocks: tuple[int, int]
    outer: int | None = None
    offset: int | None = None
    levels: tuple[float, ...] = ()
    fresh: tuple[Node, ...] = ()


@dataclass(frozen=True)
class _Left:
    """The other operand.

    Attributes:
        tensor: Codes, or floats where only the matrix is quantized.
        dtype: Its type.
        scale: Tensor of the scale of the codes.
        is_static: Whether that is constant.
        fresh: Layers that move the codes as their floats were moved.
    """

    tensor: int | None
    dtype: DataType
    scale: int | None = None
    is_static: bool = False
    fresh: tuple[Node, ...] = ()


@pattern(LayerType.MATRIX_MULTIPLY)
def fuse_quantized_products(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Replaces products by preparations of their matrices and products of codes.

    Sums are exact or in float32 where Q/DQ would round operands to the float type, so results differ by rounding.
    Bias, rectification and a quantization per tensor join where nothing else reads what is between.
    """
    return _ProductFusion(graph).fused(operation)


class _ProductFusion:
    """One product among the layers as they are now."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph

    def fused(self, product: Node) -> NodeFusion | None:
        """What replaces a product, if its right operand is a dequantized constant."""
        matrix = self._matrix(product)
        if matrix is None:
            return None
        left = self._left(product.inputs[0], matrix.dtype)
        tail = Tail(self._graph, product, matrix.extents[0])
        layer, graph = LowPrecisionProductLayer, self._graph
        form = _coded_form(matrix, left.dtype, tail.result)
        form[layer.rowwise] = left.scale is not None and not left.is_static
        prepared = _preparation(graph, tail.name, matrix, form, left.scale if left.is_static else None)
        fused = Node(
            layer,
            tail.name,
            (left.tensor, None if left.is_static else left.scale, tail.bias, tail.scale, *prepared.outputs),
            (tail.output,),
            {**form, layer.output_type: tail.dtype, layer.rectify: tail.rectifies},
            metadata=product.metadata,
        )
        return tail.replaced_by([*matrix.fresh, prepared, *left.fresh, fused])

    # the matrix ----------------------------------------------------------------------------------------

    def _matrix(self, product: Node) -> _Matrix | None:
        """The right operand as a matrix of constant codes."""
        how = product[IMatrixMultiplyLayer.op1]
        if product[IMatrixMultiplyLayer.op0] is not MatrixOperation.NONE or how is MatrixOperation.VECTOR:
            return None
        return self.matrix_of(product, product.inputs[1], how is MatrixOperation.NONE)

    def matrix_of(
        self, product: Node, right: int | None, is_turned: bool, *, is_stacked: bool = False
    ) -> _Matrix | None:
        """Constant codes that a tensor is made of, as a matrix.

        Args:
            product: What reads the tensor.
            right: (..., N, K).
            is_turned: It is (..., K, N).
            is_stacked: Take what leads for more rows; else there may be but one matrix.
        """
        found, graph = decoded(self._graph, right), self._graph
        if found is None or found.has_zero_point:
            return None
        extents, shape = graph.shape(found.codes), graph.shape(right)
        step, outer = self._scale(found)
        if not graph.is_constant(found.codes) or not graph.is_constant(step):
            return None
        if len(extents) < 2 or -1 in (*extents, *shape) or not volume(extents):
            return None
        if volume(shape[:-2]) != 1 and not is_stacked:
            return None
        scales_known = self._known_scales(step, outer)
        is_fixed = graph.is_fixed_constant(found.codes) and scales_known is not None
        if volume(extents[:-2]) == 1 or is_stacked:
            whole = torch.empty(extents, device="meta")
            view = self._moved(found, whole, is_turned)
            if view is None:
                return None
            lies = _lies_as(view, whole)
            scales = graph.shape(found.scale) if found.factors is None else graph.shape(found.factors)
            blocks = _blocks(found, scales, extents) if found.factors is None else _joined_blocks(scales, extents)
            if found.offset is not None and _joined_blocks(graph.shape(found.offset), extents) != blocks:
                blocks = None
            is_moved = bool(lies) and (is_fixed or not found.is_plain or is_stacked)
            if volume(extents[:-2]) != 1:
                blocks = _stacked_blocks(scales, extents) if found.is_plain else None
            if lies is not None and blocks is not None and not is_moved:
                size = (view.shape[0], view.shape[1])
                blocks = (blocks[1], blocks[0]) if lies else blocks
                dtype, step = graph.dtype(found.codes), step if found.factors is None else found.factors
                return _Matrix(found.codes, step, dtype, lies, size, blocks, outer, found.offset, found.levels)
        values = graph.elements(found.codes) if is_fixed else None
        if values is None or scales_known is None:
            return None
        return self._rewritten(product, found, values, scales_known, is_turned)

    def _scale(self, found: Dequantized) -> tuple[int, int | None]:
        """The tensor of the scales and that of their own scale, if they are dequantized constants, as in NVFP4."""
        made = self._graph.maker(found.scale)
        if made is None or not made.is_a(IDequantizeLayer) or len(made.inputs) > 2:
            return found.scale, None
        inner, outer = made.inputs
        is_one = self._graph.is_constant(outer) and volume(self._graph.shape(outer)) == 1
        return (inner, outer) if is_one and inner is not None else (found.scale, None)

    def _known_scales(self, step: int, outer: int | None) -> torch.Tensor | None:
        """The numbers of the scales, where no refit may replace them."""
        scales = self._graph.constant(step)
        if scales is None or outer is None:
            return scales
        factor = self._graph.constant(outer)
        return None if factor is None else scales.to(torch.float32) * factor.to(torch.float32).reshape(())

    def _moved(self, found: Dequantized, value: torch.Tensor, is_turned: bool) -> torch.Tensor | None:
        """Codes, or something of their extents, moved as the dequantized codes are; as (N, K)."""
        for node in found.movement:
            moved = self._graph.compute(node, value)
            if moved is None:
                return None
            value = moved
        matrix = value.mT if is_turned else value
        return matrix.reshape(-1, matrix.shape[-1])

    def _rewritten(
        self, product: Node, found: Decoded, values: torch.Tensor, scales: torch.Tensor, is_turned: bool
    ) -> _Matrix | None:
        """New constants (N, K), as kernels read them, for codes that lie otherwise."""
        graph, name = self._graph, f"{found.node.name} of {product.name}"
        wide = spread(scales, values, found.axis).expand(values.shape)
        codes, scale = self._moved(found, values, is_turned), self._moved(found, wide, is_turned)
        parts = [scale]
        for constant in map(graph.constant, (found.factors, found.offset)):
            if constant is not None:
                parts.append(self._moved_behind(found, constant.to(torch.float32), values, is_turned))
        if codes is None or any(part is None for part in parts):
            return None
        if found.factors is not None:
            parts = [parts[0] * parts[1]]  # type: ignore[operator]
        rows, columns = codes.shape
        counts = {*scales.shape, *(() if found.factors is None else graph.shape(found.factors))}
        wide = torch.cat(parts) if len(parts) > 1 else parts[0]  # type: ignore[arg-type,assignment]
        small = _without_repeats(wide, counts)
        steps = small.expand(rows * len(parts), -1).chunk(len(parts)) if len(parts) > 1 else (small,)
        dtype = graph.dtype(found.codes)
        fresh = (
            graph.new_constant(f"{name} codes", dtype, codes.contiguous()),
            *(graph.new_constant(f"{name} scale", DataType.FLOAT, step.contiguous()) for step in steps),
        )
        offset = fresh[2].outputs[0] if len(steps) > 1 else None
        blocks = (steps[0].shape[0], steps[0].shape[1])
        made, scale_made = (node.outputs[0] for node in fresh[:2])
        extents = (rows, columns)
        return _Matrix(made, scale_made, dtype, False, extents, blocks, None, offset, found.levels, fresh)

    def _moved_behind(
        self, found: Decoded, constant: torch.Tensor, values: torch.Tensor, is_turned: bool
    ) -> torch.Tensor | None:
        """What is multiplied by, or subtracted, for each element of a matrix (N, K)."""
        shape = values.to("meta")
        for node in found.movement[: found.before]:
            moved = self._graph.compute(node, shape)
            if moved is None:
                return None
            shape = moved
        later = replace(found, movement=found.movement[found.before :])
        return self._moved(later, constant.expand(shape.shape), is_turned)

    # the other operand ---------------------------------------------------------------------------------

    def _left(self, tensor: int | None, codes: DataType) -> _Left:
        graph = self._graph
        plain, found = _Left(tensor, graph.dtype(tensor)), dequantized(graph, tensor)
        if found is None or found.has_zero_point or codes not in _MULTIPLIED or graph.dtype(found.codes) is not codes:
            return plain
        shape, extents = graph.shape(found.scale), graph.shape(found.codes)
        is_static = graph.is_constant(found.scale)
        is_rowwise = not found.movement and shape == (*extents[:-1], 1)
        if volume(shape) != 1 and (is_static or not is_rowwise):
            return plain
        source, fresh = found.codes, []
        for node in found.movement:
            output = graph.new_tensor(f"{node.name} codes", codes, graph.shape(node.outputs[0]))
            inputs = (source, *node.inputs[1:])
            fresh.append(replace(node, name=f"{node.name} [codes]", inputs=inputs, outputs=(output,)))
            source = output
        return _Left(source, codes, found.scale, is_static, tuple(fresh))


def _preparation(
    graph: PlanGraph, name: str, matrix: _Matrix, form: Mapping[Attribute[Any], Any], left_scale: int | None
) -> Node:
    """What brings a matrix into the form that a kernel reads."""
    outputs = (
        graph.new_tensor(f"{name} matrix", matrix.dtype, matrix.extents),
        graph.new_tensor(f"{name} matrix scale", DataType.FLOAT, matrix.blocks),
    )
    inputs = (matrix.codes, matrix.scale, left_scale, matrix.outer, matrix.offset)
    values = {**form, PreparedMatrixLayer.is_transposed: matrix.is_transposed}
    return Node(PreparedMatrixLayer, f"{name} [matrix]", inputs, outputs, values)


@pattern(LayerType.MATRIX_MULTIPLY)
def choose_matrices(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Replaces products with gathered matrices, one for each row, by products that read the chosen ones where they are.

    Matrices of few bits that are constant stay so. Sums may be taken in another order.
    """
    if not operation.is_a(IMatrixMultiplyLayer) or len(graph.shape(operation.outputs[0])) != 3:
        return None
    for side, how in enumerate((operation[IMatrixMultiplyLayer.op0], operation[IMatrixMultiplyLayer.op1])):
        made = graph.maker(operation.inputs[side])
        is_one = graph.shape(operation.outputs[0])[-1 if side == 0 else -2] == 1
        if made is None or not is_one or how is MatrixOperation.VECTOR or not _gathers_matrices(graph, made):
            continue
        is_transposed = (how is MatrixOperation.NONE) is (side == 1)
        rows, (matrices, places) = operation.inputs[1 - side], made.inputs
        shape = graph.shape(matrices)
        if volume(graph.shape(rows)[1:]) != shape[1 if is_transposed else 2]:
            continue
        found = _ProductFusion(graph).matrix_of(operation, matrices, is_transposed, is_stacked=True)
        layer: type[ILayer] = ChosenProductLayer
        fresh: list[Node] = []
        values: dict[Attribute[Any], Any] = {ChosenProductLayer.is_transposed: is_transposed}
        inputs: tuple[int | None, ...] = (rows, places, matrices)
        kernel = ""
        if found is not None:
            layer, kernel = ChosenCodesProductLayer, _chosen_kernel(graph, found, rows)
            values = _coded_form(found, graph.dtype(rows), graph.dtype(operation.outputs[0]))
            prepared = replace(_preparation(graph, operation.name, found, values, None), implementation=kernel)
            fresh, inputs = [*found.fresh, prepared], (rows, places, *prepared.outputs)
        size = _stored_bytes(found) if found is not None else storage_bytes(graph.dtype(matrices), volume(shape))
        values |= {
            layer.is_column: side == 0,  # type: ignore[attr-defined]
            layer.count: shape[0],  # type: ignore[attr-defined]
            layer.choices: _choices(graph, places),  # type: ignore[attr-defined]
            layer.matrix_bytes: size // shape[0],  # type: ignore[attr-defined]
            layer.is_grouped: _ascend(graph, places, shape[0]),  # type: ignore[attr-defined]
        }
        fused = Node(layer, operation.name, inputs, operation.outputs, values, implementation=kernel)
        return NodeFusion([*fresh, replace(fused, metadata=operation.metadata)], [operation], operation)
    return None


def _gathers_matrices(graph: PlanGraph, node: Node) -> bool:
    if not node.has(IGatherLayer.mode, GatherMode.DEFAULT):
        return False
    matrices, places = (graph.shape(tensor) for tensor in node.inputs)
    is_first = node[IGatherLayer.axis] in (0, -3) and not node[IGatherLayer.num_elementwise_dims]
    return is_first and len(matrices) == 3 and len(places) == 1 and -1 not in matrices and 0 not in matrices


def _ascend(graph: PlanGraph, places: int | None, count: int) -> bool:
    """Whether places are ``min(count - sum(row < end for all ends), count - 1)``, as those of rows in groups are."""

    def operand(tensor: int | None, operation: ElementWiseOperation, at: int, wanted: int) -> int | None:
        """The other operand of an operation with a number."""
        made = graph.maker(tensor)
        if made is None or not made.has(IElementWiseLayer.op, operation):
            return None
        number = graph.constant(made.inputs[at])
        return made.inputs[1 - at] if number is not None and number.reshape(-1).tolist() == [wanted] else None

    group = operand(places, ElementWiseOperation.MIN, 1, count - 1)
    total = graph.maker(operand(group, ElementWiseOperation.SUB, 0, count))
    if total is None or not total.has(IReduceLayer.op, ReduceOperation.SUM):
        return False
    made = graph.maker(total.inputs[0])
    while made is not None and made.is_a(ICastLayer):
        made = graph.maker(made.inputs[0])
    if made is None or not made.has(IElementWiseLayer.op, ElementWiseOperation.LESS):
        return False
    rows, ends = (graph.shape(tensor) for tensor in made.inputs)
    is_table = (rows[1:], ends) == ((1,), (1, count)) and total[IReduceLayer.axes] == 1 << 1
    return is_table and _counts_up(graph, made.inputs[0])


def _counts_up(graph: PlanGraph, tensor: int | None) -> bool:
    """Whether numbers are 0, 1, 2 and so on."""
    numbers, made = graph.constant(tensor), graph.maker(tensor)
    if numbers is not None:
        return numbers.reshape(-1).tolist() == list(range(numbers.numel()))
    while made is not None and made.is_a(*_MOVEMENT):
        made = graph.maker(made.inputs[0])
    if made is None or not made.has(IFillLayer.operation, FillOperation.LINSPACE):
        return False
    given = [graph.constant(each) for each in made.inputs[1:3]]
    return [each.tolist() for each in given if each is not None] == [0, [1]]


def _choices(graph: PlanGraph, places: int | None) -> int:
    """The last extent of what places are a flat view of, but for casts and limits; 0 where that is not known."""
    while places is not None and len(graph.shape(places)) == 1:
        made = graph.maker(places)
        is_view = made is not None and made.is_a(*_MOVEMENT, ICastLayer, IElementWiseLayer)
        places = made.inputs[0] if made is not None and is_view else None
    return 0 if places is None or not graph.shape(places) else max(0, graph.shape(places)[-1])


def _stored_bytes(matrix: _Matrix) -> int:
    """Bytes of codes, and of their scales and offsets, which are float32."""
    scales = volume(matrix.blocks) * (1 if matrix.offset is None else 2)
    return storage_bytes(matrix.dtype, volume(matrix.extents)) + scales * 4


def _coded_form(matrix: _Matrix, left: DataType, result: DataType) -> dict[Attribute[Any], Any]:
    """What a product with codes, and the preparation of its matrix, are told."""
    layer = PreparedMatrixLayer
    return {
        layer.columns: matrix.extents[0],
        layer.depth: matrix.extents[1],
        layer.code_type: matrix.dtype,
        layer.left_type: left,
        layer.result_type: result,
        layer.blocks: Dims(matrix.blocks),
        layer.has_offset: matrix.offset is not None,
        layer.levels: matrix.levels,
    }


def _chosen_kernel(graph: PlanGraph, matrix: _Matrix, rows: int | None) -> str:
    """The kernel that prepares and reads chosen codes on the device of the build."""
    left = graph.dtype(rows)
    form = ProductForm(
        *(*matrix.extents, matrix.dtype, left, left, matrix.blocks, False, matrix.offset is not None, matrix.levels)
    )
    few = PRODUCT_KERNELS["few_rows"]
    return few.name if few.accepts(form, current_device()) else REFERENCE.name


def _lies_as(view: torch.Tensor, whole: torch.Tensor) -> bool | None:
    """False where a matrix is a view of all of a tensor, True where that holds for its transpose, else None."""
    if view.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return None
    return False if view.is_contiguous() else True if view.t().is_contiguous() else None


def _blocks(found: Dequantized, shape: Sequence[int], extents: Sequence[int]) -> tuple[int, int] | None:
    """Extents of a scale as a matrix over the last two axes of the codes."""
    if volume(shape) == 1:
        return (1, 1)
    rank = len(extents)
    if len(shape) == 1:
        return {rank - 2: (shape[0], 1), rank - 1: (1, shape[0])}.get(found.axis)
    return (shape[-2], shape[-1]) if len(shape) == rank else None


def _stacked_blocks(shape: Sequence[int], extents: Sequence[int]) -> tuple[int, int] | None:
    """Extents of scales as a matrix, where codes (..., N, K) are one below the other."""
    if volume(shape) == 1:
        return (1, 1)
    return (volume(shape[:-1]), shape[-1]) if tuple(shape[:-1]) == tuple(extents[:-1]) else None


def _joined_blocks(shape: Sequence[int], extents: Sequence[int]) -> tuple[int, int] | None:
    """Extents as a matrix over the last two axes of the codes, of numbers (..., N, 1), or (..., N, blocks, 1)."""
    if volume(shape) == 1:
        return (1, 1)
    kept = [extent for extent in shape if extent != 1]
    if shape[-1] != 1 or kept[0] != extents[-2] or len(kept) > 2:
        return None
    return (kept[0], kept[1] if len(kept) > 1 else 1)


def _without_repeats(scale: torch.Tensor, counts: Collection[int]) -> torch.Tensor:
    """A matrix of scales (N, K) without what repeats: one, one per row, one per block of a row, or all of it."""
    if scale.stride(1) == 0:  # it was expanded
        scale = scale[:, :1]
    rows, columns = scale.shape
    if bool((scale == scale[:1, :1]).all()):
        return scale[:1, :1]
    for blocks in (1, *sorted({*counts, *(2**power for power in range(1, 16))})):
        if columns % blocks == 0:
            split = scale.reshape(rows, blocks, columns // blocks)
            if bool((split == split[..., :1]).all()):
                return split[..., 0]
    return scale


@pattern(LayerType.CONVOLUTION)
def fuse_quantized_convolutions(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Replaces convolutions in two dimensions by preparations of their kernels and convolutions of codes.

    Padding is explicit and equal on both sides; a kernel has one scale, or one per output channel. Sums are exact or in
    float32 where Q/DQ would round operands to the float type, so results differ by rounding.
    """
    x, kernel, given_bias = (*operation.inputs, None, None)[:3]
    if kernel is None or not _is_plain(operation):
        return None
    found = dequantized(graph, kernel)
    if found is None or found.movement or found.has_zero_point:
        return None
    if not graph.is_constant(found.codes) or not graph.is_constant(found.scale):
        return None
    shape, scales = graph.shape(found.codes), volume(graph.shape(found.scale))
    is_per_channel = scales == shape[0] and len(graph.shape(found.scale)) == 1 and found.axis == 0
    if -1 in shape or not (scales == 1 or is_per_channel):
        return None
    if given_bias is not None and not graph.is_constant(given_bias):
        return None
    codes = graph.dtype(found.codes)
    x, left_scale = _left(graph, x, codes)
    is_static = left_scale is not None and graph.is_constant(left_scale)
    has_bias = "BIAS" in operation.weights or given_bias is not None
    tail = Tail(graph, operation, shape[0], 0 if has_bias else -3)
    name = tail.name if graph.is_fixed(operation) else operation.name  # a refit finds the bias by this name
    layer = LowPrecisionConvolutionLayer
    form: dict[Attribute[Any], Any] = {
        layer.kernel_shape: Dims(shape),
        layer.stride: operation[IConvolutionLayer.stride_nd],
        layer.padding: operation[IConvolutionLayer.pre_padding],
        layer.dilation: operation[IConvolutionLayer.dilation_nd],
        layer.groups: operation[IConvolutionLayer.num_groups],
        layer.code_type: codes,
        layer.left_type: graph.dtype(x),
        layer.result_type: tail.result,
        layer.scales: scales,
        layer.is_scaled: left_scale is not None and not is_static,
    }
    outputs = (
        graph.new_tensor(f"{name} kernel", codes, shape),
        graph.new_tensor(f"{name} kernel scale", DataType.FLOAT, (scales,)),
    )
    statics = (left_scale,) if is_static else ()
    prepared = Node(PreparedKernelLayer, f"{name} [kernel]", (found.codes, found.scale, *statics), outputs, values=form)
    fused = replace(
        operation,
        layer=layer,
        name=name,
        inputs=(
            x,
            None if is_static else left_scale,
            given_bias if tail.bias is None else tail.bias,
            tail.scale,
            *outputs,
        ),
        outputs=(tail.output,),
        values={**form, layer.output_type: tail.dtype, layer.rectify: tail.rectifies},
        weights={role: use for role, use in operation.weights.items() if role == "BIAS"},
    )
    return tail.replaced_by([prepared, fused])


def _left(graph: PlanGraph, tensor: int | None, codes: DataType) -> tuple[int | None, int | None]:
    """The input as codes with their scale, or as it is where only the kernel is quantized."""
    found = dequantized(graph, tensor)
    if found is None or found.movement or found.has_zero_point or graph.dtype(found.codes) is not codes:
        return tensor, None
    if codes not in _MULTIPLIED or volume(graph.shape(found.scale)) != 1:
        return tensor, None
    return found.codes, found.scale


def _is_plain(convolution: Node) -> bool:
    return (
        len(convolution[IConvolutionLayer.kernel_size_nd]) == 2
        and convolution[IConvolutionLayer.padding_mode] is PaddingMode.EXPLICIT_ROUND_DOWN
        and list(convolution[IConvolutionLayer.pre_padding]) == list(convolution[IConvolutionLayer.post_padding])
    )
