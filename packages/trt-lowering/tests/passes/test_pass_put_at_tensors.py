from __future__ import annotations

import pytest
import torch

from trt_lowering.passes.put_at_tensors import PutAtTensors


def _selected(x, rows, places):
    x = x.clone()
    x.select(1, places[0]).copy_(rows)
    return x


def _from_the_end(x, rows, places):
    x = x.clone()
    x.select(-2, places[:1].int()).copy_(rows)
    return x


def _indexed(x, rows, places):
    x = x.clone()
    x[:, places[0]] = rows
    return x


def _filled(x, rows, places):
    x = x.clone()
    x[..., places[0], 1:3] = 2
    return x + rows[:, None]


def _of_more_dimensions(x, rows, places):
    x = x.clone()
    x[:, places[0] + 1] = rows[None]
    return x


def _one_of_one(x, rows, places):
    x = x.clone()
    x[places[0], places[1]] = rows[0]
    return x


PARTS_OF_ROWS = [_filled, _one_of_one]  # what else a row has is read by the number
captures_indices = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="PyTorch 2.11 captures no index that is a tensor of one number"
)


@pytest.mark.parametrize(
    "model",
    [
        *(_selected, _from_the_end),
        *(pytest.param(model, marks=captures_indices) for model in (_indexed, _of_more_dimensions, *PARTS_OF_ROWS)),
    ],
)
def test_a_tensor_of_one_number_says_where_a_row_goes(lower_module, compare, operators, model):
    x, rows = torch.randn(2, 5, 4), torch.randn(2, 4)
    gm = lower_module(model, x, rows, torch.tensor([1, 2]))
    assert "select_scatter" not in operators(gm)
    assert ("item" in operators(gm)) is (model in PARTS_OF_ROWS)
    for places in ([1, 2], [-2, -1], [0, 3]):
        given = torch.randn(2, 5, 4), torch.randn(2, 4), torch.tensor(places)
        compare(model(*given), gm(*given), 0)
    with pytest.raises(IndexError):
        gm(x, rows, torch.tensor([7, 7]))


def test_numbers_that_follow_from_sizes_stay(captured, settings):
    def function(x, rows):
        x = x.clone()
        x.select(1, x.shape[1] - 1).copy_(rows)
        return x

    gm = captured(function, torch.randn(2, 5, 4), torch.randn(2, 4))
    before = str(gm.graph)
    assert not PutAtTensors(settings)(gm).changed
    assert str(gm.graph) == before


def test_operators_kept_in_pytorch_write_as_they_did(lower_module, operators):
    given = torch.randn(2, 5, 4), torch.randn(2, 4), torch.tensor([1, 2])
    gm = lower_module(_selected, *given, torch_executed_ops={"aten.select_scatter"})
    assert operators(gm)["select_scatter"] == 1
