from __future__ import annotations

import pytest
import torch
from torch import fx

from trt_core import LoweringError
from trt_lowering import check_graph_form, lower_graph
from trt_lowering.decomposition_table import DecompositionRules


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        y = torch.nn.functional.relu(self.norm(self.linear(x)), inplace=True)
        y += 1
        return torch.nn.functional.mish(y) * self.scale


def dynamo_graph(module, *args, dynamic=None):
    """What torch.compile hands to a backend: the graph and its example inputs."""
    seen = []

    def backend(gm, examples):
        seen.append((gm, examples))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(module, backend=backend, dynamic=dynamic)(*args)
    (found,) = seen
    return found


def frozen(gm, examples):
    return {
        str(node.target): example
        for node, example in zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True)
        if isinstance(example, torch.nn.Parameter) or node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    }


def test_dynamo_graph_becomes_aten_with_operators_kept(settings, preserve, operators, compare):
    model, x = Block().eval(), torch.randn(3, 4)
    gm, examples = dynamo_graph(model, x)
    before = str(gm.graph)
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    assert str(gm.graph) == before
    assert operators(lowered)["linear"] == 1
    assert operators(lowered)["layer_norm"] == 1
    assert not operators(lowered)["mish"]
    compare((model(x),), lowered(*examples), 1e-6)


def test_constants_become_shared_attributes(settings, preserve, compare):
    model, x = Block().eval(), torch.randn(3, 4)
    gm, examples = dynamo_graph(model, x)
    constants = frozen(gm, examples)
    assert len(constants) >= 4
    lowered = lower_graph(gm, settings, preserve=preserve, constants=constants)
    check_graph_form(lowered)
    assert len(lowered.graph.find_nodes(op="placeholder")) == len(examples) - len(constants)
    own = {tensor.data_ptr() for tensor in (*lowered.parameters(), *lowered.buffers())}
    assert model.linear.weight.data_ptr() in own
    compare((model(x),), lowered(*(item for item in examples if all(item is not c for c in constants.values()))), 1e-6)


def test_symbolic_sizes_stay_symbolic(settings, preserve, compare):
    def function(x):
        return torch.nn.functional.mish(x).reshape(x.shape[0] * 2, 2)

    gm, examples = dynamo_graph(function, torch.randn(3, 4), dynamic=True)
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    tensors = [node for node in lowered.graph.find_nodes(op="placeholder") if hasattr(node.meta["val"], "shape")]
    assert any(isinstance(extent, torch.SymInt) for node in tensors for extent in node.meta["val"].shape)
    x = torch.randn(5, 4)
    sizes = iter(x.shape)
    inputs = [x if isinstance(example, torch.Tensor) else next(sizes) for example in examples]
    compare((function(x),), lowered(*inputs), 1e-6)


def test_modules_inside_a_graph_keep_their_parameters(settings, preserve, compare):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)
    gm = fx.symbolic_trace(model)
    (placeholder,) = gm.graph.find_nodes(op="placeholder")
    placeholder.meta["val"] = x
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    assert model[0].weight.data_ptr() in {tensor.data_ptr() for tensor in lowered.parameters()}
    compare((model(x),), lowered(x))


def test_provenance_is_carried_over(settings, preserve):
    gm, _ = dynamo_graph(Block().eval(), torch.randn(3, 4))
    lowered = lower_graph(gm, settings, preserve=preserve)
    linear = next(node for node in lowered.graph.nodes if node.target is torch.ops.aten.linear.default)
    assert "linear" in str(linear.meta["nn_module_stack"])
    assert "test_lowering_capture" in linear.meta["stack_trace"]


def test_entangled_writes_go_through_functionalization(settings, preserve, compare):
    def function(x):
        y = x * 2
        y[:, 0] += 1
        return y

    gm, examples = dynamo_graph(function, torch.randn(3, 4))
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    compare((function(examples[0]),), lowered(*examples))


def test_missing_example_is_an_error(settings, preserve):
    gm = fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(LoweringError, match="no example value"):
        lower_graph(gm, settings, preserve=preserve)


def test_unknown_constant_is_an_error(settings, preserve):
    gm = fx.symbolic_trace(torch.nn.ReLU())
    with pytest.raises(LoweringError, match="'weight'") as error:
        lower_graph(gm, settings, preserve=preserve, constants={"weight": torch.ones(1)})
    assert "input" in error.value.hint


def test_graph_that_fails_says_why(settings, preserve):
    gm = fx.symbolic_trace(torch.nn.Linear(3, 3))
    gm.graph.find_nodes(op="placeholder")[0].meta["val"] = torch.randn(2, 4)
    with pytest.raises(LoweringError, match="cannot be traced"):
        lower_graph(gm, settings, preserve=preserve)


def test_whole_program_table_leaves_preserved_operators_out(settings, preserve):
    table = DecompositionRules(preserve, settings).whole_program_table()
    assert torch.ops.aten.linear.default not in table
    assert torch.ops.aten.mish.default in table
