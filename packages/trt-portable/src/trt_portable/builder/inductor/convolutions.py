"""Convolutions and products of sizes that are new, by a kernel of ours: libraries plan, or load, when sizes come first.

cuDNN plans a convolution for 2 to 6 ms. cuBLAS looks for its kernel and has the driver load it, in 0.1 to 1 ms for each
size of a product. A list of launches for sizes that vary holds both ways of each. The kernel takes all sizes as
arguments, so one serves all of a network that have the same epilogue; a product is a convolution of single pixels.

The kernel has a second use, whatever the sizes: groups of channels under long windows along a line, as Wav2Vec2 tells
places apart. cuDNN takes 13 ms for it. Laying out the windows for a product takes more memory than all else in such a
model, and half a millisecond; the kernel reads each window where it lies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_portable.builder.inductor.own_operators import (
    KernelCall,
    OwnOperators,
    are_equal,
    define_kernel,
    define_operator,
    has_channels_last,
    teach_compilers,
)
from trt_portable.layers.windows import convolved_extents
from trt_portable.shape_tensors import usual_size

_HALF: Final = (torch.float16, torch.bfloat16)
_UNIT: Final = 8
"""Numbers of half precision that are read at a time."""
_PRODUCTS: Final = frozenset(
    getattr(operator, overload)
    for operator in (torch.ops.aten.mm, torch.ops.aten.addmm)
    for overload in ("default", "out")
)


@dataclass(frozen=True)
class Form:
    """What a block computes.

    Attributes:
        pixels: Of the result.
        maps: Of the result.
        depth: Channels that it reads at a time.
        warps: Of the block.
        stages: Tiles that are underway at a time.
    """

    pixels: int
    maps: int
    depth: int
    warps: int
    stages: int

    def tiles(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        tiles = {"TILE_PIXELS": self.pixels, "TILE_MAPS": self.maps, "TILE_DEPTH": self.depth}
        return tiles | {"num_warps": self.warps, "num_stages": self.stages}


WIDE: Final = Form(128, 128, 32, 8, 4)
"""For results that fill a GPU."""
NARROW: Final = Form(128, 64, 32, 4, 4)
"""For few maps."""
SMALL: Final = Form(64, 64, 64, 4, 3)
"""For results that do not fill a GPU otherwise."""
_MANY_TILES: Final = 132
_FEW_MAPS: Final = 64


@dataclass(frozen=True)
class Convolution:
    """A convolution of two axes, as operators of ATen say it.

    Attributes:
        x: (N, C, H, W) in half precision.
        kernel: (K, C, R, S); (C, K, R, S) if it is transposed.
        bias: (K,), or None.
        other: What is added, of the extents of the result, or None.
        geometry: Stride, padding and dilation.
        is_transposed: Whether each pixel is spread, and not gathered.
        is_relu: Whether what is negative becomes zero.
        operands: What the first four lie in, which may have fewer axes; themselves if there is nothing here.
        groups: Of channels, each convolved by itself.
        parts: Of a window's taps, whose sums are apart in the result.
    """

    x: Any
    kernel: Any
    bias: Any
    other: Any
    geometry: tuple[Sequence[int], ...]
    is_transposed: bool = False
    is_relu: bool = True
    operands: tuple[Any, ...] = ()
    groups: int = 1
    parts: int = 1

    @classmethod
    def of(cls, operator: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Convolution | None:
        """What a call of an operator computes; None if it is no convolution of all channels, and no product."""
        if operator in _PRODUCTS:
            is_plain = named.get("alpha", 1) == named.get("beta", 1) == 1
            return cls._of_product(*given) if is_plain else None
        if operator is torch.ops.aten.convolution.default:
            x, kernel, bias, *geometry, is_transposed, _, groups = given
            found = cls(x, kernel, bias, None, tuple(geometry), is_transposed, is_relu=False)
        elif operator is torch.ops.aten.cudnn_convolution_relu.default:
            x, kernel, bias, *geometry, groups = given
            found = cls(x, kernel, bias, None, tuple(geometry))
        elif operator is torch.ops.aten.cudnn_convolution_add_relu.default:
            x, kernel, other, scale, bias, *geometry, groups = given
            if scale not in (None, 1):
                return None
            found = cls(x, kernel, bias, other, tuple(geometry))
        else:
            return None
        return found if groups == 1 else None

    @classmethod
    def _of_product(cls, *given: Any) -> Convolution:
        """What ``x @ matrix``, or that and something more, computes."""
        *added, x, matrix = given
        is_transposed = matrix.stride(1) == 1
        kernel = matrix if is_transposed else matrix.t()
        bias = other = None
        for each in added:  # as Inductor writes it, a bias is repeated for all rows
            if each.dim() == 1 or (isinstance(each.stride(0), int) and each.stride(0) == 0):
                bias = each
            else:
                other = each
        images = [None if each is None else _as_images(each) for each in (x, kernel, other)]
        geometry = ((1, 1), (0, 0), (1, 1))
        operands = (x, matrix, bias, other)
        return cls(images[0], images[1], bias, images[2], geometry, is_transposed, is_relu=False, operands=operands)

    @property
    def maps(self) -> int:
        """Channels of the result, of one group."""
        return int(self.kernel.shape[1]) if self.is_transposed else int(self.kernel.shape[0]) // self.groups

    @property
    def channels(self) -> int:
        """Channels that one group reads."""
        return self.x.shape[1] // self.groups  # type: ignore[no-any-return]

    @property
    def units(self) -> tuple[int, int]:
        """What channels and maps are counted in."""
        is_aligned = self.channels % _UNIT == 0 and has_channels_last(self.x)
        return _UNIT if is_aligned else 1, 1 if self.maps % _UNIT else _UNIT

    def flags(self) -> dict[str, Any]:
        """What the kernel is compiled with."""
        has_bias, has_other = (each is not None for each in (self.bias, self.other))
        flags: dict[str, Any] = {"IS_TRANSPOSED": self.is_transposed, "HAS_BIAS": has_bias, "HAS_OTHER": has_other}
        depth, maps = self.units
        flags |= {"IS_RELU": self.is_relu, "DEPTH_UNIT": depth, "MAPS_UNIT": maps}
        return {**flags, "GROUPS": self.groups, "PARTS": self.parts}

    def pixels(self, result: torch.Tensor) -> Any:
        """Pixels of all images of a result."""
        batch, _, rows, columns = result.shape
        return batch * rows * columns

    def form(self, result: torch.Tensor) -> Form:
        """The form that may be the fastest at the sizes that a graph was tuned at."""
        return form_for(usual_size(self.pixels(result)), self.maps)

    def suits(self, result: torch.Tensor) -> bool:
        """Whether the kernel takes the operands, as far as their types and strides tell; no sizes are asked for."""
        tensors = [each for each in (self.x, self.kernel, self.bias, self.other, result) if each is not None]
        lying = [each for each in (self.kernel, self.other, result) if each is not None]
        return (
            self.x.dim() == 4
            and self.x.dtype in _HALF
            and all(each.dtype is self.x.dtype for each in tensors)
            and all(has_channels_last(each) for each in lying)
            and (self.other is None or are_equal(self.other.shape, result.shape))
            and all(isinstance(size, int) for size in (*self.kernel.shape, self.x.shape[1]))
            and all(_begins_aligned(each) for each in tensors)
        )


def _begins_aligned(tensor: torch.Tensor) -> bool:
    """Whether a tensor begins at a multiple of 16 bytes, if what it lies in does."""
    offset = tensor.storage_offset()
    return isinstance(offset, int) and offset * tensor.itemsize % 16 == 0


def _as_images(tensor: torch.Tensor) -> torch.Tensor:
    """A matrix as images of one pixel; others as they are."""
    return tensor[:, :, None, None] if tensor.dim() == 2 else tensor


def unplanned(operator: Any, given: Sequence[Any], named: Mapping[str, Any], result: Any) -> KernelCall | None:
    """The launch that computes what an operator does, and plans nothing; it is not started.

    Args:
        operator: ATen's.
        given: Its arguments, tensors without data.
        named: Those that are given by name.
        result: Its result, likewise.

    Returns:
        The launch, whose last argument that is a tensor is the result; None for other operators, and where the kernel
        does not take the operands.
    """
    found = Convolution.of(operator, given, named)
    if found is None or not found.suits(images := _as_images(result)):
        return None
    return _call(found, result, images, found.form(images))


def _call(found: Convolution, result: torch.Tensor, images: torch.Tensor, form: Form) -> KernelCall:
    """The launch that computes a convolution.

    Args:
        found: The convolution.
        result: What is written to.
        images: The result as images, of one part.
        form: Of blocks.
    """
    from trt_portable.builder.inductor.triton_kernels import convolution

    pixels, maps = found.pixels(images), found.maps
    tiles = (pixels + form.pixels - 1) // form.pixels * math.ceil(maps / form.maps)
    x, kernel, bias, other = found.operands or (found.x, found.kernel, found.bias, found.other)
    optional = [x if each is None else each for each in (bias, other)]
    depth, maps = (count // unit for count, unit in zip((found.channels, maps), found.units, strict=True))
    sizes = (pixels, *found.x.shape[2:], *images.shape[2:], depth, maps, *found.kernel.shape[2:])
    geometry = [number for numbers in found.geometry for number in _pair(numbers)]
    arguments = (x, kernel, *optional, result, *sizes, *geometry, *found.x.stride())
    return KernelCall(convolution, (tiles, found.groups, found.parts), arguments, found.flags() | form.tiles())


OPERATOR: Final = "trt_portable::grouped_convolution"
KERNEL: Final = "trt_portable::grouped_convolution_kernel"
_GROUPED: Final = Form(128, 64, 16, 4, 5)
"""The fastest of 14 for 16 groups of 48 channels, at 24, 196 and 1192 pixels."""


def convolve_groups(
    x: torch.Tensor, kernel: torch.Tensor, padding: Sequence[int], groups: int, parts: int
) -> torch.Tensor:
    """A convolution of groups of channels in steps of one, as sums that are yet to be added.

    Args:
        x: (N, C, H, W) in half precision, channels varying fastest.
        kernel: (K, C / groups, R, S), likewise; C / groups a multiple of 8.
        padding: Of rows and columns, on both sides.
        groups: Of channels.
        parts: How many sums the taps of a window are shared out to.

    Returns:
        (parts, N, K, H', W') in float32, channels varying fastest.
    """
    sums = _like_sums(x, kernel, padding, groups, parts)
    _kernel_operator()(x, kernel, padding, groups, sums)
    return sums


def grouped_call(
    x: torch.Tensor, kernel: torch.Tensor, padding: Sequence[int], groups: int, sums: torch.Tensor
) -> KernelCall:
    """The kernel of `convolve_groups`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    geometry = ((1, 1), tuple(padding), (1, 1))
    found = Convolution(x, kernel, None, None, geometry, is_relu=False, groups=groups, parts=len(sums))
    if found.units[0] != _UNIT or not has_channels_last(kernel):
        raise RuntimeError("operands of a grouped convolution lie in another way")
    return _call(found, sums, sums[0], _GROUPED)


def _like_sums(x: torch.Tensor, kernel: torch.Tensor, padding: Sequence[int], groups: int, parts: int) -> torch.Tensor:
    rows, columns = convolved_extents(x.shape[2:], kernel.shape[2:], (1, 1), padding, (1, 1))
    lying = x.new_empty((parts, x.shape[0], rows, columns, kernel.shape[0]), dtype=torch.float32)
    return lying.permute(0, 1, 4, 2, 3)


@functools.cache
def _kernel_operator() -> Any:
    """The kernel as an operator."""
    return define_kernel(KERNEL, grouped_call, writes_to=("sums",))


@functools.cache
def teach_grouped_convolutions() -> OwnOperators:
    """Makes the operator known to PyTorch, to traces without data, and to Inductor; once per process.

    Returns:
        The operator for compilers, which is composed, and that of the kernel, which is launched.
    """
    operator = define_operator(OPERATOR, convolve_groups)
    teach_compilers(operator, _like_sums)
    of_any_size = frozenset((_kernel_operator(), operator))
    return OwnOperators({_kernel_operator(): grouped_call}, {operator: convolve_groups}, of_any_size=of_any_size)


def _pair(numbers: Sequence[int]) -> Sequence[int]:
    return numbers if len(numbers) == 2 else (numbers[0], numbers[0])


def form_for(pixels: int, maps: int) -> Form:
    """The form that may be the fastest.

    Args:
        pixels: Of all images.
        maps: Of the result.
    """
    for form in (WIDE, NARROW):
        is_filled = math.ceil(pixels / form.pixels) * math.ceil(maps / form.maps) >= _MANY_TILES
        if is_filled and (form is NARROW or maps > _FEW_MAPS):
            return form
    return SMALL
