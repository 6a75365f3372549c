"""Rows of benchmark results, as a table and as JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measurement beside its peer.

    Attributes:
        what: What was measured.
        value: The measurement, in `unit`.
        peer: The peer's measurement, in the same unit.
        peer_name: What the peer is.
        unit: `s`, `us`, or `B`.
        note: Anything a reader should know.
    """

    what: str
    value: float
    peer: float
    peer_name: str
    unit: str = "s"
    note: str = ""

    @property
    def ratio(self) -> float:
        """The measurement over the peer's."""
        return self.value / self.peer if self.peer else float("inf")


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Prints rows as a table."""
    table = Table("what", "value", "peer", "peer is", "ratio", "note", title=title, title_justify="left")
    for row in rows:
        value, peer = (_format(number, row.unit) for number in (row.value, row.peer))
        table.add_row(row.what, value, peer, row.peer_name, f"{row.ratio:.2f}", row.note)
    console.print(table)


def write_json(path: Path, results: dict[str, Sequence[Row]]) -> None:
    """Writes every result with what it was measured on."""
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "threads": torch.get_num_threads(),
    }
    data = {name: [asdict(row) | {"ratio": row.ratio} for row in rows] for name, rows in results.items()}
    path.write_text(json.dumps({"machine": machine, "results": data}, indent=1))


def _format(number: float, unit: str) -> str:
    if unit == "B":
        return f"{number / 2**20:.1f} MiB"
    if unit == "us":
        return f"{number:.1f} us"
    return f"{number * 1e3:.1f} ms" if number < 1 else f"{number:.2f} s"
