"""Networks that unfold and fold pictures of varying sizes read nothing that nobody has written."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trt_core import Input
from trt_frontends import compile as compile_model

ROWS = (6, 5, 9, 6)
COLUMNS = 7


class Outlook(nn.Module):
    """Attention over overlapping windows, every other row and column, put together by adding what overlaps."""

    def __init__(self, width: int = 8, heads: int = 2, kernel: int = 3) -> None:
        super().__init__()
        self.heads, self.kernel = heads, kernel
        self.value, self.attention = nn.Linear(width, width), nn.Linear(width, heads * kernel**4)
        self.pool, self.project = nn.AvgPool2d(2, 2, ceil_mode=True), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, rows, columns = x.shape
        taps, places = self.kernel**2, math.ceil(rows / 2) * math.ceil(columns / 2)
        value = self.value(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        value = F.unfold(value, self.kernel, padding=1, stride=2)
        value = value.reshape(batch, self.heads, width // self.heads, taps, places).permute(0, 1, 4, 3, 2)
        weights = self.attention(self.pool(x).permute(0, 2, 3, 1))
        weights = weights.reshape(batch, places, self.heads, taps, taps).permute(0, 2, 1, 3, 4).softmax(-1)
        mixed = (weights @ value).permute(0, 1, 4, 3, 2).reshape(batch, width * taps, places)
        mixed = F.fold(mixed, (rows, columns), self.kernel, padding=1, stride=2)
        return self.project(mixed.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + x


@pytest.fixture
def _poisoned() -> Iterator[None]:
    """Memory is NaN until somebody writes to it."""
    was_filled, threads = torch.utils.deterministic.fill_uninitialized_memory, torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warned)
    torch.utils.deterministic.fill_uninitialized_memory = was_filled


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("path", ["compile", "torch.compile"])
def test_what_is_unfolded_and_folded(path: str) -> None:
    assert torch.empty(1).isnan()
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Outlook()).eval()
    inputs = [torch.randn(2, 3, rows, COLUMNS) for rows in ROWS]
    with torch.no_grad():
        if path == "compile":
            shapes = [(2, 3, rows, COLUMNS) for rows in (min(ROWS), ROWS[0], max(ROWS))]
            ranges = Input(min_shape=shapes[0], opt_shape=shapes[1], max_shape=shapes[2])
            compiled = compile_model(model, arg_inputs=[ranges], min_block_size=1)
        else:
            compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
            torch._dynamo.mark_dynamic(inputs[0], 2)
        for threads in (1, 4):
            torch.set_num_threads(threads)
            for x in inputs:
                torch.testing.assert_close(compiled(x), model(x))
