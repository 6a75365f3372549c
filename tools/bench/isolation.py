"""What a process of its own costs a saved program: loading with `isolated=True`, and calls by size of tensors."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch
from torch import nn

from tools.bench.measure import best_seconds
from tools.bench.report import Row

SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "100 MB": 100 << 20}
"""Bytes of a call's one input, and of its one result."""


def rows(repeats: int = 3) -> list[Row]:
    """Loads and calls a program here and isolated; the best of several."""
    import trt_runtime

    found = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = str(Path(folder) / "relu.trtp")
        count = torch.export.Dim("count", min=2, max=SIZES["100 MB"] // 4)
        trt_runtime.save(nn.ReLU(), path, arg_inputs=(torch.ones(256),), dynamic_shapes=({0: count},))
        here = best_seconds(lambda: trt_runtime.load(path), repeats)
        apart = best_seconds(lambda: trt_runtime.load(path, isolated=True).close(), repeats)
        found.append(Row("load and close", apart, here, "load"))
        program = trt_runtime.load(path)
        with trt_runtime.load(path, isolated=True) as isolated:
            for name, size in SIZES.items():
                x = torch.ones(size // 4)
                isolated(x)  # shared memory grows to this size once
                apart, here = (best_seconds(functools.partial(run, x), 20) for run in (isolated, program))
                found.append(Row(f"a call, {name} in and out", apart, here, "loaded here"))
    return found
