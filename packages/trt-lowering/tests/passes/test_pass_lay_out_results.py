"""Results lie in memory as they did in the captured program, whatever replaced the operators that made them."""

from __future__ import annotations

import pytest
import torch

from trt_lowering.memory_order import lies_in, memory_order
from trt_lowering.node_metadata import graph_results
from trt_lowering.passes.lay_out_results import LayOutResults, captured_results, correct_layouts

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("shape", "strides", "order", "exact"),
    [
        ((2, 3, 4), (12, 4, 1), [0, 1, 2], [0, 1, 2]),
        ((2, 3, 4), (1, 8, 2), [1, 2, 0], [1, 2, 0]),
        ((3, 1), (1, 3), [0, 1], [1, 0]),
        ((3, 1), (1, 1), [0, 1], [0, 1]),
        ((2, 3, 1), (3, 1, 3), [0, 1, 2], [0, 2, 1]),
        ((1, 3), (70, 1), [0, 1], [0, 1]),
        ((2, 3), (4, 1), None, None),
        ((2, 3), (0, 1), None, None),
    ],
)
def test_orders_of_axes(shape, strides, order, exact):
    value = torch.empty_strided(shape, strides)
    assert memory_order(value) == order
    assert memory_order(value, exact=True) == exact


def _doubled_otherwise(captured, function, *args):
    """Captures a function, and replaces doubling by what makes tensors whose last axis lies outermost."""
    gm = captured(function, *args)
    wanted = captured_results(gm.graph)
    for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        x = node.args[0]
        with gm.graph.inserting_before(node), torch.no_grad():
            moved = gm.graph.call_function(aten.permute.default, (x, [2, 0, 1]))
            moved.meta["val"] = x.meta["val"].permute(2, 0, 1)
            made = gm.graph.call_function(
                aten.add.Tensor, (gm.graph.call_function(aten.clone.default, (moved,)), moved)
            )
            clone = made.args[0]
            clone.kwargs = {"memory_format": torch.contiguous_format}
            clone.meta["val"] = moved.meta["val"].clone(memory_format=torch.contiguous_format)
            made.meta["val"] = clone.meta["val"] + clone.meta["val"]
            back = gm.graph.call_function(aten.permute.default, (made, [1, 2, 0]))
            back.meta["val"] = made.meta["val"].permute(1, 2, 0)
        node.replace_all_uses_with(back)
        gm.graph.erase_node(node)
    return gm, wanted


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_results_that_lie_otherwise_are_copied(captured, order):
    inverse = [order.index(axis) for axis in range(3)]
    x = torch.randn(2, 3, 4).permute(order).contiguous().permute(inverse)
    gm, wanted = _doubled_otherwise(captured, lambda x: x * 2, x)
    assert LayOutResults(wanted)(gm).changed
    gm.recompile()
    found = gm(x)
    assert torch.equal(found, x * 2)
    assert found.stride() == (x * 2).stride()


def test_results_that_share_memory_and_those_that_lie_well_stay(captured):
    x = torch.randn(2, 3, 4)
    gm, wanted = _doubled_otherwise(captured, lambda x: (lambda y: (y, y[1:]))(x * 2), x)
    assert not LayOutResults(wanted)(gm).changed
    gm = captured(lambda x: (x * 2, x.t()), x[0])
    assert not LayOutResults(captured_results(gm.graph))(gm).changed


_COLUMNS = torch.randn(4, 3).t()
_IMAGES = torch.randn(2, 5, 5, 4).permute(0, 3, 1, 2)
_WHOLE = torch.arange(6).view(3, 2).t() % 3
_STACK = torch.randn(6, 5, 4).permute(2, 1, 0)[:, :1], torch.randn(6, 5).t()

OTHERWISE = {
    "batch norm": (torch.nn.BatchNorm1d(4), _COLUMNS),
    "batch norm of sequences": (torch.nn.BatchNorm1d(4), torch.randn(2, 5, 4).transpose(1, 2)),
    "batch norm of images": (torch.nn.BatchNorm2d(4), _IMAGES),
    "batch norm, and on": (torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.ReLU()), _COLUMNS),
    "batch norm, and a view": (lambda x: torch.nn.functional.batch_norm(x, x[0] * 0, x[0] * 0 + 1).t() * 2, _COLUMNS),
    "indices": (lambda x, at: x[at], torch.randn(3, 4, 5), _WHOLE),
    "indices of two axes": (lambda x, at: x[at, at.flip(0)], torch.randn(3, 4, 5), _WHOLE),
    "one hot": (lambda x: torch.nn.functional.one_hot(x, 5), _WHOLE),
    "channel shuffle": (lambda x: torch.channel_shuffle(x, 2), _IMAGES),
    "max pool": (lambda x: torch.nn.functional.max_pool1d(x, 2), torch.randn(5, 4).t()),
    "reflected": (lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect"), _IMAGES),
    "repeated": (lambda x: torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate"), _IMAGES),
    "copysign": (lambda x: torch.copysign(x, torch.tensor(1.0)), _COLUMNS),
    "floor division": (lambda x: torch.div(x, torch.tensor(2.0), rounding_mode="floor"), _COLUMNS),
    "floor": (lambda x: x // torch.tensor(2.0), _COLUMNS),
    "angle": (lambda x: torch.angle(x + 1j), _COLUMNS),
    "isin": (lambda x: torch.isin(x, torch.tensor([1.0, 2.0])), _COLUMNS),
    "logsigmoid": (torch.nn.functional.logsigmoid, _COLUMNS),
    "power of 1": (lambda x: 1**x, _COLUMNS),
    "fft": (lambda x: torch.fft.fft(x, dim=0), torch.ones(5, 6, 7)),
    "irfft": (lambda x: torch.fft.irfft(x, dim=1), torch.ones(5, 6, 7)),
    **{
        name: (getattr(torch, name), *_STACK)
        for name in ("heaviside", "logaddexp", "logical_and", "logical_or", "logical_xor", "xlogy", "ldexp")
    },
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_layouts_are_what_kernels_write_where_fake_tensors_say_otherwise(captured, name):
    function, *given = OTHERWISE[name]
    if isinstance(function, torch.nn.Module):
        function.eval()
    gm = captured(function, *given)
    correct_layouts(gm.graph)
    (result,) = graph_results(gm.graph)
    wanted = function(*given)
    order = memory_order(wanted)
    assert order is not None
    assert lies_in(result.meta["val"], order)
    assert not correct_layouts(gm.graph)


def test_layouts_that_are_right_stay(captured):
    gm = captured(lambda x: torch.nn.functional.batch_norm(x * 2, x[0], x[0].exp()).relu(), torch.randn(3, 4))
    assert not correct_layouts(gm.graph)
