"""What the code of a model asks of its sizes while it is captured.

PyTorch takes for granted that a size which varies is at least 2. So `if x.shape[0] == 1` has an answer while a model is
captured, and nothing remembers that it was asked: the program is that of larger sizes, also where 1 was asked for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trt_core.sizes.guards import Asker, asker_in


@dataclass(frozen=True)
class SizeQuestion:
    """A comparison of sizes by which a model chose its way.

    Attributes:
        answer: What holds for the sizes that the model was captured for, a relation of sympy.
        place: `file:line` that asked.
    """

    answer: Any
    place: str


@contextlib.contextmanager
def watch_size_questions(found: list[SizeQuestion]) -> Iterator[None]:
    """Notes what code of models asks of sizes in this thread; hold the `tracing_lock` around it.

    Args:
        found: Gets the questions, each once.
    """
    from trt_core.internals import ShapeEnv
    from trt_lowering.internals import symbolic_shapes  # costly to import

    environments: Any = ShapeEnv
    evaluate, thread = environments.evaluate_expr, threading.get_ident()
    known: set[tuple[Any, bool]] = set()

    def noting(self: Any, expression: Any, *args: Any, **kwargs: Any) -> Any:
        answer = evaluate(self, expression, *args, **kwargs)
        is_general = any(args[2:]) or kwargs.get("size_oblivious") or kwargs.get("fallback_value") is not None
        if is_general or threading.get_ident() != thread or not _is_truth_value(expression):
            return answer
        if expression.free_symbols and (key := (expression, bool(answer))) not in known:
            place = _place_in_model()
            if place is not None:
                known.add(key)
                found.append(SizeQuestion(expression if answer else ~expression, place))
        return answer

    # PyTorch notes the innermost frame outside of its own files as where a guard comes from
    noting.__code__ = noting.__code__.replace(co_filename=symbolic_shapes.__file__)
    environments.evaluate_expr = noting
    try:
        yield
    finally:
        environments.evaluate_expr = evaluate


def _is_truth_value(expression: Any) -> bool:
    """Whether an expression of sympy is true or false, rather than a number."""
    return bool(getattr(expression, "is_Relational", False) or getattr(expression, "is_Boolean", False))


def _place_in_model() -> str | None:
    """Returns where a model asks what is being evaluated; None where an operator wants to know it."""
    from trt_lowering.internals import uninteresting_files

    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in uninteresting_files():
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if asker_in(frame.f_code.co_filename) is Asker.MODEL else None
