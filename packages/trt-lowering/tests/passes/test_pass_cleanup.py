"""The passes that remove: dead code and repeated computations."""

from __future__ import annotations

import torch
from torch.export import Dim

from trt_lowering.passes.cleanup import EliminateDeadCode, MergeCommonSubexpressions

aten = torch.ops.aten


def test_chains_of_unused_nodes_go_at_once(captured, operators):
    def function(x):
        x.sin().cos().exp()
        return x + 1

    gm = captured(function, torch.randn(3))
    EliminateDeadCode()(gm)
    assert operators(gm) == {"add": 1}


def test_unused_inputs_effects_and_randomness_stay(captured, operators):
    def function(x, y):
        torch.rand(3)
        return x + 1

    gm = captured(function, torch.randn(3), torch.randn(3))
    EliminateDeadCode()(gm)
    assert len(gm.graph.find_nodes(op="placeholder")) == 2
    assert operators(gm)["rand"] == 1


def test_nothing_dead(captured):
    assert not EliminateDeadCode()(captured(torch.relu, torch.randn(3))).changed


def test_equal_computations_are_merged_through_their_operands(captured, settings, operators, compare):
    def function(x):
        return (x.sin() + 1) * (x.sin() + 1)

    x = torch.randn(3)
    gm = captured(function, x)
    assert MergeCommonSubexpressions(settings)(gm).changes == 2
    gm.recompile()
    assert operators(gm) == {"sin": 1, "add": 1, "mul": 1}
    compare(function(x), gm(x))


def test_different_constants_stay_apart(captured, settings):
    gm = captured(lambda x: (x + 1) * (x + 1.0) * (x + True) + (x * 0.0) / (x * -0.0), torch.randn(3))
    assert not MergeCommonSubexpressions(settings)(gm).changed


def test_random_and_named_operators_stay_apart(captured, settings):
    gm = captured(lambda x: torch.rand(3) + torch.rand(3) + x.sin() + x.sin(), torch.randn(3))
    assert not MergeCommonSubexpressions(settings.replace(torch_executed_ops={"aten.sin", "aten.add"}))(gm).changed


@torch.library.custom_op("test_cleanup::noisy", mutates_args=())
def _noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@_noisy.register_fake
def _(x):
    return torch.empty_like(x)


def test_operators_of_others_are_called_as_often_as_the_model_does(captured, settings):
    """Nobody but their author knows what they do: calls of one that draws numbers gave the same ones."""
    gm = captured(lambda x: _noisy(x) - _noisy(x), torch.randn(3))
    assert not MergeCommonSubexpressions(settings)(gm).changed
    assert (gm(torch.zeros(3)) != 0).any()


def test_two_results_stay_two_tensors(captured, settings):
    gm = captured(lambda x: (x.sin(), x.sin()), torch.randn(3))
    MergeCommonSubexpressions(settings)(gm)
    gm.recompile()
    first, second = gm(torch.randn(3))
    assert first.data_ptr() != second.data_ptr()


def test_sizes_are_merged(captured, settings, operators):
    gm = captured(
        lambda x: (x.reshape(x.shape[0], -1), x.new_zeros(x.shape[0])),
        torch.randn(4, 3, 2),
        dynamic_shapes=(({0: Dim("b", min=1, max=8)},),),
    )
    with gm.graph.inserting_before(gm.graph.output_node()):
        extra = gm.graph.call_function(aten.sym_size.int, (gm.graph.find_nodes(op="placeholder")[0], 0))
    extra.meta["val"] = gm.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]
    assert MergeCommonSubexpressions(settings)(gm).changed
    assert operators(gm)["sym_size"] == 1
