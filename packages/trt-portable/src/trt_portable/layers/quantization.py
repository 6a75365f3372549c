"""Quantization, dequantization, and quantization whose scales are computed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.dtypes import FLOATS, LARGEST, QUANTIZED, is_scratch, round_to
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import Refusal, optional, present
from trt_portable.layer_properties import dims, element_type, integer
from trt_portable.network.definition import LayerFactory
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_minimum_rank, require_tensor, require_type
from trt_portable.shape_tensors import Value, as_tensor, tensor_at

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_SCALE_TYPES: Final = FLOATS | {DataType.E8M0}


def spread(scale: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """A scale in a shape that broadcasts to the data it belongs to.

    Args:
        scale: One element, one per extent of an axis, or one per block.
        x: The data.
        axis: The axis of per-channel scales, negative for none.
    """
    wide = scale.to(torch.float32)
    if scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        return wide.reshape(())
    if scale.ndim == 1 and (axis >= 0 or x.ndim > 1):
        if not 0 <= axis < x.ndim:
            raise Refusal(f"{scale.shape[0]} scales need an axis of the input, not {axis}")
        shape = [1] * x.ndim
        shape[axis] = -1
        return wide.reshape(shape)
    for dim in range(x.ndim):
        if isinstance(scale.shape[dim], int) and isinstance(x.shape[dim], int):
            repeats = x.shape[dim] // max(scale.shape[dim], 1)
            if repeats > 1:
                wide = wide.repeat_interleave(repeats, dim)
    return wide


class _ScaledLayer(ILayer):
    """What quantization and dequantization share.

    Inputs: 0 x, 1 scale (0-D, one per channel, or one per block), optional 2 zero point (zeros only). Axis and block
    are set after the layer was added, often when others read its output already, and change nothing about its extents
    and its type. So they are checked when the network is complete.
    """

    _MAX_INPUTS = 3

    axis = integer(-1, "The axis of per-channel scales.")
    block_shape = dims(Dims(), "Extents of a block, -1 for a whole axis; empty if the shape of the scale tells.")
    to_type: DataType

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = present(self._inputs[0])
        return (Facts(x._extents or (), self.to_type, None),)

    def _check_complete(self) -> None:
        x, scale = map(present, self._inputs[:2])
        extents, shape = x._extents, scale._extents
        if extents is None or shape is None:
            return  # refused where they come from
        if scale._rank == 0 or shape == (1,):
            return
        if scale._rank == 1 and (self.axis >= 0 or x._rank > 1):
            require(
                0 <= self.axis < x._rank, f"{shape[0]} scales need an axis of the input, not {self.axis}: set `axis`"
            )
            channels = extents[self.axis]
            require(
                type(channels) is not int or type(shape[0]) is not int or shape[0] in (1, channels),
                f"{shape[0]} scales for {channels} channels on axis {self.axis}",
            )
            return
        require(scale._rank == x._rank, f"block scales have rank {scale._rank}, not {x._rank}")
        block = tuple(self.block_shape)
        require(len(block) in (0, x._rank), f"block {block} for an input of rank {x._rank}")
        for axis, (whole, blocks) in enumerate(zip(extents, shape, strict=True)):
            if type(whole) is not int or type(blocks) is not int:
                continue
            require(blocks > 0 and whole % blocks == 0, f"{blocks} blocks do not divide extent {whole} on axis {axis}")
            size = block[axis] if block else -1
            require(
                not block or (whole if size == -1 else size) * blocks == whole,
                f"{blocks} blocks of {size} do not make extent {whole} on axis {axis}",
            )

    def _check_zero_point(self, inputs: Sequence[ITensor | None], dtype: DataType) -> None:
        zero = optional(inputs, 2)
        if zero is not None:
            require_type(zero, {dtype}, "the zero point")

    def _operands(self, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor]:
        x, scale = map(as_tensor, inputs[:2])
        return x, spread(scale, x, self.axis)


def _check_scale(scale: ITensor, x: ITensor, dtype: DataType, what: str) -> None:
    """Holds the scale of an input to the float type of what is not quantized."""
    require_type(scale, _SCALE_TYPES, "the scale")
    fits = scale._dtype in {dtype, DataType.FLOAT, DataType.E8M0}
    require(fits, f"the scale is {scale._dtype.name}, the {what} {dtype.name}")
    require_minimum_rank(x, 1, "the input")


class IQuantizeLayer(_ScaledLayer):
    """``clamp(round(x / scale))``."""

    _KIND = LayerType.QUANTIZE
    _LIKE_FIRST_INPUT = True

    to_type = element_type(DataType.INT8, "INT8, INT4, FP8 or FP4.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x, scale = map(present, inputs[:2])
        require_type(x, FLOATS, "the input")
        require(self.to_type in QUANTIZED, f"{self.to_type.name} is not a quantized type")
        _check_scale(scale, x, x._dtype, "input")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        self._check_zero_point(inputs, self.to_type)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, scale = self._operands(inputs)
        return (round_to(x.to(torch.float32) / scale, self.to_type),)

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.to_type


class IDequantizeLayer(_ScaledLayer):
    """``x * scale``."""

    _KIND = LayerType.DEQUANTIZE
    _LIKE_FIRST_INPUT = True

    to_type = element_type(DataType.FLOAT, "FLOAT, HALF or BF16.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x, scale = map(present, inputs[:2])
        require_type(x, QUANTIZED, "the input")
        require(self.to_type in FLOATS, f"{self.to_type.name} is not a float type")
        _check_scale(scale, x, self.to_type, "output")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        self._check_zero_point(inputs, present(inputs[0])._dtype)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, scale = self._operands(inputs)
        wide = x.to(torch.float32)
        wide = wide.mul_(scale) if is_scratch(wide) and wide is not x else wide * scale
        return (wide.to(self._carrier(self.to_type)),)

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.to_type


_DYNAMIC_PAIRS: Final = frozenset(
    {
        (DataType.FP4, DataType.FP8),
        (DataType.FP8, DataType.E8M0),
        (DataType.FP8, DataType.FLOAT),
        (DataType.INT8, DataType.FLOAT),
    }
)


def quantize_blocks(
    x: torch.Tensor, block: Sequence[int], to_type: DataType, scale_type: DataType, outer: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes blocks by scales that make the largest element of each block fit.

    Args:
        x: Any shape.
        block: Extents of a block, -1 for a whole axis.
        to_type: Type of the elements.
        scale_type: Type of the scales.
        outer: 0-D scale of the scales, or None.

    Returns:
        The elements, in the shape of x, and the scales, one per block.
    """
    wide = x.to(torch.float32)
    sizes = [x.shape[axis] if size == -1 else size for axis, size in enumerate(block)]
    split: list[Any] = []
    for extent, size in zip(x.shape, sizes, strict=True):
        split += [extent // size, size]
    blocks = wide.reshape(split)
    inner = tuple(range(1, len(split), 2))
    exact = blocks.abs().amax(inner) / LARGEST[to_type]
    factor = torch.ones((), device=x.device) if outer is None else outer.to(torch.float32)
    if scale_type is DataType.E8M0:
        # The next power of two, so that nothing saturates.
        exponent = torch.ceil(torch.log2(exact.clamp(min=2.0**-127)))
        rounded = torch.exp2(exponent)
        scales = rounded.to(torch.float8_e8m0fnu)
    elif scale_type is DataType.FP8:
        scales = (exact / factor).clamp(max=LARGEST[DataType.FP8]).to(torch.float8_e4m3fn)
        rounded = scales.to(torch.float32) * factor
    else:
        scales = rounded = exact
    divisor = torch.where(rounded == 0, torch.ones_like(rounded), rounded)
    for axis in inner:
        divisor = divisor.unsqueeze(axis)
    return round_to((blocks / divisor).reshape(x.shape), to_type), scales


class IDynamicQuantizeLayer(ILayer):
    """Quantization by blocks whose scales are computed from the data.

    Inputs: 0 x, optional 1 the scale of the scales (0-D). Outputs: 0 elements, 1 scales.
    """

    _KIND = LayerType.DYNAMIC_QUANTIZE
    _MAX_INPUTS = 2
    _NUM_OUTPUTS = 2
    _DEFERRED = True

    axis = integer(-1, "The axis of the blocks (first version of the layer).")
    block_size = integer(0, "Elements of a block (first version of the layer).")
    block_shape = dims(Dims(), "Extents of a block, -1 for a whole axis.")
    to_type = element_type(DataType.FP4, "Type of the elements.")
    scale_type = element_type(DataType.FP8, "Type of the scales.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x = present(inputs[0])
        require_tensor(x, "the input", FLOATS, least_rank=1)
        pair = (self.to_type, self.scale_type)
        require(pair in _DYNAMIC_PAIRS, f"no {pair[1].name} scales for {pair[0].name} elements")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, outer = present(inputs[0]), optional(inputs, 1)
        block = self._block(x._rank)
        require(len(block) == x._rank, f"block {block} for an input of rank {x._rank}")
        for axis, (extent, size) in enumerate(zip(x._extents or (), block, strict=True)):
            require(size == -1 or size > 0, f"block extent {size} on axis {axis}")
            if size not in (1, -1):
                require(type(extent) is int, f"the blocked extent of axis {axis} must be constant")
                require(extent % size == 0, f"blocks of {size} do not divide extent {extent}")
        require_tensor(outer, "the scale of the scales", FLOATS, ranks={0})

    def _block(self, rank: int) -> list[int]:
        if len(self.block_shape):
            return list(self.block_shape)
        axis = self.axis + rank if self.axis < 0 else self.axis
        require(rank in (2, 3), f"blocks along an axis need rank 2 or 3, not {rank}")
        require(axis in (rank - 1, rank - 2), f"axis {self.axis} is not one of the last two")
        return [self.block_size if dim == axis else 1 for dim in range(rank)]

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, factor = as_tensor(inputs[0]), tensor_at(inputs, 1)
        return quantize_blocks(x, self._block(x.ndim), self.to_type, self.scale_type, factor)

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.to_type if index == 0 else self.scale_type


class QuantizationLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_quantize(self, input: ITensor, scale: ITensor, output_type: DataType) -> IQuantizeLayer | None:
        """Adds a quantization; set ``axis`` for per-channel scales.

        Args:
            input: Rank 1 or more, float types.
            scale: 0-D, one per channel, or one per block.
            output_type: INT8, INT4, FP8 or FP4.
        """
        return self._add(IQuantizeLayer._create(to_type=output_type), input=input, scale=scale)

    def add_dequantize(self, input: ITensor, scale: ITensor, output_type: DataType) -> IDequantizeLayer | None:
        """Adds a dequantization; set ``axis`` for per-channel scales.

        Args:
            input: Rank 1 or more, INT8, INT4, FP8 or FP4.
            scale: 0-D, one per channel, or one per block.
            output_type: FLOAT, HALF or BF16.
        """
        return self._add(IDequantizeLayer._create(to_type=output_type), input=input, scale=scale)

    def add_dynamic_quantize(
        self, input: ITensor, axis: int, block_size: int, output_type: DataType, scale_type: DataType
    ) -> IDynamicQuantizeLayer | None:
        """Adds a quantization by blocks along one axis.

        Args:
            input: Rank 2 or 3.
            axis: One of the last two axes.
            block_size: Elements of a block.
            output_type: Type of the elements.
            scale_type: Type of the scales.
        """
        layer = IDynamicQuantizeLayer._create(
            axis=axis, block_size=block_size, to_type=output_type, scale_type=scale_type
        )
        return self._add(layer, input=input)

    def add_dynamic_quantize_v2(
        self, input: ITensor, block_shape: DimsLike, output_type: DataType, scale_type: DataType
    ) -> IDynamicQuantizeLayer | None:
        """Adds a quantization by blocks of any shape.

        Args:
            input: Rank 1 or more.
            block_shape: Extents of a block, -1 for a whole axis.
            output_type: Type of the elements.
            scale_type: Type of the scales.
        """
        layer = IDynamicQuantizeLayer._create(
            block_shape=as_dims(block_shape), to_type=output_type, scale_type=scale_type
        )
        return self._add(layer, input=input)
