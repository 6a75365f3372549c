"""Ways of multiplying by a matrix of few bits: what PyTorch has kernels for, and what always works.

Each computes ``finish(left @ (codes * scale - offset).T)``, or the same with ``levels[codes]`` in place of the codes. A
kernel prepares the matrix once, when an engine is loaded or refitted, and multiplies in every run. Which one an engine
uses is decided while it is built, by measurement.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F

from trt_portable.dtypes import CARRIERS, FLOATS, PACKED, is_scratch, pack, round_to, unpack
from trt_portable.enums import DataType
from trt_portable.internals import without_modes

_ROWS, _DEPTH, _COLUMNS = 32, 64, 32
_LARGEST: Final = 127


@functools.cache
def int_mm_is_exact() -> bool:
    """Whether `torch._int_mm` adds up exactly on the CPU; False where it does not exist."""
    return _is_exact(lambda left, matrix: torch._int_mm(left, matrix.t()))


@functools.cache
def onednn_is_exact() -> bool:
    """Whether oneDNN's product of bytes adds up exactly; False where it does not exist.

    Its convolutions are made of the same instructions.
    """
    return torch.backends.mkldnn.is_available() and _is_exact(_onednn_product)


def _onednn_product(left: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    zero = 128
    scales, zeros = torch.ones(_COLUMNS), torch.zeros(_COLUMNS, dtype=torch.int64)
    packed = torch.ops.onednn.qlinear_prepack(matrix, None)
    unsigned = (left ^ -zero).view(torch.uint8)
    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def _is_exact(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> bool:
    with without_modes(), torch.no_grad():
        left = torch.full((_ROWS, _DEPTH), _LARGEST, dtype=torch.int8)
        matrix = torch.full((_COLUMNS, _DEPTH), _LARGEST, dtype=torch.int8)
        try:
            found = multiply(left, matrix)
        except (RuntimeError, NotImplementedError, AttributeError):  # no such kernel
            return False
        return bool((found == _LARGEST * _LARGEST * _DEPTH).all())


@dataclass(frozen=True)
class ProductForm:
    """A product apart from its numbers.

    Attributes:
        columns: N, rows of the matrix of codes.
        depth: K, columns of the matrix of codes.
        codes: Type of the matrix.
        left: Type of the left operand: that of the codes, or a float type.
        result: Float type of the result before it is quantized.
        blocks: Extents of the scales: (1, 1), (N, 1) per channel, (N, K / block), or others that divide.
        is_rowwise: Whether the left operand has a scale for each of its rows, computed in the run.
        has_offset: Whether a number is subtracted behind the scale, one for each block, as zero points make it.
        levels: What the sixteen codes of 4 bits stand for, the least first; none where they stand for themselves.
    """

    columns: int
    depth: int
    codes: DataType
    left: DataType
    result: DataType
    blocks: tuple[int, int]
    is_rowwise: bool = False
    has_offset: bool = False
    levels: tuple[float, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether codes times scales are the matrix."""
        return not self.has_offset and not self.levels

    @property
    def is_weight_only(self) -> bool:
        """Whether the left operand is not quantized."""
        return self.left in FLOATS

    @property
    def is_per_channel(self) -> bool:
        """Whether scales leave the sum over the depth: one for all, or one per column of the result."""
        return self.blocks[1] == 1 and self.blocks[0] in (1, self.columns)


@dataclass(frozen=True)
class Finish:
    """What happens to a product before it is a result.

    Attributes:
        result: Float type.
        left_scale: (M, 1) or 0-D, float32: factors of the rows that the run computes; None where there are none.
        bias: (N,), or None.
        rectify: Whether negative numbers become 0.
        scale: 0-D: what the result is divided by before it is rounded to `output`; None where it stays a float.
        output: Type of the result.
    """

    result: DataType
    left_scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    rectify: bool = False
    scale: torch.Tensor | None = None
    output: DataType = DataType.FLOAT

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's type of the float result."""
        return CARRIERS[self.result]

    def __call__(self, product: torch.Tensor, *, has_bias: bool = False) -> torch.Tensor:
        """The result of a float product (M, N), which is lost."""
        if self.left_scale is not None:
            product = product.float()
            product = product.mul_(self.left_scale) if is_scratch(product) else product * self.left_scale
        if self.bias is not None and not has_bias:
            bias = self.bias.to(product.dtype)
            product = product.add_(bias) if is_scratch(product) else product + bias
        if self.rectify:
            product = product.relu_() if is_scratch(product) else torch.relu(product)
        product = product.to(self.dtype)
        if self.scale is None:
            return product
        product = product.float()
        steps = product.div_(self.scale.float()) if is_scratch(product) else product / self.scale.float()
        return round_to(steps, self.output)


class ProductKernel(ABC):
    """One way of computing a product."""

    name: ClassVar[str]
    is_traceable: ClassVar[bool] = True
    """Whether it consists of operators that PyTorch's compilers know."""

    @abstractmethod
    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Whether trying makes sense."""

    def suits(self, rows: int) -> bool:
        """Whether it is made for left operands of so many rows."""
        return True

    @abstractmethod
    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix and its scales as `multiply` wants them.

        Args:
            codes: (N, K), of the carrier of the codes' type.
            scale: Of `form.blocks`, float32; times the scale of the left operand, where that is constant. With an
                offset both, (2, *blocks), the scale first.
            form: The product.
        """

    @abstractmethod
    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """The result (M, N) of a left operand (M, K) and what was prepared."""

    def reads(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> bool:
        """Whether what was prepared is of the form; asked where the kernel does not compare extents itself."""
        return not matrix.is_mkldnn


def decode(
    codes: torch.Tensor, scale: torch.Tensor, form: ProductForm, levels: torch.Tensor | None = None
) -> torch.Tensor:
    """The matrix that codes stand for, float32.

    Args:
        codes: (N, K), of the carrier of the codes' type, or some rows of it.
        scale: Of `form.blocks`, or those of the rows; with an offset both, (2, *blocks).
        form: The product.
        levels: What codes stand for, by their four bits; None where they stand for themselves.
    """
    extents = (codes.shape[0], codes.shape[1])
    wide = codes.to(torch.float32) if levels is None else levels[codes.to(torch.int32) & 15]
    if not form.has_offset:
        return wide * spread_blocks(scale, extents)
    return wide * spread_blocks(scale[0], extents) - spread_blocks(scale[1], extents)


def join_levels(scale: torch.Tensor, levels: Sequence[float]) -> torch.Tensor:
    """Scales as they are, or all flat behind levels."""
    return torch.cat((torch.tensor(levels, device=scale.device), scale.flatten())) if levels else scale


def split_levels(
    scale: torch.Tensor, form: ProductForm, blocks: Sequence[int], count: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What `join_levels` joined: scales (*blocks), or (2, *blocks) with an offset, and the levels."""
    shape = (2, *blocks) if form.has_offset else tuple(blocks)
    return scale[count:].reshape(shape) if count else scale, scale[:count] if count else None


def spread_blocks(scale: torch.Tensor, extents: tuple[int, int]) -> torch.Tensor:
    """Scales of blocks as a matrix that broadcasts to (N, K)."""
    for axis, extent in enumerate(extents):
        if scale.shape[axis] not in (1, extent):
            scale = scale.repeat_interleave(extent // scale.shape[axis], axis)
    return scale


_HALVES: Final = (torch.float16, torch.bfloat16)
_INT4_GROUPS: Final = (256, 128, 64, 32)


class Dequantize(ProductKernel):
    """The matrix stays small and becomes floats in every run; what any product can be computed by."""

    name = "dequantize"

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Always."""
        return True

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of 4 bits two in a byte, others as they are; what codes stand for is in front of the scales."""
        matrix = pack(codes.reshape(-1), form.codes) if form.codes in PACKED else codes.contiguous()
        return matrix, join_levels(scale, by_bits(form.levels))

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """A float product."""
        extents = (form.columns, form.depth)
        if form.codes in PACKED:
            matrix = unpack(matrix, form.codes, form.columns * form.depth).reshape(extents)
        scale, levels = split_levels(scale, form, form.blocks, len(form.levels))
        return finish(F.linear(left.to(finish.dtype), decode(matrix, scale, form, levels).to(finish.dtype)))


class DequantizeInTiles(Dequantize):
    """As `Dequantize`, some rows of the matrix at a time, so that what becomes floats stays in a cache."""

    name = "dequantize_in_tiles"
    is_traceable = False

    _TILE: ClassVar[int] = 1 << 17  # elements

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Matrices of several tiles, on the CPU."""
        return device.type == "cpu" and form.columns * form.depth > self._TILE and not form.depth % 2

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """Float products."""
        rows, wide = max(1, self._TILE // form.depth), left.to(finish.dtype)
        parts = []
        for start in range(0, form.columns, rows):
            weights = decode_rows(matrix, scale, form, start, min(start + rows, form.columns))
            parts.append(F.linear(wide, weights.to(finish.dtype)))
        return finish(torch.cat(parts, 1))


def decode_rows(matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, start: int, stop: int) -> torch.Tensor:
    """Some rows of a matrix, float32, of what `Dequantize` prepared."""
    scale, levels = split_levels(scale, form, form.blocks, len(form.levels))
    if scale.shape[-2] != 1:
        each = form.columns // scale.shape[-2]
        first, last = start // each, -(-stop // each)
        scale = scale[..., first:last, :].repeat_interleave(each, -2)[..., start - first * each :, :]
        scale = scale[..., : stop - start, :]
    per_byte = 2 if form.codes in PACKED else 1
    codes = matrix.reshape(-1)[start * form.depth // per_byte : stop * form.depth // per_byte]
    codes = unpack(codes, form.codes, (stop - start) * form.depth) if per_byte == 2 else codes
    return decode(codes.reshape(stop - start, form.depth), scale, form, levels)


class DequantizeOnce(ProductKernel):
    """The matrix becomes floats when the engine is loaded: fast where nothing else is, and large."""

    name = "dequantize_once"

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Always; whether it may be tried is a setting."""
        return True

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Floats."""
        levels = torch.tensor(by_bits(form.levels), device=codes.device) if form.levels else None
        return decode(codes, scale, form, levels).to(CARRIERS[form.result]), scale

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """A float product."""
        fits = finish.left_scale is None and finish.bias is not None and finish.bias.dtype is matrix.dtype
        product = F.linear(left.to(finish.dtype), matrix, finish.bias if fits else None)
        return finish(product, has_bias=fits)


class IntegerProduct(ProductKernel):
    """`torch._int_mm`: int8 times int8, summed exactly in int32."""

    name = "int_mm"

    _LEAST_ROWS: ClassVar[int] = 32  # cuBLAS wants more than 16 rows
    _MULTIPLE: ClassVar[int] = 8  # and a multiple of 8 of the others

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """int8 on both sides, scales outside of the sum, on devices that add up exactly."""
        return _is_integer_product(form) and (device.type != "cpu" or int_mm_is_exact())

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded to extents that cuBLAS takes, on CUDA."""
        if codes.is_cuda:
            codes = padded(codes, self._MULTIPLE, self._MULTIPLE)
        return codes.contiguous(), scale.reshape(-1)

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """An integer product, scaled."""
        rows = left.shape[0]
        if left.is_cuda:
            left = F.pad(left, (0, matrix.shape[1] - form.depth, 0, max(0, self._LEAST_ROWS - rows)))
        sums = torch._int_mm(left, matrix.t())[:rows, : form.columns]
        product = sums.to(torch.float32)
        return finish(product.mul_(scale) if is_scratch(product) else product * scale)


class OneDnnLinear(ProductKernel):
    """oneDNN's int8 product on the CPU, with bias, rectification and quantization in the same kernel."""

    name = "onednn"
    is_traceable = False

    _ZERO: ClassVar[int] = 128  # unsigned activations are what its fast kernels take

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """As `IntegerProduct`, on the CPU, with a constant scale on the left."""
        fits = _is_integer_product(form) and not form.is_rowwise
        return fits and device.type == "cpu" and onednn_is_exact()

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """In oneDNN's own layout."""
        return torch.ops.onednn.qlinear_prepack(codes.contiguous(), None), scale.reshape(-1).contiguous()

    def reads(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> bool:
        """A packed matrix, and one scale or one for every column."""
        is_packed = matrix.is_mkldnn and matrix.dtype is torch.int8 and matrix.shape == (form.depth, form.columns)
        return is_packed and scale.dtype is torch.float32 and scale.shape in ((1,), (form.columns,))

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel after the change of sign."""
        unsigned = (left ^ -self._ZERO).view(torch.uint8)
        quantizes = finish.scale is not None and finish.output is DataType.INT8
        kind = None if quantizes else (torch.bfloat16 if finish.dtype is torch.bfloat16 else torch.float32)
        step, zero = (float(finish.scale), self._ZERO) if quantizes else (1.0, 0)  # type: ignore[arg-type]
        zeros = torch.zeros_like(scale, dtype=torch.int64)
        bias = None if finish.bias is None else finish.bias.float()
        post = "relu" if finish.rectify else "none"
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, self._ZERO, matrix, scale, zeros, bias, step, zero, kind, post, [], ""
        )
        if quantizes:
            return found.view(torch.int8) ^ -self._ZERO
        return Finish(finish.result, scale=finish.scale, output=finish.output)(found)


class Float8Product(ProductKernel):
    """`torch._scaled_mm`: float8 times float8, with one scale for the matrix, or factors per column afterwards."""

    name = "scaled_mm"

    _MULTIPLE: ClassVar[int] = 16
    _FIRST_SCALE: ClassVar[int] = 4  # cuBLAS takes scales that lie at multiples of 16 bytes
    _LEAST_CAPABILITY: ClassVar[tuple[int, int]] = (8, 9)
    _FAST: ClassVar[bool] = False

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """float8 on both sides, scales outside of the sum, a GPU with such units."""
        if form.codes is not DataType.FP8 or form.left is not DataType.FP8:
            return False
        if not form.is_per_channel or not form.is_plain:
            return False
        return device.type != "cuda" or torch.cuda.get_device_capability(device) >= self._LEAST_CAPABILITY

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded; scales after a 1, which stands for those that are applied elsewhere."""
        matrix = padded(codes, self._MULTIPLE, self._MULTIPLE).contiguous()
        return matrix, F.pad(scale.reshape(-1), (self._FIRST_SCALE, 0), value=1.0)

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel, and factors where columns or rows have their own."""
        is_one = scale.shape[0] == self._FIRST_SCALE + 1
        first = self._FIRST_SCALE if is_one else 0
        is_plain = is_one and finish.left_scale is None
        wide = torch.bfloat16 if finish.dtype is torch.bfloat16 else torch.float32
        kind = finish.dtype if is_plain else wide  # half precision could overflow before it is scaled
        bias = finish.bias if is_plain and kind in _HALVES and not form.columns % self._MULTIPLE else None
        product = torch._scaled_mm(
            _padded_depth(left, matrix.shape[1]),
            matrix.t(),
            scale_a=scale[:1],
            scale_b=scale[first : first + 1],
            bias=None if bias is None else bias.to(kind),
            out_dtype=kind,
            use_fast_accum=self._FAST,
        )
        if product.shape[1] != form.columns:
            product = product[:, : form.columns]
        if not is_one:
            product = product * scale[self._FIRST_SCALE :]
        return finish(product, has_bias=bias is not None)


class FastFloat8Product(Float8Product):
    """`Float8Product` that adds up with fewer bits, as inference commonly does on Hopper."""

    name = "scaled_mm_fast"
    _FAST = True

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Only CUDA has it."""
        return device.type == "cuda" and super().accepts(form, device)


class RowwiseFloat8Product(Float8Product):
    """`torch._scaled_mm` with a scale for every row and column, in one kernel."""

    name = "scaled_mm_rowwise"
    _FAST = True

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Where there are such scales, and the result is bfloat16."""
        has_scales = form.is_rowwise or form.blocks[0] > 1
        fits = not (form.columns % self._MULTIPLE or form.depth % self._MULTIPLE)
        return has_scales and fits and form.result is DataType.BF16 and super().accepts(form, device)

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """A scale for every column."""
        return codes.contiguous(), scale.reshape(1, -1).expand(1, form.columns).contiguous()

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel."""
        rows = (left.shape[0], 1)
        given = finish.left_scale
        left_scale = torch.ones(rows, device=left.device) if given is None else given.expand(rows).contiguous()
        product = torch._scaled_mm(
            left.contiguous(),
            matrix.t(),
            scale_a=left_scale,
            scale_b=scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=left.is_cuda,
        )
        return Finish(
            finish.result, bias=finish.bias, rectify=finish.rectify, scale=finish.scale, output=finish.output
        )(product)


class PackedInt8(ProductKernel):
    """`torch._weight_int8pack_mm`: floats times int8, which are widened on the way."""

    name = "int8pack"

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Floats times int8, scales outside of the sum."""
        return form.codes is DataType.INT8 and form.is_weight_only and form.is_per_channel and form.is_plain

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """A scale for every column, in the type of the left operand."""
        return codes.contiguous(), scale.reshape(-1).expand(form.columns).to(CARRIERS[form.left]).contiguous()

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel."""
        return finish(torch._weight_int8pack_mm(left.contiguous(), matrix, scale))


class PackedInt4(ProductKernel):
    """`torch._weight_int4pack_mm`: floats times int4 with scales, and offsets, per group of the depth."""

    name = "int4pack"
    is_traceable = False

    _INNER_TILES: ClassVar[int] = 8

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Floats times int4, in groups that the kernels have; CUDA has it for bfloat16."""
        if form.codes is not DataType.INT4 or form.levels or not form.is_weight_only or _int4_group(form) is None:
            return False
        return device.type == "cpu" or (device.type == "cuda" and form.left is DataType.BF16)

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes from 0 to 15, packed as the kernels want; scales and zeros (K / group, N, 2)."""
        group = _int4_group(form)
        assert group is not None
        groups = form.depth // group
        parts = scale if form.has_offset else torch.stack((scale, torch.zeros_like(scale)))
        scale, offset = (spread_blocks(part, (form.columns, groups)).expand(form.columns, groups) for part in parts)
        pairs = torch.stack((scale.t(), -offset.t()), -1).to(CARRIERS[form.left]).contiguous()
        shifted = codes.to(torch.int32) + 8
        if not codes.is_cuda:
            return torch._convert_weight_to_int4pack_for_cpu(shifted, 1), pairs
        even, odd = shifted[:, ::2], shifted[:, 1::2]
        return torch._convert_weight_to_int4pack((even << 4 | odd).to(torch.uint8), self._INNER_TILES), pairs

    def reads(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> bool:
        """A packed matrix, and a scale and a zero for every group of every column."""
        group = _int4_group(form)
        pairs = (form.depth // (group or 1), form.columns, 2)
        is_packed = matrix.is_cuda or (matrix.dtype is torch.uint8 and matrix.shape == (form.columns, form.depth // 2))
        return is_packed and not matrix.is_mkldnn and scale.shape == pairs and scale.dtype is CARRIERS[form.left]

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel."""
        group = _int4_group(form)
        assert group is not None
        if left.is_cuda:
            return finish(torch._weight_int4pack_mm(left.contiguous(), matrix, group, scale))
        return finish(torch.ops.aten._weight_int4pack_mm_for_cpu(left.contiguous(), matrix, group, scale))


_HALF_UNIT: Final = 16
"""Codes of 4 bits that lie in the lower bits of as many bytes, before others in the upper ones."""


class FewRowsOfCodes(ProductKernel):
    """A kernel of our own for up to 16 rows of floats, which reads codes once; `Dequantize` for more.

    It runs where a build has taught PyTorch the operator, and is recorded in what is compiled.
    """

    name = "few_rows"

    _MOST_ROWS: ClassVar[int] = 16
    _FLOAT8_CAPABILITY: ClassVar[tuple[int, int]] = (8, 9)

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Floats in half precision times codes, with scales for each row of codes or for groups in it."""
        is_half = form.left in (DataType.HALF, DataType.BF16) and form.result is form.left
        if device.type != "cuda" or not is_half:
            return False
        if form.codes is DataType.FP8 and torch.cuda.get_device_capability(device) < self._FLOAT8_CAPABILITY:
            return False
        unit = 256 if form.codes in PACKED else 128  # bytes that every tile can be cut into
        group = form.depth // form.blocks[1]
        has_groups = form.blocks[1] == 1 or not 256 % group
        if form.codes in PACKED and form.blocks[1] > 1:
            has_groups = has_groups and (group >= _HALF_UNIT * 2 or (group == _HALF_UNIT and not form.has_offset))
        return form.blocks[0] in (1, form.columns) and not form.depth % unit and has_groups

    def suits(self, rows: int) -> bool:
        """Whether the rows fit into one tile."""
        return rows <= self._MOST_ROWS

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes row by row; scales (N, groups), with an offset (2, N, groups).

        Of 4 bits there are 32 in 16 bytes, the first 16 of them in their lower bits: so rows are read in one piece.
        In front of them, all flat, is what the codes stand for, in the order of their bits, where that is not they.
        """
        scale = scale.expand(*scale.shape[:-2], form.columns, form.blocks[1]).contiguous()
        scale = join_levels(scale, by_bits(form.levels))
        if form.codes in PACKED:
            halves = codes.reshape(-1, 2, _HALF_UNIT).mT.reshape(-1)
            return pack(halves, form.codes).reshape(form.columns, -1), scale
        return codes.contiguous(), scale

    def reads(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> bool:
        """Bytes of codes row by row, and as many scales, offsets and levels as the form says."""
        bytes_of_row = form.depth // 2 if form.codes in PACKED else form.depth
        count = form.columns * form.blocks[1] * (1 + form.has_offset) + len(form.levels)
        return matrix.shape == (form.columns, bytes_of_row) and scale.numel() == count

    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel for few rows."""
        rows = left.shape[0]
        steps, offset, levels = self.parts(scale, form)
        if isinstance(rows, int) and 0 < rows <= self._MOST_ROWS and left.is_cuda:
            # of `trt_portable.builder.inductor.decoding`
            operator = getattr(torch.ops.trt_portable, "few_rows_codes_linear", None)
            if operator is not None:
                return finish(operator(left, matrix, steps, offset, levels, None, 0, form.codes is DataType.FP4))
        return finish(F.linear(left.to(finish.dtype), self.decoded(matrix, scale, form).to(finish.dtype)))

    def decoded(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> torch.Tensor:
        """The matrix (N, K), float32, of what was prepared."""
        steps, offset, levels = self.parts(scale, form)
        if form.codes in PACKED:
            halves = unpack(matrix.reshape(-1), form.codes, form.columns * form.depth).reshape(-1, _HALF_UNIT, 2)
            matrix = halves.mT.reshape(form.columns, form.depth)
        return decode(matrix, steps if offset is None else torch.stack((steps, offset)), form, levels)

    def parts(
        self, scale: torch.Tensor, form: ProductForm
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Scales and offsets (N, groups), and levels (16,), of what was prepared; None where there are none."""
        both, levels = split_levels(scale, form, (form.columns, form.blocks[1]), len(form.levels))
        return (both[0], both[1], levels) if form.has_offset else (both, None, levels)


def by_bits(levels: Sequence[float]) -> tuple[float, ...]:
    """Sixteen numbers of codes from -8 to 7 in the order of their four bits; none of none."""
    half = len(levels) // 2
    return (*levels[half:], *levels[:half])


def _is_integer_product(form: ProductForm) -> bool:
    """Whether a product is one of int8 by int8, with scales outside of the sum."""
    is_integer = form.codes is DataType.INT8 and form.left is DataType.INT8
    return is_integer and form.is_per_channel and form.is_plain


def _int4_group(form: ProductForm) -> int | None:
    """The largest group of the depth that kernels have and that lies within one block of scales."""
    if form.blocks[0] not in (1, form.columns):
        return None
    block = form.depth // form.blocks[1]
    return next((group for group in _INT4_GROUPS if block % group == 0), None)


def padded(matrix: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A matrix with zeros around it, up to multiples of extents."""
    missing = [-matrix.shape[1] % columns, -matrix.shape[0] % rows]
    if not any(missing):
        return matrix
    return F.pad(matrix.view(torch.int8), (0, missing[0], 0, missing[1])).view(matrix.dtype)


def _padded_depth(left: torch.Tensor, depth: int) -> torch.Tensor:
    if left.shape[1] == depth:
        return left.contiguous()
    return F.pad(left.contiguous().view(torch.int8), (0, depth - left.shape[1])).view(left.dtype)


REFERENCE: Final = Dequantize()
"""What any product can be computed by, and what the others are held to."""

PRODUCT_KERNELS: Final[Mapping[str, ProductKernel]] = {
    kernel.name: kernel
    for kernel in (
        FastFloat8Product(),
        RowwiseFloat8Product(),
        Float8Product(),
        OneDnnLinear(),
        IntegerProduct(),
        FewRowsOfCodes(),
        PackedInt4(),
        PackedInt8(),
        DequantizeInTiles(),
        REFERENCE,
        DequantizeOnce(),
    )
}
"""All ways by name, the likely fastest first."""


def product_kernel(name: Any) -> ProductKernel:
    """The way of a name; the one that always works for names of other versions."""
    return PRODUCT_KERNELS.get(name, REFERENCE)
