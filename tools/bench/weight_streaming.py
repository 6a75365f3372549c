"""Weights that stay on the GPU in part: time of a call and memory of the device, by budget.

The peer of a row's time is the call with all weights on the GPU; the note tells how fast the streamed weights came in.
Rows in bytes are the most memory of the device during calls, beside the same with all weights there.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from tools.bench.models import LlamaBlock
from tools.bench.report import Row

_BLOCKS = 8
_ROWS = 2048
_PARTS = (100, 75, 50, 25, 0)


def rows(calls: int = 10) -> list[Row]:
    """Measures a stack of decoder layers in float16; nothing without a GPU.

    Args:
        calls: Calls per measurement.
    """
    if not torch.cuda.is_available():
        return []
    import trt_frontends
    from trt_runtime import weight_streaming

    torch.manual_seed(0)
    model = nn.Sequential(*(LlamaBlock() for _ in range(_BLOCKS))).half().eval().cuda()
    x = torch.randn(1, _ROWS, 2048, dtype=torch.float16, device="cuda")
    compiled = trt_frontends.compile(
        model, arg_inputs=(x,), enable_weight_streaming=True, min_block_size=1, optimization_level=0
    )
    del model
    torch.cuda.empty_cache()
    found: list[Row] = []
    with torch.inference_mode(), weight_streaming(compiled) as streaming:
        total = streaming.total_device_budget
        peers: tuple[float, float] | None = None
        for part in _PARTS:
            streaming.device_budget = total * part // 100
            seconds, peak = _measured(compiled, x, calls)
            peers = peers or (seconds, peak)
            streamed = total - streaming.device_budget
            note = f"{streamed / seconds / 1e9:.0f} GB/s" if streamed else ""
            name = f"{part}% of {total >> 20} MiB on the GPU"
            found.append(Row(f"{name}, call", seconds, peers[0], "all of it there", note=note))
            found.append(Row(f"{name}, memory", peak, peers[1], "all of it there", unit="B"))
    found.append(_bare_transfer(total))
    return found


def _measured(compiled: nn.Module, x: torch.Tensor, calls: int) -> tuple[float, float]:
    """Seconds of a call, and the most bytes of the device meanwhile."""
    for _ in range(4):
        compiled(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            compiled(x)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best, float(torch.cuda.max_memory_allocated())


def _bare_transfer(size: int) -> Row:
    """What the host's memory and the bus give: the same bytes, and nothing else."""
    host: Any = torch.empty(min(size, 1 << 28), dtype=torch.uint8, pin_memory=True)
    place = torch.empty_like(host, device="cuda")
    place.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(8):
        place.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / 8 * size / host.numel()
    return Row(
        "transfer of all of it, call",
        seconds,
        seconds,
        "itself",
        note=f"{size / seconds / 1e9:.0f} GB/s",
    )
