"""Engines as modules: bindings, symbolic shapes and what the header says about the build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import Input
from trt_runtime import TRTModule


def _engines(compiled: nn.Module) -> list[TRTModule]:
    return [child for child in compiled.children() if isinstance(child, TRTModule)]


def test_the_header_describes_the_engine(mlp: nn.Module, batch: Input) -> None:
    compiled = trt_frontends.compile(mlp, arg_inputs=(batch,), version_compatible=True)
    (engine,) = _engines(compiled)
    header = engine.header
    assert (header.name, header.device, header.version_compatible) == ("_run_on_acc_0", "cpu", True)
    assert header.layer_count > 0 and header.build_seconds > 0
    assert not header.returns_tuple
    (source,), (result,) = header.inputs, header.outputs
    (symbol,) = header.symbols
    assert source.shape == (symbol, 4) and result.shape == (symbol, 2)
    assert header.symbols[symbol] == (0, 0)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_extents_that_are_expressions(rows: int, batch: Input) -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.special.bessel_j0(torch.cat([x, x]))  # (2N, 4): the second engine sees 2N only
            return torch.relu(y), torch.relu(y).reshape(-1)

    compiled = trt_frontends.compile(Pairs(), arg_inputs=(batch,), min_block_size=1)
    x = torch.randn(rows, 4)
    torch.testing.assert_close(compiled(x), Pairs()(x))
    assert _engines(compiled)[-1].header.returns_tuple


def test_extents_that_are_too_long_to_be_said_are_found_in_every_run(tmp_path: Path) -> None:
    class Towers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(14):  # a third more rows
                x = nn.functional.max_pool2d(x, (3, 1), (3, 1), (1, 0)).repeat_interleave(4, 2)
            return torch.special.bessel_j0(x)  # in PyTorch

    rows = Input(min_shape=(1, 1, 4, 2), opt_shape=(1, 1, 5, 2), max_shape=(1, 1, 6, 2))
    compiled = trt_frontends.compile(Towers(), arg_inputs=(rows,), min_block_size=1, optimization_level=0)
    (engine,) = _engines(compiled)
    assert engine.header.outputs[0].shape[2] is None
    trt_frontends.save(compiled, tmp_path / "towers")
    loaded = trt_frontends.load(tmp_path / "towers")
    for count in (4, 6):
        x = torch.randn(1, 1, count, 2)
        for program in (compiled, loaded):
            torch.testing.assert_close(program(x), Towers()(x))


def test_one_result_is_a_tensor_and_several_a_tuple(function_model: Any) -> None:
    x = torch.ones(2, 4)
    one = trt_frontends.compile(function_model(lambda m, x: (m.linear(x),)), arg_inputs=(x,))
    two = trt_frontends.compile(function_model(lambda m, x: (m.linear(x), x * 2)), arg_inputs=(x,))
    assert isinstance(_engines(one)[0](x), torch.Tensor)
    assert isinstance(_engines(two)[0](x), tuple)


def test_settings_that_change_engines_change_the_digest(mlp: nn.Module) -> None:
    def digest(**settings: Any) -> str:
        return _engines(trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), **settings))[
            0
        ].header.settings_digest

    assert digest() == digest(min_block_size=1, pass_through_build_failures=True)
    assert digest() != digest(debug=True)  # it asks the builder for details of the layers
    assert digest() != digest(optimization_level=1)


def test_the_compiled_module_says_which_dimensions_vary(interrupted: nn.Module, batch: Input) -> None:
    compiled = trt_frontends.compile(interrupted, arg_inputs=(batch,), min_block_size=1)
    shapes = compiled.meta["dynamic_shapes"]
    assert list(shapes) == ["x"] and list(shapes["x"]) == [0]
    assert (shapes["x"][0].min, shapes["x"][0].max) == (1, 8)
    static = trt_frontends.compile(interrupted, arg_inputs=(torch.ones(2, 4),))
    assert static.meta["dynamic_shapes"] is None
