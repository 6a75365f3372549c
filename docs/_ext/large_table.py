"""The table of deep models, from what `python -m tools.bench.large --results` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

LARGE: Final = Path(__file__).parents[1] / "data" / "large.jsonl"


def large() -> str:
    """Returns a table with a row for each depth and setting that was measured."""
    lines = [
        "| layers | weights, GB | settings | build, s | GPU's peak | host's peak | load, s | call, ms | loaded "
        "| loaded / built |",
        "|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(json.loads(line)) for line in LARGE.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines)


def _row(found: Mapping[str, Any]) -> str:
    weights = found["weights"]
    settings = ", ".join(f"`{name}={value}`" for name, value in found["settings"].items())
    peaks = (found.get(f"build_{place}_peak") for place in ("gpu", "host"))
    built, loaded = found.get("call_ms"), found.get("loaded_call_ms")
    cells = [
        str(found["layers"]),
        f"{weights / 1e9:.1f}",
        settings,
        _shown(found.get("build_seconds")),
        *("" if peak is None else f"{peak / weights:.2f}" for peak in peaks),
        _shown(found.get("load_seconds")),
        _shown(built),
        _shown(loaded),
        "" if built is None or loaded is None else f"{loaded / built:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
