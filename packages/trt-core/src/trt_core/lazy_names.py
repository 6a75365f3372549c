"""Public names of a package that are imported when they are first used, because not every program needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

C = TypeVar("C")


def lazy_names(
    package: str, homes: Mapping[str, str], instead: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns a package's `__getattr__` and `__dir__`.

    Args:
        package: The package's `__name__`; its `__all__` is what `dir` shows besides what is there already.
        homes: Module to what `from module import` would say: `"a, b as c"`; of the package itself, its own modules.
            Else no name may be that of a module of the package, which takes its place as soon as something imports it.
        instead: Names that are looked for and are not here, and what to do.
    """
    told = {}
    for home, imported in homes.items():
        for item in imported.split(", "):
            there, _, here = item.partition(" as ")
            told[here or there] = home, there

    def find(name: str) -> Any:
        if name not in told:
            hint = f": {instead[name]}" if name in instead else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        home, there = told[name]
        if home == package:
            value = import_module(f"{package}.{there}")
        else:  # modules of a package included
            value = getattr(__import__(home, fromlist=(there,)), there)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        present = vars(sys.modules[package])
        return sorted({*present, *present["__all__"]})

    return find, names


def hints_of_attributes(**instead: str) -> Callable[[type[C]], type[C]]:
    """Lets objects of a class say what to do instead where an attribute is looked for that they have not.

    Args:
        instead: Names that are looked for, and what to do.
    """

    def decorate(made: type[C]) -> type[C]:
        def find(self: object, name: str) -> NoReturn:
            hint = f": {instead[name]}" if name in instead else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

        made.__getattr__ = find  # type: ignore[attr-defined]  # type checkers shall not take any name for an attribute
        return made

    return decorate
