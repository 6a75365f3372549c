from __future__ import annotations

import pytest
import torch
from torch import fx

from trt_core import LoweringError
from trt_lowering import GraphPass, PassResult, run_passes


class Rename(GraphPass):
    name = "rename"

    def __init__(self, changes: int = 1) -> None:
        self.changes = changes
        self.ensured = 0

    def requires(self, gm: fx.GraphModule) -> None:
        pass

    def call(self, gm: fx.GraphModule) -> int:
        return self.changes

    def ensures(self, gm: fx.GraphModule) -> None:
        self.ensured += 1


def test_result_says_whether_the_graph_changed():
    gm = fx.symbolic_trace(torch.nn.ReLU())
    assert Rename(2)(gm) == PassResult("rename", 2)
    assert Rename(2)(gm).changed
    assert not Rename(0)(gm).changed


def test_promise_is_checked_only_after_a_change():
    gm = fx.symbolic_trace(torch.nn.ReLU())
    idle, busy = Rename(0), Rename(3)
    run_passes(gm, [idle, busy])
    assert (idle.ensured, busy.ensured) == (0, 1)


def test_error_names_pass_node_and_condition():
    class Picky(Rename):
        name = "picky"
        requires = GraphPass.requires

    gm = fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(LoweringError) as error:
        Picky()(gm)
    assert "'picky'" in error.value.what
    assert 'meta["val"]' in error.value.what
    assert error.value.where.startswith("input")


def test_code_is_compiled_once_and_only_when_asked_for():
    gm = fx.symbolic_trace(torch.nn.ReLU())

    class Swap(Rename):
        def call(self, gm: fx.GraphModule) -> int:
            for node in gm.graph.nodes:
                if node.op == "call_function":
                    node.target, node.kwargs = torch.neg, {}
            return 1

    run_passes(gm, [Swap()], recompile=False)
    assert "torch.neg" not in gm.code
    run_passes(gm, [Swap()])
    assert "torch.neg" in gm.code
