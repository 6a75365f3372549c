from __future__ import annotations

import pytest
import torch
from torch import nn

from trt_lowering.passes.choose_by_masks import FEW_MASKS, FEW_ROWS, ChooseByMasks


def _copied(x, y):
    mask = y < x
    x = x.clone()
    x[mask] = y[mask]
    return x


def _computed(x, y):
    x = x.clone()
    x[x > 0] = y[x > 0].exp() * 2 + x[x > 0]
    return x


def _rows(x, y):
    mask = (y < x).any(-1)
    x = x.clone()
    x[mask] += y[mask] * y[0]
    return x


def _column(x, y):
    mask = (y < x).all(-1)
    x = x.clone()
    x[mask, 0] = y[mask, 1]
    return x


def _scattered(x, y):
    mask = y < x
    return x.masked_scatter(mask, torch.masked_select(y, mask).sin())


def _twice(x, y):
    x = x.clone()
    for bound in (0.0, 0.5):
        nearer = y + bound < x
        x[nearer] = (y + bound)[nearer]
    return x


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x, y):
        mask = y[:, 0] > 0
        out = torch.zeros_like(x)
        out[mask] = self.layers(x[mask])
        return out


@pytest.mark.parametrize("model", [_copied, _computed, _rows, _column, _scattered, _twice, _Layers()])
def test_places_that_a_mask_reads_and_writes_are_selected(lower_module, compare, operators, model):
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    gm = lower_module(model, x, y)
    assert not {"index", "index_put", "masked_select", "masked_scatter"} & operators(gm).keys()
    for _ in range(3):
        x, y = torch.randn(5, 4), torch.randn(5, 4)
        compare(model(x, y), gm(x, y), 1e-6)
    nothing = torch.full((5, 4), 9.0), torch.full((5, 4), -9.0)
    for pair in (nothing, nothing[::-1]):
        compare(model(*pair), gm(*pair), 1e-6)


class _Experts(nn.Module):
    """Each row is computed by the one of `count` experts that scores best."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x, scores):
        best = scores.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out[best == number] = expert(x[best == number])
        return out


@pytest.mark.parametrize(("count", "rows"), [(4, (2, 64)), (5, (2, 16)), (5, (2, 64))])
def test_many_experts_compute_few_rows_alone_at_all_places(lower_module, compare, operators, count, rows):
    model, (least, most) = _Experts(count), rows
    x, scores = torch.randn(most, 4), torch.randn(most, count)
    batch = torch.export.Dim("rows", min=least, max=most)
    gm = lower_module(model, x, scores, dynamic_shapes=({0: batch}, {0: batch}))
    has_many = count > FEW_MASKS and most > FEW_ROWS
    assert operators(gm)["index_put"] == (count if has_many else 0)
    for size in rows:
        x, scores = torch.randn(size, 4), torch.randn(size, count)
        compare(model(x, scores), gm(x, scores), 1e-6)


def _in_another_order(x, y):
    mask = y < x
    x = x.clone()
    x[mask] = y[mask].sin().flip(0)
    return x


def _summed(x, y):
    mask = y < x
    x = x.clone()
    x[mask] = y[mask].cumsum(0)
    return x


def _divided(x, y):
    x, y = (x * 10).int(), (y * 2).int()
    mask = y != 0
    x[mask] = x[mask] // y[mask]
    return x


@pytest.mark.parametrize("model", [_in_another_order, _summed, _divided])
def test_what_follows_from_several_places_is_written_as_it_was(lower_module, compare, operators, model):
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    gm = lower_module(model, x, y)
    assert operators(gm)["index_put"] == 1
    compare(model(x, y), gm(x, y), 1e-6)


def test_chosen_values_that_are_a_result_stay(lower_module, compare, operators):
    def function(x, y):
        mask = y < x
        values = y[mask].sin()
        x = x.clone()
        x[mask] = values
        return x, values

    x, y = torch.randn(5, 4), torch.randn(5, 4)
    gm = lower_module(function, x, y)
    assert "index_put" not in operators(gm)
    compare(function(x, y), gm(x, y), 1e-6)


def test_graphs_without_a_write_are_as_they_were(captured, settings):
    def function(x):
        return x[x > 0].sin()

    gm = captured(function, torch.randn(5))
    before = str(gm.graph)
    assert not ChooseByMasks(settings)(gm).changed
    assert str(gm.graph) == before


def test_operators_kept_in_pytorch_write_as_they_did(lower_module, operators):
    gm = lower_module(_copied, torch.randn(5, 4), torch.randn(5, 4), torch_executed_ops={"aten.index_put"})
    assert operators(gm)["index_put"] == 1
