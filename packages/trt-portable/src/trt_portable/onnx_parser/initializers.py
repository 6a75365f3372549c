"""Constants of a model: their types, their bytes, and where these may be read from."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trt_core.files.opening import opened
from trt_portable.dtypes import FROM_NUMPY, PACKED, storage_bytes
from trt_portable.enums import DataType, ErrorCode
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from onnx import TensorProto

TYPES: Final[Mapping[int, DataType]] = {
    1: DataType.FLOAT,
    2: DataType.UINT8,
    3: DataType.INT8,
    6: DataType.INT32,
    7: DataType.INT64,
    9: DataType.BOOL,
    10: DataType.HALF,
    16: DataType.BF16,
    17: DataType.FP8,
    22: DataType.INT4,
    23: DataType.FP4,
    24: DataType.E8M0,
}
"""The types of TensorRT, by the numbers that ``TensorProto.DataType`` has for them."""

DOUBLE: Final = 11
_NAMES: Final = [
    "UNDEFINED",
    "FLOAT",
    "UINT8",
    "INT8",
    "UINT16",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "BOOL",
    "FLOAT16",
    "DOUBLE",
    "UINT32",
    "UINT64",
    "COMPLEX64",
    "COMPLEX128",
    "BFLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ",
    "UINT4",
    "INT4",
    "FLOAT4E2M1",
    "FLOAT8E8M0",
    "UINT2",
    "INT2",
]


def type_name(elem_type: int) -> str:
    """The name that ONNX has for an element type."""
    return _NAMES[elem_type] if 0 <= elem_type < len(_NAMES) else f"type {elem_type}"


def dtype_of(elem_type: int, what: str) -> DataType:
    """The type of TensorRT for one of ONNX.

    Raises:
        Unsupported: TensorRT has no such type.
    """
    found = TYPES.get(elem_type)
    if found is None:
        raise Unsupported(
            f"{what} has type {type_name(elem_type)}, which TensorRT has not; cast it in the model",
            ErrorCode.UNSUPPORTED_NODE_DATATYPE,
        )
    return found


@dataclass(eq=False)
class Initializer:
    """A constant of a model that no layer holds yet.

    Attributes:
        name: Its name; weights that a layer takes from it have that name for refits.
        shape: Its extents.
        elem_type: Its type, a number of ``TensorProto.DataType``.
        array: Its elements, of the shape; those of 4 bits one per element.
        packed: The bytes of 4-bit elements as weights hold them.
    """

    name: str
    shape: tuple[int, ...]
    elem_type: int
    array: np.ndarray[Any, Any]
    _weights: Weights | None = field(default=None, repr=False)

    @property
    def dtype(self) -> DataType:
        """The type that its tensor has in a network; doubles are narrowed to floats.

        Raises:
            Unsupported: TensorRT has no such type.
        """
        if self.elem_type == DOUBLE:
            return DataType.FLOAT
        return dtype_of(self.elem_type, f"the constant {self.name!r}")

    def weights(self) -> Weights:
        """Its elements as weights, the same object each time.

        Raises:
            Unsupported: TensorRT has no such type.
        """
        if self._weights is None:
            self._weights = as_weights_of(self.array, self.dtype)
        return self._weights

    def numbers(self) -> list[Any]:
        """The elements as Python numbers, row by row."""
        flat = self.array.reshape(-1)
        if flat.dtype.kind == "V" or flat.dtype not in FROM_NUMPY:
            flat = flat.astype(np.float64 if flat.dtype.kind not in "iub" else np.int64)
        return flat.tolist()


def from_array(array: np.ndarray[Any, Any], name: str = "") -> Initializer:
    """A constant of the parser's own, of one of the types that numpy has too."""
    numbers = {np.dtype(np.float64): DOUBLE}
    for number, dtype in TYPES.items():
        numbers.update({kind: number for kind, known in FROM_NUMPY.items() if known is dtype})
    return Initializer(name, tuple(array.shape), numbers[array.dtype], array)


def as_weights_of(array: np.ndarray[Any, Any], dtype: DataType) -> Weights:
    """The elements of an array as weights of a type; bool and uint8 as weights cannot be."""
    if dtype in PACKED:
        nibbles = np.zeros(array.size + array.size % 2, np.uint8)
        nibbles[: array.size] = array.reshape(-1).view(np.uint8) & 0xF
        flat = nibbles[::2] | nibbles[1::2] << 4
    elif dtype is DataType.FLOAT and array.dtype == np.float64:
        with np.errstate(over="ignore"):
            flat = array.astype(np.float32)
    else:
        flat = np.ascontiguousarray(array)
        if FROM_NUMPY.get(flat.dtype) is dtype:
            return Weights(flat)
    made = Weights(dtype, flat.ctypes.data if array.size else 0, array.size) if array.size else Weights(dtype)
    made._owner = flat
    return made


def read_initializer(proto: TensorProto, folder: Path | None, given: Mapping[str, bytes | memoryview]) -> Initializer:
    """Reads a constant from a model or a file beside it.

    Args:
        proto: As the model holds it.
        folder: The folder of the model; None where the model has none, so that no file can be read.
        given: Bytes of constants that the application loaded itself, by name.

    Raises:
        Unsupported: It is broken, or its bytes are not where a model may have them.
    """
    shape = tuple(proto.dims)
    if any(extent < 0 for extent in shape) or len(shape) > 64:
        raise Unsupported(f"the constant {proto.name!r} has extents {list(shape)[:9]}", ErrorCode.INVALID_VALUE)
    if proto.data_type == 8 or not 0 < proto.data_type < len(_NAMES):
        raise Unsupported(
            f"the constant {proto.name!r} has type {type_name(proto.data_type)}", ErrorCode.UNSUPPORTED_NODE_DATATYPE
        )
    count = math.prod(shape)
    if proto.name in given:
        array = _from_bytes(given[proto.name], proto, count)
    elif proto.data_location == proto.EXTERNAL:
        array = _from_bytes(_external_bytes(proto, folder, _byte_count(proto, count)), proto, count)
    else:
        array = _own_elements(proto, count)
    return Initializer(proto.name, shape, proto.data_type, array.reshape(shape))


def _own_elements(proto: TensorProto, count: int) -> np.ndarray[Any, Any]:
    from onnx import numpy_helper

    if proto.HasField("raw_data"):
        return _from_bytes(proto.raw_data, proto, count)
    try:
        array = numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise Unsupported(f"the constant {proto.name!r} is broken: {error}", ErrorCode.INVALID_VALUE) from error
    return np.asarray(array)


def _from_bytes(data: bytes | memoryview, proto: TensorProto, count: int) -> np.ndarray[Any, Any]:
    dtype, packed, expected = _dtype_of(proto), _PACKED_BITS.get(type_name(proto.data_type)), _byte_count(proto, count)
    if len(data) != expected:
        raise Unsupported(
            f"the constant {proto.name!r} has {len(data)} bytes; {count} elements of type "
            f"{type_name(proto.data_type)} are {expected}",
            ErrorCode.INVALID_VALUE,
        )
    if packed is None:
        return np.frombuffer(data, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False)
    if packed != 4:
        raise Unsupported(f"the constant {proto.name!r} has type {type_name(proto.data_type)}")
    whole = np.frombuffer(data, dtype=np.uint8)
    nibbles = np.stack((whole & 0xF, whole >> 4), axis=-1).reshape(-1)[:count]
    if type_name(proto.data_type) == "INT4":
        nibbles = ((nibbles ^ 8).astype(np.int8) - 8).view(np.uint8)
    return nibbles.view(np.int8).astype(dtype) if type_name(proto.data_type) == "INT4" else nibbles.view(dtype)


_PACKED_BITS: Final = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}


def _dtype_of(proto: TensorProto) -> np.dtype[Any]:
    import onnx

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(proto.data_type))


def _byte_count(proto: TensorProto, count: int) -> int:
    """How many bytes a constant of so many elements is."""
    packed = _PACKED_BITS.get(type_name(proto.data_type))
    return -(-count * packed // 8) if packed else count * _dtype_of(proto).itemsize


def _external_bytes(proto: TensorProto, folder: Path | None, expected: int) -> bytes:
    """The bytes of a constant in a file of the model's folder, which must be a regular one and have that many."""
    name = proto.name
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise Unsupported(
            f"the constant {name!r} is in the file {location!r}, but the model has no folder: give `path`, or "
            "use parse_from_file",
            ErrorCode.INVALID_VALUE,
        )
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", "-1"))
        root = folder.resolve(strict=True)
        path = (root / location).resolve(strict=True)
    except (ValueError, OSError) as error:
        raise Unsupported(
            f"the file of the constant {name!r} cannot be read: {error}", ErrorCode.INVALID_VALUE
        ) from error
    if not location or os.path.isabs(location) or not path.is_relative_to(root):
        raise Unsupported(
            f"the constant {name!r} is in {location!r}, outside of the model's folder", ErrorCode.INVALID_VALUE
        )
    try:
        return _read_part(path, offset, length, proto, location, expected)
    except OSError as error:
        raise Unsupported(
            f"the file {location!r} of the constant {name!r} cannot be read: {error}", ErrorCode.INVALID_VALUE
        ) from error


def _read_part(path: Path, offset: int, length: int, proto: TensorProto, location: str, expected: int) -> bytes:
    name = proto.name
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = size - offset if length < 0 else length
        if offset < 0 or length < 0 or offset + length > size:
            raise Unsupported(
                f"the constant {name!r} is {length} bytes at {offset} of {location!r}, which has {size}",
                ErrorCode.INVALID_VALUE,
            )
        if length != expected:  # a file of holes may be of any size
            raise Unsupported(
                f"the constant {name!r} is {length} bytes of {location!r}, and its elements are {expected}",
                ErrorCode.INVALID_VALUE,
            )
        file.seek(offset)
        return file.read(length)


def bytes_of(weights: Weights) -> int:
    """The bytes that weights have in memory."""
    return storage_bytes(weights.dtype, weights.size)
