"""Plugins that other distributions install: found by their entry points, and skipped where they fail."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BLOCK_LIST: Final = "TRT_BLOCKED_PLUGINS"
"""Environment variable: names of entry points, with commas between, that are not tried; `*` for all."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Installed(Generic[Found]):
    """What became of an entry point.

    Attributes:
        name: Name of the entry point.
        value: What it points to.
        found: What it gave; None where it was skipped.
        error: Why it was skipped; empty when it was loaded.
        cause: What it raised.
    """

    name: str
    value: str
    found: Found | None = None
    error: str = ""
    cause: BaseException | None = field(default=None, compare=False, repr=False)


RUNTIME_PLUGINS: Final = "trt_runtime.plugins"
"""The group of functions that register the plugins which a library's engines run."""


def register_runtime_plugins(library: str) -> tuple[Installed[object], ...]:
    """Registers the plugins that a library's engines run, where it offers some; says what became of that.

    What has registered them is not called again: TensorRT's registry takes no plugin twice.
    """

    def register(point: EntryPoint) -> object:
        function = point.load()
        if function not in _REGISTERED:
            function()
            _REGISTERED.append(function)
        return function

    return load_installed(RUNTIME_PLUGINS, register, name=library)


_REGISTERED: Final[list[object]] = []


def load_installed(
    group: str, use: Callable[[EntryPoint], Found], *, name: str | None = None
) -> tuple[Installed[Found], ...]:
    """Loads the entry points of a group, and says what became of each; one that fails is skipped.

    Args:
        group: Of the entry points.
        use: Loads one, and returns what it gives.
        name: Only those of this name.
    """
    from importlib.metadata import entry_points  # a process that loads no plugin does without

    points = entry_points(group=group) if name is None else entry_points(group=group, name=name)
    return tuple(_installed(point, use) for point in points)


def _installed(point: EntryPoint, use: Callable[[EntryPoint], Found]) -> Installed[Found]:
    blocked = {name.strip() for name in os.environ.get(BLOCK_LIST, "").split(",")}
    if blocked & {point.name, "*"}:
        return Installed(point.name, point.value, error=f"blocked by {BLOCK_LIST}")
    try:
        return Installed(point.name, point.value, use(point))
    except (Exception, SystemExit) as error:  # an interrupt is the user's
        return Installed(point.name, point.value, error=f"{type(error).__name__}: {error}", cause=error)


def warn_of_failures(kind: str, installed: tuple[Installed[Found], ...]) -> None:
    """Warns of those that failed; those that are blocked were meant to be.

    Args:
        kind: What they are.
        installed: What became of them.
    """
    for item in installed:
        if item.cause is not None:
            warnings.warn(
                f"{kind} {item.name!r} ({item.value}) was skipped: {item.error}; "
                f"{BLOCK_LIST}={item.name} keeps it from being tried",
                stacklevel=3,
            )
