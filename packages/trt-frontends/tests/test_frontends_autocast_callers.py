"""Compiled models compute the same inside of a caller's autocast as outside of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import trt_frontends

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "products": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (4, 16)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (1, 3, 9, 9)),
    "recurrent layers": (lambda: nn.LSTM(16, 70), (5, 2, 16)),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", MODELS)
def test_autocast_of_a_caller_changes_nothing(name: str, device: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval().to(device), torch.randn(shape, device=device)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, device=device)
    with torch.no_grad():
        wanted = compiled(x)
        for _ in range(3):  # on a GPU the second run is recorded, and the third one replayed
            with torch.autocast(device, dtype=torch.bfloat16):
                found = compiled(x)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
