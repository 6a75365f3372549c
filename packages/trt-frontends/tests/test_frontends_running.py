"""Settings about running what `compile` returns: CUDA graphs, and where the model's weights are."""

from __future__ import annotations

import copy
import gc
import importlib
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import BuildError, ExecutionError, Input, SettingsError
from trt_frontends import stages
from trt_frontends.compiled_module import offload
from trt_frontends.pipeline import capture_model

build: Any = importlib.import_module("trt_converters.build")

FALLBACK: dict[str, Any] = {"min_block_size": 1, "torch_executed_modules": {"0"}}


def _model(device: str = "cpu") -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).eval().to(device)


@pytest.mark.parametrize("door", [trt_frontends.compile, trt_frontends.explain])
def test_cuda_graphs_need_a_cuda_device(door: Any) -> None:
    with pytest.raises(SettingsError, match="use_cuda_graphs needs a CUDA device") as caught:
        door(_model(), arg_inputs=(torch.ones(2, 8),), use_cuda_graphs=True)
    assert "compiled for cpu" in caught.value.why


def test_offloading_on_the_cpu_changes_nothing() -> None:
    model, x = _model(), torch.randn(2, 8)
    wanted = model(x)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), offload_module_to_cpu=True, **FALLBACK)
    torch.testing.assert_close(compiled(x), wanted.detach())
    torch.testing.assert_close(model(x), wanted)


def test_an_offloaded_model_shares_no_parameters_with_what_was_compiled() -> None:
    model, x = _model(), torch.randn(2, 8)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), **FALLBACK)
    before = [value.data_ptr() for value in compiled.parameters()]
    assert before
    offload(model, compiled)
    for value in compiled.parameters():
        assert all(value is not other for other in model.parameters())
    assert [value.data_ptr() for value in compiled.parameters()] == before
    torch.testing.assert_close(compiled(x), model(x).detach())


@pytest.mark.gpu
@pytest.mark.parametrize("as_program", [False, True])
def test_offloading_frees_device_memory(as_program: bool) -> None:
    model, x = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()).eval().cuda(), torch.randn(2, 2048, device="cuda")
    wanted = model(x).detach()
    source = torch.export.export(model, (x,)) if as_program else model
    if as_program:
        del model
    compiled = trt_frontends.compile(source, arg_inputs=(x,), min_block_size=1)
    compiled(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    offload(source, compiled)
    assert torch.cuda.memory_allocated() <= before - 2048 * 2048 * 4
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_a_model_that_is_compiled_with_cuda_graphs() -> None:
    model = _model("cuda")
    rows = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    compiled = trt_frontends.compile(model, arg_inputs=(rows,), use_cuda_graphs=True, **FALLBACK)
    twin = copy.deepcopy(compiled)
    for batch in (1, 4, 16, 4):
        x = torch.randn(batch, 8, device="cuda")
        for module in (compiled, twin):
            torch.testing.assert_close(module(x), model(x).detach(), rtol=1e-3, atol=1e-3)
    program = torch.export.export(compiled, (torch.randn(4, 8, device="cuda"),))
    assert torch.ops.trt.execute_engine.default in {node.target for node in program.graph.nodes}


@pytest.mark.gpu
def test_a_model_that_writes_to_its_buffers_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x.relu() + self.calls

    x = torch.ones(8, device="cuda")
    with pytest.raises(ExecutionError, match="cannot be recorded"):
        trt_frontends.compile(Counts().cuda(), arg_inputs=(x,), min_block_size=1, use_cuda_graphs=True)


class Positions(nn.Module):
    """Makes positions and a mask on the CPU, as models do that forget the device, and moves them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.zeros(x.shape[:2]).bool().to(x.device)
        return x + torch.arange(x.shape[1]).to(x)[:, None] * (~seen).cumsum(1, dtype=torch.float32)[..., None]


class Layers(nn.Module):
    """Recurrent layers without states of the caller's: zeros that are expanded to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(8, 8, num_layers=2, batch_first=True) for kind in (nn.RNN, nn.GRU, nn.LSTM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [Positions, Layers])
def test_models_of_sizes_that_vary_run_in_one_engine(kind: type[nn.Module], dtype: torch.dtype) -> None:
    model = kind().to("cuda", dtype).eval()
    spec = Input(min_shape=(1, 2, 8), opt_shape=(2, 8, 8), max_shape=(4, 16, 8), dtype=dtype)
    compiled = trt_frontends.compile(model, arg_inputs=(spec,), min_block_size=1)
    report = compiled.meta["partition_report"]
    assert len(report.engines) == 1 and not report.torch_nodes
    for shape in ((2, 8, 8), (1, 2, 8), (4, 16, 8), (3, 5, 8)) * 2:
        x = torch.randn(*shape, device="cuda", dtype=dtype)
        torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["use_cuda_graphs", "offload_module_to_cpu"])
def test_settings_of_whole_models_are_refused_under_torch_compile(name: str) -> None:
    optimized = torch.compile(_model(), backend="torch_tensorrt", options={name: True})
    with torch.no_grad(), pytest.raises(Exception, match=f"{name} has no effect under torch.compile") as caught:
        optimized(torch.ones(2, 8))
    assert "trt_frontends.compile(model" in str(caught.value)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("change", ["in place", "data", "state", "moved", "gone"])
def test_what_becomes_of_the_model_changes_no_engine(change: str, given_up: bool, device: str) -> None:
    model, x = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval().to(device), torch.randn(2, 512, device=device)
    wanted = model(x).detach()
    compiled = trt_frontends.compile(model, arg_inputs=(x,), offload_module_to_cpu=given_up, min_block_size=1)
    for _ in range(2):  # before the engine's first call, which loads it, and after
        with torch.no_grad():
            if change == "in place":
                model[0].weight.add_(1.0)
            elif change == "data":
                model[0].weight.data.mul_(3.0)
            elif change == "state":
                model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
            elif change == "moved":
                model.to("meta")
        if change == "gone":
            model = nn.Sequential()
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-3, atol=1e-3)


def test_a_model_that_is_given_up_stays_where_it_was_if_nothing_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise BuildError("no engine today")

    model, moved = _model(), []
    monkeypatch.setattr(model, "to", moved.append)
    monkeypatch.setattr(build, "build_network", refuse)
    settings = {"offload_module_to_cpu": True, "pass_through_build_failures": True, "min_block_size": 1}
    with pytest.raises(BuildError, match="no engine today"):
        trt_frontends.compile(model, arg_inputs=(torch.ones(2, 8),), **settings)
    assert moved == ["cpu", "cpu"]  # and back to where it was


def test_a_block_has_the_twins_of_its_tensors_while_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _model(), torch.randn(2, 8)
    wanted = model(x).detach()
    seen: list[bool] = []
    converting: list[weakref.ref[Any]] = []
    build_network = build.build_network
    run = build.BlockInterpreter.run

    def run_known(interpreter: Any) -> None:
        converting.extend((weakref.ref(interpreter), weakref.ref(interpreter.context)))
        run(interpreter)

    monkeypatch.setattr(build.BlockInterpreter, "run", run_known)

    def give_up(graph: torch.fx.GraphModule) -> dict[int, torch.Tensor]:
        tensors = {name: value.detach() for name, value in graph.named_parameters()}
        twins = {value.data_ptr(): value.clone() for value in tensors.values()}

        def noting(*args: Any, **kwargs: Any) -> Any:
            found = {value.data_ptr() for value in graph.parameters()}
            seen.append(
                found == {twin.data_ptr() for twin in twins.values()} and not any(each() for each in converting)
            )
            return build_network(*args, **kwargs)

        monkeypatch.setattr(build, "build_network", noting)
        return twins

    captured = capture_model(model, None, (x,), None, {"min_block_size": 1}, needs_weights=True)
    gc.disable()  # so that chance frees nothing
    try:
        built = stages.build(captured, give_up)
    finally:
        gc.enable()
    assert seen == [True]
    torch.testing.assert_close(built.wrap(captured.reader(built.lowered.graph.graph))(x), wanted)


@pytest.mark.gpu
def test_a_build_of_a_model_that_is_given_up_has_its_weights_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(2048, 2048) for _ in range(3)]
    model, x = nn.Sequential(*layers, nn.BatchNorm1d(2048)).eval().cuda(), torch.randn(2, 2048, device="cuda")
    view = layers[1].bias.detach()  # nobody else's concern
    wanted = model(x).detach()
    num_bytes = sum(value.nbytes for value in model.parameters())
    left: list[int] = []
    before = torch.cuda.memory_allocated()
    build_network = build.build_network

    def noting(*args: Any, **kwargs: Any) -> Any:
        left.append(torch.cuda.memory_allocated())
        return build_network(*args, **kwargs)

    monkeypatch.setattr(build, "build_network", noting)
    settings = {"min_block_size": 1, "torch_executed_modules": {"2"}}
    compiled = trt_frontends.compile(model, arg_inputs=(x,), offload_module_to_cpu=True, **settings)
    assert left[0] <= before - num_bytes // 2
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
    assert view.is_cuda
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(model(x.cpu()), wanted.cpu(), rtol=1e-2, atol=1e-2)
