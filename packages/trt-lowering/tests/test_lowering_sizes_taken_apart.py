"""Sizes that are computed outside of a trace, as `DTensor` computes them, and used in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

from trt_lowering.sharded_modules import sizes_taken_apart

SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "product of four": lambda a, b: 2 * a * b * (a + b),
    "power": lambda a, b: 3 * a**2 * b,
    "remainder": lambda a, b: 1 + (a * b * 5) % (a + 1),
    "larger of three": lambda a, b: torch.sym_max(torch.sym_max(a * b * 2, b + 7), 9),
    "sum": lambda a, b: a + b + a * b,
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("is_read", [False, True], ids=["as it is", "in another"])
def test_traces_hold_sizes_that_were_computed_outside(size: Callable[[Any, Any], Any], is_read: bool) -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        with disable_proxy_modes_tracing():
            count = size(*x.shape)
        return x.new_zeros(count - 1 if is_read else count)

    with sizes_taken_apart():
        traced = make_fx(made, tracing_mode="symbolic")(torch.ones(5, 7))
    for shape in ((5, 7), (4, 3), (11, 2)):
        x = torch.ones(*shape)
        assert traced(x).shape == made(x).shape
