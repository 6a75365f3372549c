"""When engines are built, for which modules, and what the report says about it."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import in_threads
from torch import nn

import trt_frontends
from trt_core import InputError
from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.torch_compile import compiled_graph
from trt_frontends.torch_compile.compiled_graph import MOST_SHORT_BUILDS, WORTHWHILE
from trt_lowering import expansion
from trt_runtime import TRTModule

OPTIONS = {"min_block_size": 1}


class Broken(nn.Module):
    """Layers of one class, each behind a graph break."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


class InTwo(nn.Module):
    """Two layers with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class Decomposed(nn.Module):
    """An operator that lowering takes apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N,), float32."""
        return torch.special.entr(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        return torch.relu(self.linear(x))


def _same(optimized: Any, model: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def _compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=torch_tensorrt_backend, options={**OPTIONS, **options})


def test_modules_that_share_a_graph_have_engines_of_their_own() -> None:
    layers = [torch.compile(Layer().eval(), backend=torch_tensorrt_backend, options=OPTIONS) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(4):
            for layer in layers:
                _same(layer, layer._orig_mod, torch.randn(2, 4))
    builds = [build for layer in layers for graph in model_report(layer).graphs for build in graph.builds]
    assert len(builds) == 3


def test_layers_behind_breaks_are_built_once_each() -> None:
    model = Broken(5).eval()
    optimized = _compiled(model)
    for _ in range(4):
        _same(optimized, model, torch.randn(2, 4))
    assert sum(len(graph.builds) for graph in model_report(optimized).graphs) == 5


def test_state_becomes_an_input_while_weights_stay_in_engines() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.mean = torch.zeros(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean = 0.5 * self.mean + x.mean(0)
            return self.linear(x) + self.mean

    torch.manual_seed(0)
    model, twin = Average().eval(), Average().eval()
    twin.load_state_dict(model.state_dict())
    optimized = _compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(12):
            _same(optimized, twin, torch.randn(3, 4))
    (graph,) = model_report(optimized).graphs
    assert len(graph.builds) == 3
    assert "1 of them became inputs" in graph.builds[-1].reason


def test_weights_that_change_at_every_call_are_taken_out_of_engines_with_a_warning() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    optimized = _compiled(model)
    for step in range(2 * MOST_SHORT_BUILDS):
        _same(optimized, model, torch.randn(2, 4))
        with torch.no_grad():
            model[2 * (step % 2)].weight.add_(1)
    (graph,) = model_report(optimized).graphs
    assert len(graph.builds) <= MOST_SHORT_BUILDS + 1


def test_parameters_that_are_replaced_at_every_call_leave_the_engines() -> None:
    model = nn.Linear(4, 4).eval()
    optimized = _compiled(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4 * MOST_SHORT_BUILDS):
            _same(optimized, model, torch.randn(2, 4))
            model.weight = nn.Parameter(torch.randn(4, 4))
            model.bias = nn.Parameter(torch.randn(4))
    assert sum("changed" in str(item.message) for item in caught) <= 1
    (graph,) = model_report(optimized).graphs
    assert len(graph.builds) <= 2 * MOST_SHORT_BUILDS


def test_a_graph_that_too_many_modules_share_takes_weights_as_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_graph, "MOST_INSTANCES", 2)
    layers = [Layer().eval() for _ in range(4)]

    def run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x)

    optimized = _compiled(run)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(3):
            for layer in layers:
                x = torch.randn(2, 4)
                torch.testing.assert_close(optimized(layer, x), layer(x))
    assert sum("share a graph" in str(item.message) for item in caught) == 1
    (graph,) = model_report(optimized).graphs
    assert len(graph.builds) == 3


def test_weights_that_change_now_and_then_stay_in_engines() -> None:
    model = nn.Linear(4, 4).eval()
    optimized = _compiled(model)
    for _ in range(2 * MOST_SHORT_BUILDS):
        for _ in range(WORTHWHILE):
            _same(optimized, model, torch.randn(2, 4))
        with torch.no_grad():
            model.weight.add_(1)
    (graph,) = model_report(optimized).graphs
    assert not any("became inputs" in build.reason for build in graph.builds)


def test_a_promise_saves_the_check() -> None:
    model = nn.Linear(4, 4).eval()
    optimized, x = _compiled(model, check_weights=False), torch.randn(2, 4)
    _same(optimized, model, x)
    before = model(x)
    with torch.no_grad():
        model.weight.add_(1)
        torch.testing.assert_close(optimized(x), before)


def test_the_report_of_a_model_tells_its_graphs_and_breaks() -> None:
    class Printing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            torch._dynamo.graph_break(msg="on purpose")
            return torch.special.bessel_j0(self.second(x))

    optimized = _compiled(Printing().eval())
    assert model_report(optimized).graphs == ()
    with torch.no_grad():
        optimized(torch.randn(2, 4))
    report = model_report(optimized)
    assert [len(graph.builds) for graph in report.graphs] == [1, 1]
    (broken,) = report.graph_breaks
    assert "on purpose" in broken.ended_by
    assert broken.where.startswith(__file__)
    assert 0.5 < report.coverage < 1.0 and report.engines == 2
    text = report.to_text()
    assert text.startswith("2 graphs, 2 engines") and "graph break at" in text and "bessel_j0" in text
    found = json.loads(report.to_json())["graphs"]
    assert [graph["builds"][0]["reason"] for graph in found] == ["first call", "first call"]


def test_the_report_of_a_function_and_of_a_module_compiled_in_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    optimized, layer = _compiled(function), Layer().eval()
    layer.compile(backend=torch_tensorrt_backend, options=OPTIONS)
    with torch.no_grad():
        optimized(torch.randn(2, 4))
        layer(torch.randn(2, 4))
    assert len(model_report(optimized).graphs) == len(model_report(layer).graphs) == 1


@pytest.mark.parametrize("other", [3, torch.relu, nn.ReLU()])
def test_there_is_no_report_of_what_was_not_compiled(other: Any) -> None:
    with pytest.raises(InputError, match=r"torch\.compile did not return"):
        model_report(other)


def test_what_no_engine_runs_can_be_compiled_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    compile_ = torch.compile

    def spy(model: Any, *, backend: Any, **keywords: Any) -> Any:
        if backend == "inductor":
            given.append(model.__self__)
            backend = "aot_eager"  # what is at stake here is who is asked, and Inductor needs a C++ compiler
        return compile_(model, backend=backend, **keywords)

    monkeypatch.setattr(torch, "compile", spy)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(torch.relu(x)) + 1

    optimized = _compiled(function, torch_fallback="inductor")
    for rows in (2, 3):
        _same(optimized, function, torch.randn(rows, 4))
    assert given and all(isinstance(gm, torch.fx.GraphModule) for gm in given)
    assert not any(isinstance(child, TRTModule) for gm in given for child in gm.modules())


def test_optimized_models_run_while_another_thread_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    original, x = torch.fx.experimental.proxy_tensor.make_fx, torch.randn(3)
    other = torch.compile(nn.ReLU(), backend="eager")
    other(x)
    found: list[Any] = []

    def call_other() -> None:
        try:
            found.append(other(x))
        except Exception as error:
            found.append(error)

    def make_fx(traced: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            thread = threading.Thread(target=call_other)
            thread.start()
            thread.join()
            return traced(*inputs)

        return original(run, *args, **kwargs)

    monkeypatch.setattr(expansion, "make_fx", make_fx)
    trt_frontends.compile(Decomposed(), arg_inputs=(x,), min_block_size=1)
    assert found
    for result in found:
        torch.testing.assert_close(result, x.relu())


def test_several_threads_compile_at_once() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 4 + index), nn.GELU(), nn.Linear(4 + index, 2)).eval() for index in range(3)]
    x = torch.randn(3, 4)
    with torch.no_grad():
        expected = [model(x) for model in models]

    def work(index: int) -> Any:
        with torch.no_grad():
            if index % 2:
                compiled = trt_frontends.compile(models[index], arg_inputs=(x,), min_block_size=1)
            else:
                compiled = _compiled(models[index])
            return compiled(x)

    torch.testing.assert_close(in_threads(work, range(len(models))), expected)


@pytest.mark.parametrize("name", ["1.0", "0", "Tanh"])
def test_modules_of_a_sequence_are_kept_in_pytorch_by_path(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh())).eval()
    optimized = torch.compile(model, backend="torch_tensorrt", options={**OPTIONS, "torch_executed_modules": {name}})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimized(torch.ones(2, 4))
    (graph,) = model_report(optimized).graphs
    assert {node.verdict.code for node in graph.builds[0].partition.torch_nodes} == {"TRT-F003"}


def test_a_module_that_no_graph_has_is_told() -> None:
    optimized = torch.compile(
        Broken().eval(), backend="torch_tensorrt", options={**OPTIONS, "torch_executed_modules": {"Liner"}}
    )
    with torch.no_grad(), pytest.warns(UserWarning, match=r"unknown module 'Liner'[\s\S]*did you mean 'Linear'"):
        optimized(torch.ones(2, 4))


def test_a_module_of_the_first_of_several_graphs_is_known() -> None:
    optimized = torch.compile(
        InTwo().eval(), backend="torch_tensorrt", options={**OPTIONS, "torch_executed_modules": {"first"}}
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimized(torch.ones(2, 4))
    assert len(model_report(optimized).graphs) == 2
