"""Seconds of the processor that `import trt_frontends` takes beyond `import torch`."""

from __future__ import annotations

import subprocess
import sys

from tools.bench.report import Row

_SCRIPT = """
import time
start = time.process_time()
import torch
middle = time.process_time()
import {package}
print(middle - start, time.process_time() - middle)
"""


def rows(repeats: int = 5) -> list[Row]:
    """Measures every package in fresh processes; best of several."""
    found = []
    for package in ("trt_portable", "trt_runtime", "trt_converters", "trt_frontends"):
        runs = [import_seconds(package) for _ in range(repeats)]
        torch_seconds, own_seconds = min(run[0] for run in runs), min(run[1] for run in runs)
        found.append(Row(f"import {package}", own_seconds, torch_seconds, "import torch"))
    return found


def import_seconds(package: str) -> tuple[float, float]:
    """Returns what importing PyTorch takes in a fresh process, and a package after it."""
    output = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(package=package)], capture_output=True, text=True, check=True
    ).stdout
    first, second = map(float, output.split())
    return first, second
