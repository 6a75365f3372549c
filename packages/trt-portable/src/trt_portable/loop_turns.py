"""How many turns the loops of a run may take; stands alone, since runs without loops ask for it too."""

from __future__ import annotations

import os
from typing import Final

TURNS_VARIABLE: Final = "TRT_PORTABLE_MAX_LOOP_TURNS"
TURNS: Final = 1 << 20
"""What holds where the environment says nothing, and nothing else is counted."""


def most_turns() -> int | None:
    """Returns what the environment says; None if it says nothing."""
    said = os.environ.get(TURNS_VARIABLE)
    return None if said is None else int(said)
