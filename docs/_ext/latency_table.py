"""The tables and plots of the page on speed, from what `python -m tools.bench.latency --results` wrote.

A machine is what its results were measured on, all of it; each has a section with a plot at batch 1, a table of
milliseconds, and one of building, loading and memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from latency_plot import bars
from measurements import Result, by_machine

LATENCY: Final = Path(__file__).parents[1] / "data" / "latency.jsonl"
OURS: Final = "portable"
_COMPILED: Final = "torch.compile"


def latency(path: Path = LATENCY) -> str:
    """Returns a section for every machine."""
    return "\n".join(_section(_latest(results)) for results in by_machine(path))


def _latest(results: Sequence[Result]) -> list[Result]:
    """The last result of each model, batch and peer."""
    return list({(each["model"], each["batch"], each["peer"]): each for each in results}.values())


def _section(results: Sequence[Result]) -> str:
    machine = results[0]["machine"]
    threads = f", {machine['threads']} thread{'s' * (machine['threads'] != 1)}" if machine["threads"] else ""
    processor = f" ({machine['processor']}{threads})" if machine["processor"] else ""
    dates = sorted({each["date"] for each in results})
    period = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    jobs = max(each["jobs"] for each in results)
    build = "" if jobs == 1 else f" {jobs} processes built at once, so build times are upper bounds."
    parts = [
        f"## {machine['device']}, {machine['dtype']}\n",
        f"{machine['device']}{processor}, PyTorch {machine['torch']}, Python {machine['python']}, {period}.{build}\n",
        bars("Speed beside the fastest mode of torch.compile, batch 1", _speedups(results)),
        "Milliseconds per call, medians; the fastest in bold, and in parentheses seconds to build. The floor is what "
        "moving the weights once, or the multiplications alone, would take by the device's data sheet.\n",
        _milliseconds(results),
        "",
    ]
    costs = _costs(results)
    if costs:
        parts += ["Building, loading and memory of portable engines at batch 1, at the default level:\n", costs, ""]
    return "\n".join(parts)


def _by_peer(results: Sequence[Result]) -> dict[tuple[str, int], dict[str, Result]]:
    found: dict[tuple[str, int], dict[str, Result]] = {}
    for each in results:
        found.setdefault((each["model"], each["batch"]), {})[each["peer"]] = each
    return dict(sorted(found.items(), key=lambda item: item[0][1]))


def _speedups(results: Sequence[Result]) -> dict[str, float]:
    """By model: the time of the fastest torch.compile mode over ours."""
    found = {}
    for (model, batch), peers in _by_peer(results).items():
        theirs = [
            each["milliseconds"] for name, each in peers.items() if _is_timed(each) and name.startswith(_COMPILED)
        ]
        if batch == 1 and theirs and _is_timed(peers.get(OURS)):
            found[model] = min(theirs) / peers[OURS]["milliseconds"]
    return found


def _milliseconds(results: Sequence[Result]) -> str:
    peers = list(dict.fromkeys(each["peer"] for each in results))
    rows = [f"| model | batch | {' | '.join(peers)} | floor |", f"|---|--:|{'--:|' * (len(peers) + 1)}"]
    for (model, batch), found in _by_peer(results).items():
        timed = [each for each in found.values() if _is_timed(each)]
        least = min((each["milliseconds"] for each in timed), default=None)
        floors = [each["floor_milliseconds"] for each in timed if each.get("floor_milliseconds") is not None]
        cells = " | ".join(_cell(found.get(peer), least) for peer in peers)
        rows.append(f"| {model} | {batch} | {cells} | {f'{floors[0]:.3f}' if floors else ''} |")
    return "\n".join(rows)


def _costs(results: Sequence[Result]) -> str:
    rows = []
    for (model, batch), found in _by_peer(results).items():
        ours = found.get(OURS)
        if batch != 1 or ours is None or "host_bytes" not in ours:
            continue
        load = "" if ours["load_seconds"] is None else f"{ours['load_seconds']:.2f}"
        sizes = (ours["host_bytes"], ours["build_bytes"], ours["run_bytes"])
        shown = " | ".join("" if size is None else f"{size / 2**20:.0f}" for size in sizes)
        rows.append(f"| {model} | {ours['build_seconds']:.1f} | {load} | {shown} | {ours['error_float32']:.1e} |")
    if not rows:
        return ""
    head = "| model | build, s | load, s | host peak, MiB | device peak at build, MiB | at run, MiB | error |"
    return "\n".join([head, f"|---|{'--:|' * 6}", *rows])


def _is_timed(found: Result | None) -> bool:
    return found is not None and "milliseconds" in found


def _cell(found: Result | None, least: float | None) -> str:
    if found is None or "milliseconds" not in found:
        return "" if found is None else "failed"
    shown = f"{found['milliseconds']:.3f}"
    shown = f"**{shown}**" if found["milliseconds"] == least else shown
    return f"{shown} ({found['build_seconds']:.1f})"
