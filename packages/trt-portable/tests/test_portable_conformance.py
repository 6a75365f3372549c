"""The public names against those of TensorRT's own bindings, generated from their description.

With ``TRT_PORTABLE_API=10`` these are the bindings of 10.16; `test_portable_api_10.py` runs this file so.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import trt_portable as trt
from trt_portable.api_version import ENUMERATIONS_OF_10, IS_TENSORRT_10

DATA = Path(__file__).resolve().parents[3] / "tests" / "data" / "tensorrt"
if not DATA.is_dir():
    pytest.skip("the API description is part of the repository only", allow_module_level=True)

NEWER = json.loads((DATA / "api_11.4.json").read_text())
OLDER = json.loads((DATA / "api_10.16.json").read_text())
API = OLDER if IS_TENSORRT_10 else NEWER

MISSING: dict[str, str] = {}
CLASSES = [name for name in API["classes"] if name not in MISSING]
ENUMS = [name for name in API["enums"] if name not in MISSING]
_RESERVED = {"in": "in_", "a": "type"}


@functools.cache
def _assigned(cls: type) -> set[str]:
    """Names that the methods of a class assign to ``self``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return set()
    stored = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def _attributes_of(cls: type) -> set[str]:
    """Names of a class: those on it, and those that its constructors assign to ``self``."""
    names = set(dir(cls))
    for base in cls.__mro__[:-1]:
        names |= set(getattr(base, "__annotations__", ())) | _assigned(base)
    return names


def _parameters(signature: str) -> list[tuple[str, bool]]:
    """Names of the parameters of a signature in text, and whether each has a default."""
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    depth, part, parts = 0, "", []
    for char in inside + ",":
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    names = [(re.split(r"[:=]", text)[0].strip(), "=" in text) for text in parts if text]
    return names[1:] if names and names[0][0] == "self" else names


def _accepts(function: Any, signature: str) -> bool:
    """Whether a function takes the parameters of a signature, by position and by name."""
    ours = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in ours):
        return True
    theirs = _parameters(signature)
    names = [parameter.name for parameter in ours]
    taken = []
    for place, (name, optional) in enumerate(theirs):
        if re.fullmatch(r"arg\d+", name):
            if place >= len(ours):
                return False
            taken.append(names[place])
            continue
        mine = name if name in names else _RESERVED.get(name, name)
        if mine not in names or (optional and ours[names.index(mine)].default is inspect.Parameter.empty):
            return False
        taken.append(mine)
    order = [names.index(name) for name in taken]
    required = {p.name for p in ours if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    return order == sorted(order) and required <= set(taken)


def test_every_class_is_there_or_on_the_list() -> None:
    names = [*API["classes"], *API["enums"], *API["functions"]]
    assert {name for name in names if not hasattr(trt, name)} == set(MISSING)


def test_element_types_have_their_short_names() -> None:
    for alias, member in API["dtypes"].items():
        assert getattr(trt, alias) is trt.DataType[member.split(".")[1]]


@pytest.mark.parametrize("name", ENUMS)
def test_enumeration_has_the_members_and_values(name: str) -> None:
    members = {member: int(value) for member, value in getattr(trt, name).__members__.items()}
    if IS_TENSORRT_10 and name not in ENUMERATIONS_OF_10:  # members that 11 added stay
        members = {member: value for member, value in members.items() if member in API["enums"][name]}
    assert members == API["enums"][name]


@pytest.mark.parametrize("name", CLASSES)
def test_class_has_bases_properties_and_constants(name: str) -> None:
    ours, theirs = getattr(trt, name), API["classes"][name]
    names = _attributes_of(ours)
    assert not set(theirs["properties"]) - names
    assert not set(theirs["constants"]) - names
    assert not {base for base in theirs["bases"] if base not in MISSING and getattr(trt, base) not in ours.__mro__}


# The description of these bindings names the wrong parameters.
_MISDESCRIBED = {
    ("IStreamReaderV2", "read"): "the bindings call it with a size and a stream, and take bytes",
    ("IStreamReader", "read"): "the bindings call it with a size, and take bytes",
    ("IStreamWriter", "write"): "the bindings call it with bytes",
    ("IPluginV3OneBuildV2", "get_aliased_input"): "names no parameter but self",
    ("ICudaEngine", "get_tensor_profile_values"): "types of its parameters are exchanged",
    ("PluginFieldCollection", "__getitem__"): "positions of a sequence have no names in Python",
    ("NodeIndices", "__getitem__"): "positions of a sequence have no names in Python",
    ("SubGraphCollection", "__getitem__"): "positions of a sequence have no names in Python",
}


def _refused(name: str, described: dict[str, list[str]]) -> list[str]:
    """The signatures among those of some methods of a class that our class does not take."""
    ours = getattr(trt, name)
    if issubclass(ours, trt.ILayer):
        described = {method: texts for method, texts in described.items() if method != "__init__"}
    return [
        f"{text}: {inspect.signature(getattr(ours, method))}"
        for method, texts in described.items()
        for text in texts
        if (name, method) not in _MISDESCRIBED and not _accepts(getattr(ours, method), text)
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_methods_take_the_parameters(name: str) -> None:
    methods = API["classes"][name]["methods"]
    assert not [method for method in methods if not hasattr(getattr(trt, name), method)]
    assert not _refused(name, methods)
