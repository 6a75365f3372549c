"""Weights that are computed when a plan is written: read, chosen, and written like those that are there."""

from __future__ import annotations

from typing import Any

import torch

from trt_portable.builder.passes.fold_constants import _scale
from trt_portable.plan.plan_file import read_plan, write_plan
from trt_portable.plan.weight_table import WeightTable


def _table() -> tuple[WeightTable, list[int]]:
    """One tensor that is there, and two that are computed; what is asked for is counted."""
    asked: list[int] = []

    def write(target: torch.Tensor) -> None:
        asked.append(target.data_ptr())
        torch.arange(target.numel(), out=target)

    table = WeightTable({"there": torch.ones(2, 3)})
    table.defer("floats", torch.float32, 5, write)
    table.defer("integers", torch.int64, 3, write)
    return table, asked


def test_specs_cost_nothing() -> None:
    table, asked = _table()
    assert [table.spec(key) for key in table] == [(torch.float32, (2, 3)), (torch.float32, (5,)), (torch.int64, (3,))]
    assert list(table.only({"floats", "there"})) == ["there", "floats"]
    assert len(table) == 3 and "integers" in table and not asked


def test_readers_and_plans_get_the_same_numbers() -> None:
    table, asked = _table()
    expected: dict[str, Any] = {"there": torch.ones(2, 3), "floats": torch.arange(5.0), "integers": torch.arange(3)}
    opened = read_plan(write_plan({}, table))
    for found in (table, table.computed(), opened.weights):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert len(asked) == 6


def test_a_plan_holds_what_was_computed_in_place() -> None:
    table, asked = _table()
    memory = write_plan({}, table)
    begin = memory.as_tensor().data_ptr()
    assert asked and all(begin <= address < begin + memory.nbytes for address in asked)


def test_kernels_are_scaled_as_in_one_piece() -> None:
    kernel, factor = torch.randn(300, 700), torch.randn(300, dtype=torch.float64)
    target = torch.empty(kernel.numel())
    _scale(kernel.reshape(-1), factor, target)
    assert torch.equal(target.view(300, 700), (kernel.double() * factor.unsqueeze(1)).float())
