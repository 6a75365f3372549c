"""Convolution, deconvolution, pooling and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from trt_core.operator_counts import convolution_scratch
from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.dtypes import FLOATS
from trt_portable.enums import DataType, LayerType, PaddingMode, PoolingType
from trt_portable.errors import optional, present
from trt_portable.layer_properties import WeightsAttribute, boolean, dims, integer, member, number
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
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
from trt_portable.network.definition import LayerFactory
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_tensor, require_type
from trt_portable.shape_tensors import Value, as_tensor, tensor_at
from trt_portable.weights import Weights, as_weights, optional_weights

if TYPE_CHECKING:
    from typing_extensions import Self

    from trt_portable.network.symbols import Symbols


class _Geometry(NamedTuple):
    """Paddings of each axis, the same as one number per axis where they are symmetric, and steps."""

    paddings: tuple[Padding, ...]
    same: tuple[int, ...] | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


class _FilterLayer(ILayer):
    """What convolution and deconvolution share.

    Inputs: 0 activation (N, C, spatial...); optional 1 kernel, 2 bias (K,), each in place of weights.
    """

    _ROLES = ("KERNEL", "BIAS")
    _MAX_INPUTS = 3
    _DEFERRED = True

    num_output_maps = integer(0, "Number of output channels.")
    kernel_size_nd = dims(Dims(), "Extents of the kernel.")
    stride_nd = per_axis(1, "Distance between windows.")
    pre_padding = per_axis(0, "Padding before the first element.")
    post_padding = per_axis(0, "Padding after the last element.")
    padding_nd = both_paddings("Padding on both sides; reads as that before.")
    padding_mode = member(PaddingMode, PaddingMode.EXPLICIT_ROUND_DOWN, "How padding is found.")
    dilation_nd = per_axis(1, "Distance between kernel elements.")
    num_groups = integer(1, "Number of groups of channels.")
    kernel = WeightsAttribute("KERNEL", "The kernel weights.")
    bias = WeightsAttribute("BIAS", "One bias per output channel; may be empty.")

    @classmethod
    def _of(cls, num_output_maps: int, kernel_shape: DimsLike, kernel: Weights, bias: Weights | None) -> Self:
        return cls._create(
            num_output_maps=num_output_maps,
            kernel_size_nd=as_dims(kernel_shape),
            kernel=as_weights(kernel, "kernel"),
            bias=optional_weights(bias, as_weights(kernel).dtype, "bias"),
        )

    @property
    def _spatial_rank(self) -> int:
        return len(self.kernel_size_nd)

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x = present(inputs[0])
        require_tensor(x, "the input", FLOATS, ranks={4, 5})
        rank = x._rank - 2
        require(self._spatial_rank == rank, f"kernel extents {self.kernel_size_nd} for an input of rank {x._rank}")
        require(all(k > 0 for k in self.kernel_size_nd), f"kernel extents {self.kernel_size_nd}")
        require(self.num_output_maps > 0, f"{self.num_output_maps} output channels")
        channels = (x._extents or ())[1]
        require(type(channels) is int, "the channel extent must be constant")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, kernel, bias = present(inputs[0]), optional(inputs, 1), optional(inputs, 2)
        channels: int = (x._extents or ())[1]
        groups = self.num_groups
        require(groups > 0, f"{groups} groups")
        require(channels % groups == 0, f"{channels} channels are not divisible by {groups} groups")
        maps = self.num_output_maps
        require(maps % groups == 0, f"{maps} output channels are not divisible by {groups} groups")
        names = ("stride_nd", "pre_padding", "post_padding", "dilation_nd")
        check_lengths(self, self._spatial_rank, names)
        require(all(s > 0 for s in self.stride_nd), f"strides {self.stride_nd} must be positive")
        require(all(d > 0 for d in self.dilation_nd), f"dilations {self.dilation_nd} must be positive")
        for name in ("pre_padding", "post_padding"):
            require(all(p >= 0 for p in getattr(self, name)), f"{name} must not be negative")
        shape = self._kernel_shape(channels)
        self._check_weights("KERNEL", kernel, shape, x)
        if bias is not None or self._has_weights("BIAS"):
            self._check_weights("BIAS", bias, (maps,), x)

    def _check_weights(self, role: str, tensor: ITensor | None, shape: tuple[int, ...], x: ITensor) -> None:
        what = role.lower()
        if tensor is not None:
            require(not self._has_weights(role), f"{what} is given as weights and as an input")
            require_type(tensor, {x._dtype}, f"the {what} input")
            fixed = tuple(
                want if type(have) is not int else have
                for have, want in zip(tensor._extents or (), shape, strict=False)
            )
            require(
                len(tensor._extents or ()) == len(shape) and fixed == shape,
                f"the {what} input has shape {tuple(tensor.shape)}, not {shape}",
            )
            return
        dtype, count = self._weight_spec(role)
        size = math.prod(shape)
        require(count == size, f"{what} has {count} weights, not {size} for shape {shape}")
        require(dtype is x._dtype, f"{what} is {dtype.name}, the input {x._dtype.name}")

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        raise NotImplementedError

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = present(self._inputs[0])
        batch, _, *spatial = x._extents or ()
        require(0 not in spatial, f"the input has spatial extents {spatial}")
        extents = self._output_extents([symbols.integer(extent) for extent in spatial])
        return (Facts((batch, self.num_output_maps, *map(symbols.expression, extents)), x._dtype, None),)

    def _output_extents(self, extents: Sequence[Any]) -> list[Any]:
        """Spatial extents of the output; PyTorch's own inference asks what nobody knows of symbolic ones.

        Raises:
            Refusal: One of them is surely less than 1.
        """
        raise NotImplementedError

    _own: tuple[object, torch.Tensor, torch.Tensor | None] | None = None
    """What was bound, and the kernel and bias that it gave."""
    _fixed: _Geometry | None = None
    """What does not depend on the input's extents in an engine."""

    def _operands(self, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        if len(inputs) == 1:
            x = as_tensor(inputs[0])
            return x, *self._own_weights(x)
        given, kernel, bias = as_tensor(inputs[0]), tensor_at(inputs, 1), tensor_at(inputs, 2)
        if kernel is None or bias is None:
            own_kernel, own_bias = self._own_weights(given)
            kernel = own_kernel if kernel is None else kernel
            bias = own_bias if bias is None else bias
        return given, kernel, bias

    def _own_weights(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Kernel and bias among the layer's weights; empty, and None, where an input gives them."""
        own = self._own
        if own is None or own[0] is not self._bound:
            kernel = self._parameter("KERNEL")
            if self._has_weights("KERNEL"):
                kernel = kernel.reshape(self._kernel_shape(x.shape[1]))
            bias = self._parameter("BIAS") if self._has_weights("BIAS") else None
            own = (self._bound, kernel, bias)
            if self._IS_FROZEN:
                self._own = own
        return own[1:]

    def _spans(self) -> list[int]:
        return [1 + d * (k - 1) for k, d in zip(self.kernel_size_nd, self.dilation_nd, strict=True)]


class IConvolutionLayer(_FilterLayer):
    """A cross-correlation; kernel (K, C / groups, spatial...)."""

    _KIND = LayerType.CONVOLUTION

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return (self.num_output_maps, channels // self.num_groups, *self.kernel_size_nd)

    def _output_extents(self, extents: Sequence[Any]) -> list[Any]:
        geometry = self._geometry(extents)
        return count_windows(extents, geometry.paddings, geometry.stride, self._spans())

    def _contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        x, kernel, _ = self._operands(inputs)
        paddings, _, stride, _ = self._fixed or self._geometry(x.shape[2:])
        padded = [extent + sum(map(abs, padding)) for extent, padding in zip(x.shape[2:], paddings, strict=True)]
        ends = [((extent or 1) - 1) // step + 1 for extent, step in zip(padded, stride, strict=True)]
        result = (x.shape[0], max(self.num_output_maps, kernel.shape[0]), *ends)
        scratch = x.itemsize * convolution_scratch(x, kernel.shape, self.num_groups, math.prod(result))
        return contracts.both(
            contracts.convolution(x.shape, (*x.shape[:2], *padded), kernel.shape, result), (scratch, 0)
        )

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, kernel, bias = self._operands(inputs)
        paddings, same, stride, dilation = self._fixed or self._geometry(x.shape[2:])
        if same is None:
            x = pad(x, paddings)
            same = (0,) * len(paddings)
        convolve = F.conv2d if len(same) == 2 else F.conv3d
        return (convolve(x, kernel, bias, stride, same, dilation, self.num_groups),)

    def _geometry(self, extents: Sequence[Any]) -> _Geometry:
        stride = tuple(self.stride_nd)
        axes = zip(extents, self.pre_padding, self.post_padding, stride, self._spans(), strict=True)
        paddings = tuple(
            window_padding(extent, self.padding_mode, before, after, step, span)
            for extent, before, after, step, span in axes
        )
        same = symmetric(paddings)
        found = _Geometry(paddings, None if same is None else tuple(same), stride, tuple(self.dilation_nd))
        if self._IS_FROZEN and self.padding_mode is PaddingMode.EXPLICIT_ROUND_DOWN:
            self._fixed = found
        return found


class IDeconvolutionLayer(_FilterLayer):
    """The transpose of a convolution; kernel (C, K / groups, spatial...); padding trims the output."""

    _KIND = LayerType.DECONVOLUTION

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return (channels, self.num_output_maps // self.num_groups, *self.kernel_size_nd)

    def _trims(self) -> list[Padding]:
        """What is cut off before and after the full output of each axis."""
        spans, stride = self._spans(), tuple(self.stride_nd)
        if self.padding_mode in (PaddingMode.EXPLICIT_ROUND_DOWN, PaddingMode.EXPLICIT_ROUND_UP):
            pairs = zip(self.pre_padding, self.post_padding, strict=True)
            return [Padding(before, after, 0) for before, after in pairs]
        trims = []
        for span, step in zip(spans, stride, strict=True):
            total = max(span - step, 0)
            small = total // 2
            upper = self.padding_mode is PaddingMode.SAME_UPPER
            before, after = (small, total - small) if upper else (total - small, small)
            trims.append(Padding(before, after, 0))
        return trims

    def _output_extents(self, extents: Sequence[Any]) -> list[Any]:
        axes = zip(extents, self._trims(), self.stride_nd, self._spans(), strict=True)
        found = [(extent - 1) * stride + span - trim.before - trim.after for extent, trim, stride, span in axes]
        for axis, extent in enumerate(found):
            require(not isinstance(extent, int) or extent > 0, f"spatial axis {axis} of the output has extent {extent}")
        return found

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, kernel, bias = self._operands(inputs)
        stride, dilation = tuple(self.stride_nd), tuple(self.dilation_nd)
        trims = self._trims()
        same = symmetric(trims)
        padding = [0] * len(trims) if same is None else same
        transpose = F.conv_transpose2d if len(padding) == 2 else F.conv_transpose3d
        full = transpose(x, kernel, bias, stride, padding, 0, self.num_groups, dilation)
        if same is None:
            for axis, trim in enumerate(trims, start=2):
                kept = full.shape[axis] - trim.before - trim.after
                full = full.narrow(axis, trim.before, kept)
        return (full,)


class ConvolutionLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_convolution_nd(
        self, input: ITensor, num_output_maps: int, kernel_shape: DimsLike, kernel: Weights, bias: Weights | None = None
    ) -> IConvolutionLayer | None:
        """Adds a convolution; set stride, padding, dilation and groups on the layer.

        Args:
            input: (N, C, H, W) or (N, C, D, H, W); C constant.
            num_output_maps: Number of output channels, K.
            kernel_shape: Spatial extents of the kernel.
            kernel: (K, C / groups, spatial...); empty if input 1 gives it.
            bias: (K,).
        """
        layer = IConvolutionLayer._of(num_output_maps, kernel_shape, kernel, bias)
        return self._add(layer, input=input)

    def add_deconvolution_nd(
        self, input: ITensor, num_output_maps: int, kernel_shape: DimsLike, kernel: Weights, bias: Weights | None = None
    ) -> IDeconvolutionLayer | None:
        """Adds a deconvolution; set stride, padding, dilation and groups on the layer.

        Args:
            input: (N, C, H, W) or (N, C, D, H, W); C constant.
            num_output_maps: Number of output channels, K.
            kernel_shape: Spatial extents of the kernel.
            kernel: (C, K / groups, spatial...); empty if input 1 gives it.
            bias: (K,).
        """
        layer = IDeconvolutionLayer._of(num_output_maps, kernel_shape, kernel, bias)
        return self._add(layer, input=input)


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

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", FLOATS | {DataType.INT8}, ranks={4, 5})
        require(self._spatial_rank == x._rank - 2, f"window {self.window_size_nd} for an input of rank {x._rank}")
        require(all(k > 0 for k in self.window_size_nd), f"window {self.window_size_nd}")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        check_lengths(self, self._spatial_rank, ("stride_nd", "pre_padding", "post_padding"))
        require(all(s > 0 for s in self.stride_nd), f"strides {self.stride_nd} must be positive")
        for name in ("pre_padding", "post_padding"):
            require(all(p >= 0 for p in getattr(self, name)), f"{name} must not be negative")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = present(self._inputs[0])
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

    def _contract(self, inputs: Sequence[Value]) -> Bound | None:
        x = inputs[0]
        if x is None or self.type is PoolingType.MAX_AVERAGE_BLEND:
            return None  # it makes both, and more
        outer, extents = x.shape[:2], x.shape[2:]
        padded = [
            extent + before + after + abs(extra)
            for extent, (before, after, extra) in zip(extents, self._paddings(extents), strict=True)
        ]
        ends = [((extent or 1) - 1) // step + 1 for extent, step in zip(padded, self.stride_nd, strict=True)]
        return contracts.convolution(x.shape, (*outer, *padded), (1, 1, *self.window_size_nd), (*outer, *ends))

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
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

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        allowed = {DataType.FLOAT, DataType.HALF, DataType.INT8, DataType.INT32}
        require_tensor(x, "the input", allowed, least_rank=4)
        for name in ("pre_padding_nd", "post_padding_nd"):
            require(len(getattr(self, name)) == 2, f"{name} has two elements")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
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
        return self._add(IPoolingLayer._create(type=type, window_size_nd=as_dims(window_size)), input=input)

    def add_padding_nd(self, input: ITensor, pre_padding: DimsLike, post_padding: DimsLike) -> IPaddingLayer | None:
        """Adds zeros around the last two axes.

        Args:
            input: Rank 4 or more.
            pre_padding: Two amounts; negative ones crop.
            post_padding: Two amounts; negative ones crop.
        """
        layer = IPaddingLayer._create(pre_padding_nd=as_dims(pre_padding), post_padding_nd=as_dims(post_padding))
        return self._add(layer, input=input)
