"""What every function that users call promises: an exception out of it is one of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from trt_core import InternalError, TrtError

P = ParamSpec("P")
R = TypeVar("R")


def entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """Turns an exception that nothing has expected into an `InternalError` that keeps it as its cause.

    Errors of ours, of the file system, and warnings that were made errors pass as they are.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (TrtError, OSError, Warning):
            raise
        except Exception as error:
            raise InternalError(
                f"{function.__name__.lstrip('_')} failed on this model",
                why=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0] or 'no message'}",
                hint="this is a defect: report it with the model, and with the error that this one was raised from",
            ) from error

    return run
