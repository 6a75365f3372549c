"""Errors of the portable provider, and the switch that turns refusals into exceptions.

TensorRT reports what it refuses through its logger and answers with ``None``, ``False`` or ``-1``.
That is the default here too. In strict mode the same refusals are raised as `NetworkError`.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import torch

from trt_core.errors import TrtError
from trt_core.temporary import with_value
from trt_portable.enums import ErrorCodeTRT

STRICT_VARIABLE: Final = "TRT_PORTABLE_STRICT"
T = TypeVar("T")


def present(value: T | None) -> T:
    """What is there, as what a layer was held to when it was added; that it is not would be a fault of this package."""
    assert value is not None
    return value


def optional(values: Sequence[T], place: int) -> T | None:
    """One of some operands, of which the last ones may be missing."""
    return values[place] if place < len(values) else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the host has no memory left; PyTorch has no type for the latter."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class PortableError(TrtError):
    """Base of every error that this package defines."""


class Refusal(PortableError):
    """A rule that an operation broke; raised inside, reported or turned into `NetworkError` at the API.

    Args:
        rule: One sentence that says which rule was broken and by what (shapes, dtypes, values).
        code: The TensorRT error code under which the refusal is reported.
    """

    def __init__(self, rule: str, code: ErrorCodeTRT = ErrorCodeTRT.INVALID_ARGUMENT) -> None:
        super().__init__(rule)
        self.rule = rule
        self.code = code


class UnknownExtents(Refusal):
    """Extents depend on data, where there are shapes alone."""


class NetworkError(PortableError):
    """A refusal, raised because strict mode is on.

    Args:
        subject: Name of the layer, tensor or operation that was refused.
        rule: The rule that it broke.
        code: The TensorRT error code of the refusal.
    """

    def __init__(self, subject: str, rule: str, code: ErrorCodeTRT = ErrorCodeTRT.INVALID_ARGUMENT) -> None:
        super().__init__(f"{subject}: {rule}" if subject else rule)
        self.subject = subject
        self.rule = rule
        self.code = code


_process_strict: bool = os.environ.get(STRICT_VARIABLE, "").lower() in {"1", "true", "yes", "on"}
_scoped_strict: contextvars.ContextVar[bool | None] = contextvars.ContextVar("trt_portable_strict", default=None)


def set_strict(enabled: bool = True) -> None:
    """Turns strict mode on or off for the whole process (initially ``TRT_PORTABLE_STRICT``)."""
    global _process_strict
    _process_strict = bool(enabled)


def is_strict() -> bool:
    """Whether a refusal is raised here and now; a `strict` block wins over `set_strict`."""
    scoped = _scoped_strict.get()
    return _process_strict if scoped is None else scoped


@contextlib.contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """Turns strict mode on (or off) inside a ``with`` block, for the current thread only."""
    with with_value(_scoped_strict, bool(enabled)):
        yield
