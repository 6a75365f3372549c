"""Numbers as JSON has them, which knows neither infinities nor what is no number."""

from __future__ import annotations

import math
from typing import Any


def jsonable(value: Any) -> Any:
    """Returns a value as JSON has it: infinities and what is no number become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value
