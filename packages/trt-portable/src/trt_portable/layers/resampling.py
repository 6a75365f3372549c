"""Resizing and grid sampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F

from trt_core.sizes.expressions import is_same_size
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import (
    DataType,
    InterpolationMode,
    LayerType,
    ResizeCoordinateTransformation,
    ResizeRoundMode,
    ResizeSelector,
    SampleMode,
)
from trt_portable.errors import Refusal, optional, present
from trt_portable.layer_properties import Attribute, Selective, boolean, member, number, optional_dims
from trt_portable.network.definition import LayerFactory
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import (
    require,
    require_equal_types,
    require_rank,
    require_tensor,
)
from trt_portable.pybind import to_number
from trt_portable.shape_tensors import Value, as_tensor, host_numbers, operand
from trt_portable.size_arithmetic import is_unknown

_ROUNDING: Final[dict[ResizeRoundMode, Callable[[torch.Tensor], torch.Tensor]]] = {
    ResizeRoundMode.HALF_UP: lambda x: torch.floor(x + 0.5),
    ResizeRoundMode.HALF_DOWN: lambda x: torch.ceil(x - 0.5),
    ResizeRoundMode.FLOOR: torch.floor,
    ResizeRoundMode.CEIL: torch.ceil,
}


_EXACT_FACTORS: Final = 40
"""PyTorch multiplies by reciprocals in float32; up to this factor it picks the nearest element exactly."""

_aten = torch.ops.aten
_NEAREST: Final = (_aten.upsample_nearest1d, _aten.upsample_nearest2d, _aten.upsample_nearest3d)
_LINEAR: Final = (_aten.upsample_linear1d, _aten.upsample_bilinear2d, _aten.upsample_trilinear3d)


@np.errstate(over="ignore")
def _to_scales(value: Any) -> tuple[float, ...]:
    """Scales as TensorRT keeps them: in float32; none where they are not set, which is null in a plan."""
    if value is None:
        return ()
    return tuple(float(np.float32(to_number(scale))) for scale in value)


class _Overridden(Attribute[Any]):
    """An attribute that means nothing once input 1 gives the output extents."""

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is not None and layer._input(1) is not None:
            return self.default
        return super().__get__(layer, owner)

    def __set__(self, layer: ILayer, value: Any) -> None:
        if layer._input(1) is not None:
            layer._report(Refusal(f"{self.name} cannot be set: input 1 gives the output extents"))
            return
        super().__set__(layer, value)


_dims = optional_dims()


class IResizeLayer(ILayer):
    """Interpolation to other extents.

    Inputs: 0 data; optional 1 output extents (1-D shape tensor, one per axis). Where ``scales`` give the
    output extents they also give the distance between samples; otherwise the extents do.
    """

    _KIND = LayerType.RESIZE
    _MAX_INPUTS = 2
    _HOST_INPUTS = frozenset({1})
    _DEFERRED = True

    shape = _Overridden(_dims.convert, None, _dims.encode, _dims.decode, "Output extents.")
    scales = _Overridden(
        _to_scales, (), lambda scales: list(scales) or None, doc="Factor of each extent; at first none."
    )
    resize_mode = member(InterpolationMode, InterpolationMode.NEAREST, "The interpolation.")
    coordinate_transformation = member(
        ResizeCoordinateTransformation,
        ResizeCoordinateTransformation.ASYMMETRIC,
        "How output coordinates map to the input.",
    )
    selector_for_single_pixel = member(
        ResizeSelector, ResizeSelector.FORMULA, "The coordinate of a single output element."
    )
    nearest_rounding = member(ResizeRoundMode, ResizeRoundMode.FLOOR, "How a nearest coordinate is rounded.")
    cubic_coeff = number(-0.75, "Coefficient of cubic interpolation.")
    exclude_outside = boolean(False, "Whether cubic weights outside the input are left out.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x = present(inputs[0])
        require_tensor(x, "the input", FLOATS | {DataType.INT8}, least_rank=1)

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, target = present(inputs[0]), optional(inputs, 1)
        rank = x._rank
        if target is not None:
            require_tensor(target, "the output extents", INDICES, ranks={1})
            require(target._extents == (rank,), f"the output extents must be {rank}")
            return
        if self.shape is not None:
            require(len(self.shape) == rank, f"shape {self.shape} for an input of rank {rank}")
            require(all(extent >= 0 for extent in self.shape), f"shape {self.shape} is not known")
        elif self.scales:
            require(len(self.scales) == rank, f"{len(self.scales)} scales for rank {rank}")
            require(all(0 < s < math.inf for s in self.scales), f"scales {self.scales} must be positive and finite")

    def _output_extents(self, x: torch.Tensor, target: Value | None) -> list[Any]:
        if target is not None:
            return host_numbers(target)
        if self.shape is not None:
            return list(self.shape)
        if not self.scales:
            raise Refusal("neither shape nor scales nor input 1 gives the output extents")
        return [_scaled(extent, scale) for extent, scale in zip(x.shape, self.scales, strict=True)]

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        value, target = operand(inputs[0]), optional(inputs, 1)
        x = as_tensor(value)
        wanted = self._output_extents(x, target)
        scales = self._sampling_scales(x.ndim)
        axes = [
            axis
            for axis, (have, want) in enumerate(zip(x.shape, wanted, strict=True))
            if scales[axis] not in (None, 1.0) or not is_same_size(have, want)
        ]
        self._check_axes(axes, x.ndim)
        if not axes:
            return (x,)
        if not x.dtype.is_floating_point:
            resized = self._resize(x.to(torch.float32), axes, wanted, scales)
            return (torch.round(resized).clamp(-128, 127).to(x.dtype),)
        return (self._resize(x, axes, wanted, scales),)

    def _sampling_scales(self, rank: int) -> list[float | None]:
        """The factor between output and input coordinates on each axis, None where the extents say it."""
        by_extents = self.shape is not None or not self.scales
        if by_extents or self.coordinate_transformation is ResizeCoordinateTransformation.ALIGN_CORNERS:
            return [None] * rank
        return list(self.scales)

    def _check_axes(self, axes: list[int], rank: int) -> None:
        limit = 2 if self.resize_mode is InterpolationMode.CUBIC else 3
        if axes and axes[0] < rank - limit:
            raise Refusal(
                f"{self.resize_mode.name} resizes the last {limit} axes of rank {rank}, but axis {axes[0]} changes"
            )

    def _resize(
        self, x: torch.Tensor, axes: list[int], wanted: list[Any], scales: Sequence[float | None]
    ) -> torch.Tensor:
        for axis in axes:
            if not (is_unknown(x.shape[axis]) or is_unknown(wanted[axis])) and x.shape[axis] == 0:
                raise Refusal(f"axis {axis} has no elements to interpolate")
        if x.is_meta:  # only the extents are asked for, of which PyTorch's cubic interpolation makes 100 steps
            return x.new_empty(wanted)
        fast = self._interpolate(x, axes, wanted, scales)
        if fast is not None:
            return fast
        for axis in axes:
            x = self._resize_axis(x, axis, wanted[axis], scales[axis])
        return x

    def _interpolate(
        self, x: torch.Tensor, axes: list[int], wanted: list[Any], scales: Sequence[float | None]
    ) -> torch.Tensor | None:
        """PyTorch's interpolation, where it means the same; else None."""
        spatial = x.ndim - 2
        if not 1 <= spatial <= 3 or axes[0] < 2:
            return None
        if any(is_unknown(extent) for extent in (*x.shape, *wanted)):
            return None
        if any(extent == 1 for extent in wanted[2:]) or x.numel() == 0:
            return None
        mode, mapping = self.resize_mode, self.coordinate_transformation
        size, factors = wanted[2:], scales[2:]
        if mode is InterpolationMode.NEAREST:
            exact = mapping is ResizeCoordinateTransformation.ASYMMETRIC
            exact = exact and self.nearest_rounding is ResizeRoundMode.FLOOR
            if exact and all(_is_multiple(*pair) for pair in zip(x.shape[2:], size, factors, strict=True)):
                return _NEAREST[spatial - 1].default(x, size)  # type: ignore[no-any-return]
            return None
        if mapping is ResizeCoordinateTransformation.ASYMMETRIC:
            return None
        if any(is_same_size(x.shape[axis], wanted[axis]) for axis in axes):
            return None  # PyTorch copies along an axis whose extent stays, whatever the factor
        corners = mapping is ResizeCoordinateTransformation.ALIGN_CORNERS
        if mode is InterpolationMode.CUBIC:
            if spatial != 2 or self.cubic_coeff != -0.75 or self.exclude_outside:
                return None
            return _aten.upsample_bicubic2d.default(x, size, corners, *factors)  # type: ignore[no-any-return]
        return _LINEAR[spatial - 1].default(x, size, corners, *factors)  # type: ignore[no-any-return]

    def _coordinates(self, have: int, want: int, scale: float | None, device: torch.device) -> torch.Tensor:
        """Where the elements of the output lie in the input.

        Divisions come last, so that a place that is a whole number is one in float32 as well.
        """
        steps = torch.arange(want, dtype=torch.float32, device=device)
        if want == 1 and self.selector_for_single_pixel is ResizeSelector.UPPER:
            return torch.zeros_like(steps)
        mapping = self.coordinate_transformation
        if mapping is ResizeCoordinateTransformation.ALIGN_CORNERS:
            return torch.zeros_like(steps) if want == 1 else steps * (have - 1) / (want - 1)
        half = 0.5 if mapping is ResizeCoordinateTransformation.HALF_PIXEL else 0.0
        places = steps + half
        return (places * have / want if scale is None else places / scale) - half

    def _resize_axis(self, x: torch.Tensor, axis: int, want: Any, scale: float | None) -> torch.Tensor:
        have = x.shape[axis]
        if is_unknown(have) or is_unknown(want):
            # Without numbers only the extent can be told.
            return x.index_select(axis, torch.zeros(want, dtype=torch.int64, device=x.device))
        places = self._coordinates(have, want, scale, x.device)
        if self.resize_mode is InterpolationMode.NEAREST:
            nearest = _ROUNDING[self.nearest_rounding](places).clamp(0, have - 1)
            return x.index_select(axis, nearest.to(torch.int64))
        base = torch.floor(places)
        shift = places - base
        if self.resize_mode is InterpolationMode.LINEAR:
            taps = [(0, 1 - shift), (1, shift)]
        else:
            taps = [(k, _cubic(shift - k, self.cubic_coeff)) for k in (-1, 0, 1, 2)]
        shape = [1] * x.ndim
        shape[axis] = -1
        wide = x.to(torch.float32)
        total: torch.Tensor | None = None
        weight_sum: torch.Tensor | None = None
        for offset, weight in taps:
            at = base + offset
            if self.exclude_outside and self.resize_mode is InterpolationMode.CUBIC:
                weight = torch.where((at >= 0) & (at < have), weight, torch.zeros_like(weight))
                weight_sum = weight if weight_sum is None else weight_sum + weight
            picked = wide.index_select(axis, at.clamp(0, have - 1).to(torch.int64))
            term = picked * weight.reshape(shape)
            total = term if total is None else total + term
        assert total is not None
        if weight_sum is not None:
            total = total / weight_sum.reshape(shape)
        return total.to(x.dtype)


def _cubic(distance: torch.Tensor, a: float) -> torch.Tensor:
    x = distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _is_multiple(have: Any, want: Any, scale: float | None) -> bool:
    """Whether every element is repeated equally often, few enough times for PyTorch's arithmetic."""
    if not (isinstance(have, int) and isinstance(want, int)) or have == 0 or want % have:
        return False
    factor = want // have
    return factor <= _EXACT_FACTORS and scale in (None, float(factor))


@np.errstate(over="ignore")
def _scaled(extent: Any, scale: float) -> Any:
    """The extent times the scale, rounded down after a product in float32, as TensorRT computes it.

    For symbolic extents the scale is the simplest fraction that float32 does not tell from it.
    """
    if isinstance(extent, int):
        return math.floor(np.float32(extent) * np.float32(scale))
    fraction = _simplest_fraction(scale)
    return extent * fraction.numerator // fraction.denominator


def _simplest_fraction(scale: float) -> Fraction:
    exact = Fraction(scale)
    limit = 1
    while np.float32(float(found := exact.limit_denominator(limit))) != np.float32(scale):
        limit *= 2
    return found


_GRID_MODES: Final = {
    InterpolationMode.NEAREST: "nearest",
    InterpolationMode.LINEAR: "bilinear",
    InterpolationMode.CUBIC: "bicubic",
}
_GRID_PADDING: Final = {
    SampleMode.FILL: "zeros",
    SampleMode.CLAMP: "border",
    SampleMode.REFLECT: "reflection",
}


class IGridSampleLayer(ILayer):
    """Samples at the places of a grid.

    Inputs: 0 x (N, C, H, W) or (N, C, D, H, W); 1 grid (N, H', W', 2) or (N, D', H', W', 3), its last
    axis in the order x, y, z, from -1 to 1.
    """

    _KIND = LayerType.GRID_SAMPLE
    _DEFERRED = True

    interpolation_mode = member(InterpolationMode, InterpolationMode.LINEAR, "How values between samples are made.")
    align_corners = boolean(False, "Whether -1 and 1 are the centres of the outermost elements.")
    sample_mode = Selective(member(SampleMode, SampleMode.FILL, "What is read outside."), _GRID_PADDING)

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        x, grid = inputs
        require_equal_types((x, grid), "input and grid")
        require_tensor(x, "the input", FLOATS, ranks={4, 5})
        require_rank(grid, {x._rank}, "the grid")
        last = (grid._extents or (0,))[-1]
        require(last == x._rank - 2, f"the last extent of the grid is {last}, not {x._rank - 2}")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        require(
            inputs[0]._rank == 4 or self.interpolation_mode is not InterpolationMode.CUBIC,
            "cubic interpolation takes rank 4 only",
        )

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, grid = map(as_tensor, inputs)
        if any(is_unknown(extent) for extent in (*x.shape, *grid.shape)):
            # Without numbers only the extents can be told; reflection would ask whether an axis is 1 long.
            torch._check(x.shape[0] == grid.shape[0])
            return (x.new_empty([*x.shape[:2], *grid.shape[1:-1]]),)
        mode = _GRID_MODES[self.interpolation_mode]
        padding = _GRID_PADDING[self.sample_mode]
        return (F.grid_sample(x, grid, mode, padding, self.align_corners),)


class ResamplingLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_resize(self, input: ITensor) -> IResizeLayer | None:
        """Adds an interpolation; set ``shape`` or ``scales`` and the mode on the layer."""
        return self._add(IResizeLayer._create(), input=input)

    def add_grid_sample(self, input: ITensor, grid: ITensor) -> IGridSampleLayer | None:
        """Adds sampling at the places of a grid.

        Args:
            input: (N, C, H, W) or (N, C, D, H, W).
            grid: (N, H', W', 2) or (N, D', H', W', 3), same type.
        """
        return self._add(IGridSampleLayer._create(), input=input, grid=grid)
