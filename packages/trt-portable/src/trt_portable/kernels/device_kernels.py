"""Machine code on a CUDA device: loading it, and starting it, through the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

from trt_core.device import driver
from trt_portable.errors import PortableError

_WARP: Final = 32
_MAX_DYNAMIC_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PLAIN_SHARED_BYTES: Final = 48 << 10
_NUMBERS: Final[dict[str, Any]] = {
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "b": ctypes.c_int8,
    "h": ctypes.c_int16,
    "I": ctypes.c_uint32,
    "B": ctypes.c_uint8,
    "H": ctypes.c_uint16,
    "K": ctypes.c_uint64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}
POINTER: Final = "O"
_MAY_START_EARLY: Final = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: which one, and 64 bytes for its value."""

    _fields_ = (("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_EARLY: Final = ctypes.pointer(_Attribute(_MAY_START_EARLY, 0, (ctypes.c_int * 16)(1)))


class KernelError(PortableError):
    """The CUDA driver refused machine code or a launch."""


def _check(call: str, code: int) -> None:
    if code:
        raise KernelError(f"{call} failed with driver error {code}")


class DeviceKernel:
    """A kernel of a module, loaded on the current CUDA context; unloaded with the object.

    Args:
        image: The module: a cubin.
        name: The kernel's name in it.
        types: A letter per parameter: "O" for a pointer, else a number's type as in `_NUMBERS`.
        warps: Warps per block.
        shared_bytes: Dynamic shared memory per block.

    Raises:
        KernelError: The driver does not take the module.
    """

    def __init__(self, image: bytes, name: str, types: str, warps: int, shared_bytes: int) -> None:
        library = driver()
        self._module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        self._kinds = [ctypes.c_uint64 if kind == POINTER else _NUMBERS[kind] for kind in types]
        self._threads = warps * _WARP
        self._shared_bytes = shared_bytes
        _check("cuModuleLoadData", library.cuModuleLoadData(ctypes.byref(self._module), image))
        code = library.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(f"cuModuleGetFunction({name!r})", code)
        if shared_bytes > _PLAIN_SHARED_BYTES:
            _check("cuFuncSetAttribute", library.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED, shared_bytes))

    def __del__(self) -> None:
        if getattr(self, "_module", None):
            driver().cuModuleUnload(self._module)

    def prepare(self, grid: Sequence[int], numbers: Sequence[Any], is_early: bool = False) -> Launch:
        """A launch that is started any number of times, one at a time.

        Args:
            grid: Three extents, in blocks.
            numbers: One per parameter; anything for a tensor's address, which is set before the launch starts.
            is_early: Start while the kernel before it ends, for which this one waits by itself.
        """
        bits = [
            int.from_bytes(bytes(kind(number)), "little") for kind, number in zip(self._kinds, numbers, strict=True)
        ]
        block = (self._threads, 1, 1)
        configuration = _Configuration(
            tuple(grid), block, self._shared_bytes, None, _EARLY if is_early else None, int(is_early)
        )
        return Launch(self, self._function, configuration, bits)


class Launch:
    """A kernel with its grid and the memory of its parameters.

    Attributes:
        values: Eight bytes per parameter; a number of fewer is in the first of them.
    """

    def __init__(
        self, kernel: DeviceKernel, function: ctypes.c_void_p, configuration: _Configuration, bits: Sequence[int]
    ) -> None:
        self._kernel = kernel  # lives as long
        self.values = (ctypes.c_uint64 * len(bits))(*bits)
        first = ctypes.addressof(self.values)
        pointers = (ctypes.c_void_p * len(bits))(*(first + 8 * at for at in range(len(bits))))
        self._configuration = configuration
        self._arguments = (ctypes.byref(configuration), function, pointers, None)
        self._start = driver().cuLaunchKernelEx
        self._stream: int | None = None

    def start(self, stream: int) -> None:
        """Starts the kernel with the parameters that are set.

        Args:
            stream: Handle of the stream.

        Raises:
            KernelError: The driver refused.
        """
        if stream != self._stream:
            self._configuration.stream = self._stream = stream
        if code := self._start(*self._arguments):
            _check("cuLaunchKernelEx", code)
