"""What a process needs that loads a program and calls it: seconds of the processor, and memory beside the file."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tools.bench.import_time import import_seconds
from tools.bench.measure import in_fresh_process, mapped_bytes, peak_bytes, resident_bytes
from tools.bench.report import Row

INPUTS = {"resnet18": ((1, 3, 224, 224), torch.float32), "bert_base": ((1, 128), torch.int64)}
"""Shape and type of each model's input: a process that loads a program has no model to ask."""

SECONDS = {"load": "load_s", "first call": "first_call_s"}
BYTES = {
    "peak of load": "load_peak_B",
    "peak of the first call": "first_call_peak_B",
    "more than before, after ten calls": "held_B",
    "of that, memory of its own": "anonymous_B",
    "of that, mapped from the file": "mapped_B",
}


def rows(names: tuple[str, ...] = tuple(INPUTS), repeats: int = 3) -> list[Row]:
    """Saves each model in one process and loads it in others; the best of several."""
    import_torch = min(import_seconds("torch")[0] for _ in range(repeats))
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / f"{name}.trtp")
            size = in_fresh_process("tools.bench.start_up", "save", name, path)["file_B"]
            runs = [in_fresh_process("tools.bench.start_up", "load", name, path) for _ in range(repeats)]
            compiling = [in_fresh_process("tools.bench.start_up", "load", name, path, folder) for _ in range(repeats)]
        for what, key in SECONDS.items():
            found.append(Row(f"{what}, {name}", min(run[key] for run in runs), import_torch, "import torch"))
        seconds = min(run["load_s"] for run in compiling)
        found.append(Row(f"load without bytecode, {name}", seconds, import_torch, "import torch"))
        for what, key in BYTES.items():
            found.append(Row(f"{what}, {name}", min(run[key] for run in runs), size, "the file", unit="B"))
    return found


def save(name: str, path: str) -> dict[str, float]:
    """Compiles and saves a model."""
    import trt_frontends
    from tools.bench.models import make

    model, inputs = make(name)
    trt_frontends.save(trt_frontends.compile(model, arg_inputs=inputs), path)
    return {"file_B": os.path.getsize(path)}


def load(name: str, path: str, cache: str | None = None) -> dict[str, float]:
    """Loads a program and calls it.

    Args:
        name: The model.
        path: What `save` wrote.
        cache: An empty folder to look for bytecode in, so that sources are compiled; None for the usual places.
    """
    torch.set_num_threads(1)
    shape, dtype = INPUTS[name]
    x = torch.zeros(shape, dtype=dtype)
    if cache is not None:
        sys.pycache_prefix, sys.dont_write_bytecode = cache, True
    start = time.process_time()
    import trt_runtime

    import_s = time.process_time() - start
    rest_before, own_before = resident_bytes("VmRSS"), resident_bytes("RssAnon")
    seconds: list[float] = []
    results: list[Any] = []

    def timed(action: Callable[[], Any]) -> None:
        start = time.process_time()
        results.append(action())
        seconds.append(time.process_time() - start)

    load_peak = peak_bytes(lambda: timed(lambda: trt_runtime.load(path)))
    loaded = results[0]
    level = resident_bytes("VmRSS") - rest_before
    first_call_peak = level + peak_bytes(lambda: timed(lambda: loaded(x)))
    for _ in range(9):
        loaded(x)
    return {
        "load_s": import_s + seconds[0],
        "first_call_s": seconds[1],
        "load_peak_B": load_peak,
        "first_call_peak_B": first_call_peak,
        "held_B": resident_bytes("VmRSS") - rest_before,
        "anonymous_B": resident_bytes("RssAnon") - own_before,
        "mapped_B": mapped_bytes(path),
    }


if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    found = save(*arguments) if action == "save" else load(*arguments)
    print(json.dumps(found))  # noqa: T201 - read by the process that started this one
