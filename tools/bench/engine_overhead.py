"""Host time that a call of an engine costs beyond the work itself."""

from __future__ import annotations

import functools
import timeit

import torch
from torch import nn

from tools.bench.report import Row


def rows(calls: int = 5000) -> list[Row]:
    """Measures an engine with one small addition beside the addition in PyTorch."""
    import trt_frontends

    class Add(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.ones(8, device=device)
    compiled = trt_frontends.compile(Add(), arg_inputs=(x,), min_block_size=1)
    eager = Add()
    found = []
    with torch.inference_mode():
        engine = compiled.get_submodule("_run_on_acc_0")
        for name, action in (("compiled module", compiled), ("its engine", engine)):
            action(x)
            seconds = min(timeit.repeat(functools.partial(action, x), number=calls, repeat=5)) / calls
            peer = min(timeit.repeat(lambda: eager(x), number=calls, repeat=5)) / calls
            found.append(Row(name, seconds * 1e6, peer * 1e6, "x + 1 as a module", unit="us"))
    return found
