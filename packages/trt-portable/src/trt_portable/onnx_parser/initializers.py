"""Constants of a model: their types, their bytes, and where these may be read from."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from trt_core.files.folder import Folder
from trt_core.files.opening import opened, require_content
from trt_core.files.typed import part_of
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
UINT8: Final = 2
_HELD_AS: Final[Mapping[int, DataType]] = {DOUBLE: DataType.FLOAT, UINT8: DataType.INT32}
"""Types that no tensor inside of a network has, and which one holds their elements."""
_NAMES: Final = [
    *("UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16"),
    *("DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ"),
    *("FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2"),
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


_MOST_OVERLAP: Final = 4
"""Times that constants may take the bytes of a file, in parts that are not the same."""


@dataclass(eq=False)
class Initializer:
    """A constant of a model that no layer holds yet.

    Attributes:
        name: Its name; weights that a layer takes from it have that name for refits.
        shape: Its extents.
        elem_type: Its type, a number of ``TensorProto.DataType``.
        array: Its elements, of the shape; those of 4 bits one per element.
        same: A constant with the same elements, with which it shares the memory of its weights.
    """

    name: str
    shape: tuple[int, ...]
    elem_type: int
    array: np.ndarray[Any, Any]
    same: Initializer | None = field(default=None, repr=False)
    _stored: np.ndarray[Any, Any] | None = field(default=None, repr=False)
    _weights: Weights | None = field(default=None, repr=False)

    @property
    def dtype(self) -> DataType:
        """The type that its tensor has in a network: doubles are narrowed to floats, uint8 is int32.

        Raises:
            Unsupported: TensorRT has no such type.
        """
        if self.elem_type in _HELD_AS:
            return _HELD_AS[self.elem_type]
        return dtype_of(self.elem_type, f"the constant {self.name!r}")

    def weights(self) -> Weights:
        """Its elements as weights, the same object each time.

        Raises:
            Unsupported: TensorRT has no such type.
        """
        if self._weights is None:
            self._weights = _weights_in(self._as_stored(), self.dtype, self.array.size)
        return self._weights

    def _as_stored(self) -> np.ndarray[Any, Any]:
        if self.same is not None:
            return self.same._as_stored()
        if self._stored is None:
            self._stored = _as_stored(self.array, self.dtype)
        return self._stored

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


def unpacked(packed: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Codes of bytes, the lowest bits first, one behind the other on the last axis."""
    apart = packed.view(np.uint8)[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & (1 << bits) - 1
    return apart.reshape(*packed.shape[:-1], -1)


def as_weights_of(array: np.ndarray[Any, Any], dtype: DataType) -> Weights:
    """The elements of an array as weights of a type; bool and uint8 as weights cannot be."""
    return _weights_in(_as_stored(array, dtype), dtype, array.size)


def _as_stored(array: np.ndarray[Any, Any], dtype: DataType) -> np.ndarray[Any, Any]:
    """The elements of an array as weights of a type hold them: the array's own memory, or a copy."""
    if dtype in PACKED:
        nibbles = np.zeros(array.size + array.size % 2, np.uint8)
        nibbles[: array.size] = array.reshape(-1).view(np.uint8) & 0xF
        return nibbles[::2] | nibbles[1::2] << 4
    if dtype is DataType.FLOAT and array.dtype == np.float64:
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    if dtype is DataType.INT32 and array.dtype == np.uint8:
        return array.astype(np.int32)
    return np.ascontiguousarray(array)


def _weights_in(stored: np.ndarray[Any, Any], dtype: DataType, count: int) -> Weights:
    if dtype not in PACKED and FROM_NUMPY.get(stored.dtype) is dtype:
        return Weights(stored)
    made = Weights(dtype, stored.ctypes.data, count) if count else Weights(dtype)
    made._owner = stored
    return made


class ConstantReader:
    """Reads the constants of one model, from the model or from files beside it; the same bytes are held once.

    Args:
        folder: The folder of the model; None where the model has none, so that no file can be read.
        given: Bytes of constants that the application loaded itself, by name.
    """

    def __init__(self, folder: Path | None = None, given: Mapping[str, bytes | memoryview] | None = None) -> None:
        self._files = None if folder is None else _ExternalData(folder)
        self._given = given or {}
        self._repeated: dict[tuple[int, tuple[int, ...], bytes], Initializer] = {}

    def read(self, proto: TensorProto, *, is_repeated: bool = False) -> Initializer:
        """Reads a constant.

        Args:
            proto: As the model holds it.
            is_repeated: Whether it stands in a function, each call of which would hold it again.

        Raises:
            Unsupported: It is broken, or its bytes are not where a model may have them.
        """
        try:
            found = self._read(proto)
        except (MemoryError, OverflowError) as error:
            raise Unsupported(
                f"there is no memory for the constant {proto.name!r} of extents {list(proto.dims)[:9]} and type "
                f"{type_name(proto.data_type)}: parse the model where there is more, if it should have such a constant",
                ErrorCode.MEM_ALLOC_FAILED,
            ) from error
        if not is_repeated:
            return found
        known = self._repeated.setdefault((found.elem_type, found.shape, found.array.tobytes()), found)
        return found if known is found else Initializer(found.name, found.shape, found.elem_type, known.array, known)

    def _read(self, proto: TensorProto) -> Initializer:
        shape, count = _extents_of(proto)
        same = None
        if proto.name in self._given:
            array = _from_bytes(self._given[proto.name], proto, count)
        elif proto.data_location == proto.EXTERNAL:
            if self._files is None:
                location = next((entry.value for entry in proto.external_data if entry.key == "location"), "")
                raise Unsupported(
                    f"the constant {proto.name!r} is in the file {location!r}, but the model has no folder: give "
                    "`path`, or use parse_from_file",
                    ErrorCode.INVALID_VALUE,
                )
            same = self._files.read(proto, count)
            array = same.array
        else:
            array = _own_elements(proto, count)
        return Initializer(proto.name, shape, proto.data_type, array.reshape(shape), same)


def _extents_of(proto: TensorProto) -> tuple[tuple[int, ...], int]:
    """Extents and number of elements.

    Raises:
        Unsupported: Extents or type are none.
    """
    shape = tuple(proto.dims)
    if any(extent < 0 for extent in shape) or len(shape) > 64:
        raise Unsupported(f"the constant {proto.name!r} has extents {list(shape)[:9]}", ErrorCode.INVALID_VALUE)
    if proto.data_type == 8 or not 0 < proto.data_type < len(_NAMES):
        raise Unsupported(
            f"the constant {proto.name!r} has type {type_name(proto.data_type)}", ErrorCode.UNSUPPORTED_NODE_DATATYPE
        )
    return shape, math.prod(shape)


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
    nibbles = unpacked(whole, 4)[:count]
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


class _ExternalData:
    """Constants in files of a model's folder.

    Names may lead through links, which may not lead out of the folder. The same part of a file is read once, however
    many constants name it; parts that overlap may take no more than some times the file.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[tuple[int, int, int, int, int], Initializer] = {}
        self._taken: dict[tuple[int, int], int] = {}

    def read(self, proto: TensorProto, count: int) -> Initializer:
        """Returns the elements of a constant, along one axis.

        Raises:
            Unsupported: Its file is no regular one of the folder, or does not have them.
        """
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        try:
            offset, length = part_of(entries)
            root = self._folder.resolve(strict=True)
            path = (root / location).resolve(strict=True)
            if not location or os.path.isabs(location) or not path.is_relative_to(root):
                raise Unsupported(
                    f"the constant {proto.name!r} is in {location!r}, outside of the model's folder",
                    ErrorCode.INVALID_VALUE,
                )
            with opened(Folder.open(str(root)).file(str(path.relative_to(root)))) as file:
                return self._part(file, offset, length, proto, location, count)
        except (ValueError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise Unsupported(
                f"the file {location!r} of the constant {proto.name!r} cannot be read: {why}", ErrorCode.INVALID_VALUE
            ) from error

    def _part(
        self, file: BinaryIO, offset: int, length: int | None, proto: TensorProto, location: str, count: int
    ) -> Initializer:
        name, expected, found = proto.name, _byte_count(proto, count), os.fstat(file.fileno())
        length = found.st_size - offset if length is None else length
        if length < 0 or offset + length > found.st_size:
            raise Unsupported(
                f"the constant {name!r} is {length} bytes at {offset} of {location!r}, which has {found.st_size}",
                ErrorCode.INVALID_VALUE,
            )
        if length != expected:  # a file of holes may be of any size
            raise Unsupported(
                f"the constant {name!r} is {length} bytes of {location!r}, and its elements are {expected}",
                ErrorCode.INVALID_VALUE,
            )
        place = (found.st_dev, found.st_ino)
        part = (*place, offset, length, proto.data_type)
        if part not in self._parts:
            if place not in self._taken:
                require_content(file)
            self._taken[place] = self._taken.get(place, 0) + length
            if self._taken[place] > _MOST_OVERLAP * found.st_size:
                raise Unsupported(
                    f"constants take more than {_MOST_OVERLAP} times the {found.st_size} bytes of {location!r}",
                    ErrorCode.INVALID_VALUE,
                )
            file.seek(offset)
            elements = _from_bytes(file.read(length), proto, count)
            self._parts[part] = Initializer(name, (count,), proto.data_type, elements)
        return self._parts[part]


def bytes_of(weights: Weights) -> int:
    """The bytes that weights have in memory."""
    return storage_bytes(weights.dtype, weights.size)
