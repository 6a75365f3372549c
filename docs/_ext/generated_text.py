"""Fills pages from the sources: reason codes, settings, what became of the samples of operators and of the model zoo.

A page holds a line `<!-- generated: NAME -->`; the text of that name takes its place when the page is read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from api_pages import API, api
from generation_table import GENERATION, generation
from large_table import LARGE, large
from latency_table import LATENCY, latency
from operators_table import CONFORMANCE, converters, example_of, operators
from precision_table import PRECISION, precision
from ranges_table import RANGES, ranges
from settings_table import retired_settings, settings
from signatures import SIGNATURES, signatures
from sphinx.application import Sphinx
from torch_tensorrt_table import names, settings_side_by_side
from zoo_speed_table import ZOO_SPEED, zoo_speed
from zoo_table import ZOO, zoo, zoo_totals

from trt_core import Reason
from trt_core.settings import setting_names

_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def reasons() -> str:
    """Returns the table of reason codes, and a section for each under the anchor that reports link to."""
    parts = ["| code | |\n|---|---|"]
    parts += [f"| [{reason.code}](#{reason.code.lower()}) | {reason.title} |" for reason in Reason]
    parts.append("")
    for reason in Reason:
        parts.append(f"({reason.code.lower()})=\n\n## {reason.code}: {reason.title}\n")
        parts.append(f"{_with_settings(reason.explanation)}\n")
        if said := example_of(reason):
            operator, _, message = said.partition(": ")
            parts.append(f"*It says, for example,* {operator}: {_cell(message)}.\n")
        parts.append(f"**What to do.** {_with_settings(reason.advice)}\n")
    return "\n".join(parts)


def _with_settings(text: str) -> str:
    """The text, in which names of settings lead to their sections."""

    def link(match: re.Match[str]) -> str:
        code, name = match.group(), match.group(1)
        return f"[{code}](reference/settings.md#{name})" if name in setting_names() else code

    return re.sub(r"`(\w+)(?:=\w+)?`", link, text)


def _cell(text: str) -> str:
    """A message on one line of a table, without what Markdown would take for markup."""
    plain = " ".join(text.removeprefix("torch.ops.").split())
    return "".join(_escaped(part) for part in re.split(r"(`[^`]+`)", plain))


def _escaped(part: str) -> str:
    return part if part.startswith("`") else re.sub(r"([|*_<>\[\]`])", r"\\\1", part)


_TEXTS: Final[dict[str, Callable[[], str]]] = {
    "large": large,
    "generation": generation,
    "latency": latency,
    "converters": lambda: converters(_cell),
    "operators": lambda: operators(_cell),
    "precision": precision,
    "ranges": ranges,
    "reasons": reasons,
    "retired_settings": retired_settings,
    "settings": settings,
    "torch_tensorrt_names": names,
    "torch_tensorrt_settings": settings_side_by_side,
    **{f"api_{package}": functools.partial(api, package) for package in API},
    **{f"signatures_{group}": functools.partial(signatures, group) for group in SIGNATURES},
    "zoo": lambda: zoo(_cell),
    "zoo_speed": zoo_speed,
    "zoo_totals": zoo_totals,
}

_DATA: Final = {
    "large": LARGE,
    "generation": GENERATION,
    "latency": LATENCY,
    "operators": CONFORMANCE,
    "precision": PRECISION,
    "ranges": RANGES,
    "zoo": ZOO,
    "zoo_speed": ZOO_SPEED,
    "zoo_totals": ZOO,
}
"""Files that texts are made from: a page is read again when its file changed."""


def _fill(app: Sphinx, _page: str, source: list[str]) -> None:
    for name in _MARKER.findall(source[0]):
        if name in _DATA:
            app.env.note_dependency(str(_DATA[name]))
    source[0] = _MARKER.sub(lambda match: _TEXTS[match.group(1)](), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension to Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
