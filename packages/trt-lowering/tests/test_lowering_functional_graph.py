"""Graphs that AOTAutograd made functional, and the operators that it keeps whole for converters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from trt_core import LoweringError
from trt_lowering import check_graph_form, keep_whole, lower_graph
from trt_lowering.internals import composites_replaced, fake_implementations

aten = torch.ops.aten
WHOLE = [
    aten.linear.default,
    aten.layer_norm.default,
    aten.batch_norm.default,
    aten.scaled_dot_product_attention.default,
    aten.einsum.default,
    aten.type_as.default,
    aten.reshape.default,  # may be a view: PyTorch takes it apart
    aten.add_.Tensor,
    aten.relu.default,
]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        y = torch.nn.functional.relu(self.norm(self.linear(x)), inplace=True)
        y += 1
        return torch.nn.functional.mish(y) * self.scale


def functional_graph(module, *args, whole=WHOLE, dynamic=None, context=torch.no_grad):
    """What AOTAutograd hands to a backend's compiler: the graph, and the inputs of the first call."""
    seen = []

    def compile_functional(gm, _):
        def run(inputs):
            seen.append((gm, list(inputs)))
            return gm.forward(*inputs)

        run._boxed_call = True
        return run

    def backend(gm, examples):
        with keep_whole(whole):
            return aot_autograd(fw_compiler=compile_functional)(gm, examples)

    torch._dynamo.reset()
    with context():
        torch.compile(module, backend=backend, dynamic=dynamic)(*args)
    (found,) = seen
    return found


def called(gm):
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}


def test_what_is_kept_is_kept_again_and_given_back() -> None:
    operator = aten.linear.default
    before = dict(operator.py_kernels), operator in fake_implementations

    def decline(*args, **kwargs):
        return NotImplemented

    with composites_replaced({operator: decline}):
        keys = operator.py_kernels.keys()
    seen = []
    for _ in range(2):
        with keep_whole([operator]), keep_whole([operator, aten.layer_norm.default]):
            seen.append(dict(operator.py_kernels))
        assert (dict(operator.py_kernels), operator in fake_implementations) == before
    assert seen[0] == seen[1]
    assert seen[0].keys() >= set(keys)


def test_kernels_that_are_registered_meanwhile_are_kept_beside() -> None:
    library = torch.library.Library("kept", "FRAGMENT")
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x + 1, "CompositeImplicitAutograd")
    composite, key = torch.ops.kept.composite.default, torch._C.DispatchKey.Functionalize
    with keep_whole([composite]):
        assert key not in composite.py_kernels
    kernel = composite.py_impl(key)(lambda x: x)
    with keep_whole([composite]):
        assert composite.py_kernels[key] is kernel
    assert composite.py_kernels == {key: kernel}


def test_operators_with_a_converter_are_kept(settings, preserve, operators, compare):
    model, x = Block().eval(), torch.randn(3, 4)
    gm, inputs = functional_graph(model, x)
    before = str(gm.graph)
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    assert str(gm.graph) == before
    assert operators(lowered)["linear"] == 1
    assert operators(lowered)["layer_norm"] == 1
    assert not operators(lowered)["mish"]
    compare((model(x),), lowered(*inputs), 1e-6)


def test_constants_become_shared_attributes(settings, preserve, compare):
    model, x = Block().eval(), torch.randn(3, 4)
    gm, inputs = functional_graph(model, x)
    names = [str(node.target) for node in gm.graph.find_nodes(op="placeholder")]
    constants = {name: value for name, value in zip(names, inputs, strict=True) if value is not x}
    assert len(constants) == 5
    lowered = lower_graph(gm, settings, preserve=preserve, constants=constants)
    check_graph_form(lowered)
    assert len(lowered.graph.find_nodes(op="placeholder")) == 1
    assert model.linear.weight.data_ptr() in {tensor.data_ptr() for tensor in lowered.parameters()}
    compare((model(x),), lowered(x), 1e-6)


def test_symbolic_sizes_stay_symbolic(settings, preserve, compare):
    def function(x):
        return torch.nn.functional.mish(x).reshape(x.shape[0] * 2, 2)

    gm, inputs = functional_graph(function, torch.randn(3, 4), dynamic=True)
    lowered = lower_graph(gm, settings, preserve=preserve)
    check_graph_form(lowered)
    tensors = [node for node in lowered.graph.find_nodes(op="placeholder") if hasattr(node.meta["val"], "shape")]
    assert any(isinstance(extent, torch.SymInt) for node in tensors for extent in node.meta["val"].shape)
    x = torch.randn(5, 4)
    sizes = iter(x.shape)
    compare((function(x),), lowered(*[x if isinstance(item, torch.Tensor) else next(sizes) for item in inputs]), 1e-6)


def test_provenance_is_carried_over(settings, preserve):
    gm, _ = functional_graph(Block().eval(), torch.randn(3, 4))
    lowered = lower_graph(gm, settings, preserve=preserve)
    linear = next(node for node in lowered.graph.nodes if node.target is aten.linear.default)
    assert "linear" in str(linear.meta["nn_module_stack"])
    assert "test_lowering_functional_graph" in linear.meta["stack_trace"]


def test_unknown_constant_is_an_error(settings, preserve):
    gm, _ = functional_graph(torch.relu, torch.randn(2))
    with pytest.raises(LoweringError, match="'weight'") as error:
        lower_graph(gm, settings, preserve=preserve, constants={"weight": torch.ones(1)})
    assert "arg0_1" in error.value.hint


@pytest.mark.sampled
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: nn.functional.linear(x, x[0]), "aten.linear.default"),
        (lambda x: nn.functional.layer_norm(x, (4,)), "aten.layer_norm.default"),
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), "aten.scaled_dot_product_attention.default"),
        (lambda x: torch.einsum("bij,bjk->bik", x, x), "aten.einsum.default"),
    ],
)
def test_composite_operators_stay_whole_for_the_time_of_a_trace(function, operator, context):
    x = torch.randn(2, 4, 4)
    gm, _ = functional_graph(function, x, context=context)
    assert operator in called(gm)
    gm, _ = functional_graph(function, x, whole=(), context=context)
    assert operator not in called(gm)


def test_calls_that_may_return_a_view_are_taken_apart():
    gm, _ = functional_graph(lambda x: torch.einsum("ij->ji", x) + x.type_as(x).reshape(4, 4), torch.randn(4, 4))
    assert not called(gm) & {"aten.einsum.default", "aten.type_as.default", "aten.reshape.default"}


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_whole_where_it_keeps_no_statistics(training):
    gm, _ = functional_graph(nn.BatchNorm1d(4).train(training), torch.randn(3, 4))
    assert ("aten.batch_norm.default" in called(gm)) is not training
