"""Results of the latency benchmark as lines of JSON, one for each peer: a run that is killed keeps what it has."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tools.bench.latency_peer import device_name


class Job(NamedTuple):
    """What one process measures."""

    model: str
    batch: int
    peer: str


def machine() -> dict[str, Any]:
    """What is measured on: results are compared where all of it is equal but the date."""
    cuda = torch.cuda.is_available()
    return {
        "device": device_name(),
        "processor": _processor(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "dtype": "float16" if cuda else "float32",
    }


def today() -> str:
    """The date that stands beside a result."""
    return datetime.date.today().isoformat()


def append(path: Path, result: dict[str, Any]) -> None:
    """Adds a line, whole or not at all as far as later readers are concerned."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All results of a file; a last line that was cut off is left out. Nothing where there is no file."""
    if not path.exists():
        return []
    results = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            results.append(json.loads(line))
        except ValueError:
            continue
    return results


def measured(results: Iterable[dict[str, Any]], here: dict[str, Any]) -> set[Job]:
    """What was measured on this machine, and did not fail."""
    return {
        Job(each["model"], each["batch"], each["peer"])
        for each in results
        if each["machine"] == here and "milliseconds" in each
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
