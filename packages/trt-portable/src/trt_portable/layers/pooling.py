"""Pooling, and padding with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from trt_portable.attributes import boolean, dims, member, number
from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.dtypes import FLOATS
from trt_portable.enums import DataType, LayerType, PaddingMode, PoolingType
from trt_portable.layers.windows import (
    Padding,
    both_paddings,
    check_lengths,
    count_windows,
    pad,
    per_axis,
    require_fit,
    symmetric,
    window_padding,
)
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_minimum_rank, require_rank, require_type
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_HALVES: Final = frozenset({torch.float16, torch.bfloat16})


class _Windows(NamedTuple):
    """What PyTorch's pooling is called with: numbers per axis, and whether the last window may be incomplete."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: list[int]
    rounds_up: bool


class IPoolingLayer(ILayer):
    """The maximum or average of a sliding window. The stride is 1 unless it is set."""

    _KIND = LayerType.POOLING
    _DEFERRED = True

    type = member(PoolingType, PoolingType.MAX, "What a window computes.")
    window_size_nd = dims(Dims(), "Extents of the window.")
    stride_nd = per_axis(1, "Distance between windows.")
    pre_padding = per_axis(0, "Padding before the first element.")
    post_padding = per_axis(0, "Padding after the last element.")
    padding_nd = both_paddings("Padding on both sides; reads as that before.")
    padding_mode = member(PaddingMode, PaddingMode.EXPLICIT_ROUND_DOWN, "How padding is found.")
    blend_factor = number(0.0, "Share of the average in MAX_AVERAGE_BLEND.")
    average_count_excludes_padding = boolean(True, "Whether padding is left out of averages.")

    @property
    def _spatial_rank(self) -> int:
        return len(self.window_size_nd)

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        (x,) = inputs
        assert x is not None
        require_type(x, FLOATS | {DataType.INT8}, "the input")
        require_rank(x, {4, 5}, "the input")
        require(
            self._spatial_rank == x._rank - 2,
            f"window {self.window_size_nd} for an input of rank {x._rank}",
        )
        require(all(k > 0 for k in self.window_size_nd), f"window {self.window_size_nd}")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        check_lengths(self, self._spatial_rank, ("stride_nd", "pre_padding", "post_padding"))
        require(all(s > 0 for s in self.stride_nd), f"strides {self.stride_nd} must be positive")
        for name in ("pre_padding", "post_padding"):
            require(all(p >= 0 for p in getattr(self, name)), f"{name} must not be negative")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = self._inputs[0]
        assert x is not None
        if x._is_static:
            return None
        batch, channels, *spatial = x._extents or ()
        extents = [symbols.integer(extent) for extent in spatial]
        counts = count_windows(extents, self._paddings(extents), self.stride_nd, tuple(self.window_size_nd))
        return (Facts((batch, channels, *map(symbols.expression, counts)), x._dtype, None),)

    def _paddings(self, extents: Sequence[Any]) -> list[Padding]:
        axes = (extents, self.pre_padding, self.post_padding, self.stride_nd, self.window_size_nd)
        return [
            window_padding(extent, self.padding_mode, before, after, step, size)
            for extent, before, after, step, size in zip(*axes, strict=True)
        ]

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        x = as_tensor(inputs[0])
        paddings = self._paddings(x.shape[2:])
        if self.type is PoolingType.MAX:
            return (self._maximum(x, paddings),)
        if self.type is PoolingType.AVERAGE:
            return (self._average(x, paddings),)
        share, wide = self.blend_factor, x if x.dtype.is_floating_point else x.to(torch.float32)
        blend = (1 - share) * self._maximum(wide, paddings) + share * self._average(wide, paddings)
        return (blend if wide is x else torch.round(blend).to(x.dtype),)

    def _call(self, x: torch.Tensor, paddings: Sequence[Padding]) -> _Windows | None:
        """How PyTorch's pooling is asked for these windows; None where it has others.

        It takes padding that is symmetric and at most half a window, and rounds up if the last window starts within
        the input or the padding before it. In three dimensions the input itself must be as large as a window.
        """
        sizes = self.window_size_nd
        if len(sizes) == 3 and any(extent < size for extent, size in zip(x.shape[2:], sizes, strict=True)):
            return None
        same = symmetric([Padding(p.before, p.after, 0) for p in paddings])
        if same is None or any(p > k // 2 for p, k in zip(same, sizes, strict=True)):
            return None
        rounds_up = False
        for padding, size in zip(paddings, sizes, strict=True):
            if type(padding.extra) is not int or (padding.extra and padding.after + padding.extra >= size):
                return None
            rounds_up = rounds_up or padding.extra > 0
        return _Windows(tuple(sizes), tuple(self.stride_nd), same, rounds_up)

    def _padded(self, x: torch.Tensor, paddings: Sequence[Padding]) -> tuple[list[Padding], _Windows]:
        """Padding that is made beforehand, and the windows then; one that only rounding up makes room for is cut.

        Raises:
            Refusal: A window does not fit.
        """
        made, sizes = [], []
        for extent, padding, size in zip(x.shape[2:], paddings, self.window_size_nd, strict=True):
            all_there = extent + padding.before + padding.after
            if type(all_there) is int and size > all_there:  # it is alone, and sees nothing more
                require_fit(all_there + padding.extra, size)
                padding, size = Padding(padding.before, padding.after, 0), all_there
            made.append(padding)
            sizes.append(size)
        return made, _Windows(tuple(sizes), tuple(self.stride_nd), [0] * len(sizes), False)

    def _maximum(self, x: torch.Tensor, paddings: Sequence[Padding]) -> torch.Tensor:
        if not x.dtype.is_floating_point:
            return self._maximum(x.to(torch.float32), paddings).to(x.dtype)
        windows = self._call(x, paddings)
        if windows is None:
            paddings, windows = self._padded(x, paddings)
            x = pad(x, paddings, float("-inf"))
        pool = F.max_pool2d if len(windows.size) == 2 else F.max_pool3d
        return pool(x, windows.size, windows.stride, windows.padding, ceil_mode=windows.rounds_up)

    def _average(self, x: torch.Tensor, paddings: Sequence[Padding]) -> torch.Tensor:
        if not x.dtype.is_floating_point:
            return torch.round(self._average(x.to(torch.float32), paddings)).to(x.dtype)
        if len(self.window_size_nd) == 3 and x.dtype in _HALVES and x.device.type == "cpu":
            return self._average(x.to(torch.float32), paddings).to(x.dtype)  # PyTorch has no such kernel
        excludes = self.average_count_excludes_padding
        pool = F.avg_pool2d if len(self.window_size_nd) == 2 else F.avg_pool3d
        windows = self._call(x, paddings)
        if windows is not None:
            return pool(x, windows.size, windows.stride, windows.padding, windows.rounds_up, not excludes)
        # The window's mean over everything, divided by the share of it that counts.
        paddings, windows = self._padded(x, paddings)
        counted = torch.ones([1, 1, *x.shape[2:]], dtype=x.dtype, device=x.device)
        if not excludes:
            counted = pad(counted, [Padding(p.before, p.after, 0) for p in paddings], 1.0)
            counted = pad(counted, [Padding(0, 0, p.extra) for p in paddings])
        else:
            counted = pad(counted, paddings)
        return pool(pad(x, paddings), windows.size, windows.stride) / pool(counted, windows.size, windows.stride)


class IPaddingLayer(ILayer):
    """Zeros around the last two axes; negative amounts crop."""

    _KIND = LayerType.PADDING

    pre_padding_nd = dims(Dims((0, 0)), "Elements before the last two axes.")
    post_padding_nd = dims(Dims((0, 0)), "Elements after the last two axes.")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        (x,) = inputs
        assert x is not None
        allowed = {DataType.FLOAT, DataType.HALF, DataType.INT8, DataType.INT32}
        require_type(x, allowed, "the input")
        require_minimum_rank(x, 4, "the input")
        for name in ("pre_padding_nd", "post_padding_nd"):
            require(len(getattr(self, name)) == 2, f"{name} has two elements")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        (top, left), (bottom, right) = self.pre_padding_nd, self.post_padding_nd
        return (pad(as_tensor(inputs[0]), [Padding(top, bottom, 0), Padding(left, right, 0)]),)


class PoolingLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_pooling_nd(self, input: ITensor, type: PoolingType, window_size: DimsLike) -> IPoolingLayer | None:
        """Adds a pooling; set stride and padding on the layer.

        Args:
            input: (N, C, H, W) or (N, C, D, H, W).
            type: What a window computes.
            window_size: Spatial extents of the window.
        """
        layer = IPoolingLayer._create(type=type, window_size_nd=as_dims(window_size))
        return self._add(layer, expect_tensor(input, "input"))

    def add_padding_nd(self, input: ITensor, pre_padding: DimsLike, post_padding: DimsLike) -> IPaddingLayer | None:
        """Adds zeros around the last two axes.

        Args:
            input: Rank 4 or more.
            pre_padding: Two amounts; negative ones crop.
            post_padding: Two amounts; negative ones crop.
        """
        layer = IPaddingLayer._create(pre_padding_nd=as_dims(pre_padding), post_padding_nd=as_dims(post_padding))
        return self._add(layer, expect_tensor(input, "input"))
