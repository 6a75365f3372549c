"""How many elements a program's operators may make: about as many as it declares, or as they are given."""

from __future__ import annotations

import math
from typing import Final

from trt_core.operator_counts import Operands, elements_in
from trt_runtime.program.fields import UNTOLD

_COMMON: Final = 1 << 16
"""Elements that any operator may make."""


def most_elements(told: int | None, operands: Operands, untold: int = UNTOLD) -> int:
    """Returns how many elements a call may make.

    Args:
        told: How many the program says that it makes; None where that depends on data.
        operands: Its arguments.
        untold: How many it may make where that depends on data, or 64 times as many as its operands have.
    """
    given = elements_in(operands)
    return max(untold, 64 * given) if told is None else max(_COMMON, 2 * told, 2 * given)


def how_to_allow(elements: float) -> str:
    """Returns the hint for a call that would make so many elements, where that depends on data; none if endless."""
    if not math.isfinite(elements):
        return ""
    return (
        f"if you trust the program, load it with data_dependent_elements={elements:.0f}, "
        "or on the command line with --data-dependent-elements"
    )
