"""The sections of the page on settings: an example, the meaning, what each provider makes of it, what reads it."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from trt_core import CompilationSettings
from trt_core.provider import OLDEST_TENSORRT
from trt_core.settings import other_value, provider_option, setting_names
from trt_core.settings_reader import REMOVAL_VERSION, RETIRED_SETTINGS

_PACKAGES: Final = Path(__file__).parents[2] / "packages"
_DEFINED_IN: Final = "trt_core.settings"
_KEYWORDS_IN: Final = "trt_core.settings_reader"
_MiB: Final = 1 << 20
_OLDEST: Final = ".".join(map(str, OLDEST_TENSORRT))
_OTHER_OBJECTS: Final = {"lowering_passes": "[MyPass()]"}
"""Settings whose values are objects of other packages."""
_GROUP: Final = re.compile(r"^([A-Z][\w .`]+):$")
_FIELD: Final = re.compile(r"^    (\w+): (.*)$")


def settings() -> str:
    """Returns a section for every setting, in groups: an example, the default, meaning, providers, what reads it.

    The heading of a section is the setting's name, which gives it the anchor `settings.html#min-block-size`.

    Raises:
        ValueError: A setting has no description.
    """
    described, read = described_fields(), readers()
    fields = {item.name: item for item in dataclasses.fields(CompilationSettings)}
    missing = fields.keys() - {name for group in described.values() for name in group}
    if missing:
        raise ValueError(f"settings without a description: {', '.join(sorted(missing))}")
    parts = []
    for group, meanings in described.items():
        parts.append(f"## {group}\n")
        for name, meaning in meanings.items():
            parts += [
                f"### `{name}`\n",
                f"```python\n{name}={example(name)}  # default: {_default(fields[name])}\n```\n",
            ]
            parts += [f"{meaning}\n", _on_providers(fields[name]), f"*Read by* {_modules(read[name])}.\n"]
    return "\n".join(parts)


def example(name: str) -> str:
    """Returns a value other than the default, as a keyword's value is written."""
    return _OTHER_OBJECTS.get(name) or _spelt(other_value(name))


def retired_settings() -> str:
    """Returns the table of keywords that scripts bring from elsewhere, and what becomes of each."""
    rows = [f"| `{name}` | {fate} |" for name, fate in sorted(RETIRED_SETTINGS.items())]
    head = (
        f"Renamed ones are read until version {REMOVAL_VERSION}, with a `DeprecationWarning`.\n\n"
        "| keyword | what becomes of it |\n|---|---|"
    )
    return "\n".join([head, *rows])


def described_fields() -> dict[str, dict[str, str]]:
    """Returns what the docstring of the settings says about each, by group and name.

    A line `Group:` stands before each `Attributes:` section.
    """
    groups: dict[str, dict[str, str]] = {}
    group = name = ""
    for line in inspect.cleandoc(CompilationSettings.__doc__ or "").splitlines():
        if match := _GROUP.match(line):
            group = group if match.group(1) == "Attributes" else match.group(1)
            name = ""
        elif match := _FIELD.match(line):
            name = match.group(1)
            groups.setdefault(group, {})[name] = match.group(2)
        elif name and line.startswith(" " * 8):
            groups[group][name] += " " + line.strip()
    return groups


@functools.cache
def readers() -> Mapping[str, tuple[str, ...]]:
    """Returns the modules that read each setting, found in the sources.

    A read is an attribute of something that is called settings, `settings.refit` or `self._settings.refit`; where
    keywords become settings, it is the setting's name as a text.
    """
    found: dict[str, set[str]] = {name: set() for name in setting_names()}
    for path in sorted(_PACKAGES.glob("*/src/**/*.py")):
        module = path.with_suffix("").as_posix().rpartition("/src/")[2].replace("/", ".").removesuffix(".__init__")
        if module == _DEFINED_IN:
            continue
        text = path.read_text(encoding="utf-8")
        if module != _KEYWORDS_IN and "settings" not in text:  # nothing to find, and a tree takes longer
            continue
        tree = ast.parse(text)
        for name in _texts(tree) if module == _KEYWORDS_IN else _attributes(tree):
            if name in found:
                found[name].add(module)
    return {name: tuple(sorted(modules)) for name, modules in found.items()}


def _attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = node.value
            called = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if called.lstrip("_") == "settings":
                yield node.attr


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _modules(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _on_providers(item: dataclasses.Field[Any]) -> str:
    option = provider_option(item)
    if option is None:
        return ""
    names = ", ".join(f"`{name}`" for name in option.tensorrt)
    since = f"since {option.since}" if option.since else f"{_OLDEST} or earlier"
    return f"*TensorRT:* {names} ({since}). *Portable:* {option.portable}.\n"


def _default(item: dataclasses.Field[Any]) -> str:
    return "the current device" if item.name == "device" else _spelt(item.default)


def _spelt(value: Any) -> str:
    """A value as Python's source, numbers of bytes as multiples of a power of two."""
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(_spelt, value))) + "}" if value else "set()"
    if isinstance(value, list):
        return f"[{', '.join(map(_spelt, value))}]"
    if isinstance(value, int) and value >= _MiB:
        power = 30 if value % (_MiB << 10) == 0 else 20
        return f"{value >> power} << {power}"
    return (
        str(value) if isinstance(value, torch.dtype) else json.dumps(value) if isinstance(value, str) else repr(value)
    )
