"""Compiled artifacts on a GPU: chosen, saved, trusted, refitted, and never a failed build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.autotune.engine_tactic import choose_tactic
from trt_portable.builder.inductor.tactic import TACTICS, Inductor
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.plan import artifact

pytestmark = pytest.mark.gpu

WIDTH = 32


@pytest.fixture(autouse=True)
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


def residual_network(builder: trt.Builder, layers: int = 4, kind: Any = np.float32) -> trt.INetworkDefinition:
    """Convolutions with bias, relu and a residual each; named kernels."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32 if kind is np.float32 else trt.float16, (-1, WIDTH, 16, 16))
    generator = np.random.default_rng(0)
    for index in range(layers):
        kernel = (generator.standard_normal((WIDTH, WIDTH, 3, 3)) / 17).astype(kind)
        layer = network.add_convolution_nd(x, WIDTH, (3, 3), kernel, np.full(WIDTH, 0.1, kind))
        layer.padding_nd = (1, 1)
        layer.name = f"conv {index}"
        relu = network.add_activation(layer.get_output(0), trt.ActivationType.RELU).get_output(0)
        x = network.add_elementwise(relu, x, trt.ElementWiseOperation.SUM).get_output(0)
    x.name = "y"
    network.mark_output(x)
    return network


@pytest.fixture
def _compiled(compiled_wins: None, monkeypatch: Any) -> None:
    """Small networks are compiled too, and what is compiled wins."""
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 4)


@pytest.fixture
def plan(builder: trt.Builder, _compiled: None) -> Any:
    """A plan for batches of 1 to 8, compiled for 4."""
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, WIDTH, 16, 16), (4, WIDTH, 16, 16), (8, WIDTH, 16, 16))
    config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(residual_network(builder), config))


def run(engine: Any, x: torch.Tensor) -> torch.Tensor:
    context = engine.create_execution_context()
    y = torch.empty_like(x)
    assert context.set_input_shape("x", tuple(x.shape))
    context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("y", y.data_ptr())
    for _ in range(3):
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    return y


def interpreted(engine: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return engine._state.program.run([x])[0]


def test_runs_what_was_compiled(plan: bytes, logger: Any) -> None:
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert isinstance(engine._state.executable, SpecializedProgram), logger.messages
    for batch in (4, 1, 8):
        x = torch.randn(batch, WIDTH, 16, 16, device="cuda")
        torch.testing.assert_close(run(engine, x), interpreted(engine, x), rtol=5e-3, atol=5e-3)


def test_runs_only_where_it_is_trusted(plan: bytes, logger: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(artifact, "_built_here", {})
    x = torch.randn(4, WIDTH, 16, 16, device="cuda")
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert engine._state.executable is engine._state.program
    warnings = [text for severity, text in logger.messages if severity is trt.Logger.WARNING]
    assert len([text for text in warnings if "engine_host_code_allowed" in text]) == 1
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = True
    allowed = runtime.deserialize_cuda_engine(plan)
    assert isinstance(allowed._state.executable, SpecializedProgram)
    torch.testing.assert_close(run(allowed, x), run(engine, x), rtol=5e-3, atol=5e-3)


def test_a_refit_reaches_compiled_kernels(plan: bytes, logger: Any) -> None:
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    x = torch.randn(4, WIDTH, 16, 16, device="cuda")
    before = run(engine, x)
    refitter = trt.Refitter(engine, logger)
    fresh = np.zeros((WIDTH, WIDTH, 3, 3), np.float32)
    assert refitter.set_weights("conv 1", trt.WeightsRole.KERNEL, trt.Weights(fresh))
    assert refitter.refit_cuda_engine()
    after = run(engine, x)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, interpreted(engine, x), rtol=5e-3, atol=5e-3)


def test_serializing_keeps_it(plan: bytes, logger: Any) -> None:
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    again = trt.Runtime(logger).deserialize_cuda_engine(bytes(engine.serialize()))
    assert isinstance(again._state.executable, SpecializedProgram)


def test_the_timing_cache_remembers_the_choice(builder: trt.Builder, _compiled: None) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    plans = []
    for flags in ((), (trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS,)):
        config = builder.create_builder_config()
        config.set_timing_cache(cache, False)
        for flag in flags:
            config.set_flag(flag)
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *[(2, WIDTH, 16, 16)] * 3)
        config.add_optimization_profile(profile)
        plans.append(builder.build_serialized_network(residual_network(builder, layers=2), config))
    assert all(plans)
    assert len(cache.queryKeys()) == 1


def test_a_compiler_that_fails_is_not_chosen(
    builder: trt.Builder, load: Any, logger: Any, _compiled: None, monkeypatch: Any
) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("no compiler here")

    monkeypatch.setattr(Inductor, "build", fail)
    engine = load(residual_network(builder), {"x": ((1, WIDTH, 16, 16), (4, WIDTH, 16, 16), (8, WIDTH, 16, 16))})
    assert engine._state.executable is engine._state.program
    said = [severity for severity, text in logger.messages if "AssertionError: no compiler here" in text]
    assert said == [trt.Logger.WARNING]  # the engine is several times slower without it


def test_a_wrong_result_is_not_chosen(
    builder: trt.Builder, load: Any, logger: Any, _compiled: None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine_tactic, "first_difference", lambda *_: "output 0 is off")
    engine = load(residual_network(builder), {"x": ((1, WIDTH, 16, 16), (4, WIDTH, 16, 16), (8, WIDTH, 16, 16))})
    assert engine._state.executable is engine._state.program
    assert any("something else" in text for _, text in logger.messages)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_convolutions_in_either_layout_compute_the_same(
    builder: trt.Builder, load: Any, logger: Any, _compiled: None, monkeypatch: Any, kind: Any
) -> None:
    (planar,) = (tactic for tactic in TACTICS if tactic.name == "inductor-planar")
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", (planar,))
    config = builder.create_builder_config()
    config.builder_optimization_level = 4
    network = residual_network(builder, 2, kind)
    shape = (4, WIDTH, 16, 16)
    engine = load(network, {"x": (shape, shape, shape)}, flags=[trt.BuilderFlag.REFIT], config=config)
    assert isinstance(engine._state.executable, SpecializedProgram), logger.messages
    x = torch.randn(shape, device="cuda", dtype=torch.float32 if kind is np.float32 else torch.float16)
    torch.testing.assert_close(run(engine, x), interpreted(engine, x), rtol=1e-2, atol=1e-2)


def test_layouts_race_and_the_second_build_runs_no_race(
    builder: trt.Builder, load: Any, logger: Any, monkeypatch: Any
) -> None:
    """Channels last, planar and the layers, timed as they are; whichever wins, the plan computes the same."""
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 2)
    layouts = tuple(tactic for tactic in TACTICS if tactic.name in ("inductor", "inductor-planar"))
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", layouts)
    cache = builder.create_builder_config().create_timing_cache(b"")
    shape = (4, WIDTH, 16, 16)
    x = torch.randn(shape, device="cuda", dtype=torch.float16)
    chosen = []
    for flags in ([], [trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS]):
        config = builder.create_builder_config()
        config.builder_optimization_level = 4
        config.set_timing_cache(cache, False)
        network = residual_network(builder, 2, np.float16)
        engine = load(network, {"x": (shape, shape, shape)}, flags=flags, config=config)
        torch.testing.assert_close(run(engine, x), interpreted(engine, x), rtol=1e-2, atol=1e-2)
        chosen.append(engine._state.info.tactic)
        monkeypatch.setattr(engine_tactic.Trial, "race", lambda *_: pytest.fail("timed again"))
    told = [text for _, text in logger.messages]
    for name in ("interpret", "inductor", "inductor-planar"):
        assert any(f"tactic {name}: " in text and " ms" in text for text in told), told
    assert chosen[0] == chosen[1] and chosen[0] in ("interpret", "inductor", "inductor-planar")


def test_outputs_of_odd_rows_are_written_where_they_belong(
    builder: trt.Builder, load: Any, logger: Any, _compiled: None, monkeypatch: Any
) -> None:
    """A compiler would pad such rows of its own accord, and they would be copied once more; so is what works in place
    in the result of an operator, as the second one does."""
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", TACTICS[:1])
    network = builder.create_network()
    x = network.add_input("x", trt.float16, (4, WIDTH, 5, 2051))
    relu = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    total = network.add_elementwise(relu, x, trt.ElementWiseOperation.SUM).get_output(0)
    kernel = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH, 1, 1)) / 6).astype(np.float16)
    convolved = network.add_convolution_nd(x, WIDTH, (1, 1), kernel).get_output(0)
    convolved = network.add_activation(convolved, trt.ActivationType.TANH).get_output(0)
    for name, tensor in (("total", total), ("convolved", convolved)):
        tensor.name = name
        network.mark_output(tensor)
    engine = load(network)
    assert isinstance(engine._state.executable, SpecializedProgram), logger.messages
    (compiled,) = engine._state.executable._compiled
    assert compiled._sizes[compiled.artifact.shapes].layout.homes[0] is not None
    given = torch.randn(4, WIDTH, 5, 2051, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        targets = [torch.full_like(given, torch.nan) for _ in range(2)]
        found = compiled.run([given], targets)
        assert found[0] is targets[0] and all(each.is_contiguous() for each in found)
        for have, want in zip(found, engine._state.program.run([given]), strict=True):
            torch.testing.assert_close(have, want, rtol=1e-2, atol=1e-2)
