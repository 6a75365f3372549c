"""The table of what compiling costs beside Inductor, from what `python -m tools.zoo speed` wrote."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ZOO_SPEED: Final = Path(__file__).parents[1] / "data" / "zoo_speed.json"
_OURS: Final = "torch.compile"
_THEIRS: Final = "inductor"
_FIRST: Final = "first_processor"
_AGAIN: Final = "again_processor"

Speed = Mapping[str, float]


def zoo_speed() -> str:
    """Returns what was measured on which machine, and a row for every model that both peers ran."""
    data = json.loads(ZOO_SPEED.read_text(encoding="utf-8"))
    pairs = _pairs(data["records"])
    machine = data["machine"]
    head = (
        f"{len(pairs)} architectures on one thread of an {machine['processor']}, PyTorch "
        f"{machine['torch'].partition('+')[0]}, {machine['date']}. Ours over Inductor's, geometric means: "
        f"{_ratio(pairs, _FIRST):.2f} to the first result, {_ratio(pairs, _AGAIN):.2f} to the first of another size.\n"
    )
    rows = [
        "| model | first result, ours | Inductor | another size, ours | Inductor |",
        "|---|--:|--:|--:|--:|",
        *(_row(entry, *speeds) for entry, speeds in pairs.items()),
    ]
    return "\n".join([head, *rows])


def _pairs(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Speed, Speed]]:
    found: dict[str, dict[str, Speed]] = {}
    for record in records:
        if record["outcome"] == "whole":
            found.setdefault(record["entry"], {})[record["route"]] = record["speed"]
    return {entry: (by[_OURS], by[_THEIRS]) for entry, by in found.items() if {_OURS, _THEIRS} <= by.keys()}


def _ratio(pairs: Mapping[str, tuple[Speed, Speed]], name: str) -> float:
    return statistics.geometric_mean(ours[name] / theirs[name] for ours, theirs in pairs.values())


def _row(entry: str, ours: Speed, theirs: Speed) -> str:
    seconds = [f"{peer[name]:.1f} s" for name in (_FIRST, _AGAIN) for peer in (ours, theirs)]
    return f"| `{entry}` | {' | '.join(seconds)} |"
