"""From records to the data of the documentation's page, and to totals."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from tools.zoo.entry import Shapes
from tools.zoo.record import Outcome, Record
from tools.zoo.registry import ROUTES

_PATH: Final = re.compile(r"/\S*/(?=\S)")
"""Folders of the machine that wrote a message."""


def write_data(path: Path, records: Sequence[Record], machine: Mapping[str, Any] | None = None) -> None:
    """Writes records as JSON: what they were made with (and on, where that matters), and one entry per line, sorted."""
    lines = ",\n".join(_line(record) for record in sorted(records, key=lambda record: record.key))
    facts = {"torch": torch.__version__, **({"machine": machine} if machine else {})}
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in facts.items())
    path.write_text(f'{{\n{head}"records": [\n{lines}\n]\n}}\n', encoding="utf-8")


def summary(records: Sequence[Record]) -> str:
    """Returns how many cases of each kind had which outcome, as text."""
    lines = []
    for route in ROUTES:
        for shapes in Shapes:
            chosen = [record for record in records if record.key[1:] == (route.value, shapes.value)]
            if chosen:
                counts = Counter(record.outcome for record in chosen)
                parts = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
                lines.append(f"{route.value}, {shapes.value}: {len(chosen)} cases: {parts}")
    return "\n".join(lines)


def _line(record: Record) -> str:
    data = dataclasses.asdict(record) | {"outcome": record.outcome.value, "seconds": round(record.seconds, 1)}
    data["why"] = _PATH.sub("", record.why)
    data["phases"] = {owner: round(seconds, 1) for owner, seconds in record.phases.items() if seconds >= 0.1}
    data["speed"] = {name: float(f"{value:.3g}") for name, value in record.speed.items()}
    for name in ("error", "own_error"):
        if data[name] is not None:
            data[name] = float(f"{data[name]:.2g}") if abs(data[name]) != float("inf") else None
    # what is empty says nothing
    return json.dumps({name: value for name, value in data.items() if value not in ("", None, {})}, ensure_ascii=False)
