"""Planted faults are found, named and avoided."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import trt_frontends
from trt_converters import DYNAMO_CONVERTERS, Converter
from trt_core import Input, InputError
from trt_frontends.accuracy import Stage, bisect
from trt_lowering.contract import GraphPass

pytestmark = pytest.mark.sampled(4)

aten = torch.ops.aten
_SHIFTS = itertools.count(0.03125, 1e-4)


def _operators(report: Any) -> list[str]:
    return [culprit.operator for culprit in report.culprits]


def test_nothing_is_found_where_nothing_is_wrong(deep: nn.Module) -> None:
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),))
    assert (report.stage, report.culprits, report.setting) == (Stage.NONE, (), "")
    assert "nothing is wrong" in report.to_text()


@pytest.mark.parametrize("operator", ["relu", "tanh", "sigmoid", "gelu"])
def test_a_fault_in_a_converter_is_found(deep: nn.Module, plant_fault: Any, operator: str) -> None:
    plant_fault(getattr(aten, operator).default)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),))
    assert _operators(report) == [f"torch.ops.aten.{operator}.default"]
    assert report.is_proved and report.complete
    (culprit,) = report.culprits
    assert culprit.error_alone == pytest.approx(0.5, rel=1e-3)
    assert culprit.module.startswith("activations.")
    assert "test_bisect" in culprit.source or "conftest" in culprit.source
    assert any("ELEMENTWISE" in layer for layer in culprit.layers)
    assert culprit.inputs[0].shape == (2, 8)
    text = report.to_text()
    assert f"torch_executed_ops={{'torch.ops.aten.{operator}.default'}} makes it right" in text
    assert json.loads(report.to_json())["is_proved"] is True


def test_one_call_among_many_of_an_operator_is_named(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(aten.linear.default, where=lambda node: node.name == "linear_2")
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),))
    assert [culprit.node for culprit in report.culprits] == ["linear_2"]
    assert report.culprits[0].module == "layers.2"


def test_several_faults_are_all_found(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(aten.tanh.default, 2.0)
    plant_fault(aten.gelu.default, 0.5)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),))
    assert _operators(report) == ["torch.ops.aten.tanh.default", "torch.ops.aten.gelu.default"]
    assert report.is_proved


def test_the_number_of_engines_that_are_built_is_logarithmic(plant_fault: Any) -> None:
    plant_fault(aten.tanh.default)

    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in range(60):
                x = torch.tanh(x * 1.2) if index == 37 else torch.relu(x + 0.1)
            return x

    report = bisect(Long(), arg_inputs=(torch.randn(4),))
    assert _operators(report) == ["torch.ops.aten.tanh.default"]
    assert report.builds <= 12  # 121 operators, log2 of which is 7, and the whole engine, and the proof of minimality


def test_dynamic_models_are_searched(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(aten.sigmoid.default)
    batch = Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(5, 8), tensor_domain=(-1, 1))
    report = bisect(deep, arg_inputs=(batch,))
    assert _operators(report) == ["torch.ops.aten.sigmoid.default"]
    assert report.is_proved


def test_the_engines_that_are_searched_are_those_that_compile_builds(plant_fault: Any) -> None:
    class ChannelsLast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * 2) + 1

    # the result leaves its engine in the order of its memory, through a permutation that the model does not have
    plant_fault(aten.permute.default)
    model, x = ChannelsLast(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    assert not torch.allclose(compiled(x), model(x))
    report = bisect(model, arg_inputs=(x,), min_block_size=1)
    assert report.stage is Stage.ENGINES
    assert [engine.error for engine in report.engines] == [pytest.approx(0.5, rel=1e-3)]


def test_what_cannot_be_converted_is_left_to_pytorch_as_compile_leaves_it(deep: nn.Module, plant_fault: Any) -> None:
    def fails(ctx: Any, **arguments: Any) -> Any:
        raise RuntimeError("no such layer")

    original = DYNAMO_CONVERTERS[aten.sigmoid.default]
    DYNAMO_CONVERTERS.register(Converter(original.target, fails, original.checks, priority=original.priority + 1))
    plant_fault(aten.tanh.default)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), min_block_size=1)
    assert _operators(report) == ["torch.ops.aten.tanh.default"]
    assert report.is_proved


@pytest.fixture
def plant_in_layer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes layers of hyperbolic tangents wrong where their first extent is so."""
    import trt_portable

    layer = trt_portable.IActivationLayer
    compute = layer._compute

    def plant(model: nn.Module, is_wrong: Callable[[int], bool]) -> None:
        def wrong(self: Any, *arguments: Any) -> Any:
            results = compute(self, *arguments)
            if self.type.name != "TANH":
                return results
            return [
                item * 1.5 if isinstance(item.shape[0], int) and is_wrong(item.shape[0]) else item for item in results
            ]

        monkeypatch.setattr(layer, "_compute", wrong)
        with torch.no_grad():  # equal plans share an engine, and one of another test may be alive without this fault
            for parameter in model.parameters():
                parameter.add_(next(_SHIFTS))

    return plant


@pytest.mark.parametrize(("wrong", "given"), [(1, None), (5, None), (4, 4)])
def test_faults_that_show_at_one_size_alone_are_found(
    deep: nn.Module, plant_in_layer: Any, wrong: int, given: int | None
) -> None:
    plant_in_layer(deep, lambda size: size == wrong)
    batch = Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(5, 8), tensor_domain=(-1, 1))
    inputs = None if given is None else [torch.randn(2, 8), torch.randn(given, 8)]
    report = bisect(deep, arg_inputs=(batch,), inputs=inputs, optimization_level=0)
    (culprit,) = report.culprits
    assert culprit.operator == "torch.ops.aten.tanh.default"
    assert culprit.error_alone == pytest.approx(0.5, rel=1e-3)  # on inputs of that size
    assert culprit.inputs[0].shape == (wrong, 8)
    assert report.is_proved


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_traced_to_where_they_are_born(
    deep: nn.Module, plant_fault: Any, value: float
) -> None:
    plant_fault(aten.sigmoid.default, value)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), optimization_level=0)
    assert _operators(report) == ["torch.ops.aten.sigmoid.default"]
    assert report.is_proved and report.error_before == float("inf")
    assert "error inf" in report.to_text()
    assert json.loads(report.to_json())["error_before"] is not None


def test_a_wrong_weight_is_found(deep: nn.Module) -> None:
    registry = DYNAMO_CONVERTERS.copy()
    original = registry[aten.linear.default]

    def spoiled(ctx: Any, **arguments: Any) -> Any:
        if ctx.node.name == "linear_2":
            arguments["weight"] = arguments["weight"].flip(0)
        return original.function(ctx, **arguments)

    registry.register(Converter(aten.linear.default, spoiled, original.checks, priority=original.priority + 1))
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), registry=registry, optimization_level=0)
    assert [(culprit.node, culprit.module) for culprit in report.culprits] == [("linear_2", "layers.2")]
    assert report.is_proved


@pytest.mark.parametrize("how", ["wrapped", "in place", "a part"])
def test_what_torch_compile_made_is_searched_as_the_module_it_was_given(
    deep: nn.Module, plant_fault: Any, how: str
) -> None:
    options = {"optimization_level": 0}
    model = torch.compile(deep, backend="torch_tensorrt", options=options)
    if how == "in place":
        deep.compile(backend="torch_tensorrt", options=options)
        model = deep
    elif how == "a part":
        model = nn.Sequential(model, nn.Linear(8, 8)).eval()
    plant_fault(aten.tanh.default)
    report = bisect(model, arg_inputs=(torch.randn(2, 8),), **options)
    assert _operators(report) == ["torch.ops.aten.tanh.default"]
    assert report.is_proved
    assert report.model == ("Sequential" if how == "a part" else "Deep")


def test_what_has_engines_already_is_refused(deep: nn.Module) -> None:
    x = torch.randn(2, 8)
    compiled = trt_frontends.compile(deep, arg_inputs=(x,), optimization_level=0)
    for model in (compiled, nn.Sequential(compiled, nn.ReLU()), torch.export.export(compiled, (x,))):
        with pytest.raises(InputError, match="has engines"):
            bisect(model, arg_inputs=(x,))
    with pytest.raises(InputError, match="bisect cannot take a function as model"):
        bisect(lambda x: x, arg_inputs=(x,))  # type: ignore[arg-type]


def test_the_engine_is_named_where_there_are_several(plant_fault: Any) -> None:
    plant_fault(aten.tanh.default)

    class Cut(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(torch.special.bessel_j0(torch.relu(x) + 1))

    report = bisect(Cut(), arg_inputs=(torch.randn(6),), min_block_size=1)
    wrong = [engine.name for engine in report.engines if engine.error > report.tolerance]
    assert len(report.engines) == 2
    assert wrong == [report.culprits[0].engine]


def test_a_fault_in_a_layer_is_found(deep: nn.Module, plant_in_layer: Any) -> None:
    plant_in_layer(deep, lambda size: True)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), optimization_level=0)
    assert _operators(report) == ["torch.ops.aten.tanh.default"]


class Replace(GraphPass):
    """Replaces an operator by relu, which it should not."""

    def __init__(self, operator: Any) -> None:
        self.name = f"replace_{operator}"
        self._operator = operator

    def call(self, gm: fx.GraphModule) -> int:
        nodes = [node for node in gm.graph.nodes if node.target is self._operator]
        for node in nodes:
            node.target = aten.relu.default
        return len(nodes)


@pytest.fixture
def spoil_lowering(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts passes first that replace these operators."""
    from trt_lowering import pass_order

    def spoil(*operators: Any) -> None:
        passes = pass_order.decomposing_passes
        wrong = [Replace(operator) for operator in operators]
        monkeypatch.setattr(pass_order, "decomposing_passes", lambda *rest, **how: [*wrong, *passes(*rest, **how)])

    return spoil


def test_a_fault_in_lowering_is_told_apart(deep: nn.Module, spoil_lowering: Any) -> None:
    spoil_lowering(aten.tanh.default)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),))
    assert (report.stage, report.lowering_pass) == (Stage.LOWERING, "replace_aten.tanh.default")
    assert report.in_engines is None
    assert "'replace_aten.tanh.default'" in report.to_text()


def test_faults_in_lowering_and_in_converters_are_all_named(
    deep: nn.Module, spoil_lowering: Any, plant_fault: Any, tmp_path: Path
) -> None:
    spoil_lowering(aten.tanh.default, aten.gelu.default)
    plant_fault(aten.sigmoid.default)
    state, inputs = tmp_path / "search.json", (torch.randn(2, 8),)
    report = bisect(deep, arg_inputs=inputs, state=state)
    assert report.stage is Stage.LOWERING
    assert report.lowering_passes == ("replace_aten.tanh.default", "replace_aten.gelu.default")
    engines = report.in_engines
    assert engines is not None and engines.is_proved and engines.complete
    assert _operators(engines) == ["torch.ops.aten.sigmoid.default"]
    assert "torch_executed_ops={'torch.ops.aten.sigmoid.default'} makes it right" in report.to_text()
    assert json.loads(report.to_json())["in_engines"]["setting"] == engines.setting
    assert bisect(deep, arg_inputs=inputs, state=state).builds == 0


def test_a_search_goes_on_from_its_state(deep: nn.Module, plant_fault: Any, tmp_path: Path) -> None:
    plant_fault(aten.gelu.default)
    state, inputs = tmp_path / "search.json", (torch.randn(2, 8),)

    class Interrupted(Exception):
        pass

    asked: list[str] = []

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("looking for culprit"):
            asked.append(what)
        if len(asked) == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        bisect(deep, arg_inputs=inputs, state=state, progress=interrupt)
    resumed = bisect(deep, arg_inputs=inputs, state=state)
    fresh = bisect(deep, arg_inputs=inputs)
    assert resumed.culprits == fresh.culprits
    assert resumed.builds < fresh.builds
    assert bisect(deep, arg_inputs=inputs, state=state).builds == 0
    with pytest.raises(InputError, match="another search"):
        bisect(deep, arg_inputs=(torch.randn(2, 8),), state=state)
    state.write_text("[]")
    with pytest.raises(InputError, match="not the state of a search"):
        bisect(deep, arg_inputs=inputs, state=state)


def test_an_error_that_is_spread_over_the_model_has_no_culprits(deep: nn.Module, plant_fault: Any) -> None:
    for operator in (aten.linear, aten.relu, aten.tanh, aten.sigmoid, aten.gelu):
        plant_fault(operator.default, 1.1)
    report = bisect(deep, arg_inputs=(torch.randn(2, 8),), most=2)
    assert not report.complete
    assert len(report.culprits) == 2
    assert "spread over the model" in report.to_text()


def test_state_and_random_numbers_are_no_error(plant_fault: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            self.seen.add_(x.mean(0))
            return self.linear(x + self.seen).tanh() + torch.rand_like(x), None, 3

    model, x = Model().eval(), torch.randn(3, 4)
    settings = {"min_block_size": 1, "optimization_level": 0}
    assert bisect(model, arg_inputs=(x,), samples=2, **settings).stage is Stage.NONE
    plant_fault(aten.tanh.default)
    report = bisect(model, arg_inputs=(x,), samples=2, **settings)
    assert _operators(report) == ["torch.ops.aten.tanh.default"]
    assert report.is_proved and not model.seen.any()


def test_models_that_return_nothing_are_right(plant_fault: Any) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.tanh()

    plant_fault(aten.tanh.default)
    assert bisect(Model(), arg_inputs=(torch.randn(3, 4),)).stage is Stage.NONE


def test_the_package_offers_it() -> None:
    assert trt_frontends.bisect is bisect


def test_progress_is_told_to_the_end(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(aten.tanh.default)
    told: list[str] = []
    bisect(deep, arg_inputs=(torch.randn(2, 8),), progress=lambda what, *_: told.append(what))
    phases = list(dict.fromkeys(told))
    assert phases[:2] == ["running eager", "capturing"]
    assert phases[-3:] == ["looking for culprit 1", "looking at culprits alone", "proving the setting"]
