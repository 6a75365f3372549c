"""Fills pages from the sources: reason codes from `trt_core.verdicts`, settings from `CompilationSettings`.

A page holds a line `<!-- generated: NAME -->`; the text of that name takes its place when the page is read.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import torch
from sphinx.application import Sphinx

from trt_core import CompilationSettings, Reason
from trt_core.settings_reader import _INVERTED, _RENAMED, REMOVAL_VERSION

_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_GROUP = re.compile(r"^([A-Z][\w ]+):$")
_FIELD = re.compile(r"^    (\w+): (.*)$")


def reasons() -> str:
    """Returns a section for every reason code, under the anchor that reports link to."""
    sections = []
    for reason in Reason:
        sections.append(
            f"({reason.code.lower()})=\n\n"
            f"## {reason.code}: {reason.title}\n\n"
            f"{reason.explanation}\n\n"
            f"**What to do.** {reason.advice}\n"
        )
    return "\n".join(sections)


def settings() -> str:
    """Returns a table for every group of settings: name, default, meaning."""
    described = _described_fields(inspect.cleandoc(CompilationSettings.__doc__ or ""))
    defaults = {item.name: _default(item) for item in dataclasses.fields(CompilationSettings)}
    missing = defaults.keys() - {name for group in described.values() for name in group}
    if missing:
        raise ValueError(f"settings without a description: {', '.join(sorted(missing))}")
    parts = []
    for group, fields in described.items():
        parts.append(f"## {group}\n\n| setting | default | meaning |\n|---|---|---|")
        parts += [f"| `{name}` | `{defaults[name]}` | {meaning} |" for name, meaning in fields.items()]
        parts.append("")
    return "\n".join(parts)


def retired_settings() -> str:
    """Returns the table of keywords that are read with a warning."""
    rows = [
        f"| `{old}` | `{new}`{', with the opposite value' if old in _INVERTED else ''} |"
        for old, new in sorted(_RENAMED.items())
    ]
    head = f"Read until version {REMOVAL_VERSION}, with a `DeprecationWarning`:\n\n| retired | now |\n|---|---|"
    return "\n".join([head, *rows])


def _described_fields(docstring: str) -> dict[str, dict[str, str]]:
    """Reads the groups of the class docstring: a line `Group:` before each `Attributes:` section."""
    groups: dict[str, dict[str, str]] = {}
    group = name = ""
    for line in docstring.splitlines():
        if match := _GROUP.match(line):
            group = group if match.group(1) == "Attributes" else match.group(1)
            name = ""
        elif match := _FIELD.match(line):
            name = match.group(1)
            groups.setdefault(group, {})[name] = match.group(2)
        elif name and line.startswith(" " * 8):
            groups[group][name] += " " + line.strip()
    return groups


def _default(item: dataclasses.Field[Any]) -> str:
    if item.name == "device":
        return "the current device"
    value = item.default
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(str, value))) + "}" if value else "set()"
    return str(value) if isinstance(value, torch.dtype) else repr(value)


_TEXTS: Final[dict[str, Callable[[], str]]] = {
    "reasons": reasons,
    "retired_settings": retired_settings,
    "settings": settings,
}


def _fill(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = _MARKER.sub(lambda match: _TEXTS[match.group(1)](), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension to Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
