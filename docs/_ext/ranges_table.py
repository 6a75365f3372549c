"""The tables of engines for ranges of sizes, from what `python -m tools.bench.ranges --results` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RANGES: Final = Path(__file__).parents[1] / "data" / "ranges.jsonl"
_PEERS: Final = ("range", "fixed", "eager")

Results = dict[str, dict[str, Mapping[str, Any]]]


def ranges() -> str:
    """Returns a table of every size of every model, and one of builds and of sizes that come for the first time."""
    found: Results = {}
    for line in RANGES.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if "error" not in result:
            found.setdefault(result["model"], {})[result["peer"]] = result
    return "\n".join([*_sizes(found), "", *_streams(found)])


def _sizes(found: Results) -> list[str]:
    lines = [
        "| model | size | range | fixed | eager | kernels of range / fixed | goal |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for model, peers in found.items():
        if "range" not in peers:
            continue
        for place, size in enumerate(peers["range"]["milliseconds"]):
            times = [_number(peers, peer, "milliseconds", size) for peer in _PEERS]
            ours, theirs = (_number(peers, peer, "kernel_milliseconds", size) for peer in _PEERS[:2])
            ratio = "" if ours is None or theirs is None else f"{ours / theirs:.2f}"
            cells = [model, size, *map(_shown, times), ratio, "1.1" if place else "1.03"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _streams(found: Results) -> list[str]:
    lines = [
        "| model | peer | build, seconds | a size that is new, mean | slowest | the same sizes again, mean |",
        "|---|---|--:|--:|--:|--:|",
    ]
    fields = ("stream_milliseconds", "cold_milliseconds", "again_milliseconds")
    for model, peers in found.items():
        for peer, result in peers.items():
            build = "" if peer == "eager" else f"{result['build_seconds']:.1f}"
            lines.append(f"| {' | '.join([model, peer, build, *(_shown(result.get(field)) for field in fields)])} |")
    return lines


def _number(peers: Mapping[str, Mapping[str, Any]], peer: str, field: str, size: str) -> float | None:
    found: float | None = peers.get(peer, {}).get(field, {}).get(size)
    return found


def _shown(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3g}"
