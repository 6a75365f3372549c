"""The logger of the whole stack, and silence for those of others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

logger = logging.getLogger("torch_tensorrt")
"""Its name is the one that users' scripts already configure."""


@contextlib.contextmanager
def unlogged(name: str) -> Iterator[None]:
    """Keeps another logger from saying what is an answer here, and no fault.

    Args:
        name: The logger's.
    """

    def drop(record: logging.LogRecord) -> bool:
        return False

    other = logging.getLogger(name)
    other.addFilter(drop)
    try:
        yield
    finally:
        other.removeFilter(drop)
