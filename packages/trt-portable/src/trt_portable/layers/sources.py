"""Layers that make tensors: constants, copies, casts, shapes and fills."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.dtypes import FLOATS, INDICES, PACKED, unpack
from trt_portable.enums import DataType, FillOperation, LayerType
from trt_portable.errors import Refusal, present
from trt_portable.layer_properties import Attribute, Overridden, WeightsAttribute, element_type, member, optional_dims
from trt_portable.layer_properties import dims as dims_attribute
from trt_portable.layers.contracts import Bound, broadcast, moved
from trt_portable.network.definition import LayerFactory
from trt_portable.network.inference import pointwise
from trt_portable.network.layer import META, Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_documented, require_tensor
from trt_portable.shape_tensors import HostValues, Value, as_tensor, host_numbers, is_known_to_host
from trt_portable.weights import Weights, as_weights

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_CONSTANT_TYPES: Final = frozenset(DataType) - {DataType.UINT8}
_CASTABLE: Final = FLOATS | INDICES | {DataType.INT8, DataType.BOOL}
_UINT8_PARTNERS: Final = FLOATS | {DataType.UINT8}


class IConstantLayer(ILayer):
    """A constant tensor whose values are host weights.

    int32, int64 and bool constants of at most 64 elements are known to the host. Strict mode refuses bool.
    """

    _KIND = LayerType.CONSTANT
    _ROLES = ("CONSTANT",)
    _SHAPE_ALGEBRA = True
    _CACHEABLE = False

    shape = dims_attribute(Dims(), "The extents; their product is the number of weights.")
    weights = WeightsAttribute("CONSTANT", "The values, in row-major order.")

    _known: tuple[torch.Tensor, HostValues] | None = None

    def _check(self, inputs: Sequence[ITensor]) -> None:
        dtype, count = self._weight_spec("CONSTANT")
        if dtype not in _CONSTANT_TYPES and not self._IS_FROZEN:  # engines have folded what networks must cast
            raise Refusal(f"a constant cannot have type {dtype.name}; cast one of another type")
        require_documented(dtype is not DataType.BOOL, "a constant cannot have type BOOL; cast one of another type")
        extents = self._shape(count)
        size = math.prod(extents)
        require(size == count, f"{count} weights do not fill the shape {tuple(self.shape)}")

    def _weights(self) -> dict[str, Weights]:
        return dict(self._roles)  # without elements they still say which type the constant has

    def _shape(self, count: int) -> tuple[int, ...]:
        extents = tuple(self.shape)
        unknown = [axis for axis, extent in enumerate(extents) if extent < 0]
        if not unknown:
            return extents
        rest = math.prod(extent if extent >= 0 else 1 for extent in extents)
        require(len(unknown) == 1 and rest > 0, f"the shape {extents} is not determined")
        return tuple(count // rest if extent < 0 else extent for extent in extents)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        dtype, count = self._weight_spec("CONSTANT")
        flat = self._bound.get("CONSTANT")
        shape = self._shape(count)
        if is_known_to_host(dtype, count):
            return (self._host_values(flat, shape),)
        if flat is None:
            flat = self._parameter("CONSTANT")
        if dtype in PACKED:
            flat = unpack(flat, dtype, count)
        return (flat.reshape(shape),)

    def _known_values(self) -> tuple[Value, ...]:
        weights = self._roles.get("CONSTANT")
        return () if weights is None else (weights._tensor(),)

    def _host_values(self, bound: torch.Tensor | None, shape: tuple[int, ...]) -> HostValues:
        if bound is None:
            weights = self._roles.get("CONSTANT")
            if weights is None:
                raise Refusal("the values of a constant that the host knows must be bound")
            flat = weights._tensor()
            return HostValues.of(flat.tolist(), shape, flat.dtype, META)
        if self._known is None or self._known[0] is not bound:
            values = HostValues.of(bound.reshape(-1).tolist(), shape, bound.dtype, self._device)
            if self._device == bound.device:
                values._materialized = bound.reshape(shape)
            self._known = (bound, values)
        return self._known[1]

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self._weight_spec("CONSTANT")[0]


class IIdentityLayer(ILayer):
    """An exact copy; the way to make a network input, or one tensor twice, an output."""

    _KIND = LayerType.IDENTITY
    _SHAPE_ALGEBRA = True

    _contract = staticmethod(moved)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        return (x,)


def saturating_cast(x: torch.Tensor, carrier: torch.dtype) -> torch.Tensor:
    """A cast as CUDA does it: floats truncate towards zero, saturate, and NaN becomes 0.

    Args:
        x: Any shape and type.
        carrier: The type wanted.
    """
    if not x.dtype.is_floating_point or carrier.is_floating_point or carrier is torch.bool:
        return x.to(carrier)
    limits = torch.iinfo(carrier)
    # In float, the first value above the largest integer is exact; the largest integer may not be.
    above = x >= float(limits.max + 1)
    below = x < float(limits.min)
    ordinary = torch.where(above | below | torch.isnan(x), torch.zeros_like(x), x).to(carrier)
    ordinary = ordinary.masked_fill(above, limits.max)
    return ordinary.masked_fill(below, limits.min)


class ICastLayer(ILayer):
    """A conversion to another element type; the only place where types change by themselves."""

    _KIND = LayerType.CAST
    _SHAPE_ALGEBRA = True

    to_type = element_type(DataType.FLOAT, "The type of the output.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        pair = (x._dtype, self.to_type)
        if DataType.UINT8 in pair:
            for dtype in pair:
                require(dtype in _UINT8_PARTNERS, f"UINT8 converts from and to float types only, not {dtype.name}")
            return
        for dtype in pair:
            require(dtype in _CASTABLE, f"no cast from {pair[0].name} to {pair[1].name}")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        return pointwise(self._inputs, self.to_type)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        carrier = self._carrier(self.to_type)
        if isinstance(x, HostValues):
            return (x.to(carrier),)
        return (saturating_cast(x, carrier),)


class IShapeLayer(ILayer):
    """The extents of a tensor, int64, 1-D; the tensor itself is not needed."""

    _KIND = LayerType.SHAPE
    _SHAPE_ALGEBRA = True

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        extents = present(self._inputs[0])._extents
        return None if extents is None else (Facts((len(extents),), DataType.INT64, extents),)

    def _contract(self, inputs: Sequence[Value]) -> Bound | None:
        return 0, 0

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        extents = tuple(x.shape)
        return (HostValues.of(extents, (len(extents),), torch.int64, x.device),)


def _to_fill_number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise Refusal(f"{value!r} is not a number") from None
    return value


class _FillNumber(Attribute[int | float | None]):
    """A number of a fill: an int stays an int64, a float a double; anything else is ignored.

    Args:
        index: The input that takes its place.
        default: What it is before it is set, for which a plan holds null.
        doc: What the property's docstring says.
    """

    def __init__(self, index: int, default: float, doc: str) -> None:
        super().__init__(_to_fill_number, default, self._null_if_default, lambda number: number, doc)
        self.index = index

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is not None and layer._input(self.index) is not None:
            return -1.0
        found = super().__get__(layer, owner)
        return self.default if found is None else found

    def _null_if_default(self, number: float | None) -> float | None:
        return None if isinstance(number, float) and number == self.default else number

    def __set__(self, layer: ILayer, value: Any) -> None:
        try:
            converted = self.convert(value)
        except Refusal:
            return
        self.store(layer, converted)


class IFillLayer(ILayer):
    """A tensor made from a formula: a linear ramp, or random numbers.

    Inputs, all optional: 0 the extents (1-D int32 or int64), 1 alpha (scalar), 2 beta.
    """

    _KIND = LayerType.FILL
    _DEFERRED = True
    _MAX_INPUTS = 3
    _HOST_INPUTS = frozenset({0})

    shape = Overridden(optional_dims("The extents."), 0)
    operation = member(FillOperation, FillOperation.LINSPACE, "The formula.")
    alpha = _FillNumber(1, 0.0, "Start of a ramp, minimum, or mean; at first 0.")
    beta = _FillNumber(2, 1.0, "Step of a ramp, maximum, or standard deviation; at first 1.")
    to_type = element_type(DataType.FLOAT, "The element type.")

    def is_alpha_beta_int64(self) -> bool:
        """Whether alpha and beta were given as integers."""
        return isinstance(self.alpha, int) and isinstance(self.beta, int)

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        shape, alpha, beta = (*inputs, None, None, None)[:3]
        if shape is not None:
            require_tensor(shape, "the shape input", INDICES, ranks={1})
        elif self.shape is not None:
            require(all(extent >= 0 for extent in self.shape), "the extents must be known")
        require((alpha is None) == (beta is None), "alpha and beta are both static or both tensors")
        if self.operation is not FillOperation.LINSPACE:
            require(
                self.to_type in {DataType.FLOAT, DataType.HALF},
                f"random numbers are FLOAT or HALF, not {self.to_type.name}",
            )
            return
        require(self.to_type in INDICES | {DataType.FLOAT}, f"a ramp is FLOAT, INT32 or INT64, not {self.to_type.name}")
        if alpha is not None and beta is not None:
            require_tensor(alpha, "alpha", {self.to_type}, ranks={0})
            require_tensor(beta, "beta of a ramp", {self.to_type}, ranks={1})
        elif shape is None:
            require(len(self.shape or ()) == 1, "a ramp with static alpha and beta has rank 1")
        else:
            require(shape._extents == (1,), "a ramp with static alpha and beta has rank 1")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        shape, alpha, beta = (*inputs, None, None, None)[:3]
        extents = list(self.shape or ()) if shape is None else host_numbers(shape)
        device = self._device
        if alpha is not None:
            device = alpha.device
        carrier = self._carrier(self.to_type)
        if self.operation is FillOperation.LINSPACE:
            return (self._ramp(extents, alpha, beta, carrier, device),)
        low = self.alpha if alpha is None else as_tensor(alpha)
        high = self.beta if beta is None else as_tensor(beta)
        if self.operation is FillOperation.RANDOM_UNIFORM:
            return (torch.rand(extents, dtype=carrier, device=device) * (high - low) + low,)
        return (torch.randn(extents, dtype=carrier, device=device) * high + low,)

    def _ramp(
        self, extents: list[Any], alpha: Value | None, beta: Value | None, carrier: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        start = _exact(self.alpha, carrier) if alpha is None else as_tensor(alpha)
        if beta is None:
            steps: list[Any] = [_exact(self.beta, carrier)]
        else:
            steps = [as_tensor(beta)[axis] for axis in range(len(extents))]
        ramps = []
        for axis, (extent, step) in enumerate(zip(extents, steps, strict=True)):
            along = torch.arange(extent, dtype=carrier, device=device)
            along = along if _is_number(step, 1) else along * step
            ramps.append(along.reshape([-1] + [1] * (len(extents) - 1 - axis)) if axis + 1 < len(extents) else along)
        total = functools.reduce(torch.add, ramps) if ramps else torch.zeros((), dtype=carrier, device=device)
        if not _is_number(start, 0):
            total = total + start
        return total.to(carrier)

    @property
    def _is_random(self) -> bool:
        return self.operation is not FillOperation.LINSPACE


def _is_number(value: Any, number: int) -> bool:
    """Whether a value is an integer that is known, so that counting with it is nothing."""
    return type(value) is int and value == number


def _exact(number: float, carrier: torch.dtype) -> float:
    """A number as a ramp counts with it: a whole one of integers must not turn them into float32, which rounds them."""
    return number if carrier.is_floating_point or not float(number).is_integer() else int(number)


class SourceLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_constant(self, shape: DimsLike, weights: Weights) -> IConstantLayer | None:
        """Adds a constant.

        Args:
            shape: The extents.
            weights: Host weights or a numpy array, referred to until the build returns; not bool
                and not uint8.
        """
        layer = IConstantLayer._create(shape=as_dims(shape), weights=as_weights(weights))
        return self._add(layer)

    def add_identity(self, input: ITensor) -> IIdentityLayer | None:
        """Adds a copy of a tensor."""
        return self._add(IIdentityLayer._create(), input=input)

    def add_cast(self, input: ITensor, to_type: DataType) -> ICastLayer | None:
        """Adds a conversion to another element type."""
        return self._add(ICastLayer._create(to_type=to_type), input=input)

    def add_shape(self, input: ITensor) -> IShapeLayer | None:
        """Adds a layer that gives the extents of a tensor, int64."""
        return self._add(IShapeLayer._create(), input=input)

    def add_fill(self, shape: DimsLike, op: FillOperation, output_type: DataType = DataType.FLOAT) -> IFillLayer | None:
        """Adds a tensor made from a formula; set ``alpha`` and ``beta`` on the layer.

        Args:
            shape: The extents; replaced by input 0 where they are not constant.
            op: The formula.
            output_type: The element type.
        """
        return self._add(IFillLayer._create(shape=as_dims(shape), operation=op, to_type=output_type))
