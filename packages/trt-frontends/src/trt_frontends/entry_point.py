"""What every function that users call promises.

Arguments are of the kinds that it takes, exceptions out of it are ours, and autocast does not reach into it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from trt_core import InternalError, TrtError
from trt_core.device import autocast_types, without_autocast
from trt_core.dtypes import dtype_name
from trt_core.held_arguments import held_to_signature
from trt_core.settings_reader import warn_caller

P = ParamSpec("P")
R = TypeVar("R")


def entry_point(function: Callable[P, R]) -> Callable[P, R]:
    """Turns an exception that nothing has expected into an `InternalError` that keeps it as its cause.

    Errors of ours, of the file system, and warnings that were made errors pass as they are. See `outside_autocast` for
    what else is promised.
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

    return outside_autocast(run)


def outside_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Has a function capture and run models outside of the caller's `torch.autocast`, and holds its arguments.

    `torch.export` notes the types that autocast makes, and no casts: such a program computes in other types than it
    says. What is to compute in a reduced type is said by a setting, which holds wherever the compiled model is called.

    Warns:
        UserWarning: There is an autocast, and no setting for it.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        found = autocast_types()
        if not found:
            return function(*args, **kwargs)
        if not any(kwargs.get(name) is not None for name in ("enable_autocast", "precision", "settings")):
            name = dtype_name(found[0])
            warn_caller(
                f"torch.autocast is on, and {function.__name__} works outside of it: models are compiled in their own "
                f"types. Give enable_autocast=True, autocast_dtype=torch.{name} to compute in {name} where "
                "autocast does"
            )
        with without_autocast("cpu", "cuda"):
            return function(*args, **kwargs)

    return held_to_signature(run)
