"""Machine code on a CUDA device: loading it, and starting it, through the driver."""

from __future__ import annotations

import ctypes
import functools
import itertools
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

    @property
    def handle(self) -> int:
        """The driver's handle of the function."""
        return self._function.value or 0

    def bits(self, numbers: Sequence[Any]) -> list[int]:
        """Parameters as the driver reads them, eight bytes each; a number of fewer is in the first of them."""
        pairs = zip(self._kinds, numbers, strict=True)
        return [int.from_bytes(bytes(kind(number)), "little") for kind, number in pairs]

    def configuration(self, grid: Sequence[int], *, is_early: bool) -> _Configuration:
        """How the driver is to start it, on the default stream.

        Args:
            grid: Three extents, in blocks.
            is_early: Start while the kernel before it ends, for which this one waits by itself.
        """
        attributes, block = _EARLY if is_early else None, (self._threads, 1, 1)
        return _Configuration(tuple(grid), block, self._shared_bytes, None, attributes, int(is_early))


class Launches:
    """Launches of kernels, whose parameters stay where the driver reads them. One thread at a time starts them.

    Args:
        calls: A kernel, its grid, a number per parameter (any in place of an address that is set before it starts), and
            whether it may start while the kernel before it ends.

    Attributes:
        values: The parameters of all of them, one after the other.
    """

    def __init__(self, calls: Sequence[tuple[DeviceKernel, Sequence[int], Sequence[Any], bool]]) -> None:
        self._kernels = [kernel for kernel, *_ in calls]  # live as long
        bits = [kernel.bits(numbers) for kernel, _, numbers, _ in calls]
        self.values = (ctypes.c_uint64 * sum(map(len, bits)))(*itertools.chain.from_iterable(bits))
        first, size = ctypes.addressof(self.values), ctypes.sizeof(ctypes.c_uint64)
        self._pointers = (ctypes.c_void_p * len(self.values))(*range(first, first + ctypes.sizeof(self.values), size))
        self._configurations = (_Configuration * len(calls))(
            *(kernel.configuration(grid, is_early=is_early) for kernel, grid, _, is_early in calls)
        )
        self._arguments: list[tuple[int, int, int, None]] = []
        configuration, pointer = ctypes.addressof(self._configurations), ctypes.addressof(self._pointers)
        for kernel, own in zip(self._kernels, bits, strict=True):
            self._arguments.append((configuration, kernel.handle, pointer, None))
            configuration += ctypes.sizeof(_Configuration)
            pointer += len(own) * ctypes.sizeof(ctypes.c_void_p)
        self._start = _start_of_kernels() if calls else None
        self._stream = 0

    @property
    def stream(self) -> int:
        """Handle of the stream that they start on."""
        return self._stream

    @stream.setter
    def stream(self, handle: int) -> None:
        if handle != self._stream:
            self._stream = handle
            for configuration in self._configurations:
                configuration.stream = handle

    def start(self, at: int) -> None:
        """Starts one of them with the parameters that are set.

        Raises:
            KernelError: The driver refused.
        """
        if code := self._start(*self._arguments[at]):  # type: ignore[misc]
            _check("cuLaunchKernelEx", code)


@functools.cache
def _start_of_kernels() -> Any:
    """The driver's function, which takes addresses as plain numbers."""
    function = driver()["cuLaunchKernelEx"]
    function.argtypes = [ctypes.c_void_p] * 4
    return function
