"""What runs PyTorch's tracers: one thread at a time, and with errors of ours."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from trt_core import LoweringError, TrtError

P = ParamSpec("P")
R = TypeVar("R")

TRACING: Final = threading.RLock()
"""Held while PyTorch captures or traces: `torch.export` and `make_fx` keep what they do in module globals."""


def traces(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function hold `TRACING`, and turns what it does not expect into a `LoweringError`.

    Args:
        what: What fails when it fails, as a sentence.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with TRACING:
                try:
                    return function(*args, **kwargs)
                except (TrtError, Warning):
                    raise
                except Exception as error:  # PyTorch's tracers fail in many ways, with many types
                    raise LoweringError(
                        what,
                        why=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0] or 'no message'}",
                        hint="see the error that this one was raised from; leave out or rewrite what it names",
                    ) from error

        return run

    return decorate
