"""Trees of arguments and results: tuples, lists, dicts, literals and numbered values, as JSON and back.

JSON's own null, true, false, numbers and strings stand for themselves, and a JSON list for a list. Everything else is
an object with one key that says what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.files import typed
from trt_core.wording import kind_of
from trt_runtime.program import fields
from trt_runtime.program.fields import DTYPES, malformed

_LAYOUTS: Final = {"strided": torch.strided}
_MEMORY_FORMATS: Final = {
    str(memory_format).removeprefix("torch."): memory_format
    for memory_format in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}
_FLOATS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Value:
    """A value of the program, by its number."""

    index: int


class NoLiteral(ValueError):
    """A value has no form in the format."""


def to_json(tree: Any) -> Any:
    """Returns a tree as JSON values.

    Raises:
        NoLiteral: Something in it has no form in the format.
    """
    kind = type(tree)
    if tree is None or kind is bool or kind is str:
        return tree
    if kind is int:
        if not -(2**63) <= tree < 2**63:
            raise NoLiteral(f"the integer {tree} needs more than 64 bits")
        return tree
    if kind is float:
        return tree if math.isfinite(tree) else {"float": "nan" if math.isnan(tree) else f"{tree}"}
    if kind is Value:
        return {"value": tree.index}
    if kind is list or kind is torch.Size:
        return [to_json(item) for item in tree]
    if kind is tuple:
        return {"tuple": [to_json(item) for item in tree]}
    if kind is dict:
        return {"dict": [[_key(key), to_json(item)] for key, item in tree.items()]}
    if kind is complex:
        return {"complex": [to_json(tree.real), to_json(tree.imag)]}
    return _name(tree)


def _key(key: Any) -> Any:
    if type(key) in (str, int, bool):
        return to_json(key)
    raise NoLiteral(f"the key {key!r} of a dict is neither text nor an integer")


def _name(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value in DTYPES.values():
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device) and value.type in fields.DEVICES:
        return {"device": value.type}
    if isinstance(value, torch.layout) and value in _LAYOUTS.values():
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    raise NoLiteral(f"{value!r:.80} is {kind_of(value)}, which a saved program cannot hold")


def from_json(value: Any, place: str, known: int = typed.LARGEST) -> Any:
    """Reads a tree.

    Args:
        value: Parsed JSON.
        place: Where it stands, for messages.
        known: How many values there are; only these may be named.

    Raises:
        PlanError: It is no tree.
    """
    if isinstance(value, list):
        return [from_json(item, place, known) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise malformed(place, "an object with one key is needed")
    ((kind, content),) = value.items()
    reader = _READERS.get(kind)
    if reader is None:
        raise malformed(place, f"{kind!r:.60} is no kind of literal")
    return reader(content, place, known)


def _read_dict(content: Any, place: str, known: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in typed.items(content, place):
        key, item = typed.items(pair, place, 2)
        if not isinstance(key, (str, int)) or key in found:
            raise malformed(place, f"{key!r:.60} is no key, or appears twice")
        found[key] = from_json(item, place, known)
    return found


def _read_complex(content: Any, place: str, known: int) -> complex:
    parts = [from_json(part, place, 0) for part in typed.items(content, place, 2)]
    if not all(type(part) is float for part in parts):
        raise malformed(place, "a complex number has two floats")
    return complex(*parts)


_READERS: Final[dict[str, Callable[[Any, str, int], Any]]] = {
    "value": lambda content, place, known: Value(typed.integer(content, f"{place}, a value", 0, known - 1)),
    "tuple": lambda content, place, known: tuple(from_json(item, place, known) for item in typed.items(content, place)),
    "dict": _read_dict,
    "float": lambda content, place, known: typed.choice(_FLOATS, content, place, "number"),
    "complex": _read_complex,
    "dtype": lambda content, place, known: fields.dtype(content, place),
    "device": lambda content, place, known: torch.device(fields.device(content, place)),
    "layout": lambda content, place, known: typed.choice(_LAYOUTS, content, place, "layout"),
    "memory_format": lambda content, place, known: typed.choice(_MEMORY_FORMATS, content, place, "memory format"),
}


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, literals and values, in order."""
    if not isinstance(tree, (list, tuple, dict)):
        return [tree]
    found: list[Any] = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, (list, tuple, dict)):
            found += leaves(item)
        else:
            found.append(item)
    return found


def characters_of_places(tree: Any) -> int:
    """How many characters it takes to say of every leaf of a tree where it lies: `['state'][0]`."""
    return _count_places(tree)[1]


def _count_places(tree: Any) -> tuple[int, int]:
    """Leaves of a tree, and characters of their places."""
    if not isinstance(tree, (list, tuple, dict)):
        return 1, 0
    leaves_in = characters = 0
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        count, inside = _count_places(item)
        leaves_in += count
        characters += inside + count * (len(str(key)) + 4)
    return leaves_in, characters


def values_in(tree: Any) -> list[int]:
    """Numbers of the values in a tree, in order."""
    return [leaf.index for leaf in leaves(tree) if type(leaf) is Value]


def replace_values(tree: Any, replace: Callable[[int], Any]) -> Any:
    """A tree with what `replace` returns in the place of each value; tuples, lists and dicts are made anew."""
    kind = type(tree)
    if kind is Value:
        return replace(tree.index)
    if kind is tuple:
        return tuple(replace_values(item, replace) for item in tree)
    if kind is list:
        return [replace_values(item, replace) for item in tree]
    if kind is dict:
        return {key: replace_values(item, replace) for key, item in tree.items()}
    return tree
