"""Arithmetic on extents that plugins describe their outputs with, and descriptions of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trt_core.sizes.functions import FUNCTIONS, RELATIONS
from trt_portable.dims import Dims
from trt_portable.enums import DataType, DimensionOperation, TensorFormat
from trt_portable.pybind import to_integer


class IDimensionExpr:
    """An extent, or a number computed from extents."""

    def __init__(self, value: Any, size_tensor: tuple[int, Any, Any] | None = None) -> None:
        self._value = value
        self._size_tensor = size_tensor

    def is_constant(self) -> bool:
        """Whether the number is known now."""
        return self._size_tensor is None and isinstance(self._value, int)

    def get_constant_value(self) -> int:
        """The number, if it is known now.

        Raises:
            RuntimeError: It is not.
        """
        if not self.is_constant():
            raise RuntimeError("the dimension expression is not constant")
        return int(self._value)

    def is_size_tensor(self) -> bool:
        """Whether the number is an output of the plugin."""
        return self._size_tensor is not None


class DimsExprs:
    """Extents as expressions: a list of them, or a number of extents that are all 0."""

    def __init__(self, extents: Sequence[IDimensionExpr] | int = ()) -> None:
        if isinstance(extents, int):
            self._extents = [IDimensionExpr(0) for _ in range(extents)]
        else:
            self._extents = list(extents)

    def __len__(self) -> int:
        return len(self._extents)

    def __getitem__(self, index: int) -> IDimensionExpr:
        return self._extents[to_integer(index)]

    def __setitem__(self, index: int, extent: IDimensionExpr) -> None:
        self._extents[to_integer(index)] = extent


_OPERATIONS: Final = {
    DimensionOperation.SUM: "add",
    DimensionOperation.PROD: "mul",
    DimensionOperation.MAX: "max",
    DimensionOperation.MIN: "min",
    DimensionOperation.SUB: "sub",
    DimensionOperation.EQUAL: "eq",
    DimensionOperation.LESS: "lt",
    DimensionOperation.FLOOR_DIV: "floordiv",
    DimensionOperation.CEIL_DIV: "ceildiv",
}
"""What operations are called in `trt_core.sizes.functions`."""


class IExprBuilder:
    """Makes dimension expressions."""

    def __init__(self) -> None:
        pass

    def constant(self, arg0: int) -> IDimensionExpr:
        """A known number."""
        return IDimensionExpr(to_integer(arg0))

    def operation(self, arg0: DimensionOperation, arg1: IDimensionExpr, arg2: IDimensionExpr) -> IDimensionExpr:
        """A number computed from two others."""
        name = _OPERATIONS[arg0]
        result = FUNCTIONS[name].compute(arg1._value, arg2._value)
        return IDimensionExpr(int(result) if name in RELATIONS else result)

    def declare_size_tensor(self, arg0: int, arg1: IDimensionExpr, arg2: IDimensionExpr) -> IDimensionExpr:
        """A number that an output of the plugin holds.

        Args:
            arg0: Index of the output, a 0-D int32.
            arg1: The number that is expected.
            arg2: The largest number possible.
        """
        return IDimensionExpr(arg2._value, (to_integer(arg0), arg1._value, arg2._value))


class PluginTensorDesc:
    """What a plugin is told of a tensor.

    Attributes:
        dims: The extents.
        type: The element type.
        format: The memory layout.
        scale: Kept for compatibility.
    """

    def __init__(self) -> None:
        self.dims = Dims()
        self.type = DataType.FLOAT
        self.format = TensorFormat.LINEAR
        self.scale = 0.0

    @classmethod
    def _of(cls, dims: Sequence[int], dtype: DataType, format: TensorFormat = TensorFormat.LINEAR) -> PluginTensorDesc:
        made = cls()
        made.dims, made.type, made.format = Dims(dims), dtype, format
        return made


class DynamicPluginTensorDesc:
    """What a plugin is told of a tensor before its extents are known.

    Attributes:
        desc: Extents (-1 where unknown), type and format.
        min: The smallest extents.
        opt: The usual extents.
        max: The largest extents.
    """

    def __init__(self) -> None:
        self.desc = PluginTensorDesc()
        self.min = Dims()
        self.opt = Dims()
        self.max = Dims()

    @classmethod
    def _of(
        cls, dims: Sequence[int], dtype: DataType, format: TensorFormat = TensorFormat.LINEAR
    ) -> DynamicPluginTensorDesc:
        made = cls()
        made.desc = PluginTensorDesc._of(dims, dtype, format)
        made.min = made.opt = made.max = Dims(dims)
        return made
