from __future__ import annotations

import torch
from torch.export import Dim

from trt_core.operators import is_size_query
from trt_lowering.passes.cleanup import EliminateDeadCode
from trt_lowering.passes.known_values import SimplifySizes

BATCH = ({0: Dim("b", min=1, max=16)},)
aten = torch.ops.aten


def size_sources(gm):
    return {node.args[0].op for node in gm.graph.nodes if is_size_query(node.target)}


def with_size_of(gm, target, axis):
    """Adds a reader of an intermediate tensor's size, as decompositions leave them."""
    node = next(node for node in gm.graph.nodes if node.target is target)
    with gm.graph.inserting_after(node):
        size = gm.graph.call_function(aten.sym_size.int, (node, axis))
    size.meta["val"] = node.meta["val"].shape[axis]
    output = gm.graph.output_node()
    with gm.graph.inserting_before(output):
        full = gm.graph.call_function(aten.full.default, ([size], 1.0))
    with node.meta["val"].fake_mode:
        full.meta["val"] = torch.full([size.meta["val"]], 1.0)
    output.args = ((*output.args[0], full),)
    gm.graph._codegen = torch.fx.graph.CodeGen()
    return gm


def simplify(gm):
    result = SimplifySizes()(gm)
    EliminateDeadCode()(gm)
    gm.graph.lint()
    gm.recompile()
    return result


def test_batch_is_read_off_the_input(captured):
    gm = with_size_of(captured(lambda x: x.sin(), torch.randn(4, 3), dynamic_shapes=(BATCH,)), aten.sin.default, 0)
    assert simplify(gm).changed
    assert size_sources(gm) == {"placeholder"}
    assert gm(torch.randn(7, 3))[1].shape == (7,)


def test_expressions_are_rebuilt_from_inputs(captured):
    function = lambda x: torch.cat([x, x]).reshape(-1, 3)  # noqa: E731
    gm = with_size_of(captured(function, torch.randn(4, 6), dynamic_shapes=(BATCH,)), aten.reshape.default, 0)
    simplify(gm)
    assert size_sources(gm) == {"placeholder"}
    assert gm(torch.randn(5, 6))[1].shape == (20,)


def test_strided_sizes_use_integer_division(captured):
    function = lambda x: torch.nn.functional.conv2d(x, torch.ones(1, 2, 3, 3), stride=2)  # noqa: E731
    shapes = (({3: Dim("n", min=8, max=64)},),)
    gm = with_size_of(captured(function, torch.randn(1, 2, 8, 16), dynamic_shapes=shapes), aten.conv2d.default, 3)
    simplify(gm)
    for size in (9, 10, 33):
        result, full = gm(torch.randn(1, 2, 8, size))
        assert full.shape == (result.shape[3],)
    assert size_sources(gm) == {"placeholder"}


def test_constant_sizes_become_numbers(captured, operators):
    gm = with_size_of(captured(lambda x: x.sin(), torch.randn(4, 3), dynamic_shapes=(BATCH,)), aten.sin.default, 1)
    simplify(gm)
    assert not operators(gm)["sym_size"]
    assert gm(torch.randn(2, 3))[1].shape == (3,)


def test_one_node_for_each_expression(captured, operators):
    def function(x):
        return x.sin().reshape(x.shape[0] * 3), x.cos().reshape(x.shape[0] * 3)

    gm = captured(function, torch.randn(4, 3), dynamic_shapes=(BATCH,))
    gm = with_size_of(gm, aten.sin.default, 0)
    simplify(gm)
    assert operators(gm)["sym_size"] == 1
    assert operators(gm)["mul"] == 1


def test_data_dependent_sizes_stay(captured):
    def function(x):
        found = torch.nonzero(x)
        return torch.zeros(found.shape[0])

    gm = captured(function, torch.tensor([0.0, 1.0, 2.0]))
    simplify(gm)
    assert gm(torch.tensor([1.0, 1.0, 2.0])).shape == (3,)
    assert size_sources(gm) == {"call_function"}


def test_static_graph_is_left_alone(captured):
    assert not SimplifySizes()(captured(torch.relu, torch.randn(3))).changed
