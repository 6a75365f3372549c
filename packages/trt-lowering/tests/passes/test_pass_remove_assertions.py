from __future__ import annotations

import pytest
import torch
from torch import fx

from trt_core import LoweringError
from trt_lowering import export_module
from trt_lowering.passes.flatten import RemoveAssertions, is_assertion


def test_guard_module_goes():
    program = export_module(torch.nn.ReLU(), (torch.randn(2, 3),))
    gm = program.module()
    assert any(node.op == "call_module" for node in gm.graph.nodes)
    assert RemoveAssertions()(gm).changed
    gm.recompile()
    assert not hasattr(gm, "_guards_fn")
    assert torch.equal(gm(torch.ones(2, 3)), torch.ones(2, 3))


def test_value_checks_go_and_the_result_stays(captured, compare):
    def bounded(x):
        size = x.max().item()
        torch._check(size >= 0)
        torch._check(size < 10)
        return x + size

    x = torch.tensor([1, 2, 3])
    gm = captured(bounded, x)
    assert any(is_assertion(node) for node in gm.graph.nodes)
    RemoveAssertions()(gm)
    gm.recompile()
    assert not any(is_assertion(node) for node in gm.graph.nodes)
    compare(bounded(x), gm(x))


def test_nothing_to_remove(captured):
    assert not RemoveAssertions()(captured(torch.relu, torch.randn(3))).changed


def test_used_assertion_is_an_error():
    graph = fx.Graph()
    x = graph.placeholder("x")
    check = graph.call_function(torch.ops.aten._functional_assert_async.msg, (x, "message", x))
    graph.output((check,))
    with pytest.raises(LoweringError, match="is used"):
        RemoveAssertions()(fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 captures no comparison of floats that data give")
def test_checks_of_values_may_stay(captured):
    def positive(x):
        torch._assert_async((x > 0).all(), "not positive")
        torch._check(x.max().item() < 10)
        return torch.relu(x)

    gm = captured(positive, torch.ones(3))
    assert not RemoveAssertions(keep_values=True)(gm).changed
    gm.recompile()
    kept = [node for node in gm.graph.nodes if is_assertion(node)]
    assert [node.target for node in kept] == [torch.ops.aten._assert_async.msg, torch.ops.aten._assert_scalar.default]
    assert all(node.meta["val"] is None for node in kept)
    for x, message in ((-torch.ones(3), "not positive"), (10 * torch.ones(3), "10")):
        with pytest.raises(RuntimeError, match=message):
            gm(x)


def test_checks_of_sizes_go_where_checks_of_values_stay(captured):
    gm = captured(torch.relu, torch.ones(3))
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(torch.ops.aten._assert_scalar.default, (True, "known"))
    RemoveAssertions(keep_values=True)(gm)
    assert not any(is_assertion(node) for node in gm.graph.nodes)
