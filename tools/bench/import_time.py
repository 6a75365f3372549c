"""How long `import trt_frontends` takes beyond `import torch`."""

from __future__ import annotations

import subprocess
import sys

from tools.bench.report import Row

_SCRIPT = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import {package}
print(middle - start, time.perf_counter() - middle)
"""


def rows(repeats: int = 5) -> list[Row]:
    """Measures every package in fresh processes; best of several."""
    found = []
    for package in ("trt_portable", "trt_runtime", "trt_converters", "trt_frontends"):
        runs = [_run(package) for _ in range(repeats)]
        torch_seconds, own_seconds = min(run[0] for run in runs), min(run[1] for run in runs)
        found.append(Row(f"import {package}", own_seconds, torch_seconds, "import torch"))
    return found


def _run(package: str) -> tuple[float, float]:
    output = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(package=package)], capture_output=True, text=True, check=True
    ).stdout
    first, second = map(float, output.split())
    return first, second
