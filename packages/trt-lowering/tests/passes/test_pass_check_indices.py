from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from trt_lowering.passes.check_indices import CHECK, CheckIndices, CheckValues, check_indices, counted


def checks(gm: fx.GraphModule) -> Sequence[fx.Node]:
    return list(gm.graph.find_nodes(op="call_function", target=CHECK))


def test_a_lookup_is_checked_before_anything_else(captured, compare):
    gm = captured(lambda x, i: (x * 2)[i.unsqueeze(0)], torch.randn(3, 4), torch.tensor([0, -3]))
    assert CheckIndices()(gm).changes == 1
    gm.recompile()
    (check,) = checks(gm)
    assert check.args[0].op == "placeholder"
    assert check.prev.op == "placeholder"
    compare(gm(torch.ones(3, 4), torch.tensor([0, -3])), torch.full((1, 2, 4), 2.0))
    with pytest.raises(IndexError, match="index -4 is out of bounds for dimension 0 with size 3"):
        gm(torch.ones(3, 4), torch.tensor([0, -4]))


def test_indices_are_checked_once_for_each_end(captured):
    def look_up(x, y, i):
        return x[i], x[i] * 2, y[i], x.index_select(0, i)

    gm = captured(look_up, torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1]))
    CheckIndices()(gm)
    assert [node.args[1] for node in checks(gm)] == [3, 5, 3]  # the last one takes no negative ones


def test_constants_and_counted_positions_inside_are_not_checked(captured):
    table, places = torch.randn(4, 2), torch.tensor([3, 0])

    def look_up(x):
        inside = x[places[:1]], table[torch.arange(4)], x.index_select(0, torch.arange(1, 4))
        return inside, x[torch.arange(5)]

    gm = captured(look_up, torch.randn(4, 2))
    CheckIndices()(gm)
    (check,) = checks(gm)
    assert counted(check.args[0]) == (0, 5)
    gm.recompile()
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        gm(torch.ones(4, 2))


def test_places_that_follow_from_sizes_are_checked_where_they_count_or_are_known(captured):
    rows = torch.export.Dim("rows", min=2, max=9)
    table, outside = torch.randn(9, 2), torch.tensor([9])

    def look_up(x):
        count = torch.arange(x.shape[0])
        return table[count.unsqueeze(0) + 2], table[count * 2 % 9], table[outside]

    gm = captured(look_up, torch.randn(4, 2), dynamic_shapes=(({0: rows},),))
    CheckIndices()(gm)
    ends = [counted(check.args[0])[1] for check in checks(gm)]
    assert sorted(str(end).partition(" ")[2] for end in ends) == ["", "+ 2"]  # of a constant, and of what counts


def test_known_inputs_inside_are_not_checked(captured):
    gm = captured(lambda x, i: x[i], torch.randn(4, 2), torch.tensor([3, 0]))
    name = str(gm.graph.find_nodes(op="placeholder")[1].target)
    assert not CheckIndices({name: torch.tensor([3, -4])})(gm).changed
    assert CheckIndices({name: torch.tensor([3, 4])})(gm).changed


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i > 0],
        lambda x, i: torch.nn.functional.cross_entropy(x, x),
    ],
    ids=["mask", "probabilities"],
)
def test_masks_and_probabilities_point_nowhere(captured, function):
    gm = captured(function, torch.randn(3, 4), torch.tensor([0, 1, 2]))
    assert not CheckIndices()(gm).changed


def test_tables_of_sizes_that_vary(captured):
    rows = torch.export.Dim("rows", min=2, max=9)
    gm = captured(
        lambda x, i: (x[i], x.take(i)),
        torch.randn(3, 4),
        torch.tensor([0, 1]),
        dynamic_shapes=(({0: rows}, None),),
    )
    assert CheckIndices()(gm).changes == 2
    gm.recompile()
    gm(torch.ones(5, 4), torch.tensor([4, -5]))
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 5"):
        gm(torch.ones(5, 4), torch.tensor([4, 5]))


@pytest.mark.parametrize("values", [[], [0, 2], [-100, 1]])
def test_what_is_inside_or_ignored_passes(values: list[int]) -> None:
    check_indices(torch.tensor(values, dtype=torch.int64), 3, 0, False, -100, "", True)


@pytest.mark.parametrize(("is_lookup", "error"), [(True, IndexError), (False, RuntimeError)])
def test_the_first_index_outside_is_named(is_lookup: bool, error: Any) -> None:
    with pytest.raises(error, match=r"^7 of axis 1 is beyond 3$"):
        check_indices(
            torch.tensor([[0, 7], [9, -100]]), 3, 1, False, -100, "{index} of axis {axis} is beyond {size}", is_lookup
        )


def test_values_are_asserted_before_the_operator_that_refuses_them(captured):
    rows = torch.export.Dim("rows", min=2, max=9)
    gm = captured(
        lambda x, source: x.masked_scatter(x > 0, source),
        torch.ones(3, 4),
        torch.ones(13),
        dynamic_shapes=(({0: rows}, {0: torch.export.Dim("numbers", min=2, max=99)}),),
    )
    assert CheckValues()(gm).changes == 1
    gm.recompile()
    gm(torch.ones(4, 4), torch.ones(16))
    with pytest.raises(RuntimeError, match="elements of source < number of ones in mask"):
        gm(torch.ones(4, 4), torch.ones(15))


def test_values_are_not_asserted_on_other_devices_and_where_they_are_enough(captured):
    gm = captured(lambda x, source: x.masked_scatter(x > 0, source), torch.ones(3, 4), torch.ones(12))
    assert not CheckValues()(gm).changed
    meta = torch.ones(3, device="meta")
    gm = captured(lambda x: torch.nn.functional.binary_cross_entropy(x, x), meta)
    assert not CheckValues()(gm).changed
