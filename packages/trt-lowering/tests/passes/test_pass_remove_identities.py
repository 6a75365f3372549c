from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from trt_core import LoweringError
from trt_lowering.passes.cleanup import RemoveIdentities
from trt_lowering.passes.functionalize import Functionalize

IDENTITIES = {
    "dropout": lambda v: torch.nn.functional.dropout(v, 0.5, training=False),
    "detach": lambda v: v.detach(),
    "clone": lambda v: v.clone(),
    "expand": lambda v: v.expand(v.shape),
    "view": lambda v: v.view(v.shape),
    "reshape": lambda v: v.reshape(2, 3),
    "flatten": lambda v: v.flatten(1),
}
OTHERS = {
    "training dropout": lambda v: torch.nn.functional.dropout(v, 0.5, training=True),
    "cast": lambda v: v.to(torch.float16),
    "copied layout": lambda v: v.t().contiguous(),
    "reshape": lambda v: v.reshape(3, 2),
    "expand": lambda v: v.expand(4, 2, 3),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_go(name, captured, settings, compare, operators):
    def function(x):
        return IDENTITIES[name](x.relu()).sin()

    x = torch.randn(2, 3)
    gm = captured(function, x)
    assert RemoveIdentities(settings)(gm).changed
    gm.recompile()
    assert set(operators(gm)) <= {"relu", "sin"}
    compare(function(x), gm(x))


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_stays(name, captured, settings, operators):
    gm = captured(lambda x: OTHERS[name](x.relu()).sin(), torch.randn(2, 3))
    before = operators(gm)
    assert not RemoveIdentities(settings)(gm).changed
    assert operators(gm) == before


def test_symbolic_shapes_must_agree_for_every_size(captured, settings):
    def function(x):
        return (x.relu().expand(x.shape[0], 3) + x.relu().reshape(-1, 3)).sin()

    gm = captured(function, torch.randn(4, 3), dynamic_shapes=(({0: Dim("b", min=1, max=8)},),))
    assert RemoveIdentities(settings)(gm).changes == 2


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (torch.ops.aten.contiguous.default, {}),
        (torch.ops.aten.to.dtype, {"dtype": torch.float32}),
        (torch.ops.aten._to_copy.default, {"dtype": torch.float32}),
        (torch.ops.aten.lift_fresh_copy.default, {}),
    ],
)
def test_conversions_that_export_leaves_in_place_go(target, options, captured, settings, operators):
    gm = captured(lambda x: x.relu().sin(), torch.randn(2, 3))
    relu = next(node for node in gm.graph.nodes if node.target is torch.ops.aten.relu.default)
    with gm.graph.inserting_after(relu):
        args = (relu, *options.values()) if target is torch.ops.aten.to.dtype else (relu,)
        same = gm.graph.call_function(target, args, {} if len(args) > 1 else options)
    same.meta["val"] = relu.meta["val"]
    relu.replace_all_uses_with(same, delete_user_cb=lambda user: user is not same)
    assert RemoveIdentities(settings)(gm).changes == 1
    assert operators(gm) == {"relu": 1, "sin": 1}


def test_named_operators_survive(captured, settings, operators):
    gm = captured(lambda x: x.relu().clone().sin(), torch.randn(2, 3))
    assert not RemoveIdentities(settings.replace(torch_executed_ops={"aten.clone"}))(gm).changed
    assert operators(gm)["clone"] == 1


def test_a_returned_copy_of_an_input_stays_a_copy(captured, settings):
    gm = captured(lambda x: x.clone(), torch.randn(3))
    assert not RemoveIdentities(settings)(gm).changed
    x = torch.randn(3)
    assert gm(x).data_ptr() != x.data_ptr()


def test_a_snapshot_of_written_state_stays(captured, settings, operators):
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x):
            before = self.steps.clone()
            self.steps.add_(1)
            return x + before

    gm = captured(Step(), torch.randn(1))
    Functionalize()(gm)
    RemoveIdentities(settings)(gm)
    assert operators(gm)["clone"] == 1


def test_in_place_operators_are_refused(captured, settings):
    gm = captured(lambda x: (x + 1).relu_(), torch.randn(3))
    with pytest.raises(LoweringError, match="in-place"):
        RemoveIdentities(settings)(gm)
