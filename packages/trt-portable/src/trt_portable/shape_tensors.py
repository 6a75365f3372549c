"""What flows between layers: tensors, and small arrays whose numbers the host knows.

`HostValues` are the values of shape tensors. They answer the PyTorch functions that shape arithmetic
needs with exact Python integers (or symbolic ones while shapes are inferred or traced), so that one
definition of a layer serves data and shapes alike. Any other function makes a tensor of them first, on
the device they belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

import numpy as np
import torch

from trt_core.limits import open_account
from trt_portable.dtypes import INDICES
from trt_portable.enums import DataType
from trt_portable.errors import Refusal
from trt_portable.size_arithmetic import is_negative, is_unknown, least_of, quotient

HOST_LIMIT: Final = 64
"""Most elements that a shape tensor may have."""


def is_known_to_host(dtype: DataType, count: int) -> bool:
    """Whether the host knows the values of a constant, so that shapes may depend on them."""
    return count <= HOST_LIMIT and (dtype in INDICES or dtype is DataType.BOOL)


class NotOnHost(Exception):
    """Raised inside when numbers are unknown, unordered or too many, so that only a tensor can stand for them."""


def require_few(count: int) -> None:
    """Refuses to keep more numbers on the host than shapes are made of.

    What grows beyond that, such as a constant that is repeated to the extents of a mask, is data: numbers one by one
    take a hundred times the memory and the time of a tensor, which infers shapes without any.

    Raises:
        NotOnHost: There are more than a shape tensor may have.
    """
    if count > HOST_LIMIT:
        raise NotOnHost


class HostValues:
    """A small array of numbers known to the host.

    Attributes:
        array: Object array of ``int``, ``bool``, ``float`` or ``torch.SymInt``; never modified.
        dtype: The PyTorch type of the tensor these numbers stand for.
        device: Where that tensor would be; ``meta`` while shapes are inferred.
    """

    __slots__ = ("_materialized", "array", "device", "dtype")

    def __init__(self, array: np.ndarray[Any, Any], dtype: torch.dtype, device: torch.device) -> None:
        self.array = array
        self.dtype = dtype
        self.device = device
        self._materialized: torch.Tensor | None = None

    @classmethod
    def of(cls, values: Sequence[Any], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> HostValues:
        """Host values from numbers in row-major order."""
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return cls(array.reshape(tuple(shape)), dtype, device)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> HostValues:
        """Host values read from a tensor; waits for the device if it is on one."""
        _note_that_data_was_read()
        values = cls.of(tensor.reshape(-1).tolist(), tensor.shape, tensor.dtype, tensor.device)
        values._materialized = tensor
        return values

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the array."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self.array.size

    def tolist(self) -> Any:
        """The numbers as nested lists, a bare number for a scalar."""
        return self.array.tolist() if self.array.ndim else self.array.item()

    def numbers(self) -> list[Any]:
        """The numbers in row-major order."""
        return self.array.ravel().tolist()

    def tensor(self) -> torch.Tensor:
        """The tensor that these numbers stand for, made once; without values while inferring."""
        if self._materialized is not None:
            return self._materialized
        numbers = self.numbers()
        if self.device.type == "meta":
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if any(isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) for number in numbers):
            return self._filled(numbers)
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return self._filled(numbers)  # not kept: its memory is the recording's
        made = torch.tensor(numbers, dtype=self.dtype, device="cpu").reshape(self.shape).to(self.device)
        self._materialized = made
        return made

    def _filled(self, numbers: Sequence[Any]) -> torch.Tensor:
        """The tensor, written on its device by kernels: a copy from the host would wait, which no recording may."""
        if not numbers:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        scalars = [torch.scalar_tensor(number, dtype=self.dtype, device=self.device) for number in numbers]
        return torch.stack(scalars).reshape(self.shape)

    def to(self, dtype: torch.dtype) -> Value:
        """The numbers in another type; a tensor where the host cannot convert them."""
        if dtype == self.dtype:
            return self
        try:
            return _within_range(HostValues(_converters(self.dtype, dtype)(self.array), dtype, self.device))
        except (NotOnHost, RuntimeError):
            return self.tensor().to(dtype)

    def reshape(self, *shape: Any) -> HostValues:
        """The numbers in other extents, row-major."""
        extents = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return self._with(self.array.reshape(tuple(int(extent) for extent in extents)))

    def permute(self, order: Sequence[int]) -> HostValues:
        """The numbers with their axes reordered."""
        return self._with(self.array.transpose(tuple(order)))

    def _with(self, array: Any) -> HostValues:
        if not isinstance(array, np.ndarray):
            scalar = np.empty((), dtype=object)
            scalar[()] = array
            array = scalar
        return HostValues(array, self.dtype, self.device)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        implementation = HOST_FUNCTIONS.get(function)
        # plain tensors override nothing, so they are among the arguments but never among `types`
        if implementation is not None and not _holds_tensor(args):
            try:
                return _within_range(implementation(*args, **kwargs))
            except (NotOnHost, RuntimeError):
                pass
        return function(
            *(_as_tensors(arg) for arg in args), **{name: _as_tensors(value) for name, value in kwargs.items()}
        )

    def __repr__(self) -> str:
        return f"HostValues({self.tolist()}, {self.dtype})"


def _holds_tensor(arguments: Sequence[Any]) -> bool:
    return any(
        isinstance(argument, torch.Tensor) or (isinstance(argument, (list, tuple)) and _holds_tensor(argument))
        for argument in arguments
    )


Value: TypeAlias = torch.Tensor | HostValues


def _as_tensors(argument: Any) -> Any:
    if isinstance(argument, HostValues):
        return argument.tensor()
    if isinstance(argument, (list, tuple)):
        return type(argument)(_as_tensors(item) for item in argument)
    return argument


def operand(value: Value | None) -> Value:
    """A value that is there, as what a layer was held to when it was added."""
    assert value is not None
    return value


def as_tensor(value: Value | None) -> torch.Tensor:
    """A value that is there, as data."""
    assert value is not None
    return value.tensor() if isinstance(value, HostValues) else value


def tensor_at(values: Sequence[Value | None], place: int) -> torch.Tensor | None:
    """One of some operands as data; None for one that is missing."""
    return None if place >= len(values) or values[place] is None else as_tensor(values[place])


def host_numbers(value: Value) -> list[Any]:
    """A value as numbers in row-major order; reads a tensor back from its device."""
    if isinstance(value, HostValues):
        return value.numbers()
    _note_that_data_was_read()
    return value.reshape(-1).tolist()


def _note_that_data_was_read() -> None:
    """What is made of these numbers is charged to the account in each run, if there is one."""
    account = open_account()
    if account is not None:
        account.has_seen_data = True


def extents(value: Value) -> tuple[Any, ...]:
    """The extents of a value, symbolic ones included."""
    return tuple(value.shape)


def _is_symbolic(number: Any) -> bool:
    return isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool))


def usual_size(size: int | torch.SymInt) -> int:
    """Returns what a size is where a graph is tuned."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


class Outline:
    """Extents and type of a tensor while shapes are inferred that only running tells, for layers that move elements.

    PyTorch's own tensors take milliseconds to make, in which it compares products of extents.

    Args:
        shape: Integers, and symbolic ones.
        dtype: The PyTorch type.

    Raises:
        Refusal: An extent is negative.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[Any], dtype: torch.dtype) -> None:
        negative = next((extent for extent in shape if is_negative(extent)), None)
        if negative is not None:
            raise Refusal(f"the extent {negative} is negative")
        self.shape = tuple(shape)
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> Any:
        """The number of elements."""
        return math.prod(self.shape)

    def permute(self, order: Sequence[int]) -> Outline:
        """The same with its axes reordered."""
        return Outline([self.shape[axis] for axis in order], self.dtype)

    def new_empty(self, shape: Sequence[Any]) -> Outline:
        """One of the same type with other extents.

        Raises:
            Refusal: One of them is negative.
        """
        return Outline(shape, self.dtype)


def is_shape_alone(value: Value, *numbers: Any) -> TypeGuard[torch.Tensor]:
    """Whether a tensor stands for its shape only, while shapes are inferred that running tells, by it or the numbers.

    What makes a view of it asks in which order it lies, and compares products of extents: half a second of eight
    symbols.
    """
    if isinstance(value, Outline):
        return True
    return isinstance(value, torch.Tensor) and value.is_meta and any(map(is_unknown, (*value.shape, *numbers)))


def _rounded(number: Any) -> float:
    if _is_symbolic(number):
        raise NotOnHost
    return float(np.float32(number))


def _truncated(number: Any) -> int:
    if number != number or number in (float("inf"), float("-inf")):
        raise NotOnHost
    return int(number)


def _unchanged(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array


def _converters(source: torch.dtype, target: torch.dtype) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """How an object array of one type becomes one of another."""
    if target is torch.bool:
        return _elementwise(lambda number: bool(number != 0), 1)
    if target is torch.float32:
        return _elementwise(_rounded, 1)
    if target in (torch.int32, torch.int64):
        if source in (torch.int32, torch.int64):
            return _unchanged
        return _elementwise(_truncated if source.is_floating_point else int, 1)
    raise NotOnHost


_Made = TypeVar("_Made")
_RANGES: Final = {dtype: torch.iinfo(dtype) for dtype in (torch.int32, torch.int64)}


def _within_range(made: _Made) -> _Made:
    """Returns a result that is small, and whose numbers its type can hold: Python's never overflow, a tensor's wrap."""
    if isinstance(made, HostValues):
        require_few(made.numel())
    if isinstance(made, HostValues) and made.dtype in _RANGES:
        limits = _RANGES[made.dtype]
        for number in made.array.flat:
            if not _is_symbolic(number) and not limits.min <= number <= limits.max:
                raise NotOnHost
    return made


def _elementwise(function: Callable[..., Any], arity: int) -> Callable[..., Any]:
    """A scalar function over object arrays of equal or broadcast extents."""
    vectorized = np.frompyfunc(function, arity, 1)

    def apply(*arrays: Any) -> Any:
        result = vectorized(*arrays)
        if isinstance(result, np.ndarray):
            return result
        scalar = np.empty((), dtype=object)
        scalar[()] = result
        return scalar

    return apply


def _maximum(left: Any, right: Any) -> Any:
    if _is_symbolic(left) or _is_symbolic(right):
        return torch.sym_max(left, right)
    return max(left, right)


def _minimum(left: Any, right: Any) -> Any:
    if _is_symbolic(left) or _is_symbolic(right):
        return torch.sym_min(left, right)
    return min(left, right)


def _is_greater(left: Any, right: Any) -> bool:
    if type(right) is int and least_of(left) > right:
        return True
    return False if type(left) is int and least_of(right) >= left else bool(left > right)


def _is_equal(left: Any, right: Any) -> bool:
    if (type(right) is int and least_of(left) > right) or (type(left) is int and least_of(right) > left):
        return False
    return bool(left == right)


def truncated_quotient(left: Any, right: Any) -> Any:
    """Integer division that rounds towards zero, exact for any magnitude."""
    if (least_of(left) >= 0 and least_of(right) > 0) or (left >= 0 and right > 0):
        return quotient(left, right)
    found = abs(left) // abs(right)
    return found if (left >= 0) == (right >= 0) else -found


def _binary(function: Callable[[Any, Any], Any], result: torch.dtype | None = None) -> Any:
    apply = _elementwise(function, 2)
    round_off = _elementwise(_rounded, 1)

    def compute(left: HostValues, right: HostValues) -> HostValues:
        try:
            array = apply(left.array, right.array)
        except ZeroDivisionError:
            raise NotOnHost from None
        dtype = result or left.dtype
        return HostValues(round_off(array) if dtype.is_floating_point else array, dtype, left.device)

    return compute


def _unary(function: Callable[[Any], Any]) -> Any:
    apply = _elementwise(function, 1)

    def compute(value: HostValues) -> HostValues:
        return HostValues(apply(value.array), value.dtype, value.device)

    return compute


def _divide(left: HostValues, right: HostValues, *, rounding_mode: str | None = None) -> Any:
    if left.dtype.is_floating_point:
        if rounding_mode is not None:
            raise NotOnHost
        return _TRUE_QUOTIENT(left, right)
    if rounding_mode != "trunc":
        raise NotOnHost
    return _TRUNCATED_QUOTIENT(left, right)


def _where(condition: HostValues, chosen: HostValues, other: HostValues) -> HostValues:
    array = _SELECT(condition.array, chosen.array, other.array)
    return HostValues(array, chosen.dtype, chosen.device)


def _concatenate(values: Sequence[HostValues], dim: int = 0) -> HostValues:
    return values[0]._with(np.concatenate([value.array for value in values], axis=dim))


def _reduction(function: Callable[[Any, Any], Any], identity: Any) -> Any:
    def compute(
        value: HostValues, dim: Sequence[int] | int, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> HostValues:
        if value.dtype.is_floating_point:
            raise NotOnHost
        array = value.array
        for axis in sorted((dim,) if isinstance(dim, int) else dim, reverse=True):
            slices = np.moveaxis(array, axis, 0)
            if not len(slices) and identity is None:
                raise NotOnHost
            total: Any = identity if identity is not None else slices[0]
            for item in slices if identity is not None else slices[1:]:
                total = _elementwise(function, 2)(total, item)
            if not isinstance(total, np.ndarray):
                total = np.full(slices.shape[1:], total, dtype=object)
            array = np.expand_dims(total, axis) if keepdim else total
        return value._with(array)

    return compute


_TRUE_QUOTIENT: Final = _binary(lambda left, right: left / right)
_TRUNCATED_QUOTIENT: Final = _binary(truncated_quotient)
_SELECT: Final = _elementwise(lambda condition, chosen, other: chosen if bool(condition) else other, 3)

HOST_FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.add: _binary(lambda left, right: left + right),
    torch.sub: _binary(lambda left, right: left - right),
    torch.mul: _binary(lambda left, right: left * right),
    torch.div: _divide,
    torch.floor_divide: _binary(quotient),
    torch.fmax: _binary(_maximum),
    torch.fmin: _binary(_minimum),
    torch.maximum: _binary(_maximum),
    torch.minimum: _binary(_minimum),
    torch.eq: _binary(_is_equal, torch.bool),
    torch.gt: _binary(_is_greater, torch.bool),
    torch.lt: _binary(lambda left, right: _is_greater(right, left), torch.bool),
    torch.logical_and: _binary(lambda left, right: bool(left) and bool(right)),
    torch.logical_or: _binary(lambda left, right: bool(left) or bool(right)),
    torch.logical_xor: _binary(lambda left, right: bool(left) != bool(right)),
    torch.logical_not: _unary(lambda number: not bool(number)),
    torch.abs: _unary(abs),
    torch.neg: _unary(lambda number: -number),
    torch.sign: _unary(lambda number: (number > 0) - (number < 0)),
    torch.relu: _unary(lambda number: _maximum(number, 0)),
    torch.where: _where,
    torch.cat: _concatenate,
    torch.sum: _reduction(lambda left, right: left + right, 0),
    torch.prod: _reduction(lambda left, right: left * right, 1),
    torch.amax: _reduction(_maximum, None),
    torch.amin: _reduction(_minimum, None),
}
