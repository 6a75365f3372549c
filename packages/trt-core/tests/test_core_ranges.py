"""Ranges of symbolic dimensions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from trt_core import Input, InputError
from trt_core.sizes.ranges import UNBOUNDED, ShapeRanges


class _Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 0).flatten()


class _Add(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def _graph(module: nn.Module, *shapes: tuple[int, ...], dynamic: object) -> fx.GraphModule:
    inputs = tuple(torch.randn(shape) for shape in shapes)
    return torch.export.export(module, inputs, dynamic_shapes=dynamic).graph_module


def _batch(low: int | None = 2, high: int | None = 64) -> torch.export.Dim:
    return torch.export.Dim("batch", min=low, max=high)


@pytest.fixture(scope="module")
def doubled() -> fx.GraphModule:
    return _graph(_Double(), (4, 3), dynamic=({0: _batch()},))


def _shape(gm: fx.GraphModule, op: str = "placeholder") -> torch.Size:
    node = next(node for node in gm.graph.nodes if node.op == op)
    value = node.args[0][0].meta["val"] if op == "output" else node.meta["val"]
    return value.shape


def test_without_inputs_the_exported_range_and_the_example_hold(doubled: fx.GraphModule) -> None:
    ranges = ShapeRanges.from_placeholders(doubled)
    assert list(ranges.symbols.values()) == [(1, 4, 64)]


def test_an_input_narrows_the_range(doubled: fx.GraphModule) -> None:
    spec = Input(min_shape=(3, 3), opt_shape=(8, 3), max_shape=(16, 3))
    ranges = ShapeRanges.from_placeholders(doubled, [spec])
    assert ranges.bounds(_shape(doubled)[0]) == (3, 8, 16)


def test_a_tensor_decides_the_optimum_and_nothing_else(doubled: fx.GraphModule) -> None:
    ranges = ShapeRanges.from_placeholders(doubled, [torch.randn(9, 3)])
    assert ranges.bounds(_shape(doubled)[0]) == (1, 9, 64)


def test_what_is_no_tensor_is_left_alone(doubled: fx.GraphModule) -> None:
    assert ShapeRanges.from_placeholders(doubled, [None]) == ShapeRanges.from_placeholders(doubled)


@settings(max_examples=40)
@given(st.lists(st.integers(2, 64), min_size=3, max_size=3).map(sorted))
def test_expressions_have_the_bounds_of_their_symbols(doubled: fx.GraphModule, extents: list[int]) -> None:
    low, best, high = extents
    spec = Input(min_shape=(low, 3), opt_shape=(best, 3), max_shape=(high, 3))
    ranges = ShapeRanges.from_placeholders(doubled, [spec])
    assert ranges.bounds(_shape(doubled, "output")[0]) == (6 * low, 6 * best, 6 * high)


def test_a_number_is_its_own_range(doubled: fx.GraphModule) -> None:
    ranges = ShapeRanges.from_placeholders(doubled)
    assert ranges.bounds(3) == (3, 3, 3)


def test_a_dimension_that_nothing_bounds_is_reported_so() -> None:
    gm = _graph(_Double(), (4, 3), dynamic=({0: _batch(None, None)},))
    ranges = ShapeRanges.from_placeholders(gm)
    extent = _shape(gm)[0]
    assert ranges.bounds(extent)[2] == UNBOUNDED


def test_inputs_that_share_a_dimension_share_its_range() -> None:
    batch = _batch()
    gm = _graph(_Add(), (4, 3), (4, 3), dynamic=({0: batch}, {0: batch}))
    spec = Input(min_shape=(2, 3), opt_shape=(4, 3), max_shape=(8, 3))
    assert len(ShapeRanges.from_placeholders(gm, [spec, spec]).symbols) == 1
    other = Input(min_shape=(2, 3), opt_shape=(4, 3), max_shape=(9, 3))
    with pytest.raises(InputError, match="another input that shares the dimension"):
        ShapeRanges.from_placeholders(gm, [spec, other])


def test_a_range_that_another_input_narrows_is_refused_by_both_names() -> None:
    narrow = torch.export.Dim("batch", min=2, max=6)
    gm = _graph(_Add(), (4, 3), (4, 3), dynamic=({0: narrow}, {0: narrow}))
    wide, fitting = (Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(high, 3)) for high in (8, 6))
    with pytest.raises(InputError, match="dimension 0 of input x is 1 to 8") as caught:
        ShapeRanges.from_placeholders(gm, [wide, fitting])
    assert caught.value.why == "it equals dimension 0 of input y, given as 1 to 6"


@pytest.mark.parametrize(
    ("given_input", "message"),
    [
        (Input((4, 3), dtype=torch.float16), "has type torch.float16, the program was exported with torch.float32"),
        (Input((4, 3, 1)), "has rank 3, the program was exported with rank 2"),
        (Input((4, 5)), "dimension 1 of input x is 5, but the program was exported with 3"),
        (Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(65, 3)), "exported for 1 to 64"),
        (Input(min_shape=(0, 3), opt_shape=(4, 3), max_shape=(8, 3)), "exported for 1 to 64"),
        (Input((65, 3), name="x"), r"input x is 65"),
        (torch.randn(4, 5), "exported with 3 there"),
    ],
)
def test_what_does_not_fit_the_program_is_refused(doubled: fx.GraphModule, given_input: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ShapeRanges.from_placeholders(doubled, [given_input])


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_number_of_inputs_is_refused(doubled: fx.GraphModule, count: int) -> None:
    with pytest.raises(InputError, match=f"takes 1 inputs, {count} were given"):
        ShapeRanges.from_placeholders(doubled, [torch.randn(4, 3)] * count)


def test_a_static_program_has_no_symbols() -> None:
    gm = _graph(_Double(), (4, 3), dynamic=None)
    assert ShapeRanges.from_placeholders(gm, [torch.randn(4, 3)]).symbols == {}
