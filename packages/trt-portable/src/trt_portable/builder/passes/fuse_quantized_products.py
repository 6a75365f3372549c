"""Products with dequantized constant matrices as products of few bits.

TensorRT's explicit quantization puts Q/DQ around a product: ``DQ(Q(x)) @ DQ(codes)``. Taken literally that is a float
product with much conversion before it; meant is a product of the codes. The kernel is chosen later, by measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.builder.passes.quantized_patterns import Dequantized, Tail, dequantized, is_constant, new_entry
from trt_portable.dtypes import volume
from trt_portable.enums import DataType, LayerType, MatrixOperation
from trt_portable.kernels.low_precision_products import REFERENCE
from trt_portable.layers.low_precision import LowPrecisionProductLayer, PreparedMatrixLayer
from trt_portable.layers.quantization import spread

_MULTIPLIED: Final = frozenset({DataType.INT8, DataType.FP8})
"""Types that kernels multiply with each other."""


@dataclass(frozen=True)
class _Matrix:
    """The constant operand of a product.

    Attributes:
        codes: Tensor of the codes.
        scale: Tensor of their scale.
        axis: Axis of the codes that scales per channel belong to.
        dtype: Type of the codes.
        is_transposed: Whether the codes are (K, N) instead of (N, K).
        extents: (N, K).
        blocks: Extents of the scale as a matrix that divides (N, K).
        outer: Tensor of the scale of the scales, or None.
        fresh: Constants that stand for codes and scale, where these were rewritten.
    """

    codes: int
    scale: int
    axis: int
    dtype: DataType
    is_transposed: bool
    extents: tuple[int, int]
    blocks: tuple[int, int]
    outer: int | None = None
    fresh: tuple[Entry, ...] = ()


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

    tensor: int
    dtype: DataType
    scale: int | None = None
    is_static: bool = False
    fresh: tuple[Entry, ...] = ()


class FuseQuantizedProducts(PlanPass):
    """Replaces products by preparations of their matrices and products of codes.

    Sums are exact or in float32 where Q/DQ would round operands to the float type, so results differ by rounding.
    Bias, rectification and a quantization per tensor join where nothing else reads what is between.
    """

    name = "fuse_quantized_products"

    def call(self, graph: PlanGraph) -> int:
        """Goes through the products in order."""
        products = [entry for entry in graph.layers if entry["type"] == LayerType.MATRIX_MULTIPLY.name]
        return sum(_Fusion(graph).fuse(product) for product in products)


class _Fusion:
    """One product among the layers as they are now."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph
        self._producers = graph.producers()

    def fuse(self, product: Entry) -> bool:
        """Replaces a product, if its right operand is a dequantized constant."""
        matrix = self._matrix(product)
        if matrix is None:
            return False
        left = self._left(product["inputs"][0], matrix.dtype)
        tail = Tail(self._graph, self._producers, product, matrix.extents[0])
        form = {
            "implementation": REFERENCE.name,
            "columns": matrix.extents[0],
            "depth": matrix.extents[1],
            "code_type": matrix.dtype.name,
            "left_type": left.dtype.name,
            "result_type": tail.result.name,
            "blocks": list(matrix.blocks),
            "rowwise": left.scale is not None and not left.is_static,
        }
        graph = self._graph
        outputs = [
            graph.new_tensor(f"{tail.name} matrix", matrix.dtype.name, matrix.extents),
            graph.new_tensor(f"{tail.name} matrix scale", DataType.FLOAT.name, matrix.blocks),
        ]
        prepared = new_entry(
            PreparedMatrixLayer._plan_type(),
            f"{tail.name} [matrix]",
            [matrix.codes, matrix.scale, left.scale if left.is_static else None, matrix.outer],
            outputs,
            {**form, "is_transposed": matrix.is_transposed, "axis": matrix.axis},
        )
        fused = new_entry(
            LowPrecisionProductLayer._plan_type(),
            tail.name,
            [left.tensor, None if left.is_static else left.scale, tail.bias, tail.scale, *outputs],
            [tail.output],
            {**form, "output_type": tail.dtype.name, "rectify": tail.rectifies},
        )
        tail.replace([*matrix.fresh, prepared, *left.fresh, {**fused, "metadata": product["metadata"]}])
        return True

    # the matrix ----------------------------------------------------------------------------------------

    def _matrix(self, product: Entry) -> _Matrix | None:
        """The right operand as a matrix of constant codes."""
        attributes = product["attributes"]
        if attributes["op0"] != MatrixOperation.NONE.name or attributes["op1"] == MatrixOperation.VECTOR.name:
            return None
        right = product["inputs"][1]
        found = dequantized(self._graph, self._producers, right)
        if found is None or found.has_zero_point:
            return None
        constant = self._producers.get(found.codes)
        extents, shape = self._graph.shape(found.codes), self._graph.shape(right)
        step, outer = self._scale(found)
        if constant is None or not is_constant(constant) or not is_constant(self._producers.get(step)):
            return None
        if len(extents) < 2 or -1 in (*extents, *shape) or volume(shape[:-2]) != 1 or not volume(extents):
            return None
        is_turned = attributes["op1"] == MatrixOperation.NONE.name  # it gives (K, N)
        values, scales = self._graph.elements(constant), self._known_scales(step, outer)
        is_fixed = values is not None and scales is not None
        if volume(extents[:-2]) == 1:
            whole = torch.empty(extents, device="meta")
            view = self._moved(found, whole, is_turned)
            if view is None:
                return None
            lies = _lies_as(view, whole)
            blocks = _blocks(found, self._graph.shape(found.scale), extents)
            if lies is not None and blocks is not None and not (lies and is_fixed):
                size = (extents[-1], extents[-2]) if lies else (extents[-2], extents[-1])
                blocks = (blocks[1], blocks[0]) if lies else blocks
                dtype = self._graph.dtype(found.codes)
                return _Matrix(found.codes, step, found.axis, dtype, lies, size, blocks, outer)
        if values is None or scales is None:
            return None
        return self._rewritten(product, found, values, scales, is_turned)

    def _scale(self, found: Dequantized) -> tuple[int, int | None]:
        """The tensor of the scales and that of their own scale, if they are dequantized constants, as in NVFP4."""
        made = self._producers.get(found.scale)
        if made is None or made["type"] != LayerType.DEQUANTIZE.name or len(made["inputs"]) > 2:
            return found.scale, None
        inner, outer = made["inputs"]
        is_one = is_constant(self._producers.get(outer)) and volume(self._graph.shape(outer)) == 1
        return (inner, outer) if is_one else (found.scale, None)

    def _known_scales(self, step: int, outer: int | None) -> torch.Tensor | None:
        """The numbers of the scales, where no refit may replace them."""
        scales = self._graph.constant(self._producers.get(step))
        if scales is None or outer is None:
            return scales
        factor = self._graph.constant(self._producers.get(outer))
        return None if factor is None else scales.to(torch.float32) * factor.to(torch.float32).reshape(())

    def _moved(self, found: Dequantized, value: torch.Tensor, is_turned: bool) -> torch.Tensor | None:
        """Codes, or something of their extents, moved as the dequantized codes are; as (N, K)."""
        for entry in found.movement:
            moved = self._graph.compute(entry, value, self._producers)
            if moved is None:
                return None
            value = moved
        matrix = value.reshape(value.shape[-2:])
        return matrix.t() if is_turned else matrix

    def _rewritten(
        self, product: Entry, found: Dequantized, values: torch.Tensor, scales: torch.Tensor, is_turned: bool
    ) -> _Matrix | None:
        """New constants (N, K), as kernels read them, for codes that lie otherwise."""
        wide = spread(scales, values, found.axis).expand(values.shape).contiguous()
        codes, scale = self._moved(found, values, is_turned), self._moved(found, wide, is_turned)
        if codes is None or scale is None:
            return None
        small = _without_repeats(scale, max(scales.shape, default=1))
        dtype = self._graph.dtype(found.codes)
        name = f"{found.entry['name']} of {product['name']}"
        fresh = (
            self._graph.new_constant(f"{name} codes", dtype, codes.contiguous()),
            self._graph.new_constant(f"{name} scale", DataType.FLOAT, small.contiguous()),
        )
        rows, columns = codes.shape
        blocks = (small.shape[0], small.shape[1])
        return _Matrix(
            fresh[0]["outputs"][0], fresh[1]["outputs"][0], -1, dtype, False, (rows, columns), blocks, fresh=fresh
        )

    # the other operand ---------------------------------------------------------------------------------

    def _left(self, tensor: int, codes: DataType) -> _Left:
        graph = self._graph
        plain = _Left(tensor, graph.dtype(tensor))
        found = dequantized(graph, self._producers, tensor)
        if found is None or found.has_zero_point or codes not in _MULTIPLIED or graph.dtype(found.codes) is not codes:
            return plain
        shape, extents = graph.shape(found.scale), graph.shape(found.codes)
        is_static = is_constant(self._producers.get(found.scale))
        is_rowwise = not found.movement and shape == (*extents[:-1], 1)
        if volume(shape) != 1 and (is_static or not is_rowwise):
            return plain
        source, fresh = found.codes, []
        for entry in found.movement:
            output = graph.new_tensor(f"{entry['name']} codes", codes.name, graph.shape(entry["outputs"][0]))
            fresh.append(
                {
                    **entry,
                    "name": f"{entry['name']} [codes]",
                    "inputs": [source, *entry["inputs"][1:]],
                    "outputs": [output],
                }
            )
            source = output
        return _Left(source, codes, found.scale, is_static, tuple(fresh))


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


def _without_repeats(scale: torch.Tensor, most: int) -> torch.Tensor:
    """A matrix of scales (N, K) without what repeats: one, one per row, one per block of a row, or all of it."""
    rows, columns = scale.shape
    if bool((scale == scale[:1, :1]).all()):
        return scale[:1, :1]
    for blocks in (1, *sorted({most, *(2**power for power in range(1, 16))})):
        if columns % blocks == 0:
            split = scale.reshape(rows, blocks, columns // blocks)
            if bool((split == split[..., :1]).all()):
                return split[..., 0]
    return scale
