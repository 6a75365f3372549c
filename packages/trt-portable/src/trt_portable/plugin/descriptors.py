"""Tensors of decorated plugins: without data, with arithmetic on extents, for descriptions; with data, to compute."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from trt_portable.enums import DataType, DimensionOperation, PluginArgDataType, TensorFormat
from trt_portable.formats import LAYOUTS
from trt_portable.plugin.interfaces import IDimensionExpr, IExprBuilder, ISymExpr, ISymExprs, PluginTensorDesc

if TYPE_CHECKING:
    from typing_extensions import Self


_BUILDER: Final = IExprBuilder()


class SymExpr(ISymExpr):
    """An expression of extents that may become an argument of a kernel."""


class SymIntExpr(SymExpr):
    """An expression of extents with an integer value.

    Args:
        value: A number, an expression, or None for one that stands for anything.
    """

    def __init__(self, value: int | IDimensionExpr | SymIntExpr | None = None) -> None:
        super().__init__()
        self.expr: IDimensionExpr | None
        if isinstance(value, SymIntExpr):
            self.expr = value.expr
        elif value is None or isinstance(value, IDimensionExpr):
            self.expr = value
        elif isinstance(value, torch.SymInt):
            self.expr = IDimensionExpr(value)
        else:
            self.expr = _BUILDER.constant(value)

    @property
    def is_fake(self) -> bool:
        """Whether it stands for anything, where extents are not known."""
        return self.expr is None

    @property
    def is_constant(self) -> bool:
        """Whether the value is known now.

        Raises:
            RuntimeError: The expression is fake.
        """
        return self._known().is_constant()

    @property
    def is_size_tensor(self) -> bool:
        """Whether an output of the plugin holds the value."""
        return self.expr is not None and self.expr.is_size_tensor()

    def constant_value(self) -> int:
        """The value, if it is known now.

        Raises:
            RuntimeError: It is not.
        """
        return self._known().get_constant_value()

    def _known(self) -> IDimensionExpr:
        if self.expr is None:
            raise RuntimeError("the extents are not known here, only types are")
        return self.expr

    def _combined(self, operation: DimensionOperation, left: Any, right: Any) -> Self:
        parts = [each if isinstance(each, SymIntExpr) else SymIntExpr(each) for each in (left, right)]
        known = [part.expr for part in parts if part.expr is not None]
        return type(self)(_BUILDER.operation(operation, *known) if len(known) == 2 else None)

    def __add__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.SUM, self, other)

    __radd__ = __add__

    def __mul__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.PROD, self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.SUB, self, other)

    def __rsub__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.SUB, other, self)

    def __floordiv__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.FLOOR_DIV, self, other)

    def __rfloordiv__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.FLOOR_DIV, other, self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # an expression, as in TensorRT
        return self._combined(DimensionOperation.EQUAL, self, other)

    def __lt__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.LESS, self, other)

    def __gt__(self, other: Extent) -> Self:
        return self._combined(DimensionOperation.LESS, other, self)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        value = "?" if self.expr is None else self.expr._value
        return f"{type(self).__name__}({value})"


class ShapeExpr(SymIntExpr):
    """The extent of one axis."""


Extent: TypeAlias = "int | SymIntExpr"


class SizeTensorShapeExpr(ShapeExpr):
    """An extent that an output of the plugin holds.

    Args:
        size_tensor_desc: The output.
    """

    def __init__(self, size_tensor_desc: SizeTensorDesc) -> None:
        super().__init__(None)
        self.size_tensor = size_tensor_desc

    @property
    def is_size_tensor(self) -> bool:
        """True."""
        return True

    def _combined(self, operation: DimensionOperation, left: Any, right: Any) -> Self:
        raise ValueError("an extent that a size tensor holds cannot be computed with")


class SymInt32(SymIntExpr):
    """An int32 argument of a kernel."""

    def __init__(self, value: int | IDimensionExpr | SymIntExpr | None = None) -> None:
        super().__init__(value)
        self.dtype = PluginArgDataType.INT32


class ShapeExprs:
    """The extents of a tensor.

    Args:
        length: The number of axes; the extents are fake until they are assigned.
    """

    def __init__(self, length: int, _is_dummy: bool = False) -> None:
        self._extents = [ShapeExpr() for _ in range(length)]

    @classmethod
    def from_tuple(cls, shape_exprs: Iterable[Extent]) -> ShapeExprs:
        """The extents given as expressions and numbers."""
        given = list(shape_exprs)
        made = cls(len(given))
        for axis, extent in enumerate(given):
            made[axis] = extent
        return made

    def numel(self) -> ShapeExpr:
        """The number of elements."""
        count = ShapeExpr(1)
        for extent in self._extents:
            count = count * extent
        return count

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[ShapeExpr]:
        return iter(self._extents)

    def __getitem__(self, axis: int) -> ShapeExpr:
        return self._extents[axis]

    def __setitem__(self, axis: int, extent: Extent) -> None:
        self._extents[axis] = extent if isinstance(extent, ShapeExpr) else ShapeExpr(extent)


class SymExprs(ISymExprs):
    """Arguments of a kernel, in order."""

    @classmethod
    def from_tuple(cls, shape_exprs: Iterable[ISymExpr | int]) -> Self:
        """The arguments given."""
        made = cls()
        given = [SymInt32(each) if isinstance(each, int) else each for each in shape_exprs]
        made.nbSymExprs = len(given)
        for at, expression in enumerate(given):
            made[at] = expression
        return made


class SymIntExprs(SymExprs):
    """Integer arguments of a kernel, in order."""


def _of_two(operation: DimensionOperation, first: Extent, second: Extent, of_numbers: Callable[[int, int], int]) -> Any:
    for each in (first, second):
        if isinstance(each, SymIntExpr):
            return each._combined(operation, first, second)
    assert isinstance(first, int) and isinstance(second, int)
    return ShapeExpr(of_numbers(first, second))


def cdiv(first: Extent, second: Extent) -> Any:
    """The quotient of two extents, rounded up."""
    return _of_two(DimensionOperation.CEIL_DIV, first, second, lambda a, b: -(-a // b))


def max(first: Extent, second: Extent) -> Any:
    """The greater of two extents."""
    return _of_two(DimensionOperation.MAX, first, second, builtins.max)


def min(first: Extent, second: Extent) -> Any:
    """The smaller of two extents."""
    return _of_two(DimensionOperation.MIN, first, second, builtins.min)


class TensorDesc:
    """Extents, type and format of a tensor.

    Args:
        shape_expr: The extents, as expressions or numbers.
        dtype: The element type.
        format: The memory layout.
        scale: Kept for compatibility.
    """

    def __init__(
        self,
        shape_expr: ShapeExprs | Iterable[Extent] | None = None,
        dtype: DataType | None = None,
        format: TensorFormat | None = None,
        scale: float | None = None,
    ) -> None:
        self._shape_expr = _as_exprs(shape_expr) if shape_expr is not None else None
        self._dtype = dtype
        self._format = format
        self._scale = scale
        self._aliased_to: TensorDesc | None = None
        self._is_fixed = False

    @property
    def shape_expr(self) -> ShapeExprs:
        """The extents; assigning to one changes it."""
        assert self._shape_expr is not None
        return self._shape_expr

    @shape_expr.setter
    def shape_expr(self, extents: ShapeExprs | Iterable[Extent]) -> None:
        self._refuse_change()
        self._shape_expr = _as_exprs(extents)

    @property
    def dtype(self) -> DataType | None:
        """The element type."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        self._refuse_change()
        self._dtype = dtype

    @property
    def format(self) -> TensorFormat | None:
        """The memory layout."""
        return self._format

    @format.setter
    def format(self, format: TensorFormat) -> None:
        self._refuse_change()
        self._format = format

    @property
    def scale(self) -> float | None:
        """Kept for compatibility."""
        return self._scale

    @scale.setter
    def scale(self, scale: float) -> None:
        self._refuse_change()
        self._scale = scale

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape_expr)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers.

        Raises:
            RuntimeError: One is not known.
        """
        return tuple(extent.constant_value() for extent in self.shape_expr)

    @property
    def has_shape(self) -> bool:
        """Whether all extents are known numbers."""
        return all(not extent.is_fake and extent.is_constant for extent in self.shape_expr)

    @property
    def is_shape_tensor(self) -> bool:
        """False: decorated plugins read data alone."""
        return False

    @property
    def is_aliased(self) -> bool:
        """Whether this output shares the memory of an input."""
        return self._aliased_to is not None

    def get_aliased(self) -> TensorDesc | None:
        """The input whose memory this output shares, or None."""
        return self._aliased_to

    def numel(self) -> int:
        """The number of elements, where all extents are known."""
        return self.shape_expr.numel().constant_value()

    def like(self) -> TensorDesc:
        """Another tensor of the same extents, type and format."""
        return TensorDesc(list(self.shape_expr), self._dtype, self._format, self._scale)

    def aliased(self) -> TensorDesc:
        """An output of the same extents, type and format that shares this tensor's memory."""
        made = self.like()
        made._aliased_to, made._is_fixed = self, True
        return made

    def _refuse_change(self) -> None:
        if self._is_fixed:
            raise ValueError("an output that shares the memory of an input cannot be changed")


class SizeTensorDesc(TensorDesc):
    """A 0-D int32 output that holds an extent of another output.

    Args:
        opt: The extent that is expected.
        upper_bound: The greatest extent possible.
    """

    def __init__(self, opt: Extent, upper_bound: Extent) -> None:
        super().__init__((), DataType.INT32)
        self._opt, self._upper_bound = ShapeExpr(opt), ShapeExpr(upper_bound)
        self._expression = SizeTensorShapeExpr(self)

    @property
    def opt(self) -> ShapeExpr:
        """The extent that is expected."""
        return self._opt

    @property
    def upper_bound(self) -> ShapeExpr:
        """The greatest extent possible."""
        return self._upper_bound

    def expr(self) -> SizeTensorShapeExpr:
        """The extent that this output holds."""
        return self._expression


def _as_exprs(extents: Any) -> ShapeExprs:
    return ShapeExprs.from_tuple(extents)


def from_shape_expr(shape_expr: ShapeExprs | Iterable[Extent], dtype: DataType) -> TensorDesc:
    """A tensor of given extents and type."""
    return TensorDesc(shape_expr, dtype)


def size_tensor(opt: Extent, upper_bound: Extent) -> SizeTensorDesc:
    """An output that holds an extent.

    Args:
        opt: The extent that is expected.
        upper_bound: The greatest extent possible.
    """
    return SizeTensorDesc(opt, upper_bound)


class Shape:
    """Extents as numbers, some of which an output of the plugin may still have to tell.

    Args:
        extents: The numbers, or a description of a tensor.
    """

    def __init__(self, extents: Sequence[int] | PluginTensorDesc | None = None) -> None:
        given = extents.dims if isinstance(extents, PluginTensorDesc) else extents or ()
        self._extents = [int(extent) for extent in given]

    def numel(self) -> int:
        """The number of elements.

        Raises:
            ValueError: An extent is not known yet.
        """
        if -1 in self._extents:
            raise ValueError("an extent depends on data")
        return math.prod(self._extents)

    def __len__(self) -> int:
        return len(self._extents)

    def __getitem__(self, axis: int) -> int:
        return self._extents[axis]

    def __setitem__(self, axis: int, extent: int) -> None:
        self._extents[axis] = int(extent)

    def __iter__(self) -> Any:
        return iter(self._extents)

    def __eq__(self, other: object) -> bool:
        return list(other) == self._extents if isinstance(other, (Shape, tuple, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shape({tuple(self._extents)})"


class Tensor:
    """Memory of a tensor, as described.

    PyTorch, numpy and CUDA libraries adopt it without a copy: through DLPack everywhere, through
    ``__array_interface__`` on the host and ``__cuda_array_interface__`` on a GPU.

    Args:
        desc: Extents, type and format.
        memory: The memory, in the layout of the format.
        aliased_to: The input whose memory this output shares.
    """

    def __init__(self, desc: PluginTensorDesc, memory: torch.Tensor, aliased_to: Tensor | None = None) -> None:
        self._desc = desc
        self._memory = memory
        self._aliased_to = aliased_to

    @property
    def data_ptr(self) -> int:
        """The address of the memory."""
        return self._memory.data_ptr()

    @property
    def dtype(self) -> DataType:
        """The element type."""
        return self._desc.type

    @property
    def format(self) -> TensorFormat:
        """The memory layout."""
        return self._desc.format

    @property
    def scale(self) -> float:
        """Kept for compatibility."""
        return self._desc.scale

    @property
    def shape(self) -> Shape:
        """The extents, -1 for those that depend on data."""
        return Shape(tuple(self._desc.dims))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._desc.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        """The distances between neighbours along each axis, in elements, or in vectors where the format has them."""
        layout = LAYOUTS.get(self.format)
        return tuple(self._memory.stride()) if layout is None else layout.strides(tuple(self._desc.dims))

    @property
    def is_data_dependent(self) -> bool:
        """Whether an extent depends on data."""
        return -1 in tuple(self._desc.dims)

    @property
    def is_aliased(self) -> bool:
        """Whether this output shares the memory of an input."""
        return self._aliased_to is not None

    def get_aliased(self) -> Tensor | None:
        """The input whose memory this output shares, or None."""
        return self._aliased_to

    def numel(self) -> int:
        """The number of elements.

        Raises:
            ValueError: An extent depends on data.
        """
        return self.shape.numel()

    def aliased(self, shape: Shape | Sequence[int] | PluginTensorDesc | None = None) -> Tensor:
        """The same memory with other extents.

        Args:
            shape: As many elements, or at most as many where an extent depends on data; the same by default.

        Raises:
            ValueError: Another number of elements.
        """
        wanted = tuple(self.shape if shape is None else shape if isinstance(shape, Shape) else Shape(shape))
        count, have = math.prod(wanted), self._memory.numel()
        if count > have or (not self.is_data_dependent and count != have):
            raise ValueError(f"{count} elements of shape {wanted} in memory of {have} elements")
        desc = PluginTensorDesc._of(wanted, self.dtype, self.format)
        return Tensor(desc, self._memory.reshape(-1)[:count].reshape(wanted), self)

    def __dlpack__(self, **options: Any) -> Any:
        return self._memory.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._memory.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self._memory.numpy()
        if dtype is not None and array.dtype != dtype:
            array = array.astype(dtype)
        return np.array(array) if copy else array

    @property
    def __array_interface__(self) -> Any:
        if self._memory.is_cuda:
            raise AttributeError("the memory is on a GPU")
        return self._memory.numpy().__array_interface__

    @property
    def __cuda_array_interface__(self) -> Any:
        if not self._memory.is_cuda:
            raise AttributeError("the memory is on the host")
        return self._memory.__cuda_array_interface__
