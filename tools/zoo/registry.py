"""Every architecture of the zoo, and the cases made of them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tools.zoo import families
from tools.zoo.entry import Case, Entry, Route, Shapes

ROUTES: Final = (Route.COMPILE, Route.TORCH_COMPILE)
"""The routes to engines."""


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Returns the entries of all families by name.

    Raises:
        ValueError: Two entries have one name.
    """
    found: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(families.__path__):
        for entry in importlib.import_module(f"{families.__name__}.{module.name}").ENTRIES:
            if entry.name in found:
                raise ValueError(f"two entries are named {entry.name}")
            found[entry.name] = entry
    return found


def cases(route: Route | None = None, shapes: Shapes | None = None, patterns: Sequence[str] = ()) -> Iterator[Case]:
    """Yields the cases, by route and shapes first: static compilation of everything before anything else.

    Args:
        route: Only this route.
        shapes: Only these shapes.
        patterns: Only entries whose name contains one of them, if any are given.
    """
    for chosen_shapes in Shapes:
        for chosen_route in ROUTES:
            if route in (None, chosen_route) and shapes in (None, chosen_shapes):
                for name in entries():
                    if not patterns or any(pattern in name for pattern in patterns):
                        yield Case(name, chosen_route, chosen_shapes)
