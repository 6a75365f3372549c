"""Inputs of several optimization profiles, from the front door to the engine and back from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import InputError, SettingsError, provider_module
from trt_frontends import Input
from trt_frontends.comparison.sample_inputs import sample_inputs
from trt_frontends.example_inputs import ExampleInputs
from trt_runtime import TRTModule
from trt_runtime.engine import ENGINES

PREFILL, DECODE = ((1, 2, 4), (1, 16, 4), (1, 64, 4)), ((1, 1, 4), (4, 1, 4), (8, 1, 4))


class Scorer(nn.Module):
    """Scores tokens; `bias` follows the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(tokens)).sum(1) + bias


def _inputs() -> tuple[Input, Input]:
    bias = Input(profiles=[((1, 4),) * 3, ((1, 4), (4, 4), (8, 4))], dimensions={0: "batch"})
    return Input(profiles=[PREFILL, DECODE], dimensions={0: "batch"}), bias


@pytest.fixture(scope="module")
def model() -> Scorer:
    return Scorer().eval()


@pytest.fixture(scope="module")
def compiled(model: Scorer) -> nn.Module:
    return trt_frontends.compile(model, arg_inputs=_inputs(), min_block_size=1)


def _engine(module: nn.Module) -> TRTModule:
    (engine,) = (child for child in module.modules() if isinstance(child, TRTModule))
    return engine


def _run(module: nn.Module, model: nn.Module, batch: int, length: int) -> None:
    inputs = torch.randn(batch, length, 4), torch.randn(batch, 4)
    torch.testing.assert_close(module(*inputs), model(*inputs))


def test_each_call_runs_with_the_profile_that_takes_it(compiled: nn.Module, model: Scorer) -> None:
    for batch, length in [(1, 64), (8, 1), (1, 2), (2, 1), (1, 64), (1, 1)]:
        _run(compiled, model, batch, length)
    engine = _engine(compiled)
    loaded = ENGINES.engine_for(engine.plan, engine.header.text, torch.device("cpu"))
    shapes = [loaded.native.get_tensor_profile_shape(loaded.header.inputs[0].name, index) for index in range(2)]
    assert [tuple(map(tuple, shape)) for shape in shapes] == [PREFILL, DECODE]
    used = [context._native.active_optimization_profile for pool in loaded._pools for context in pool._idle]
    assert used == [0, 1]  # one context each, that never switches


@pytest.mark.parametrize(("batch", "length"), [(8, 2), (2, 64)])
def test_sizes_that_no_profile_takes_together_are_refused(compiled: nn.Module, batch: int, length: int) -> None:
    with pytest.raises(InputError, match="dimension 1 of input tokens is") as caught:
        compiled(torch.randn(batch, length, 4), torch.randn(batch, 4))
    assert "profile 1 takes 1 to 8 for dimension 0 of input tokens, 1 for dimension 1" in caught.value.why
    engine = _engine(compiled)
    with pytest.raises(InputError, match="no optimization profile takes"):
        engine(torch.randn(batch, length, 4), torch.randn(batch, 4))


def test_a_saved_program_keeps_them(compiled: nn.Module, model: Scorer, tmp_path: Path) -> None:
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    trt_frontends.save(loaded, tmp_path / "again.trtp")
    again = trt_frontends.load(tmp_path / "again.trtp")
    for module in (loaded, again):
        _run(module, model, 1, 64)
        _run(module, model, 8, 1)
        with pytest.raises(InputError, match="no optimization profile takes"):
            module(torch.randn(8, 64, 4), torch.randn(8, 4))


def test_they_hold_where_pytorch_runs_the_first_block(model: Scorer, tmp_path: Path) -> None:
    settings = {"min_block_size": 1, "torch_executed_ops": {"torch.ops.aten.linear.default"}}
    mixed = trt_frontends.compile(model, arg_inputs=_inputs(), **settings)
    trt_frontends.save(mixed, tmp_path / "model.trtp")
    for module in (mixed, trt_frontends.load(tmp_path / "model.trtp")):
        _run(module, model, 1, 64)
        _run(module, model, 8, 1)
        with pytest.raises(InputError, match="no optimization profile takes"):
            module(torch.randn(8, 64, 4), torch.randn(8, 4))


def test_a_dry_run_shows_them(model: Scorer) -> None:
    report = trt_frontends.explain(model, arg_inputs=_inputs())
    text = report.to_text()
    assert "Optimization Profile #0: List[Tensor: (1, (min=2, max=64), 4)@float32, Tensor: (1, 4)@float32]" in text
    assert "Optimization Profile #1: List[Tensor: ((min=1, max=8), 1, 4)@float32" in text
    assert type(report).from_json(report.to_json()) == report
    assert "Optimization profile 1" in report.to_html()


def test_an_input_of_one_range_has_it_in_all_profiles() -> None:
    def shared(x: Input) -> TRTModule:
        other = Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,))
        return _engine(trt_frontends.compile(_Pair(), arg_inputs=(x, other), min_block_size=1))

    engine = shared(Input(profiles=[((1, 1),) * 3, ((4, 1), (5, 1), (6, 1))]))
    assert [ranges[1] for ranges in engine.header.profiles] == [((1, 2, 3),)] * 2
    assert engine.header.ranges[0] == ((1, 1, 6), (1, 1, 1))
    assert engine(torch.ones(5, 1), torch.ones(3))[0].shape == (5, 1)


class _Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x), torch.relu(y)


def test_inputs_differ_in_how_many_they_have(model: Scorer) -> None:
    tokens, _ = _inputs()
    with pytest.raises(InputError, match="differ in how many profiles") as caught:
        trt_frontends.explain(model, arg_inputs=(tokens, Input(profiles=[((1, 4),) * 3] * 3)))
    assert caught.value.why == "tokens has 2, bias has 3"


def test_refit_goes_with_one(model: Scorer) -> None:
    with pytest.raises(SettingsError, match="refit goes with one optimization profile"):
        trt_frontends.compile(model, arg_inputs=_inputs(), refit=True)


def test_the_engine_cache_tells_them_apart(model: Scorer, tmp_path: Path) -> None:
    tokens, bias = _inputs()
    swapped = Input(profiles=tokens.profiles[::-1]), Input(profiles=bias.profiles[::-1])
    settings = {"min_block_size": 1, "engine_cache_dir": str(tmp_path / "cache")}
    for inputs, first in (((tokens, bias), PREFILL), (swapped, DECODE), ((tokens, bias), PREFILL)):
        engine = _engine(trt_frontends.compile(model, arg_inputs=inputs, **settings))
        assert engine.header.profiles[0][0] == tuple(zip(*first, strict=True))


def test_samples_come_from_one_profile_at_a_time() -> None:
    examples = ExampleInputs(_inputs(), {})
    samples = {item.name: item.args for item in sample_inputs(examples, torch.device("cpu"), 1, 0)}
    assert [value.shape for value in samples["max sizes of profile 1"]] == [(8, 1, 4), (8, 4)]
    assert [value.shape for value in samples["max sizes of profile 0"]] == [(1, 64, 4), (1, 4)]


def test_what_is_built_follows_tensorrts_rule_on_refit() -> None:
    trt = provider_module()
    if trt.__name__ != "trt_portable":
        pytest.skip("the rule as trt_portable enforces it")
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    x = network.add_input("x", trt.DataType.FLOAT, (-1,))
    network.mark_output(network.add_activation(x, trt.ActivationType.RELU).get_output(0))
    config = builder.create_builder_config()
    for size in (1, 2):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (size,), (size,), (size,))
        config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
    config.set_flag(trt.BuilderFlag.REFIT)
    assert builder.build_serialized_network(network, config) is None


@pytest.mark.gpu
@pytest.mark.parametrize("use_cuda_graphs", [False, True])
def test_profiles_on_a_gpu(model: Scorer, use_cuda_graphs: bool) -> None:
    twin = Scorer().eval().cuda()
    twin.load_state_dict(model.state_dict())
    module = trt_frontends.compile(twin, arg_inputs=_inputs(), min_block_size=1, use_cuda_graphs=use_cuda_graphs)
    stream = torch.cuda.Stream()
    for batch, length in [(1, 64), (8, 1), (1, 2), (8, 1), (2, 1), (1, 64)]:
        inputs = torch.randn(batch, length, 4, device="cuda"), torch.randn(batch, 4, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = module(*inputs)
        torch.cuda.synchronize()
        torch.testing.assert_close(found, twin(*inputs))
