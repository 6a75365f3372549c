"""The table of text generation, from the lines that `python -m tools.bench.generation --results` appended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

GENERATION: Final = Path(__file__).parents[1] / "data" / "generation.jsonl"
_FIELDS: Final = ("limit", "enqueued", "step", "token")


def generation() -> str:
    """Returns a row for each way of each model, batch and cache, with the limit beside it, in milliseconds."""
    lines = [
        "| model | batch | cache | way | limit | step, not waited for | waited for | token | limit / step | date |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    for line in GENERATION.read_text(encoding="utf-8").splitlines():
        found: dict[str, Any] = json.loads(line)
        model = found["model"] + (f", {found['layers']} layers" if found["layers"] else "")
        times = ["" if found.get(field) is None else f"{found[field] * 1e3:.3f}" for field in _FIELDS]
        share = found["limit"] / (found.get("enqueued") or found["step"])
        cells = [model, found["batch"], found["length"], found["way"], *times, f"{share:.2f}", found["date"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
