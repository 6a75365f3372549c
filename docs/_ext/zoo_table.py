"""The tables of the page on the model zoo, from the records that `python -m tools.zoo table` wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from trt_core import Reason

ZOO: Final = Path(__file__).parents[1] / "data" / "zoo.json"

_OUTCOMES: Final = ("whole", "partly", "in PyTorch", "not captured", "excluded", "wrong", "failed", "timeout", "memory")
_ROUTES: Final = ("compile", "torch.compile")
_SHAPES: Final = ("static", "dynamic")

Record = Mapping[str, Any]
Escape = Callable[[str], str]


def zoo_totals() -> str:
    """Returns how many cases of each kind had which outcome."""
    data = _read()
    shown = [outcome for outcome in _OUTCOMES if any(record["outcome"] == outcome for record in data["records"])]
    rows = [f"| route | shapes | cases | {' | '.join(shown)} |", f"|---|---|{'--:|' * (len(shown) + 1)}"]
    for route in _ROUTES:
        for shapes in _SHAPES:
            counts = Counter(
                record["outcome"]
                for record in data["records"]
                if (record["route"], record["shapes"]) == (route, shapes)
            )
            if counts:
                cells = " | ".join(str(counts[outcome] or "") for outcome in shown)
                rows.append(f"| `{route}` | {shapes} | {counts.total()} | {cells} |")
    architectures = len({record["entry"] for record in data["records"]})
    head = f"{architectures} architectures, with PyTorch {data['torch'].partition('+')[0]} on one CPU core:\n"
    return "\n".join([head, *rows])


def zoo(escape: Escape) -> str:
    """Returns a table for each library: one row per case.

    Args:
        escape: Makes a message fit a table's cell.
    """
    records = _read()["records"]
    parts: list[str] = []
    for library in sorted({record["entry"].partition("/")[0] for record in records}):
        parts.append(f"## {library}\n")
        parts.append("| model | route | shapes | outcome | coverage | engines | error | eager's own | seconds | why |")
        parts.append("|---|---|---|---|--:|--:|--:|--:|--:|---|")
        parts += [_row(record, escape) for record in records if record["entry"].startswith(f"{library}/")]
        parts.append("")
    return "\n".join(parts)


def _read() -> Any:
    return json.loads(ZOO.read_text(encoding="utf-8"))


def _row(record: Record, escape: Escape) -> str:
    runs = record["outcome"] in ("whole", "partly", "in PyTorch", "wrong")
    cells = [
        f"`{record['entry'].partition('/')[2]}`",
        f"`{record['route']}`",
        record["shapes"],
        record["outcome"],
        f"{record['coverage']:.0%}" if runs else "",
        str(record["engines"]) if runs else "",
        _number(record.get("error")),
        _number(record.get("own_error")),
        f"{record['seconds']:.1f}" if runs else "",
        _why(record, escape),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}" if value else "0"


def _why(record: Record, escape: Escape, limit: int = 160) -> str:
    if record.get("why"):
        return escape(_cut(record["why"], limit))
    reasons = record.get("reasons", {})
    return "; ".join(
        f"[{Reason.from_code(code).title.lower()}](../reasons.md#{code.lower()}), {escape(_cut(text, limit))}"
        for code, text in reasons.items()
    )


def _cut(text: str, limit: int) -> str:
    """A message no longer than a cell can bear."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
