"""Public names of a package that are imported when they are first used, because not every program needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], instead: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    Args:
        package: The package's `__name__`; its `__all__` is what `dir` shows besides what is there already.
        homes: The module that each name is in, or `module:name` where it is called otherwise there. A module of the
            package that is public itself is its own home. Else no name may be that of a module of the package, which
            takes its place as soon as something imports it.
        instead: Names that are looked for and are not here, and what to do.
    """

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            hint = f": {instead[name]}" if name in instead else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        path, _, there = home.partition(":")
        if path == f"{package}.{name}":
            value = import_module(path)
        else:  # what `from path import there` does, modules of a package included
            value = getattr(__import__(path, fromlist=(there or name,)), there or name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        present = vars(sys.modules[package])
        return sorted({*present, *present["__all__"]})

    return find, names
