"""Attributes that `get_attr` nodes of a graph name by their dotted path."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn


def read_attribute(module: nn.Module, path: str) -> Any:
    """Returns the attribute at a dotted path, such as `encoder.0.weight`.

    Raises:
        AttributeError: There is none.
    """
    return functools.reduce(getattr, path.split("."), module)
