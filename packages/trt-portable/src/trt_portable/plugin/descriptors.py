"""Tensors without data, with which decorated plugins describe inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trt_portable.enums import DataType, TensorFormat
from trt_portable.plugin.expressions import Extent, ShapeExpr, ShapeExprs, SizeTensorShapeExpr


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
