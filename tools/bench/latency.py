"""Time of a call: compiled beside eager (and beside `torch.compile` on a GPU)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tools.bench.measure import best_seconds
from tools.bench.models import make
from tools.bench.report import Row

NAMES = ("resnet50", "vit_b16", "bert_base", "gpt2", "swin_t")


def rows(names: tuple[str, ...] = NAMES) -> list[Row]:
    """Measures float32 on the CPU, float16 on a GPU, batch 1."""
    import trt_frontends

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    found = []
    for name in names:
        model, inputs = make(name)
        tensors = tuple(spec.example(device=device) for spec in inputs)
        model = model.to(device)
        if cuda:
            model = model.half()
            tensors = tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in tensors)
        with torch.inference_mode():
            compiled = trt_frontends.compile(model, arg_inputs=tensors)
            ours = _time(compiled, tensors)
            found.append(Row(f"{name}, compiled", ours, _time(model, tensors), "eager"))
            if cuda:
                peer = torch.compile(model, mode="reduce-overhead")
                found.append(Row(f"{name}, compiled", ours, _time(peer, tensors), "torch.compile reduce-overhead"))
    return found


def _time(module: Callable[..., Any], tensors: tuple[torch.Tensor, ...], calls: int = 10) -> float:
    def run() -> None:
        for _ in range(calls):
            module(*tensors)
        if tensors[0].is_cuda:
            torch.cuda.synchronize()

    run()
    return best_seconds(run) / calls
