"""Reading and writing engines in pieces: `IStreamReaderV2` and `IStreamWriter` of the application."""

from __future__ import annotations

from typing import Any, Final

from trt_portable.enums import SeekPosition
from trt_portable.logger import report_callback_failure

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


def write_all(writer: IStreamWriter, data: bytearray) -> bool:
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
