from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from torch.export import Dim

from trt_core.provenance import module_path
from trt_lowering.decomposition_table import DecompositionRules, find_decomposition
from trt_lowering.passes.decompose import Decompose
from trt_lowering.passes.functionalize import Functionalize

aten = torch.ops.aten


def decompose(gm, preserve, settings):
    Functionalize()(gm)
    step = Decompose(DecompositionRules(preserve, settings))
    step(gm)
    gm.recompile()
    return step


CASES = {
    "pixel_shuffle": (lambda x: torch.nn.functional.pixel_shuffle(x, 2), (4, 8, 3, 3)),
    "glu": (lambda x: torch.nn.functional.glu(x, 1), (4, 8)),
    "group_norm": (lambda x: torch.nn.functional.group_norm(x, 2), (4, 8, 3)),
    "instance_norm": (lambda x: torch.nn.functional.instance_norm(x), (4, 8, 3)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), (4, 8)),
    "mish": (lambda x: torch.nn.functional.mish(x), (4, 8)),
    "std": (lambda x: torch.std(x, 1), (4, 8)),
    "stack": (lambda x: torch.stack([x, x * 2]), (4, 8)),
    "addmv": (lambda x: torch.addmv(x[0], x.t(), x[:, 0]), (4, 8)),
    "baddbmm": (lambda x: torch.baddbmm(x, x, x), (4, 3, 3)),
    "movedim": (lambda x: torch.movedim(x, 0, 2), (4, 8, 3)),
    "tile": (lambda x: torch.tile(x, (2, 1)), (4, 8)),
    "nll_loss": (lambda x: torch.nn.functional.nll_loss(x, x.argmax(1), ignore_index=3), (4, 8)),
    "cross_entropy": (lambda x: torch.nn.functional.cross_entropy(x, x.argmin(1), x[0].abs()), (4, 8)),
    "cosine": (lambda x: torch.nn.functional.cosine_similarity(x, x + 1, dim=1), (4, 8)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_decomposed_operators_compute_the_same(name, is_dynamic, captured, preserve, settings, compare):
    function, shape = CASES[name]
    x = torch.randn(shape)
    gm = captured(function, x, dynamic_shapes=(({0: Dim("b", min=1, max=16)},),) if is_dynamic else None)
    before = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    assert decompose(gm, preserve, settings).expander.traces > 0
    after = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    assert any(not preserve(target) for target in before - after if isinstance(target, torch._ops.OpOverload))
    compare(function(x), gm(x), 1e-5)  # float32, a few roundings
    if is_dynamic:
        other = torch.randn(7, *shape[1:])
        compare(function(other), gm(other), 1e-5)


def test_preserved_operators_stay_whole(captured, preserve, settings, operators):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x):
            y = self.linear(self.norm(x))
            return torch.nn.functional.scaled_dot_product_attention(y, y, y)

    gm = captured(Block(), torch.randn(2, 4, 8))
    step = decompose(gm, preserve, settings)
    assert step.expander.traces == 0
    assert set(operators(gm)) == {"layer_norm", "linear", "scaled_dot_product_attention"}


def test_composite_operators_inside_a_decomposition_stay_whole(captured, preserve, settings, operators):
    gru = torch.nn.GRU(4, 4, batch_first=True)
    gm = captured(gru, torch.randn(2, 3, 4))
    decompose(gm, preserve, settings)
    assert operators(gm)["linear"] == 4  # one for all inputs, one for the state at each of three steps
    assert not operators(gm)["gru"]


def test_repeated_blocks_are_traced_once(captured, preserve, settings):
    def function(x):
        for _ in range(5):
            x = torch.nn.functional.mish(x)
        return x

    gm = captured(function, torch.randn(4, 8), dynamic_shapes=(({0: Dim("b", min=1, max=16)},),))
    single = captured(torch.nn.functional.mish, torch.randn(4, 8))
    assert decompose(gm, preserve, settings).expander.traces == decompose(single, preserve, settings).expander.traces


def test_sizes_become_nodes(captured, preserve, settings):
    gm = captured(
        lambda x: torch.nn.functional.pixel_shuffle(x, 2),
        torch.randn(4, 4, 3, 3),
        dynamic_shapes=(({0: Dim("b", min=1, max=16)},),),
    )
    decompose(gm, preserve, settings)
    assert any(node.target is aten.sym_size.int for node in gm.graph.nodes)
    for node in gm.graph.nodes:
        for argument in torch.utils._pytree.tree_leaves((node.args, node.kwargs)):
            assert not isinstance(argument, torch.SymInt)


def test_provenance_is_inherited(captured, preserve, settings):
    gm = captured(torch.nn.Sequential(torch.nn.Mish(), torch.nn.GLU()), torch.randn(4, 8))
    decompose(gm, preserve, settings)
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert {module_path(node) for node in calls} == {"0", "1"}
    assert all(node.meta.get("stack_trace") for node in calls)


def test_operators_named_in_settings_stay_whole(captured, preserve, settings, operators):
    gm = captured(torch.nn.functional.mish, torch.randn(4, 8))
    decompose(gm, preserve, settings.replace(torch_executed_ops={"aten.mish"}))
    assert operators(gm) == {"mish": 1}


def test_random_and_data_dependent_operators_stay_whole(captured, settings, operators):
    def function(x):
        return torch.nn.functional.dropout(x, 0.5, training=True), torch.nonzero(x)

    gm = captured(function, torch.randn(4))
    decompose(gm, lambda op: False, settings)
    assert operators(gm)["nonzero"] == 1
    assert operators(gm)["dropout"] == 1


def test_calls_whose_results_have_sizes_of_their_own_share_no_trace(captured, settings, operators):
    def function(x):
        (positive,), (large,) = torch.where(x > 0), torch.where(x > 1)
        return x[positive], x[large]

    gm = captured(function, torch.randn(4))
    decompose(gm, lambda op: False, settings)
    assert operators(gm)["where"] == 2
    first, second = (node.meta["val"] for node in gm.graph.nodes if node.target is aten.where.default)
    assert str(first[0].shape[0]) != str(second[0].shape[0])


def test_running_statistics_are_not_lost(captured, settings, operators):
    model = torch.nn.BatchNorm1d(3)
    program = torch.export.export(model.train(), (torch.randn(4, 3),))
    from trt_lowering.lower import unlift

    gm = unlift(program)
    decompose(gm, lambda op: False, settings)
    assert operators(gm)["batch_norm"] == 1


def test_reference_decompositions_must_end_in_converters(captured, settings, operators):
    def function(x):
        return torch.special.i0e(x)

    gm = captured(function, torch.randn(4))
    name = next(iter(operators(gm)))
    decompose(gm, lambda op: False, settings)
    assert operators(gm) == {name: 1}


def test_decompositions_may_name_their_results(captured, preserve, settings, operators):
    gm = captured(lambda x: torch.nn.functional.nll_loss(x, x.argmax(1)), torch.randn(4, 8))
    decompose(gm, preserve, settings)
    assert "gather" in operators(gm)
    assert not any(name.startswith("nll_loss") for name in operators(gm))


def test_experimental_decompositions_ignore_converters(captured, preserve, settings, operators):
    gm = captured(torch.nn.Linear(3, 3), torch.randn(2, 3))
    decompose(gm, preserve, settings.replace(enable_experimental_decompositions=True))
    assert not operators(gm)["linear"]
    assert operators(gm)["addmm"] + operators(gm)["mm"] + operators(gm)["matmul"] > 0


def test_recurrent_layers_are_not_taken_apart_into_a_cpu_library(captured, settings, operators):
    lstm = torch.nn.LSTM(3, 4, batch_first=True).eval()
    for preserve in (lambda operator: True, lambda operator: False):
        gm = captured(lstm, torch.randn(2, 5, 3))
        decompose(gm, preserve, settings.replace(enable_experimental_decompositions=True))
        assert not any("mkldnn" in name for name in operators(gm))
        assert operators(gm)["lstm"] == 1


def test_the_shape_environment_is_not_changed(preserve, settings):
    from trt_lowering import export_module, lower

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.pixel_shuffle(torch.nn.functional.mish(x), 2)

    program = export_module(Model(), (torch.randn(4, 4, 3, 3),), dynamic_shapes=({0: Dim("b", min=1, max=16)},))
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    environment = value.fake_mode.shape_env
    before = (len(environment.guards), dict(environment.replacements), str(program.graph))
    lower(program, settings, preserve=preserve)
    assert before == (len(environment.guards), dict(environment.replacements), str(program.graph))
    assert isinstance(value.shape[0], torch.SymInt)


def test_operators_whose_decomposition_computes_something_else_stay_whole(captured, settings, operators):
    function = lambda x: torch.linspace(x, -3, 50, dtype=torch.int64)  # noqa: E731
    start = torch.tensor(4.3)
    gm = captured(function, start)
    decompose(gm, lambda target: False, settings)
    assert torch.equal(gm(start), function(start))


@with_settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-1, 3), min_size=4, max_size=4), min_size=1, max_size=3),
    is_batch=st.booleans(),
    reduction=st.integers(0, 2),
)
def test_labels_end_where_the_loss_of_their_margins_says(rows, is_batch, reduction):
    operator = aten.multilabel_margin_loss_forward.default
    target = torch.tensor(rows if is_batch else rows[0])
    x = torch.linspace(-1, 2, target.numel()).reshape(target.shape)
    found, wanted = find_decomposition(operator).function(x, target, reduction), operator(x, target, reduction)
    torch.testing.assert_close(found, wanted)
