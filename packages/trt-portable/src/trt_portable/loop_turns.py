"""How many turns the loops of a run may take; stands alone, since runs without loops ask for it too."""

from __future__ import annotations

import os
from typing import Final

TURNS_VARIABLE: Final = "TRT_PORTABLE_MAX_LOOP_TURNS"
_TURNS: Final = 1 << 20


def most_turns() -> int:
    """Returns what the environment says, or what holds if it says nothing."""
    return int(os.environ.get(TURNS_VARIABLE, _TURNS))
