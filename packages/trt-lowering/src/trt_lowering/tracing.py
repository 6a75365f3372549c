"""What runs PyTorch's tracers: one thread at a time, and with errors of ours."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import torch

from trt_core import LoweringError, TrtError
from trt_core.device import on_host
from trt_core.paused_collection import paused_collection
from trt_core.sizes.guards import Asker, asker_in
from trt_core.temporary import with_attributes

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


def strides_unguarded() -> contextlib.AbstractContextManager[None]:
    """Answers what is asked to find how tensors lie in memory without a guard, in this thread; hold the `tracing_lock`.

    Guards about memory are no conditions of a program, but PyTorch answers from them what a model or an operator asks
    later, which then has no guard of its own.
    """
    from trt_core.internals import ShapeEnv  # costly to import

    evaluate: Any = ShapeEnv.evaluate_expr
    thread = threading.get_ident()

    def unguarded(self: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        is_here = threading.get_ident() == thread and expression.free_symbols
        with self.suppress_guards() if is_here and asked_by()[0] is Asker.STRIDES else contextlib.nullcontext():
            return evaluate(self, expression, *args, **kwargs)

    return sizes_evaluated_by(unguarded)


def sizes_evaluated_by(function: Any) -> contextlib.AbstractContextManager[None]:
    """Has PyTorch evaluate sizes by a function in place of its own; hold the `tracing_lock` around it.

    PyTorch notes the innermost frame outside of its own files as where a guard comes from, so the function is said to
    be in one of them.

    Args:
        function: Takes what `ShapeEnv.evaluate_expr` takes; it is changed.
    """
    from trt_core.internals import ShapeEnv
    from trt_lowering.internals import symbolic_shapes  # costly to import

    function.__code__ = function.__code__.replace(co_filename=symbolic_shapes.__file__)
    return with_attributes(ShapeEnv, evaluate_expr=function)


def asked_by(*, past_operators: bool = False) -> tuple[Asker, str]:
    """Returns for whom PyTorch evaluates a size, in a function that it calls to, and the line that asks.

    Args:
        past_operators: Whether whoever calls an operator asks what that asks: `for row in x` does, by `unbind`.
    """
    from trt_lowering.internals import uninteresting_files

    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename in uninteresting_files()
        or (past_operators and frame.f_code.co_filename.startswith(_TORCH))
    ):
        frame = frame.f_back
    code = frame.f_code
    return asker_in(code.co_filename, code.co_name), f"{code.co_filename}:{frame.f_lineno}"


_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
