"""The table of the page on speed, from what `python -m tools.bench.latency --json` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

LATENCY: Final = Path(__file__).parents[1] / "data" / "latency.json"


def latency() -> str:
    """Returns milliseconds, and build seconds in parentheses, by model and peer; the fastest in bold."""
    data = json.loads(LATENCY.read_text(encoding="utf-8"))
    results, machine = data["results"], data["machine"]
    peers = list(dict.fromkeys(each["peer"] for each in results))
    rows = [f"| model | batch | {' | '.join(peers)} |", f"|---|--:|{'--:|' * len(peers)}"]
    for model, batch in dict.fromkeys((each["model"], each["batch"]) for each in results):
        found = {each["peer"]: each for each in results if (each["model"], each["batch"]) == (model, batch)}
        least = min(each["milliseconds"] for each in found.values() if "milliseconds" in each)
        cells = " | ".join(_cell(found.get(peer, {}), least) for peer in peers)
        rows.append(f"| {model} | {batch} | {cells} |")
    jobs = data["jobs"]
    build = "" if jobs == 1 else f" {jobs} processes built at once, so build times are upper bounds."
    head = (
        f"{machine['device']}, {machine['dtype']}, PyTorch {machine['torch']}, Python {machine['python']}, "
        f"{machine['date']}. Milliseconds per call, medians, and in parentheses seconds to build.{build}\n"
    )
    return "\n".join([head, *rows])


def _cell(found: dict[str, Any], least: float) -> str:
    if "milliseconds" not in found:
        return "failed" if found else ""
    shown = f"{found['milliseconds']:.3f}"
    shown = f"**{shown}**" if found["milliseconds"] == least else shown
    return f"{shown} ({found['build_seconds']:.1f})"
