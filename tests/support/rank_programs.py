"""What ranks run in tests: functions that a new process can import."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

import trt_frontends as trt
from trt_core import Input


class Collectives(nn.Module):
    """Every collective that has a layer, in one group of ranks.

    Args:
        group: The process group.
    """

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.product = nn.Linear(8, 8)
        self._group = group

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: (N, 8), N a multiple of the group's size."""
        operators: Any = torch.ops._c10d_functional
        name, size = self._group.group_name, self._group.size()

        def done(started: torch.Tensor) -> torch.Tensor:
            return operators.wait_tensor(started)  # type: ignore[no-any-return]

        summed = done(operators.all_reduce(self.product(x), "sum", name))
        gathered = done(operators.all_gather_into_tensor(torch.relu(x), size, name))
        scattered = done(operators.reduce_scatter_tensor(gathered + 1, "sum", size, name))
        parts = [x.shape[0] // size] * size
        exchanged = done(operators.all_to_all_single(summed, parts, parts, name))
        sent = done(operators.broadcast(exchanged * 2, size - 1, name))
        largest = done(operators.all_reduce(x.sum(), "max", name))
        return summed, gathered, scattered, exchanged, sent, largest


def compile_collectives(rank: int, groups: list[list[int]]) -> dict[str, Any]:
    """Compiles `Collectives` in the group of this rank and compares it with eager at several sizes."""
    made = [dist.new_group(ranks) for ranks in groups]
    (group,) = [found for found, ranks in zip(made, groups, strict=True) if rank in ranks]
    torch.manual_seed(0)
    model = Collectives(group).eval().requires_grad_(False)
    compiled = trt.compile(model, arg_inputs=(Input(min_shape=(4, 8), opt_shape=(4, 8), max_shape=(16, 8)),))
    torch.manual_seed(rank + 1)
    for rows in (4, 8, 16):
        x = torch.randn(rows, 8)
        for found, wanted in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(found, wanted)
    report = compiled.meta["partition_report"]
    return {"engines": len(report.engines), "coverage": report.coverage}
