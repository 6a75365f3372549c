"""One input or output of an execution context: its shape, its address, and the memory as a tensor."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from trt_core.remembered import Remembered
from trt_portable.enums import ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.formats import LAYOUTS, memory_bytes
from trt_portable.memory import AddressWindow
from trt_portable.plan.engine_info import IOTensor, Shape
from trt_portable.shape_tensors import HostValues, Value, as_tensor

_CPU: Final = torch.device("cpu")
_MOVED_BYTES: Final = 64 << 10  # above this, PyTorch's copies on several threads win


class Binding:
    """The state that a context keeps for one tensor.

    Attributes:
        tensor: What the engine knows of it.
        device: Where its memory lies: the host for shape tensors, else the engine's device.
        is_cuda: Whether that is CUDA memory.
        shape: Extents of an input, None until a dynamic one is set; of an output, those that were announced, None where
            they depend on data.
        room: Bytes at the address of an output whose extents depend on data; None where nothing bounds them.
        is_packed: Whether the memory is laid out otherwise than LINEAR, so that layers work on a copy.
        address: Bound memory, 0 when there is none.
        allowed: Extents that passed the checks of a profile, with the profile's index.
    """

    __slots__ = (
        *("_dtype", "_engine_device", "_layout", "_linear", "_value", "_value_address", "_value_shape", "_window"),
        *("address", "allowed", "device", "is_cuda", "is_packed", "room", "shape", "tensor"),
    )

    def __init__(self, tensor: IOTensor, device: torch.device) -> None:
        self.tensor = tensor
        self.device = _CPU if tensor.is_host else device
        self.is_cuda = self.device.type == "cuda"
        self.shape: Shape | None = None
        self.room: int | None = None
        self.address = 0
        self.allowed: Remembered[tuple[int, Shape], None] = Remembered()
        self._layout = LAYOUTS.get(tensor.format)
        self.is_packed = self._layout is not None
        self._linear: torch.Tensor | None = None
        self._engine_device = device
        self._dtype = tensor.torch_dtype
        self._window = AddressWindow(tensor.torch_dtype, self.device)
        self._value: torch.Tensor | None = None
        self._value_address = 0
        self._value_shape: Shape | None = None

    def input_value(self) -> Value:
        """The bound memory of an input in its present shape; its extents alone when nothing is bound."""
        shape = self.shape or ()
        if not self.address:
            return torch.zeros((), dtype=self.tensor.torch_dtype, device=self.device).expand(shape)
        if self._layout is None:
            return self._wrap(shape)
        if self._linear is None or self._linear.shape != shape:
            self._linear = torch.empty(shape, dtype=self._dtype, device=self.device)
        return self._linear

    def unpack(self) -> None:
        """Copies the bound memory of a packed input to its `input_value`; before every run, on its stream."""
        if self._layout is not None and self._linear is not None and self.address:
            self._layout.unpack(self._wrap(self._layout.memory_shape(self._linear.shape)), self._linear)

    def read_numbers(self) -> HostValues:
        """The numbers of a host input as they are now."""
        memory = self._wrap(self.shape or ())
        numbers = memory.reshape(-1).tolist()
        return HostValues.of(numbers, tuple(memory.shape), memory.dtype, self._engine_device)

    def target(self) -> torch.Tensor | None:
        """The bound memory of an output, if layers may write to it: dense, and of announced extents."""
        if self._layout is not None or self.shape is None or not self.address:
            return None
        return self._wrap(self.shape)

    def write(self, value: Value) -> None:
        """Copies an output to the bound memory, which was provided for the announced extents; the memory itself stays.

        Raises:
            Refusal: The layers made another number of elements than the engine announced.
        """
        if value is self._value and self._value_address == self.address:
            return  # it was written in place
        tensor = value if isinstance(value, torch.Tensor) else as_tensor(value)
        if self.tensor.aliased_input is not None and tensor.data_ptr() == self.address:
            return  # so was an input
        if tensor.shape != self.shape and (self.shape is not None or self.room is not None):
            self._check_room(tensor)
        if self._layout is not None:
            self._layout.pack(tensor, self._wrap(self._layout.memory_shape(tensor.shape)))
            return
        if not self.is_cuda and tensor.is_cpu and tensor.dtype is self._dtype and tensor.is_contiguous():
            size = tensor.nbytes
            if 0 < size <= _MOVED_BYTES:
                ctypes.memmove(self.address, tensor.data_ptr(), size)
                return
        self._wrap(tensor.shape).copy_(tensor, non_blocking=True)

    def _check_room(self, tensor: torch.Tensor) -> None:
        size = self.bytes_of(tuple(tensor.shape))
        if self.shape is not None or (self.room is not None and size > self.room):
            announced = f"the extents {self.shape}" if self.shape is not None else f"at most {self.room} bytes"
            raise Refusal(
                f"output {self.tensor.name!r} has the extents {tuple(tensor.shape)}, the engine announced {announced}",
                ErrorCodeTRT.FAILED_EXECUTION,
            )

    def bytes_of(self, shape: Shape) -> int:
        """Bytes of the memory that a tensor of given extents needs, padding included."""
        return memory_bytes(shape, self.tensor.format, self._dtype)

    def shares_memory_with(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a view of the bound memory."""
        return bool(self.address) and tensor.untyped_storage().data_ptr() == self.address

    def _wrap(self, shape: Shape) -> torch.Tensor:
        """The bound memory as a tensor of the given extents; the last one is remembered."""
        value = self._value
        if value is None or self._value_address != self.address or self._value_shape != shape:
            value = self._value = self._window.at(self.address, shape)
            self._value_address, self._value_shape = self.address, shape
        return value
