"""What `debug` shows of a compilation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from trt_core import CompilationSettings, logger


@contextlib.contextmanager
def visible_log(settings: CompilationSettings) -> Iterator[None]:
    """With `debug`, shows the log of the compilation on stderr, also where logging was never set up."""
    if not settings.debug:
        yield
        return
    level = logger.level
    handler = None if logger.hasHandlers() else logging.StreamHandler()
    if handler is not None:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)
