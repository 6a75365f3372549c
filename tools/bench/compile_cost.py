"""Time of a compilation beside that of the export, and peak host memory beside the weights of the model."""

from __future__ import annotations

import gc
import json
import sys
import time

import torch

from tools.bench.measure import in_fresh_process, peak_bytes
from tools.bench.models import make
from tools.bench.report import Row

NAMES = ("resnet50", "vit_b16", "bert_base", "gpt2", "swin_t")


def rows(names: tuple[str, ...] = NAMES) -> list[Row]:
    """Measures each model in a fresh process."""
    found = []
    for name in names:
        result = in_fresh_process("tools.bench.compile_cost", name)
        found.append(Row(f"compile {name}", result["compile_s"], result["export_s"], "torch.export.export"))
        found.append(Row(f"peak memory, {name}", result["peak_B"], result["weights_B"], "the weights", unit="B"))
    return found


def measure(name: str) -> dict[str, float]:
    """Compiles one model in this process."""
    import trt_frontends

    torch.set_num_threads(1)
    model, inputs = make(name)
    tensors = tuple(spec.example() for spec in inputs)
    small = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    trt_frontends.compile(small, arg_inputs=(torch.ones(1, 4),), min_block_size=1)  # imports are not what is measured
    start = time.perf_counter()
    program = torch.export.export(model, tensors)
    export_seconds = time.perf_counter() - start
    weights = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])
    gc.collect()
    start = time.perf_counter()
    peak = peak_bytes(lambda: trt_frontends.compile(program, arg_inputs=inputs))
    return {
        "compile_s": time.perf_counter() - start,
        "export_s": export_seconds,
        "peak_B": peak,
        "weights_B": weights,
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))  # noqa: T201 - read by the process that started this one
