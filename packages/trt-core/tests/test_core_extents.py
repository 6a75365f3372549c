"""Dimensions as data: from symbolic shapes to JSON and back to numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trt_core.sizes.conditions import Relation
from trt_core.sizes.expressions import (
    Extent,
    affine_form,
    check_extent,
    evaluate_extent,
    extent_of,
    is_extent,
    is_integer_arithmetic,
    linear_form,
    solve_extent,
    symbols_in,
)
from trt_core.sizes.functions import RELATIONS

_SYMBOLS = {"s0": 7, "s1": 12, "s2": 3}


def _reference(extent: Extent, symbols: dict[str, int]) -> int:
    """Evaluates an extent with Python's own integers, written independently of the table under test."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, str):
        return symbols[extent]
    assert isinstance(extent, list)
    name, first, *rest = extent
    result = _reference(first, symbols)
    for operand in rest:
        value = _reference(operand, symbols)
        result = {
            "add": lambda a, b: a + b,
            "mul": lambda a, b: a * b,
            "floordiv": lambda a, b: a // b,
            "ceildiv": lambda a, b: (a + b - 1) // b,
            "mod": lambda a, b: a % b,
            "max": max,
            "min": min,
            "pow": lambda a, b: a**b,
        }[name](result, value)
    return result


_LEAVES = st.one_of(st.integers(1, 20), st.sampled_from(sorted(_SYMBOLS)))


def _grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.tuples(st.sampled_from(["add", "mul", "max", "min"]), children, children, children)
    divided = st.tuples(st.sampled_from(["floordiv", "ceildiv", "mod"]), children, st.integers(1, 9))
    power = st.tuples(st.just("pow"), children, st.integers(0, 2))
    return st.one_of(many, divided, power).map(list)


_EXTENTS = st.recursive(_LEAVES, _grow, max_leaves=8)


@given(_EXTENTS)
def test_evaluation_is_integer_arithmetic(extent: Extent) -> None:
    assert evaluate_extent(extent, _SYMBOLS) == _reference(extent, _SYMBOLS)


@given(_EXTENTS)
def test_an_extent_survives_json(extent: Extent) -> None:
    assert json.loads(json.dumps(extent)) == extent


@given(_EXTENTS)
def test_only_the_symbols_in_it_are_needed(extent: Extent) -> None:
    needed = {name: _SYMBOLS[name] for name in symbols_in(extent)}
    assert evaluate_extent(extent, needed) == evaluate_extent(extent, _SYMBOLS)


def test_a_symbol_without_a_value_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="s9"):
        evaluate_extent(["add", "s9", 1], _SYMBOLS)


def test_what_only_integers_have_is_an_arithmetic_error_of_other_numbers() -> None:
    """Which numbers are met depends on sizes: it left as a TypeError from calls with some of them."""
    extent = ["floor", ["lshift", ["min", "s0", 3.5], 1]]
    check_extent(extent)
    assert evaluate_extent(extent, {"s0": 3}) == 6
    with pytest.raises(ArithmeticError, match="cannot be computed"):
        evaluate_extent(extent, {"s0": 4})


def test_an_extent_that_depends_on_data_has_no_value() -> None:
    assert symbols_in(None) == set()
    with pytest.raises(ValueError, match="depends on data"):
        evaluate_extent(None, _SYMBOLS)


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown operator 'xor'"):
        evaluate_extent(["xor", 1, 2], _SYMBOLS)


class _Shapes(nn.Module):
    """Makes tensors whose extents are expressions of the input's."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        return (
            x.flatten(),
            torch.cat([x, x], 0),
            x[:, 1::3],
            torch.nn.functional.pad(x, (1, 2)),
            x[::2],
            x.new_zeros(torch.sym_max(rows, columns), 1),
            x.new_zeros(rows * rows // 2 + 1),
            x.new_zeros(rows % 3 + columns // 5, 2),
        )


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    dims = {0: torch.export.Dim("rows", min=4, max=64), 1: torch.export.Dim("columns", min=8, max=64)}
    return torch.export.export(_Shapes(), (torch.randn(6, 10),), dynamic_shapes=({0: dims[0], 1: dims[1]},))


@pytest.mark.parametrize("shape", [(6, 10), (4, 8), (33, 17), (64, 64)])
def test_exported_shapes_evaluate_to_the_shapes_that_run(
    exported: torch.export.ExportedProgram, shape: tuple[int, int]
) -> None:
    placeholder = next(node for node in exported.graph.nodes if node.op == "placeholder")
    symbols = dict(zip((str(extent) for extent in placeholder.meta["val"].shape), shape, strict=True))
    output = next(node for node in exported.graph.nodes if node.op == "output")
    results = _Shapes()(torch.randn(shape))
    for node, result in zip(output.args[0], results, strict=True):
        extents = [extent_of(extent) for extent in node.meta["val"].shape]
        assert None not in extents
        assert [evaluate_extent(extent, symbols) for extent in extents] == list(result.shape)


class _Positions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero()


def test_an_extent_that_depends_on_data_is_none() -> None:
    program = torch.export.export(_Positions(), (torch.ones(4),))
    output = next(node for node in program.graph.nodes if node.op == "output")
    positions, rank = output.args[0][0].meta["val"].shape
    assert extent_of(positions) is None
    assert extent_of(rank) == 1


class _Resized(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=(1.5, 0.3))


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (9, 11), (9, 10)])
def test_a_scaled_extent_is_said_in_integers_where_no_product_rounds(size: tuple[int, int]) -> None:
    dims = {2: torch.export.Dim.DYNAMIC(min=4), 3: torch.export.Dim.DYNAMIC(min=4)}
    program = torch.export.export(_Resized(), (torch.ones(1, 1, 8, 8),), dynamic_shapes=(dims,))
    placeholder = next(node for node in program.graph.nodes if node.op == "placeholder")
    output = next(node for node in program.graph.nodes if node.op == "output")
    rows, columns = output.args[0][0].meta["val"].shape[2:]
    symbols = dict(zip(map(str, placeholder.meta["val"].shape[2:]), size, strict=True))
    assert extent_of(rows)[0] == "floordiv" and extent_of(columns)[0] == "trunc"  # type: ignore[index]
    resized = _Resized()(torch.ones(1, 1, *size)).shape[2:]
    assert [evaluate_extent(extent_of(extent), symbols) for extent in (rows, columns)] == list(resized)


class _Together(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(math.floor(0.7 * x.shape[0] + 0.3 * x.shape[1]))


def test_a_rounded_sum_of_two_sizes_is_none() -> None:
    dims = {0: torch.export.Dim.DYNAMIC(min=4), 1: torch.export.Dim.DYNAMIC(min=4)}
    program = torch.export.export(_Together(), (torch.ones(8, 8),), dynamic_shapes=(dims,))
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    assert extent_of(output.args[0][0].meta["val"].shape[0]) is None


class _Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        size = x.shape[0]
        return x.new_zeros(math.ceil(size / 3)), x.new_zeros(math.floor(size / 3)), torch.arange(0.5, size)


def test_quotients_and_shifts_that_are_rounded() -> None:
    program = torch.export.export(_Rounded(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC(min=3)},))
    (placeholder,) = [node for node in program.graph.nodes if node.op == "placeholder"]
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    extents = [extent_of(result.meta["val"].shape[0]) for result in output.args[0]]
    for size in (3, 4, 5, 9, 31):
        found = [evaluate_extent(extent, {str(placeholder.meta["val"].shape[0]): size}) for extent in extents]
        assert found == [len(result) for result in _Rounded()(torch.ones(size))]


def test_symbolic_values_give_symbolic_extents(exported: torch.export.ExportedProgram) -> None:
    placeholder = next(node for node in exported.graph.nodes if node.op == "placeholder")
    rows, columns = placeholder.meta["val"].shape
    total = evaluate_extent(["mul", "a", "b"], {"a": rows, "b": columns})
    assert isinstance(total, torch.SymInt)
    assert extent_of(total) == extent_of(rows * columns)


@given(st.integers(1, 9), st.integers(-5, 5), st.integers(1, 50))
def test_linear_extents_are_solved(factor: int, offset: int, value: int) -> None:
    for extent in (["add", ["mul", factor, "s0"], offset], ["add", offset, ["mul", "s0", factor]]):
        assert linear_form(extent) == ("s0", factor, offset)
        assert solve_extent(extent, factor * value + offset) == ("s0", value)
        if factor > 1:
            assert solve_extent(extent, factor * value + offset + 1) == ("s0", None)


def test_affine_extents_have_an_inner_one_of_any_kind() -> None:
    inner = ["floordiv", ["add", -1, "s0"], 2]
    assert affine_form(["add", 2, ["mul", 2, inner]]) == (inner, 2, 2)
    assert affine_form(inner) == (inner, 1, 0)
    assert affine_form(["mul", -1, inner]) is None
    assert affine_form(4) is None


def test_factors_beyond_64_bits_are_none() -> None:
    """Python writes no number of so many digits, and a message of a size named the multiple that it is not."""
    extent: Any = "s0"
    for _ in range(4):
        extent = ["mul", extent, *[2**62] * 250]
    assert affine_form(extent) is None and solve_extent(extent, 3) is None
    assert solve_extent(["mul", "s0", 2**63 - 1], 0) == ("s0", 0)
    assert solve_extent(["mul", "s0", 2**62, 2], 0) is None


@pytest.mark.parametrize("extent", [4, None, ["mul", "s0", "s1"], ["floordiv", "s0", 2], ["add", "s0", "s0"]])
def test_other_extents_are_not_linear(extent: Any) -> None:
    assert linear_form(extent) is None
    assert solve_extent(extent, 4) is None


@pytest.mark.parametrize(
    "extent",
    [
        *(
            True,
            1.5,
            {},
            [],
            ["add"],
            ["eval", 1, 2],
            ["add", None, 1],
            [["add"], 1],
            2**63,
            ["add", 1, ["add", 2, "x"]],
        ),
        *(["mul", 0.5, "s0"], ["round", "s0", 1], ["floor", "s0", 1], ["add", ["float", "s0"], 1], ["floor", math.nan]),
        ["floor", ["mul", 0.5, "x"]],
    ],
)
def test_what_is_no_extent(extent: Any) -> None:
    with pytest.raises(ValueError, match="extent"):
        check_extent(extent, {"s0"})


def test_an_extent_may_be_a_rounded_number() -> None:
    extent = ["add", ["round", ["mul", 0.7, ["float", "s0"]]], 1]
    check_extent(extent, {"s0"})
    assert evaluate_extent(extent, {"s0": 3}) == 3
    assert [is_integer_arithmetic(item) for item in (extent, ["add", "s0", 1], "s0", 4, None)] == [
        False,
        *[True] * 3,
        False,
    ]
    with pytest.raises(ValueError, match="extent"):
        evaluate_extent(["floor", ["pow", 1e300, 2.0]], {})


def test_conditions_may_have_numbers_that_are_not_whole() -> None:
    ratio = ["truediv", "s0", ["mul", 0.5, "s1"]]
    check_extent(ratio, {"s0", "s1"}, is_whole=False)
    assert evaluate_extent(ratio, {"s0": 3, "s1": 4}) == 1.5
    assert not is_extent(ratio)


@pytest.mark.parametrize(
    "expression",
    [math.nan, math.inf, ["eval", "s0"], ["sqrt", "s0", 2], ["round", "s0", 1, 2], ["choose", 1, 2], ["float", None]],
)
def test_what_is_no_side_of_a_condition(expression: Any) -> None:
    with pytest.raises(ValueError, match="extent"):
        check_extent(expression, {"s0"}, is_whole=False)


@pytest.mark.parametrize(
    "expression",
    [
        ["sqrt", -1],
        ["pow", 1e300, 2.0],
        ["pow", -8.0, 0.5],
        ["lshift", 1, 65],
        ["mod", 1, 0],
        ["trunc", ["pow", 9e9, 9]],
    ],
)
def test_a_relation_that_cannot_be_computed_does_not_hold(expression: Any) -> None:
    check_extent(expression, is_whole=False)
    assert not any(Relation(expression, name, 0).holds({}) for name in RELATIONS)


def test_deep_extents_are_refused() -> None:
    extent: Any = "s0"
    for _ in range(10_000):
        extent = ["add", extent, 1]
    with pytest.raises(ValueError, match="nests deeper"):
        check_extent(extent)
    assert not is_extent(extent) and is_extent(["add", "s0", 1])


@pytest.mark.parametrize("extent", [["pow", 10, 10**9], ["pow", 2, -1], ["pow", 2, 64], ["mul", 2**62, 2]])
def test_extents_end_soon(extent: Any) -> None:
    with pytest.raises(ValueError, match="extent"):
        evaluate_extent(extent, {})
