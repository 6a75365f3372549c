"""Sizes that vary stay open while operators are traced and converted."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from trt_lowering import sizes_left_open


def test_what_fixes_a_size_is_refused_in_words_and_nothing_is_logged() -> None:
    rows = torch.export.Dim("rows", min=2, max=8)
    program = torch.export.export(nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=({0: rows},), strict=False)
    (holder,) = program.graph.find_nodes(op="placeholder")
    value = holder.meta["val"]
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    log.addHandler(handler)
    try:
        with sizes_left_open(program.graph_module):
            assert int(value.shape[1]) == 4
            for _ in range(2):
                with pytest.raises(RuntimeError, match=r"takes for granted that .* is 3, and sizes vary"):
                    int(value.shape[0])
                with sizes_left_open(program.graph_module), pytest.raises(RuntimeError, match="takes for granted"):
                    bool(value.shape[0] > 3)
    finally:
        log.removeHandler(handler)
    assert not said
    assert int(value.shape[0]) == 3  # afterwards whoever asks gets an answer
