"""What shape inference knows of extents that only a run tells."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from trt_portable.network.inference import Symbols


def test_what_one_layer_assumes_of_an_extent_is_not_known_to_the_next() -> None:
    symbols = Symbols()
    extent = symbols.create()
    squared = symbols.integer(extent) // 8
    expression = (squared * squared).node.expr
    with symbols.mode():
        torch._check(symbols.integer(expression) == 1)
        assert guard_or_false(symbols.integer(expression) == 1)
    symbols.settle()
    with symbols.mode():
        assert not guard_or_false(symbols.integer(expression) == 1)
        made = 1 + torch.arange(symbols.integer(expression), device="meta")
    assert made.shape[0].node.expr == expression
    assert symbols.count == 1
