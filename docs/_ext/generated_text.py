"""Fills pages from the sources: reason codes, settings, what became of the samples of operators and of the model zoo.

A page holds a line `<!-- generated: NAME -->`; the text of that name takes its place when the page is read.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from latency_table import LATENCY, latency
from precision_table import PRECISION, precision
from settings_table import retired_settings, settings
from signatures import SIGNATURES, signatures
from sphinx.application import Sphinx
from torch_tensorrt_table import names, settings_side_by_side
from zoo_speed_table import ZOO_SPEED, zoo_speed
from zoo_table import ZOO, zoo, zoo_totals

from trt_core import Reason

_CONFORMANCE: Final = Path(__file__).parents[1] / "data" / "conformance.json"
_MARKER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


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


def operators() -> str:
    """Returns the table of operators, from the outcomes that the conformance tests wrote."""
    data = json.loads(_CONFORMANCE.read_text(encoding="utf-8"))
    taken = f"the first {data['limit']} samples" if data["limit"] else "all samples"
    parts = [
        f"With PyTorch {data['torch'].partition('+')[0]}: {len(data['operators'])} entries of the database, "
        f"{taken} of each in float32 and int64, at most four in other types.\n",
        "| operator | converted | decomposed | PyTorch | why |\n|---|--:|--:|--:|---|",
    ]
    for name, entry in data["operators"].items():
        totals = [
            sum(counts.get(kind, 0) for counts in entry["types"].values())
            for kind in ("converted", "decomposed", "refused")
        ]
        reasons = "; ".join(
            f"[{code}](../reasons.md#{code.lower()}) {_cell(text)}" for code, text in entry["refusals"].items()
        )
        parts.append(f"| `{name}` | {' | '.join(str(total or '') for total in totals)} | {reasons} |")
    return "\n".join(parts)


def _cell(text: str) -> str:
    """A message on one line of a table, without what Markdown would take for markup."""
    plain = " ".join(text.removeprefix("torch.ops.").split())
    return re.sub(r"([|*_<>\[\]`])", r"\\\1", plain)


_TEXTS: Final[dict[str, Callable[[], str]]] = {
    "latency": latency,
    "operators": operators,
    "precision": precision,
    "reasons": reasons,
    "retired_settings": retired_settings,
    "settings": settings,
    "torch_tensorrt_names": names,
    "torch_tensorrt_settings": settings_side_by_side,
    **{f"signatures_{group}": functools.partial(signatures, group) for group in SIGNATURES},
    "zoo": lambda: zoo(_cell),
    "zoo_speed": zoo_speed,
    "zoo_totals": zoo_totals,
}

_DATA: Final = {
    "latency": LATENCY,
    "operators": _CONFORMANCE,
    "precision": PRECISION,
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
