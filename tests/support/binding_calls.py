"""Calls as the real bindings would take them: what our packages hand to a provider, held to two versions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorrt_api

APIS = [tensorrt_api.load(version) for version in tensorrt_api.VERSIONS]
PACKAGES = ("core", "converters", "runtime", "frontends")

GUARDED = {"add_attention_v2"}
"""Methods that only one version has, used behind a check of the version."""

_DIRECTORIES = tuple(f"/trt_{name}/" for name in PACKAGES)


def is_ours(path: str) -> bool:
    """Whether a file belongs to the packages that use a provider."""
    return any(directory in path.replace("\\", "/") for directory in _DIRECTORIES)


class CallChecker:
    """Watches the methods and properties of a provider's classes, and notes what the bindings would not take.

    Args:
        module: The provider.
        monkeypatch: Undoes it.

    Attributes:
        wrong: What was not right, each once.
        seen: Names of the methods that were called, with their classes.
    """

    def __init__(self, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong: dict[str, None] = {}
        self.seen: set[tuple[str, str]] = set()
        self._module = module
        for name in set().union(*(api.data["classes"] for api in APIS)):
            cls = getattr(module, name, None)
            if isinstance(cls, type) and name[:1].isupper() and cls.__module__.startswith(module.__name__):
                for method in vars(cls).keys() | self._inherited(cls):
                    self._watch(cls, name, method, monkeypatch)

    def _inherited(self, cls: type) -> set[str]:
        """Methods of classes that are no part of the API themselves."""
        return {
            method
            for base in cls.__mro__[1:]
            if base.__module__.startswith(self._module.__name__) and not hasattr(self._module, base.__name__)
            for method in vars(base)
        }

    def _watch(self, cls: type, name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        overloads = {api.version: api.overloads(name, method) for api in APIS}
        function = getattr(cls, method)
        if method.startswith("__") or not any(overloads.values()) or not callable(function):
            return

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if is_ours(frame.f_code.co_filename):
                self.seen.add((name, method))
                for version, signatures in overloads.items():
                    if method not in GUARDED and not any(self._fits(args[1:], kwargs, each) for each in signatures):
                        place = f"{frame.f_code.co_filename.rpartition('/src/')[2]}:{frame.f_lineno}"
                        self.wrong[f"{version}: {place}: {name}.{method}({args[1:]}, {kwargs})"] = None
            return function(*args, **kwargs)

        monkeypatch.setattr(cls, method, checked)

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any], signature: Sequence[tuple[str, str, bool]]) -> bool:
        if len(args) > len(signature):
            return False
        given = {name: value for (name, _, _), value in zip(signature, args, strict=False)}
        given.update(kwargs)
        if len(given) != len(args) + len(kwargs) or not given.keys() <= {name for name, _, _ in signature}:
            return False
        return all(
            self.takes(kind, given[name]) if name in given else has_default for name, kind, has_default in signature
        )

    def takes(self, kind: str, value: Any) -> bool:
        """Whether a parameter of a type takes a value, of all versions' members alone where it is an enumeration."""
        if kind in _PLAIN:
            return _PLAIN[kind](value)
        if kind.startswith("Sequence["):
            return isinstance(value, (list, tuple)) and all(self.takes(kind[9:-1], item) for item in value)
        expected = getattr(self._module, kind)
        if not isinstance(value, expected):
            return False
        return not hasattr(value, "name") or all(
            api.has_member(kind, value.name) for api in APIS if kind in api.data["enums"]
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_dims(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 8 and all(map(_is_integer, value))
    return type(value).__name__ in ("Dims", "Dims2", "Dims3", "Dims4", "DimsHW")


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


_PLAIN: dict[str, Callable[[Any], bool]] = {
    "SupportsInt": _is_integer,
    "SupportsFloat": lambda value: isinstance(value, (int, float)),
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "tuple": _is_dims,
    "list": _is_dims,
    "Dims": _is_dims,
    "Weights": lambda value: value is None or type(value).__name__ == "Weights" or _is_array(value),
    "typing_extensions.Buffer": _is_buffer,
    "typing_extensions.CapsuleType": lambda value: type(value).__name__ == "PyCapsule",
    "object": lambda value: True,
}


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.flags.c_contiguous
