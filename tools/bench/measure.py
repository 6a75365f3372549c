"""How things are measured: best of several, peak memory of a piece of work, work in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def best_seconds(action: Callable[[], Any], repeats: int = 3) -> float:
    """Returns the shortest of several runs in seconds: the one that others disturbed least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_bytes(action: Callable[[], Any]) -> int:
    """Returns by how many bytes the resident memory of this process peaked above its level before (Linux)."""
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    action()
    return _resident("VmHWM") - before


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """Runs a module that prints JSON as its last line in another process, and returns it."""
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if result.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{result.stderr}")
    found: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return found


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
