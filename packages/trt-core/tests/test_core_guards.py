"""What models ask of sizes is said exactly: a size is allowed where it holds, and nowhere else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import fake_impls
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.functions import (
    FloatPow,
    FloorDiv,
    IntTrueDiv,
    Mod,
    OpaqueUnaryFn_log2,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

from trt_core.sizes.expressions import is_extent
from trt_core.sizes.grid import SizeGrid
from trt_core.sizes.guards import Asker, asker_of, conditions_of
from trt_core.sizes.ranges import ShapeRanges

H, W = sympy.symbols("h w", positive=True, integer=True)
SIZES = {"h": (2, 6, 9), "w": (2, 5, 10)}

GUARDS: dict[str, tuple[Any, Callable[[int, int], bool]]] = {
    "a quotient": (IntTrueDiv(H, W) <= 1.2, lambda h, w: h / w <= 1.2),
    "a quotient on the right": (sympy.Lt(1.1, IntTrueDiv(H, W)), lambda h, w: h / w > 1.1),
    "a product": (0.5 * ToFloat(H) > 2.6, lambda h, w: h * 0.5 > 2.6),
    "whole numbers of floats": (sympy.Eq(TruncToInt(0.3 * ToFloat(W)), 1), lambda h, w: int(0.3 * w) == 1),
    "gaps": (sympy.Ne(Mod(H, 3) * ToFloat(H), 4.0), lambda h, w: h % 3 * h != 4),
    "what holds anyway": (FloatPow(ToFloat(H * W), 0.5) < 90.0, lambda h, w: True),
    "a whole root": (
        sympy.Eq(TruncToInt(FloatPow(ToFloat(H * W), 0.5)), 5),
        lambda h, w: int((h * w) ** 0.5) == 5,
    ),
    "a root that the usual sizes have not": (
        sympy.Eq(TruncToInt(FloatPow(ToFloat(H * W), 0.5)), 9),
        lambda h, w: int((h * w) ** 0.5) == 9,
    ),
    "a scale": (
        sympy.Eq(TruncToInt(IntTrueDiv(4, sympy.Min(H, W)) * ToFloat(H)), 4),
        lambda h, w: int(4 / min(h, w) * h) == 4,
    ),
    "division by zero": (sympy.Or(IntTrueDiv(8, H - 3) > 1.1, W > 11), lambda h, w: h != 3 and 8 / (h - 3) > 1.1),
    "rounding": (sympy.Eq(RoundToInt(ToFloat(H) * 0.5), 3), lambda h, w: round(h * 0.5) == 3),
    "a logarithm": (OpaqueUnaryFn_log2(ToFloat(H)) > 2.5, lambda h, w: math.log2(h) > 2.5),
    "what holds nowhere": (FloatPow(ToFloat(H * W), 0.5) > 90.0, lambda h, w: False),
    "what is not computed": (sympy.Function("unknown")(H, W) > 1.5, lambda h, w: h == 6 and w == 5),
}


def _allowed(guard: Any) -> dict[tuple[int, int], bool]:
    conditions = conditions_of(fx.Graph(), ShapeRanges(SIZES), more=[guard])
    spans = (range(low, high + 1) for low, _, high in SIZES.values())
    return {
        (h, w): all(any(relation.holds({"h": h, "w": w}) for relation in condition) for condition in conditions)
        for h, w in itertools.product(*spans)
    }


@pytest.mark.parametrize("name", GUARDS)
def test_guards_are_said_exactly(name: str) -> None:
    guard, wanted = GUARDS[name]
    for sizes, is_allowed in _allowed(guard).items():
        assert is_allowed == wanted(*sizes), sizes


def test_a_guard_that_holds_anyway_is_no_condition() -> None:
    assert conditions_of(fx.Graph(), ShapeRanges(SIZES), more=[GUARDS["what holds anyway"][0]]) == ()


@pytest.mark.parametrize("most", [(1200, 1100), (1 << 20, 1 << 20)])
def test_a_guard_of_many_sizes_is_said_exactly(most: tuple[int, int]) -> None:
    ranges = ShapeRanges({"h": (8, 56, most[0]), "w": (8, 60, most[1])})
    conditions = conditions_of(fx.Graph(), ranges, more=[IntTrueDiv(H, W) <= 1.2])
    for h in (*range(8, 400, 7), *range(8, most[0], 10007), most[0]):
        for w in (*range(8, 400, 9), *range(8, most[1], 10007), most[1]):
            is_allowed = all(any(item.holds({"h": h, "w": w}) for item in condition) for condition in conditions)
            assert is_allowed == (h / w <= 1.2)


def test_a_condition_of_a_long_extent_is_said_in_sizes() -> None:
    extent, sizes = H, range(2, 10)
    rows = dict(zip(sizes, sizes, strict=True))
    for _ in range(20):
        extent = 4 * FloorDiv(extent + 2, 3)
        rows = {size: (found + 2) // 3 * 4 for size, found in rows.items()}
    guard, ranges = sympy.Ne(extent, rows[7]), ShapeRanges({"h": SIZES["h"]})
    conditions = conditions_of(fx.Graph(), ranges, more=[guard])
    assert all(is_extent(side) for parts in conditions for part in parts for side in (part.left, part.right))
    for size in range(2, 10):
        holds = all(any(relation.holds({"h": size}) for relation in condition) for condition in conditions)
        assert holds == (rows[size] != rows[7])


def test_a_grid_computes_what_python_computes() -> None:
    spans = {"h": range(1, 12), "w": range(1, 9)}
    cases: list[tuple[Any, Callable[[int, int], bool]]] = [
        (sympy.Eq(FloorDiv(H, W), 2), lambda h, w: h // w == 2),
        (IntTrueDiv(H, W) > 1.2, lambda h, w: h / w > 1.2),
        (sympy.Le(TruncToInt(ToFloat(H) * 0.7), W), lambda h, w: int(h * 0.7) <= w),
        (sympy.Abs(H - W) < 2, lambda h, w: abs(h - w) < 2),
        (FloatPow(ToFloat(H), 0.5) < 2.5, lambda h, w: math.sqrt(h) < 2.5),
        (sympy.Ne(FloatPow(ToFloat(H), 1 / 3) * ToFloat(W), 1.0), lambda h, w: h ** (1 / 3) * w != 1.0),
        (sympy.Or(sympy.Eq(H, W), H**2 > 50), lambda h, w: h == w or h * h > 50),
    ]
    for condition, wanted in cases:
        found = SizeGrid(spans).holds(condition)
        assert found is not None
        for (h, w), holds in zip(itertools.product(*spans.values()), found.ravel(), strict=True):
            assert holds == wanted(h, w), (condition, h, w)
    assert SizeGrid(spans).holds(H**70 > 1) is None
    huge = range(2**62, 2**62 + 1)
    assert SizeGrid({"h": huge, "w": huge}).holds(H + W > 7) is None
    assert SizeGrid(spans).holds(sympy.Symbol("other") > 1) is None


def test_what_strides_a_view_has_is_no_condition_of_a_model() -> None:
    env = ShapeEnv()
    rows, length = (
        env.create_symintnode(env.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC), hint=hint, source=source)
        for source, hint in ((ConstantSource("rows"), 4), (ConstantSource("length"), 16))
    )
    length = length // 5 - 1  # as convolutions over sounds make them
    for is_oblivious in (False, True):
        shapes: Any = (rows, length, 3), (length * 4, 4, 1), (rows, length, 1, 3)
        assert fake_impls._compute_stride(*shapes, size_oblivious=is_oblivious) is not None
    assert env.guards
    assert {asker_of(guard) for guard in env.guards} == {Asker.STRIDES}
