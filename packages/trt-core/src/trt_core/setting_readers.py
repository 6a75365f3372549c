"""How users may write the values of settings that a type alone does not say: what `ReadBy` in an annotation names.

Each brings what it is given into the form that the type of the setting is checked for; `trt_core.setting_values` turns
what it raises into a `SettingsError` that names the setting. None stands for the default where it does elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from trt_core.device import Device
from trt_core.operators import canonical_operators
from trt_core.wording import kind_of


def read_patterns(value: Any) -> frozenset[str]:
    """Regular expressions; None means none."""
    if isinstance(value, (str, re.Pattern)):
        raise TypeError("give a collection of regular expressions, not one")
    found = frozenset(getattr(item, "pattern", item) for item in value or ())
    for pattern in found:
        if not isinstance(pattern, str):
            raise TypeError(f"give regular expressions, not {pattern!r}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return found


def read_modules(value: Any) -> frozenset[str]:
    """Modules may be given as classes; None means none."""
    names = set()
    for item in _collection(value):
        if not isinstance(item, (str, type)):
            raise TypeError(f"give dotted paths or classes, not {kind_of(item)}")
        names.add(item if isinstance(item, str) else item.__qualname__)
    return frozenset(names)


def read_operators(value: Any) -> frozenset[str]:
    """Operators; None means none."""
    return canonical_operators(_collection(value))


def read_excluded_operators(value: Any) -> frozenset[str]:
    """Operators; None means none."""
    return canonical_operators(_collection(value), "autocast_excluded_ops")


def _collection(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        raise TypeError("give a collection of names, not one string")
    if value is not None and not isinstance(value, Iterable):
        raise TypeError(f"give a collection of names, not {kind_of(value)}")
    return value or ()


def read_device(value: Any) -> Any:
    """None means the default."""
    return Device.current() if value is None else value


def read_report_path(value: Any) -> Any:
    """A path, or whether to report at all; an empty path would be read as both."""
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if found == "":
        raise ValueError("the path is empty")
    return found


def read_capability(value: Any) -> Any:
    """A member of TensorRT's enumeration stands for its name; its first version called the standard one `DEFAULT`."""
    name = str(getattr(value, "name", value)).lower()
    return "standard" if name == "default" else name
