"""The tables of models by precision, from what `python -m tools.bench.precision --results` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from measurements import Result, by_machine

PRECISION: Final = Path(__file__).parents[1] / "data" / "precision.jsonl"


def precision(path: Path = PRECISION) -> str:
    """Returns a table for every machine: error, speed and size of each model with each setting."""
    return "\n".join(_section(results) for results in by_machine(path))


def _section(results: Sequence[Result]) -> str:
    machine = results[-1]["machine"]
    plain = {each["model"]: each for each in results if each["setting"] == "float32" and "failed" not in each}
    threads = f", {machine['threads']} thread(s)" if machine["cuda"] is None else ""
    rows = [
        f"### {machine['device']}\n",
        f"{machine['processor']}{threads}, PyTorch {machine['torch']}, measured {results[-1]['date']}.\n",
        "| model | setting | error | ms per call | speed | plan, MB | reduced |",
        "|---|---|--:|--:|--:|--:|---|",
        *(_row(each, plain.get(each["model"])) for each in _in_order(results)),
        "",
    ]
    return "\n".join(rows)


def _in_order(results: Sequence[Result]) -> list[Result]:
    """By model, then by setting, each in the order of its first result; the last result of each counts."""
    models = list(dict.fromkeys(each["model"] for each in results))
    settings = list(dict.fromkeys(each["setting"] for each in results))
    latest = {(each["model"], each["setting"]): each for each in results}
    return [latest[model, setting] for model in models for setting in settings if (model, setting) in latest]


def _row(each: Result, plain: Result | None) -> str:
    head = f"| {each['model']} | {each['setting']} |"
    if "failed" in each:
        return f"{head} failed | | | | |"
    error = each["error"] if isinstance(each["error"], str) else f"{each['error']:.1e}"
    speed = f"{plain['milliseconds'] / each['milliseconds']:.2f} times" if plain else ""
    share = f"{each['reduced_share']:.0%} in {each['chosen']}" if each.get("reduced_share") else ""
    reduced = share or ("nothing" if "chosen" in each else "")
    return f"{head} {error} | {each['milliseconds']:.3f} | {speed} | {each['bytes'] / 1e6:.1f} | {reduced} |"
