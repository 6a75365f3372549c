"""Normalization by statistics of the input, and scaling by coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trt_portable.dtypes import FLOATS
from trt_portable.enums import DataType, LayerType, ScaleMode
from trt_portable.errors import present
from trt_portable.execution.program import ShapedCompute
from trt_portable.layer_properties import Attribute, WeightsAttribute, integer, member, number
from trt_portable.layers.contracts import Bound, broadcast
from trt_portable.layers.windows import Padding, pad
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import EngineCompute, ILayer, ITensor
from trt_portable.network.rules import (
    axes_of_mask,
    require,
    require_axis,
    require_broadcast_to,
    require_equal_types,
    require_tensor,
)
from trt_portable.pybind import to_integer
from trt_portable.shape_tensors import Value, as_tensor
from trt_portable.size_arithmetic import is_unknown
from trt_portable.weights import Weights, optional_weights


class _ReadOnly(Attribute[bool]):
    """An attribute that only creation sets."""

    def __set__(self, layer: ILayer, value: Any) -> None:
        if layer._network is not None:
            raise AttributeError(f"property {self.name!r} has no setter")
        super().__set__(layer, value)


class _LayerNorm(NamedTuple):
    """Normalization over the last axes.

    Attributes:
        shape: Extents of the input.
        coefficients: Extents of scale and bias.
        extents: Those of the axes.
        fits: Whether scale and bias have an element for each of theirs, and no more: PyTorch's kernel takes them along.
    """

    shape: tuple[int, ...]
    coefficients: tuple[int, ...]
    extents: tuple[int, ...]
    fits: bool

    def __call__(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, epsilon: float) -> torch.Tensor:
        if self.fits:
            return torch.layer_norm(x, self.extents, scale.reshape(self.extents), bias.reshape(self.extents), epsilon)
        return torch.layer_norm(x, self.extents, None, None, epsilon) * scale + bias


class INormalizationLayer(ILayer):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over axes, or groups of channels.

    Inputs: 0 x, 1 scale, 2 bias; scale and bias have the rank of x and broadcast to it. In the first
    version of the layer, groups have one scale and bias each; in the second, channels do.
    """

    _KIND = LayerType.NORMALIZATION
    _LIKE_FIRST_INPUT = True
    _DEFERRED = True

    epsilon = number(1e-5, "Added to the variance.")
    axes = integer(0, "Bit mask of the axes of the statistics.")
    num_groups = integer(1, "Number of groups of channels.")
    is_v2 = _ReadOnly(bool, False, doc="Whether scale and bias are per channel with groups.")

    _known: _LayerNorm | None = None
    """In an engine: what became of the extents that came last."""

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        x, scale, bias = inputs
        require_equal_types((x, scale, bias), "input, scale and bias")
        require_tensor(x, "the input", FLOATS, least_rank=2)
        for tensor, what in ((scale, "scale"), (bias, "bias")):
            require(tensor._rank == x._rank, f"{what} has rank {tensor._rank}, the input {x._rank}")
        axes_of_mask(self.axes, x._rank)

    def _check(self, inputs: Sequence[ITensor]) -> None:
        x, scale, bias = inputs
        axes = axes_of_mask(self.axes, x._rank)
        groups = self.num_groups
        require(groups >= 1, f"{groups} groups")
        require(scale._extents == bias._extents, "scale and bias have different shapes")
        if groups == 1:
            require_broadcast_to(scale, x, "scale and bias")
            return
        channels = (x._extents or ())[1]
        require(axes == tuple(range(2, x._rank)), "groups need all axes after the channels")
        require(
            type(channels) is int and channels % groups == 0,
            f"{channels} channels are not divisible by {groups} groups",
        )
        wanted = channels if self.is_v2 else groups
        expected = (1, wanted, *([1] * (x._rank - 2)))
        require(scale._extents == expected, f"scale and bias have shape {tuple(scale.shape)}, not {expected}")

    def _engine_compute(self) -> EngineCompute:
        x, scale, bias = map(present, self._inputs)
        shape = tuple(x.shape)
        axes = axes_of_mask(self.axes, len(shape))
        extents = shape[axes[0] :]
        wanted = (1,) * axes[0] + extents
        is_last = self.num_groups == 1 and axes == tuple(range(axes[0], len(shape)))
        if is_last and min(extents) >= 1 and tuple(scale.shape) == tuple(bias.shape) == wanted:
            return LayerNorm(extents, self.epsilon)
        return self._compute

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, scale, bias = inputs
        x, scale, bias, known = as_tensor(x), as_tensor(scale), as_tensor(bias), self._known
        if (
            known is not None
            and type(x) is torch.Tensor
            and x.shape == known.shape
            and scale.shape == known.coefficients
        ):
            return (known(x, scale, bias, self.epsilon),)
        axes = axes_of_mask(self.axes, x.ndim)
        groups = self.num_groups
        if groups > 1:
            if self.is_v2:
                return (_group_norm(x, groups, scale.reshape(-1), bias.reshape(-1), self.epsilon),)
            plain = _group_norm(x, groups, None, None, self.epsilon)
            per_channel = x.shape[1] // groups
            scale, bias = (v.repeat_interleave(per_channel, 1) for v in (scale, bias))
            return (plain * scale + bias,)
        trailing = tuple(x.shape[axes[0] :])
        if axes == tuple(range(axes[0], x.ndim)) and not any(is_unknown(e) for e in trailing):
            fits = tuple(scale.shape) == (1,) * axes[0] + trailing
            if not fits and axes[0] == 1 and _is_per_channel(scale, x):
                return (_group_norm(x, 1, scale.reshape(-1), bias.reshape(-1), self.epsilon),)
            found = _LayerNorm(x.shape, scale.shape, trailing, fits)
            if self._IS_FROZEN and type(x) is torch.Tensor:
                self._known = found
            return (found(x, scale, bias, self.epsilon),)
        wide_x = x.to(torch.float32)
        variance, mean = torch.var_mean(wide_x, axes, correction=0, keepdim=True)
        normal = ((wide_x - mean) * torch.rsqrt(variance + self.epsilon)).to(x.dtype)
        return (normal * scale + bias,)


class LayerNorm(ShapedCompute):
    """In an engine: ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axes.

    Args:
        extents: Those of these axes.
        epsilon: Added to the variance.
    """

    def __init__(self, extents: tuple[int, ...], epsilon: float) -> None:
        self.shapes = {1: extents, 2: extents}
        self._extents = extents
        self._epsilon = epsilon

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""
        shaped = (as_tensor(coefficient).reshape(self._extents) for coefficient in inputs[1:3])
        return self.compute_shaped((inputs[0], *shaped))

    def contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        """How much it takes; see `trt_portable.layers.contracts`."""
        return broadcast(inputs)

    def compute_shaped(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of a scale and a bias of the extents."""
        x, scale, bias = inputs
        assert x is not None and isinstance(scale, torch.Tensor) and isinstance(bias, torch.Tensor)
        return (torch.layer_norm(as_tensor(x), self._extents, scale, bias, self._epsilon),)


def _group_norm(
    x: torch.Tensor, groups: int, scale: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """Group normalization with one coefficient per channel; extents may be unknown."""
    if not any(is_unknown(extent) for extent in x.shape):
        return F.group_norm(x, groups, scale, bias, epsilon)
    # PyTorch's operator asks for the batch, which inference does not know
    members = x.to(torch.float32).reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    variance, mean = torch.var_mean(members, tuple(range(2, members.ndim)), correction=0, keepdim=True)
    normal = ((members - mean) * torch.rsqrt(variance + epsilon)).reshape(x.shape).to(x.dtype)
    wide = (1, -1, *([1] * (x.ndim - 2)))
    normal = normal if scale is None else normal * scale.reshape(wide)
    return normal if bias is None else normal + bias.reshape(wide)


def _is_per_channel(coefficients: torch.Tensor, x: torch.Tensor) -> bool:
    return x.ndim > 2 and tuple(coefficients.shape) == (1, x.shape[1], *[1] * (x.ndim - 2))


class ILRNLayer(ILayer):
    """Division by a power of the energy of neighbouring channels (the third axis from the end).

    ``x / (k + alpha / window * sum of squares) ** beta`` over ``window_size`` channels.
    """

    _KIND = LayerType.LRN
    _LIKE_FIRST_INPUT = True
    _DEFERRED = True

    window_size = integer(1, "Number of channels, odd, 1 to 15.")
    alpha = number(1.0, "Factor of the energy, within 1e20.")
    beta = number(1.0, "Exponent, 0.01 to 1e5.")
    k = number(1.0, "Constant, 1e-5 to 1e10.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", {DataType.FLOAT, DataType.HALF}, least_rank=3)
        window = self.window_size
        require(1 <= window <= 15 and window % 2 == 1, f"window {window} is not odd in 1..15")
        require(abs(self.alpha) <= 1e20, f"alpha {self.alpha} is outside 1e20")
        require(0.01 <= self.beta <= 1e5, f"beta {self.beta} is outside 0.01..1e5")
        require(1e-5 <= self.k <= 1e10, f"k {self.k} is outside 1e-5..1e10")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x = as_tensor(inputs[0])
        axis, half = x.ndim - 3, self.window_size // 2
        energy = pad(x * x, [Padding(half, half, 0), Padding(0, 0, 0), Padding(0, 0, 0)])
        extent = x.shape[axis]
        total = energy.narrow(axis, 0, extent)
        for offset in range(1, self.window_size):
            total = total + energy.narrow(axis, offset, extent)
        return (x / torch.pow(self.k + self.alpha / self.window_size * total, self.beta),)


class IScaleLayer(ILayer):
    """``(x * scale + shift) ** power`` with host weights.

    There is one coefficient for all elements, one per channel, or one per element of the channel axis
    and those after it.
    """

    _KIND = LayerType.SCALE
    _LIKE_FIRST_INPUT = True
    _ROLES = ("SHIFT", "SCALE", "POWER")
    _DEFERRED = True

    mode = member(ScaleMode, ScaleMode.UNIFORM, "How many coefficients there are.")
    shift = WeightsAttribute("SHIFT", "Added after scaling; 0 if empty.")
    scale = WeightsAttribute("SCALE", "The factor; 1 if empty.")
    power = WeightsAttribute("POWER", "The exponent; 1 if empty.")
    channel_axis = Attribute(to_integer, 1, doc="The axis of the channels.")

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", FLOATS, least_rank=4)

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_axis(self.channel_axis, x._rank, "channel_axis")
        extents = (x._extents or ())[self._first : self._last(x._rank)]
        size = 1
        for extent in extents:
            require(type(extent) is int, "the extents of per-channel coefficients must be constant")
            size *= extent
        for role in self._ROLES:
            if self._has_weights(role):
                dtype, count = self._weight_spec(role)
                require(count == size, f"{role.lower()} has {count} weights, not {size}")
                require(dtype is x._dtype, f"{role.lower()} is {dtype.name}, the input {x._dtype.name}")

    @property
    def _first(self) -> int:
        return self.channel_axis

    def _last(self, rank: int) -> int:
        if self.mode is ScaleMode.UNIFORM:
            return self.channel_axis
        return self.channel_axis + 1 if self.mode is ScaleMode.CHANNEL else rank

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x = as_tensor(inputs[0])
        last = self._last(x.ndim)
        shape = [1] * x.ndim
        shape[self._first : last] = list(x.shape[self._first : last])
        if self._has_weights("SCALE"):
            x = x * self._parameter("SCALE").reshape(shape)
        if self._has_weights("SHIFT"):
            x = x + self._parameter("SHIFT").reshape(shape)
        if self._has_weights("POWER"):
            x = torch.pow(x, self._parameter("POWER").reshape(shape))
        return (x,)


class NormalizationLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_normalization(
        self, input: ITensor, scale: ITensor, bias: ITensor, axesMask: int
    ) -> INormalizationLayer | None:
        """Adds a normalization whose groups have one scale and bias each.

        Args:
            input: Rank 2 or more, float types.
            scale: Broadcasts to the input; (1, groups, 1...) with groups.
            bias: As `scale`.
            axesMask: Bit mask of the axes of the statistics.
        """
        return self._normalization(input, scale, bias, axesMask, False)

    def add_normalization_v2(
        self, input: ITensor, scale: ITensor, bias: ITensor, axesMask: int
    ) -> INormalizationLayer | None:
        """Adds a normalization whose channels have one scale and bias each.

        Args:
            input: Rank 2 or more, float types.
            scale: Broadcasts to the input; (1, C, 1...) with groups.
            bias: As `scale`.
            axesMask: Bit mask of the axes of the statistics.
        """
        return self._normalization(input, scale, bias, axesMask, True)

    def _normalization(
        self, input: ITensor, scale: ITensor, bias: ITensor, mask: int, is_v2: bool
    ) -> INormalizationLayer | None:
        return self._add(INormalizationLayer._create(axes=mask, is_v2=is_v2), input=input, scale=scale, bias=bias)

    def add_lrn(self, input: ITensor, window: int, alpha: float, beta: float, k: float) -> ILRNLayer | None:
        """Adds a local response normalization.

        Args:
            input: Rank 3 or more.
            window: Number of channels, odd, 1 to 15.
            alpha: Factor of the energy.
            beta: Exponent.
            k: Constant.
        """
        return self._add(ILRNLayer._create(window_size=window, alpha=alpha, beta=beta, k=k), input=input)

    def add_scale(
        self,
        input: ITensor,
        mode: ScaleMode,
        shift: Weights | None = None,
        scale: Weights | None = None,
        power: Weights | None = None,
    ) -> IScaleLayer | None:
        """Adds a scaling of axis 1 and those after it.

        Args:
            input: Rank 4 or more.
            mode: How many coefficients there are.
            shift: Added after scaling.
            scale: The factor.
            power: The exponent.
        """
        return self.add_scale_nd(input, mode, shift, scale, power, 1)

    def add_scale_nd(
        self,
        input: ITensor,
        mode: ScaleMode,
        shift: Weights | None = None,
        scale: Weights | None = None,
        power: Weights | None = None,
        channel_axis: int | None = None,
    ) -> IScaleLayer | None:
        """Adds a scaling of a channel axis and those after it.

        Args:
            input: Rank 4 or more.
            mode: How many coefficients there are.
            shift: Added after scaling.
            scale: The factor.
            power: The exponent.
            channel_axis: The axis of the channels; must be given.
        """
        x = expect_tensor(input, "input")
        layer = IScaleLayer._create(
            mode=mode,
            shift=optional_weights(shift, x.dtype, "shift"),
            scale=optional_weights(scale, x.dtype, "scale"),
            power=optional_weights(power, x.dtype, "power"),
            channel_axis=channel_axis,
        )
        return self._add(layer, x)
