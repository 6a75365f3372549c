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
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

import torch
import torch.nn.functional as F

from trt_portable.dtypes import CARRIERS, FLOATS, FP4_VALUES, PACKED, is_scratch, pack, round_to, unpack
from trt_portable.enums import DataType
from trt_portable.errors import present
from trt_portable.internals import without_modes

_ROWS, _DEPTH, _COLUMNS = 32, 64, 32
_LARGEST: Final = 127


Shape: TypeAlias = tuple[int, ...]


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
    scales, zeros = torch.ones(_COLUMNS, device="cpu"), torch.zeros(_COLUMNS, dtype=torch.int64, device="cpu")
    packed = torch.ops.onednn.qlinear_prepack(matrix, None)
    unsigned = (left ^ -zero).view(torch.uint8)
    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def _is_exact(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> bool:
    with without_modes(), torch.no_grad():
        left = torch.full((_ROWS, _DEPTH), _LARGEST, dtype=torch.int8, device="cpu")
        matrix = torch.full((_COLUMNS, _DEPTH), _LARGEST, dtype=torch.int8, device="cpu")
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

    def shapes(self, extents: Sequence[int]) -> tuple[Shape, Shape, Shape, Shape | None]:
        """Of the codes, their scales, the left operand of ``(M,)`` rows, and its scale where a run computes it."""
        rows = max(extents[0], 1)
        return (self.columns, self.depth), self.blocks, (rows, self.depth), (rows, 1) if self.is_rowwise else None

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


Form = TypeVar("Form")


class LowPrecisionKernel(ABC, Generic[Form]):
    """One way of computing a product or a convolution of few bits."""

    name: ClassVar[str]
    is_traceable: ClassVar[bool] = True
    """Whether it consists of operators that PyTorch's compilers know."""

    @abstractmethod
    def accepts(self, form: Form, device: torch.device) -> bool:
        """Whether trying makes sense."""

    def suits(self, rows: int) -> bool:
        """Whether it is made for left operands of so many rows, or inputs of so many images."""
        return True

    @abstractmethod
    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and their scales as `compute` wants them.

        Args:
            codes: (N, K), or (K, C / groups, R, S), of the carrier of the codes' type.
            scale: Of `form.blocks`, or (1,) or (K,), float32; times the scale of the left operand, where that is
                constant. With an offset both, (2, *blocks), the scale first.
            form: The product or convolution.
        """

    @abstractmethod
    def compute(
        self, left: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor, form: Form, finish: Finish
    ) -> torch.Tensor:
        """The result (M, N) of a left operand (M, K), or (N, K, H', W') of an input, and what was prepared."""

    def reads(self, weights: torch.Tensor, scale: torch.Tensor, form: Form) -> bool:
        """Whether what was prepared is of the form; asked where the kernel does not compare extents itself."""
        return not weights.is_mkldnn


ProductKernel: TypeAlias = LowPrecisionKernel[ProductForm]
"""One way of computing a product."""


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

    def compute(
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

    def compute(
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

    def compute(
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

    def compute(
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

    def compute(
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

    def compute(
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

    def compute(
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

    def compute(
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
        """Codes from 0 to 15, packed as the kernels want; scales and zeros (K / group, N, 2).

        Fewer than 16 levels are moved to where their offset is least, which is rounded to the operand's type.
        """
        group = present(_int4_group(form))
        groups = form.depth // group
        parts = scale if form.has_offset else torch.stack((scale, torch.zeros_like(scale)))
        scale, offset = (spread_blocks(part, (form.columns, groups)).expand(form.columns, groups) for part in parts)
        shifted = codes.to(torch.int32) + 8
        if form.has_offset:
            inside = shifted.view(form.columns, groups, group)
            least, most = inside.amin(-1), inside.amax(-1)
            moved = (offset / scale).nan_to_num(0.0, 0.0, 0.0).round().clamp(most - 15, least)
            shifted = (inside - moved.to(torch.int32)[..., None]).view_as(shifted)
            offset = offset - moved * scale
        pairs = torch.stack((scale.t(), -offset.t()), -1).to(CARRIERS[form.left]).contiguous()
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

    def compute(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel."""
        group = present(_int4_group(form))
        if left.is_cuda:
            return finish(torch._weight_int4pack_mm(left.contiguous(), matrix, group, scale))
        return finish(torch.ops.aten._weight_int4pack_mm_for_cpu(left.contiguous(), matrix, group, scale))


_WORDS: Final = 16
"""How many words of a row of codes are a unit; units of 16 rows lie together."""
_TILE_ROWS: Final = 16


class FewRowsOfCodes(ProductKernel):
    """Kernels of our own for up to 512 rows of floats, which read codes alone; for more, one that decodes them first.

    It runs where a build has taught PyTorch the operator, and is recorded in what is compiled.
    """

    name = "few_rows"

    _MOST_ROWS: ClassVar[int] = 512
    _CAPABILITY: ClassVar[tuple[int, int]] = (8, 0)
    """Of tensor cores that multiply 16 numbers at a time."""
    _FLOAT8_CAPABILITY: ClassVar[tuple[int, int]] = (8, 9)

    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Floats in half precision times codes, with scales for each row of codes or for groups in it."""
        is_half = form.left in (DataType.HALF, DataType.BF16) and form.result is form.left
        if device.type != "cuda" or not is_half:
            return False
        least = self._FLOAT8_CAPABILITY if form.codes is DataType.FP8 else self._CAPABILITY
        if torch.cuda.get_device_capability(device) < least:
            return False
        slots = 8 if form.codes in PACKED else 4
        return form.blocks[0] in (1, form.columns) and words_of_unit(slots, form.depth, form.blocks[1]) is not None

    def suits(self, rows: int) -> bool:
        """Whether there may be a kernel that is faster than decoding first."""
        return rows <= self._MOST_ROWS

    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes in tiles; scales (groups, N), with an offset (2, groups, N), those of groups as exact as the operand.

        A unit of two words holds two neighbouring codes at each of as many places as a word has codes, so that few
        instructions make two floats of them. See `assembly`.
        """
        scale = scale.expand(*scale.shape[:-2], form.columns, form.blocks[1]).mT
        is_narrow = form.left is DataType.BF16 and form.blocks[1] > 1
        codes = F.pad(codes.view(torch.int8) if codes.itemsize == 1 else codes, (0, 0, 0, -form.columns % _TILE_ROWS))
        order = (0, 2, 1, 5, 3, 6, 4) if _lie_apart(form) else (0, 2, 1, 5, 3, 4, 6)
        placed = codes.reshape(_places(form)).permute(order).reshape(-1)
        matrix = pack(placed, form.codes) if form.codes in PACKED else placed.view(CARRIERS[form.codes])
        dtype = torch.bfloat16 if is_narrow else torch.float32
        return matrix.reshape(_padded_rows(form), -1), scale.to(dtype).contiguous()

    def reads(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> bool:
        """Bytes of codes in tiles, and as many scales and offsets as the form says."""
        bytes_of_row = form.depth // 2 if form.codes in PACKED else form.depth
        count = form.columns * form.blocks[1] * (1 + form.has_offset)
        return matrix.shape == (_padded_rows(form), bytes_of_row) and scale.numel() == count

    def compute(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel, or two."""
        rows = left.shape[0]
        # of `trt_portable.builder.inductor.decoding`
        operator = getattr(torch.ops.trt_portable, "few_rows_codes_linear", None) if left.is_cuda else None
        if operator is None or not isinstance(rows, int) or not 0 < rows <= self._MOST_ROWS:
            return finish(F.linear(left.to(finish.dtype), self.decoded(matrix, scale, form, finish.dtype)))
        fits = finish.left_scale is None and finish.bias is not None
        bias = finish.bias if fits else None
        parts = self.parts(scale, form)
        return finish(
            operator(left, matrix, bias, None, None, None, *parts, None, levels_of(form), 0, False), has_bias=fits
        )

    def decoded(self, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, dtype: torch.dtype) -> torch.Tensor:
        """The matrix (N, K) of what was prepared."""
        steps, offset = self.parts(scale, form)
        operator = getattr(torch.ops.trt_portable, "decoded_codes", None) if matrix.is_cuda else None
        if operator is not None and dtype in _HALVES:
            found: torch.Tensor = operator(matrix, steps, offset, levels_of(form), dtype)
            return found
        tiles, rows, units, two, places, pairs, _ = _places(form)
        shape = (tiles, units, rows, pairs, two, *((2, places) if _lie_apart(form) else (places, 2)))
        codes = unpack(matrix.reshape(-1), form.codes, matrix.shape[0] * form.depth) if form.codes in PACKED else matrix
        order = (0, 2, 1, 4, 6, 3, 5) if _lie_apart(form) else (0, 2, 1, 4, 5, 3, 6)
        codes = codes.reshape(shape).permute(order).reshape(-1, form.depth)[: form.columns]
        levels = torch.tensor(by_bits(form.levels), device=codes.device) if form.levels else None
        return decode(codes, (steps if offset is None else torch.stack((steps, offset))).mT, form, levels).to(dtype)

    def parts(self, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scales and offsets (groups, N) of what was prepared; None where there are none."""
        return (scale[0], scale[1]) if form.has_offset else (scale, None)


def levels_of(form: ProductForm) -> tuple[float, ...]:
    """What codes of 4 bits stand for, in the order of their bits; none for integers."""
    return FP4_VALUES if form.codes is DataType.FP4 else by_bits(form.levels)


@functools.cache
def assembly(codes: torch.dtype, floats: torch.dtype, levels: tuple[float, ...]) -> str:
    """PTX that makes pairs of floats, one for each slot, of two words of what `FewRowsOfCodes` prepared.

    Integers become the lowest bits of a float that is then subtracted: of 128, of 1024 in float16. Levels are looked
    up by byte permutations, of which one finds four bytes in half of a table. All of it is exact, but for levels, which
    are rounded to the type of the floats.

    Args:
        codes: uint8 for two codes of 4 bits in a byte, int8, or float8_e4m3fn.
        floats: float16 or bfloat16.
        levels: What codes of 4 bits stand for, in the order of their bits; none for integers.
    """
    is_half = floats is torch.float16
    slots = 8 if codes is torch.uint8 else 4
    lines = [
        ".reg .b32 s, m, a, b, h, l;",
        ".reg .f32 f, g;",
        f".reg .b32 {', '.join(f'h{i}, l{i}' for i in range(4))};",
    ]
    if levels:
        bits = torch.tensor(levels, dtype=floats, device="cpu").view(torch.int16).tolist()
        for name, shift in (("h", 8), ("l", 0)):
            for i in range(4):
                table = sum((bits[4 * i + k] >> shift & 255) << 8 * k for k in range(4))
                lines.append(f"mov.b32 {name}{i}, {table};")
    for word in range(2):
        given, first = f"${slots + word}", word * slots // 2
        if levels:
            lines += [f"and.b32 s, {given}, 0x77777777;", f"shr.b32 m, {given}, 1;"]
            lines += ["lop3.b32 m, m, 0x44444444, 0x32103210, 0xEA;"]
        for place in range(slots // 2):
            target = f"${first + place}"
            if levels:
                lines += _levels(target, place)
            elif codes is torch.float8_e4m3fn:
                lines += [f"shr.b32 s, {given}, {16 * place};", "{ .reg .b16 p, q;"]
                lines += ["mov.b32 {p, q}, s;", f"cvt.rn.f16x2.e4m3x2 {target if is_half else 'a'}, p; }}"]
                if not is_half:
                    lines += ["{ .reg .b16 p, q;", "mov.b32 {p, q}, a;", "cvt.f32.f16 f, p;", "cvt.f32.f16 g, q; }"]
                    lines.append(f"cvt.rn.bf16x2.f32 {target}, g, f;")
            else:
                lines += [f"shr.b32 s, {given}, {place * 32 // slots};", *_integers(codes, target, is_half=is_half)]
    return "{" + "\n".join(lines) + "}"


def _levels(target: str, place: int) -> list[str]:
    """Makes two floats of the levels of a place, of which each second shares a look with the one before it."""
    if place % 2:
        return [f"prmt.b32 {target}, l, h, 0x7362;"]
    lines = ["shr.b32 s, s, 16;", "shr.b32 m, m, 16;"] if place else []
    for plane in "hl":
        lines += [f"prmt.b32 a, {plane}0, {plane}1, s;", f"prmt.b32 b, {plane}2, {plane}3, s;"]
        lines.append(f"prmt.b32 {plane}, a, b, m;")
    return [*lines, f"prmt.b32 {target}, l, h, 0x5140;"]


def _integers(codes: torch.dtype, target: str, *, is_half: bool) -> list[str]:
    """Makes two floats of the lowest bits of either half of ``s``."""
    one, far = ("0x3C003C00", "f16x2") if is_half else ("0x3F803F80", "bf16x2")
    wide, back = ("0x64086408", "0xE408E408") if is_half else ("0x43084308", "0xC308C308")
    lines = ["lop3.b32 a, s, 0x000F000F, " + wide + ", 0x6A;", f"mov.b32 b, {back};"]  # (s & mask) ^ wide
    if codes is torch.int8 and is_half:
        lines = ["lop3.b32 a, s, 0x00FF00FF, 0x64806480, 0x6A;", "mov.b32 b, 0xE480E480;"]
    elif codes is torch.int8:  # 7 bits behind 128, and of the sign another 128 to subtract
        lines = ["lop3.b32 a, s, 0x007F007F, 0x43004300, 0xEA;", "lop3.b32 b, s, 0x00800080, 0xC300C300, 0xEA;"]
    return [*lines, f"mov.b32 m, {one};", f"fma.rn.{far} {target}, a, m, b;"]


def words_of_unit(slots: int, depth: int, groups: int) -> int | None:
    """How many words a unit has, if rows are made of such units, and groups of these or of even parts of them.

    Args:
        slots: Codes of a word.
        depth: Codes of a row.
        groups: Groups of a row.
    """
    group, unit = depth // groups, _WORDS * slots
    fits = groups == 1 or not group % unit or not (unit % group or group % _WORDS)
    return _WORDS if fits and not depth % unit else None


def _padded_rows(form: ProductForm) -> int:
    return form.columns + -form.columns % _TILE_ROWS


def _lie_apart(form: ProductForm) -> bool:
    """Whether the two codes of a pair lie in either half of a word, and not side by side."""
    return form.codes in (DataType.INT4, DataType.INT8) and not form.levels


def _places(form: ProductForm) -> tuple[int, ...]:
    """Tiles, rows of one, units of a row, words of a pair, places in a word, pairs of words, codes of a pair."""
    slots = 8 if form.codes in PACKED else 4
    words = present(words_of_unit(slots, form.depth, form.blocks[1]))
    return (_padded_rows(form) // _TILE_ROWS, _TILE_ROWS, form.depth // words // slots, 2, slots // 2, words // 2, 2)


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
