"""Arithmetic on extents, with which decorated plugins describe their outputs."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from trt_portable.enums import DimensionOperation, PluginArgDataType
from trt_portable.plugins.quick import ISymExpr, ISymExprs
from trt_portable.plugins.shape import IDimensionExpr, IExprBuilder

if TYPE_CHECKING:
    from typing_extensions import Self

    from trt_portable.plugin.descriptors import SizeTensorDesc

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
