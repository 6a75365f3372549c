"""Types, formats and places of tensors."""

from __future__ import annotations

from trt_portable.enums.base import PybindEnum


class TensorFormat(PybindEnum):
    """The memory layout of a tensor at the boundary of an engine."""

    LINEAR = 0
    CHW2 = 1
    HWC8 = 2
    CHW4 = 3
    CHW16 = 4
    CHW32 = 5
    DHWC8 = 6
    CDHW32 = 7
    HWC = 8
    DLA_LINEAR = 9
    DLA_HWC4 = 10
    HWC16 = 11
    DHWC = 12


class TensorIOMode(PybindEnum):
    """Whether a tensor is an input or an output."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(PybindEnum):
    """Where the memory of a tensor is."""

    DEVICE = 0
    HOST = 1


class DeviceType(PybindEnum):
    """The kind of device a layer runs on."""

    GPU = 0
    DLA = 1


class WeightsRole(PybindEnum):
    """The use that a layer makes of weights."""

    KERNEL = 0
    BIAS = 1
    SHIFT = 2
    SCALE = 3
    CONSTANT = 4
    ANY = 5


class DataType(PybindEnum):
    """The element type of a tensor or of weights."""

    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8
    INT4 = 9
    FP4 = 10
    E8M0 = 11

    @property
    def itemsize(self) -> float:
        """Bytes of one element; 0.5 for the types that pack two elements into a byte."""
        return _ITEM_SIZES.get(self, 1)


_ITEM_SIZES: dict[DataType, float] = {
    DataType.FLOAT: 4,
    DataType.HALF: 2,
    DataType.BF16: 2,
    DataType.INT32: 4,
    DataType.INT64: 8,
    DataType.INT4: 0.5,
    DataType.FP4: 0.5,
}
