"""What runs PyTorch's tracers: one thread at a time, and with errors of ours."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from trt_core import LoweringError, TrtError
from trt_core.device import on_host
from trt_core.paused_collection import paused_collection

P = ParamSpec("P")
R = TypeVar("R")


def tracing_lock() -> contextlib.AbstractContextManager[object]:
    """Returns the lock that is held while PyTorch captures or traces; a thread may take it again.

    `torch.export` and `make_fx` keep what they do in globals, and patch the call of every module. Dynamo holds this
    lock while it compiles, so that taking it covers `torch.compile` as well.
    """
    from trt_core.internals import compile_lock  # costly to import

    return compile_lock


def traces(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function hold the `tracing_lock`, and turns what it does not expect into a `LoweringError`.

    The caller's default device does not reach into it: constants that passes make are the host's.

    Args:
        what: What fails when it fails, as a sentence.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with tracing_lock(), paused_collection(), on_host():
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
