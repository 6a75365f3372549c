"""``with`` statements on API objects, as TensorRT's bindings still allow them."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def common_enter(this: T) -> T:
    """Begins a ``with`` statement: the object itself."""
    return this


def common_exit(this: Any, exc_type: object, exc_value: object, traceback: object) -> None:
    """Ends a ``with`` statement: the object stays usable, its memory goes with its last reference."""


class ContextManaged:
    """An object that may head a ``with`` statement."""

    __enter__ = common_enter
    __exit__ = common_exit
