"""Fractions of sizes: which of them layers compute, and what networks make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trt_converters import ConverterSupport
from trt_converters.block_key import describe_block
from trt_converters.context import fraction_of, is_exactly
from trt_core import CompilationSettings, Reason
from trt_core.sizes.ranges import ShapeRanges

SETTINGS = CompilationSettings()
X = torch.ones(2, 6)


def _symbolic_size(make_block: Any) -> Any:
    block = make_block(lambda x: x + 1, X, symbolic=True)
    return next(iter(block.graph.nodes)).meta["val"].shape[1]


def _renamed(fraction: Any, symbol: str) -> Any:
    if isinstance(fraction, (list, tuple)):
        return type(fraction)(_renamed(part, symbol) for part in fraction)
    return symbol if fraction == "n" else fraction


@pytest.mark.parametrize(
    ("function", "fraction"),
    [
        (lambda n: n / 3, ("DIV", ("SIZE", "n"), 3.0)),
        (lambda n: (n - 1) / 2, ("DIV", ("SIZE", ["add", -1, "n"]), 2.0)),
        (lambda n: n**0.5, ("SQRT", ("SIZE", "n"))),
        (lambda n: n**-0.5, ("RECIP", ("SQRT", ("SIZE", "n")))),
        (lambda n: 1 / n, ("DIV", 1.0, ("SIZE", "n"))),
    ],
)
def test_fractions_are_layers(make_block: Any, function: Callable[[Any], Any], fraction: Any) -> None:
    n = _symbolic_size(make_block)
    expected = _renamed(fraction, str(n.node.expr))
    assert fraction_of(function(n)) == expected


def test_functions_without_layers_are_no_fractions(make_block: Any) -> None:
    n = _symbolic_size(make_block)
    assert fraction_of(torch.sym_sqrt(n)) is not None
    assert fraction_of(torch._sym_sin(n)) is None


def test_numbers_that_vary_are_not_compared(make_block: Any) -> None:
    n = _symbolic_size(make_block)
    guards = len(n.node.shape_env.guards)
    assert is_exactly(1, 1)
    assert not is_exactly(math.inf, 1)
    assert not is_exactly(n, 6)
    assert not is_exactly(n / 3, 2)
    assert len(n.node.shape_env.guards) == guards


def test_fractions_make_no_integers(make_block: Any) -> None:
    block = make_block(lambda x: torch.full((2,), x.shape[1] / 3, dtype=torch.int64), X, symbolic=True)
    (full,) = block.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)
    assert ConverterSupport(SETTINGS).verdict(full).reason is Reason.UNSUPPORTED_VALUE


def test_sizes_that_no_layers_round_are_refused(make_block: Any) -> None:
    block = make_block(lambda x: x * round(x.shape[0] / 3 + x.shape[1] / 7), X, symbolic=True)
    (rounded,) = (node for node in block.graph.nodes if node.target is round)
    assert not ConverterSupport(SETTINGS).verdict(rounded).supported


def test_blocks_with_other_fractions_have_other_engines(make_block: Any) -> None:
    def describe(divisor: int) -> dict[str, str]:
        block = make_block(lambda x: x * (x.shape[1] / divisor), X, symbolic=True)
        return describe_block(block, SETTINGS, ShapeRanges(), lambda node, value: str(node))

    third = describe(3)
    assert third == describe(3)
    assert third["graph"] != describe(2)["graph"]
