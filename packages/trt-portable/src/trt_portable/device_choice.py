"""Which device engines run on, and CUDA streams by handle.

An engine belongs to one device, chosen when it is deserialized or built: the innermost ``device(...)``
block of the thread, else what `set_device` said, else the current CUDA device, else the CPU.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes

import torch

from trt_core.device import driver
from trt_core.temporary import with_value

_process_device: torch.device | None = None
_scoped_device: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar(
    "trt_portable_device", default=None
)
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}


def _parse(device: str | torch.device) -> torch.device:
    parsed = torch.device(device)
    if parsed.type not in ("cpu", "cuda"):
        raise ValueError(f"engines run on 'cpu' or 'cuda:n', not on {str(device)!r}")
    return parsed


def set_device(device: str | torch.device | None) -> None:
    """Chooses the device of engines deserialized from now on, process-wide; None restores the default.

    Raises:
        ValueError: Neither a CPU nor a CUDA device.
    """
    global _process_device
    _process_device = None if device is None else _parse(device)


def device(device: str | torch.device) -> contextlib.AbstractContextManager[torch.device]:
    """Chooses the device of engines deserialized inside a ``with`` block of this thread.

    Raises:
        ValueError: Neither a CPU nor a CUDA device.
    """
    return with_value(_scoped_device, _parse(device))


def current_device() -> torch.device:
    """The device on which an engine deserialized here and now will run, with its index."""
    chosen = _scoped_device.get() or _process_device
    if chosen is None:
        chosen = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    return chosen


def external_stream(handle: int, device: torch.device) -> torch.cuda.Stream:
    """The stream object of a raw CUDA stream handle; 0 is the default stream."""
    key = (handle, device.index)
    stream = _streams.get(key)
    if stream is None:
        stream = torch.cuda.default_stream(device) if handle == 0 else torch.cuda.ExternalStream(handle, device=device)
        _streams[key] = stream
    return stream


def record_event(event: int, stream: int) -> None:
    """Records a raw CUDA event on a raw stream.

    Raises:
        RuntimeError: The driver refused.
    """
    code = driver().cuEventRecord(ctypes.c_void_p(event), ctypes.c_void_p(stream))
    if code:
        raise RuntimeError(f"cuEventRecord failed with driver error {code}")
