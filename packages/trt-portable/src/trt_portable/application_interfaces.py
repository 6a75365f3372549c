"""Interfaces that applications implement: allocators of memory and of outputs, readers and writers of engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trt_portable.enums import APILanguage, SeekPosition
from trt_portable.reporting import report_callback_failure

if TYPE_CHECKING:
    from trt_portable.dims import Dims
    from trt_portable.memory import IHostMemory


@dataclass(frozen=True)
class InterfaceInfo:
    """Kind and version of an interface.

    Attributes:
        kind: What the interface is.
        major: Rises with changes that break implementations.
        minor: Rises with additions.
    """

    kind: str
    major: int
    minor: int


class IVersionedInterface:
    """An interface that tells its version."""

    _INTERFACE: ClassVar[tuple[str, int, int]] = ("", 1, 0)
    """Kind, major and minor version."""

    @property
    def api_language(self) -> APILanguage:
        """The language of the implementation."""
        return APILanguage.PYTHON

    @property
    def interface_info(self) -> InterfaceInfo:
        """Kind and version."""
        return InterfaceInfo(*self._INTERFACE)


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


_CHUNK_BYTES: Final = 16 << 20


class IStreamReaderV2:
    """Interface of a source of bytes; subclass it, call ``IStreamReaderV2.__init__``."""

    def __init__(self) -> None:
        pass

    def read(self, num_bytes: int, stream: int) -> Any:
        """Returns at most `num_bytes` bytes; nothing at the end."""
        raise NotImplementedError("a subclass of IStreamReaderV2 must define read()")

    def seek(self, offset: int, where: SeekPosition) -> bool:
        """Moves the position; False when that is not possible."""
        raise NotImplementedError("a subclass of IStreamReaderV2 must define seek()")


class IStreamWriter:
    """Interface of a sink of bytes; subclass it, call ``IStreamWriter.__init__``."""

    def __init__(self) -> None:
        pass

    def write(self, data: bytes) -> int:
        """Takes bytes and returns how many were taken; fewer than given stops the writing."""
        raise NotImplementedError("a subclass of IStreamWriter must define write()")


def read_all(reader: IStreamReaderV2) -> bytes:
    """Reads a stream to its end; what was read so far when the reader fails."""
    chunks = []
    while True:
        try:
            chunk = bytes(reader.read(_CHUNK_BYTES, 0) or b"")
        except Exception as error:
            report_callback_failure("read()", error)
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def write_all(writer: IStreamWriter, data: IHostMemory) -> bool:
    """Writes bytes in chunks; False as soon as the writer takes fewer than it was given."""
    view = memoryview(data)
    for begin in range(0, len(view), _CHUNK_BYTES):
        chunk = bytes(view[begin : begin + _CHUNK_BYTES])
        try:
            taken = int(writer.write(chunk))
        except Exception as error:
            report_callback_failure("write()", error)
            return False
        if taken < len(chunk):
            return False
    return True
