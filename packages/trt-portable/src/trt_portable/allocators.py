"""Memory callbacks: GPU allocators of the application, and allocators of data-dependent outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_portable.logger import report_callback_failure
from trt_portable.versioned_interface import IVersionedInterface

if TYPE_CHECKING:
    from trt_portable.dims import Dims


class IGpuAllocator(IVersionedInterface):
    """Interface of a synchronous memory source; kept where set, PyTorch's allocator does the work."""

    def __init__(self) -> None:
        pass

    def allocate(self, size: int, alignment: int, flags: int) -> int:
        """Returns the address of new memory, 0 on failure."""
        raise NotImplementedError("a subclass of IGpuAllocator must define allocate()")

    def deallocate(self, memory: int) -> bool:
        """Frees memory that `allocate` returned."""
        raise NotImplementedError("a subclass of IGpuAllocator must define deallocate()")

    def reallocate(self, address: int, alignment: int, new_size: int) -> int:
        """Grows memory; 0 when that is not possible, which is the default."""
        return 0

    def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
        """As `allocate`, ordered on a stream."""
        return self.allocate(size, alignment, flags)

    def deallocate_async(self, memory: int, stream: int) -> bool:
        """As `deallocate`, ordered on a stream."""
        return self.deallocate(memory)


class IGpuAsyncAllocator(IGpuAllocator):
    """Interface of a stream-ordered memory source; define `allocate_async` and `deallocate_async`."""

    def __init__(self) -> None:
        super().__init__()

    def allocate(self, size: int, alignment: int, flags: int) -> int:
        """As `allocate_async` on the default stream."""
        return self.allocate_async(size, alignment, flags, 0)

    def deallocate(self, memory: int) -> bool:
        """As `deallocate_async` on the default stream."""
        return self.deallocate_async(memory, 0)

    def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
        """Returns the address of new memory, 0 on failure."""
        raise NotImplementedError("a subclass of IGpuAsyncAllocator must define allocate_async()")

    def deallocate_async(self, memory: int, stream: int) -> bool:
        """Frees memory once the stream got there."""
        raise NotImplementedError("a subclass of IGpuAsyncAllocator must define deallocate_async()")


class IOutputAllocator:
    """Interface that provides memory for an output whose size is known only while it is computed.

    A subclass calls ``IOutputAllocator.__init__`` and defines ``notify_shape(tensor_name, shape)`` and
    ``reallocate_output_async(tensor_name, memory, size, alignment, stream)``, or, without the stream,
    ``reallocate_output``. Both answer with an address; 0 or None means failure.
    """

    def __init__(self) -> None:
        pass


def request_output(allocator: IOutputAllocator, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
    """Asks an output allocator for memory.

    Args:
        allocator: The application's object.
        name: The output.
        memory: Address bound so far, or 0.
        size: Bytes needed, at least 1.
        alignment: Bytes.
        stream: Handle of the stream on which the output is computed.

    Returns:
        An address; 0 when the allocator failed, raised, or answered None.
    """
    try:
        reallocate_async = getattr(allocator, "reallocate_output_async", None)
        if reallocate_async is not None:
            return int(reallocate_async(name, memory, size, alignment, stream) or 0)
        reallocate = allocator.reallocate_output  # type: ignore[attr-defined]
        return int(reallocate(name, memory, size, alignment) or 0)
    except Exception as error:
        report_callback_failure("reallocate_output_async()", error)
        return 0


def notify_shape(allocator: IOutputAllocator, name: str, shape: Dims) -> None:
    """Tells an output allocator the shape of its output; what it raises is reported and dropped."""
    try:
        allocator.notify_shape(name, shape)  # type: ignore[attr-defined]
    except Exception as error:
        report_callback_failure("notify_shape()", error)
