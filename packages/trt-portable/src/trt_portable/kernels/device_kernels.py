"""Machine code on a CUDA device: loading it, and starting it, through the driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import torch

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
        self._launch = library.cuLaunchKernelEx

    def __del__(self) -> None:
        if getattr(self, "_module", None):
            driver().cuModuleUnload(self._module)

    def launch(self, grid: Sequence[int], arguments: Sequence[Any], stream: int, *, is_early: bool = False) -> None:
        """Starts the kernel.

        Args:
            grid: Three extents, in blocks.
            arguments: A tensor, an address or a number per parameter.
            stream: Handle of the stream.
            is_early: Start while the kernel before it ends, for which this one waits by itself.

        Raises:
            KernelError: The driver refused.
        """
        values = [
            kind(argument.data_ptr() if isinstance(argument, torch.Tensor) else argument)
            for kind, argument in zip(self._kinds, arguments, strict=True)
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attributes, block = _EARLY if is_early else None, (self._threads, 1, 1)
        configuration = _Configuration(tuple(grid), block, self._shared_bytes, stream, attributes, int(is_early))
        code = self._launch(ctypes.byref(configuration), self._function, pointers, None)
        _check("cuLaunchKernelEx", code)
