"""Products with packed weights on the CPU: what is fused, and that it computes what the layers compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.autotune.autotuner import NEVER
from trt_portable.builder.autotune.engine_tactic import Trial
from trt_portable.builder.tactic import PREPACKED, Subject
from trt_portable.fusion import programs as interpret
from trt_portable.fusion.packed_products import has_prepacked_kernels

pytestmark = pytest.mark.skipif(not has_prepacked_kernels(), reason="this PyTorch has no kernels for packed weights")

CHANNELS = 6
TIME_INTERPRETED = Trial.time_interpreted  # which a fixture replaces
ACTIVATIONS = ("RELU", "SIGMOID", "TANH", "GELU_ERF", "GELU_TANH", "LEAKY_RELU", "HARD_SIGMOID", "CLIP", "SOFTSIGN")


class Net:
    """A network of (N, 6, 8, 8), N from 1 to 4, with short ways to add layers."""

    def __init__(self, builder: trt.Builder) -> None:
        self.builder = builder
        self.network = builder.create_network()
        self.x = self.network.add_input("x", trt.float32, (-1, CHANNELS, 8, 8))
        self.random = np.random.default_rng(0)

    def weights(self, *shape: int) -> np.ndarray:
        return (self.random.standard_normal(shape) / 3).astype(np.float32)

    def convolution(self, x: Any, *, name: str, extent: int = 3, groups: int = 1, stride: int = 1) -> Any:
        kernel = self.weights(CHANNELS, CHANNELS // groups, extent, extent)
        layer = self.network.add_convolution_nd(x, CHANNELS, (extent, extent), kernel, self.weights(CHANNELS))
        layer.name, layer.num_groups = name, groups
        layer.padding_nd, layer.stride_nd = (extent // 2, extent // 2), (stride, stride)
        return layer.get_output(0)

    def linear(self, x: Any, *, name: str, transposed: bool = False) -> Any:
        none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        matrix = self.network.add_constant((1, 1, 8, 8), self.weights(1, 1, 8, 8)).get_output(0)
        layer = self.network.add_matrix_multiply(x, none, matrix, transpose if transposed else none)
        layer.name = name
        bias = self.network.add_constant((1, 1, 1, 8), self.weights(1, 1, 1, 8)).get_output(0)
        return self.binary(layer.get_output(0), bias, "SUM")

    def activation(self, x: Any, kind: str) -> Any:
        layer = self.network.add_activation(x, getattr(trt.ActivationType, kind))
        layer.alpha, layer.beta = {"HARD_SIGMOID": (1 / 6, 0.5), "CLIP": (-0.25, 0.5)}.get(kind, (0.1, 0.0))
        return layer.get_output(0)

    def clamp(self, x: Any) -> Any:
        """As clients write a clamp that keeps NaN."""
        is_nan = self.network.add_unary(x, trt.UnaryOperation.ISNAN).get_output(0)
        return self.network.add_select(is_nan, x, self.activation(x, "CLIP")).get_output(0)

    def binary(self, first: Any, second: Any, operation: str) -> Any:
        return self.network.add_elementwise(first, second, getattr(trt.ElementWiseOperation, operation)).get_output(0)

    def plan(self, *outputs: Any, cache: Any = None, flags: Any = ()) -> bytes:
        for index, output in enumerate(outputs):
            output.name = f"y{index}"
            self.network.mark_output(output)
        config = self.builder.create_builder_config()
        profile = self.builder.create_optimization_profile()
        profile.set_shape("x", (1, CHANNELS, 8, 8), (2, CHANNELS, 8, 8), (4, CHANNELS, 8, 8))
        config.add_optimization_profile(profile)
        for flag in flags:
            config.set_flag(flag)
        if cache is not None:
            assert config.set_timing_cache(cache, False)
        return bytes(self.builder.build_serialized_network(self.network, config))


@pytest.fixture
def net(builder: trt.Builder, compiled_wins: None, monkeypatch: pytest.MonkeyPatch) -> Net:
    """Packed weights are tried however few, and always win."""
    monkeypatch.setattr(engine_tactic, "_LEAST_PACKED_WEIGHTS", 0)
    return Net(builder)


@pytest.fixture
def read(logger: Any) -> Callable[[bytes], trt.ICudaEngine]:
    return lambda plan: trt.Runtime(logger).deserialize_cuda_engine(plan)


def steps(engine: trt.ICudaEngine) -> list[str]:
    return [call.name for *_, call in engine._state.executable.steps]  # type: ignore[attr-defined]


def agree(engine: trt.ICudaEngine, execute: Any, rows: int = 3, first: float | None = None) -> None:
    """Runs an engine, and its layers one by one; `first` stands in place of the first number of the input."""
    x = torch.randn(rows, CHANNELS, 8, 8)
    if first is not None:
        x[0, 0, 0, 0] = first
    found = execute(engine.create_execution_context(), {"x": x})
    with torch.inference_mode():
        expected = engine._state.program.run([x])
    for index, value in enumerate(expected):
        torch.testing.assert_close(found[f"y{index}"], value, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_product_takes_its_activation_along(net: Net, read: Any, execute: Any) -> None:
    outputs = []
    for kind in ACTIVATIONS:
        y = net.activation(net.convolution(net.x, name=f"convolution {kind}"), kind)
        outputs.append(net.activation(net.linear(y, name=f"linear {kind}"), kind))
    engine = read(net.plan(*outputs))
    assert engine._state.info.tactic == "prepacked"
    assert len(steps(engine)) == 2 * len(ACTIVATIONS) + 2  # there is no kernel with a softsign
    for first in (None, torch.nan, torch.inf, -torch.inf):
        agree(engine, execute, first=first)


@pytest.mark.parametrize("kind", ["RELU", "LEAKY_RELU", "HARD_SIGMOID"])
def test_a_sum_takes_its_activation_along(net: Net, read: Any, execute: Any, kind: str) -> None:
    summed = net.binary(net.convolution(net.x, name="c"), net.x, "SUM")
    leaky = net.network.add_activation(net.convolution(net.x, name="d"), trt.ActivationType.LEAKY_RELU)
    leaky.alpha = 0.0
    outputs = [net.activation(summed, kind), leaky.get_output(0)]
    outputs.append(net.activation(net.binary(net.linear(outputs[0], name="m"), outputs[0], "SUM"), kind))
    engine = read(net.plan(*outputs))
    assert len(steps(engine)) == 3
    for first in (None, torch.nan, -torch.inf):
        agree(engine, execute, first=first)


@pytest.mark.parametrize("kind", ["SIGMOID", "HARD_SIGMOID"])
def test_a_gate_of_itself_is_one_activation(net: Net, read: Any, execute: Any, kind: str) -> None:
    y = net.convolution(net.x, name="gated", groups=CHANNELS, extent=5)
    engine = read(net.plan(net.binary(y, net.activation(y, kind), "PROD")))
    assert len(steps(engine)) == 1
    agree(engine, execute)


def test_a_map_to_no_columns_is_left_to_the_layers(net: Net, read: Any, execute: Any) -> None:
    nothing = net.network.add_constant((1, 1, 8, 0), np.empty((1, 1, 8, 0), np.float32)).get_output(0)
    none = trt.MatrixOperation.NONE
    empty = net.network.add_matrix_multiply(net.x, none, nothing, none).get_output(0)
    joined = net.network.add_concatenation([net.linear(net.x, name="m"), net.activation(empty, "RELU")])
    joined.axis = 3
    engine = read(net.plan(joined.get_output(0)))
    assert len(steps(engine)) == 4  # oneDNN has no kernel for it, so its activation stays apart
    agree(engine, execute)


def test_another_coefficient_is_another_function(net: Net, read: Any, execute: Any) -> None:
    y = net.network.add_activation(net.convolution(net.x, name="c"), trt.ActivationType.HARD_SIGMOID)
    y.alpha, y.beta = 0.25, 0.5
    engine = read(net.plan(y.get_output(0)))
    assert len(steps(engine)) == 2
    agree(engine, execute)


def test_residuals_are_added_in_the_kernel(net: Net, read: Any, execute: Any) -> None:
    y = net.activation(net.convolution(net.x, name="first"), "RELU")
    y = net.activation(net.binary(net.x, net.convolution(y, name="second"), "SUM"), "RELU")
    y = net.binary(net.linear(y, name="third", transposed=True), y, "SUM")
    engine = read(net.plan(y))
    assert len(steps(engine)) == 3
    agree(engine, execute)
    agree(engine, execute, rows=1)


def test_a_clamp_is_part_of_the_product_and_keeps_nan(net: Net, read: Any, execute: Any) -> None:
    y = net.clamp(net.convolution(net.x, name="first"))
    y = net.clamp(net.binary(y, net.convolution(y, name="second"), "SUM"))
    engine = read(net.plan(net.clamp(net.linear(y, name="third"))))
    assert len(steps(engine)) == 3
    agree(engine, execute)
    x = torch.zeros(1, CHANNELS, 8, 8)
    x[0, 0, 0, 0] = torch.nan
    assert execute(engine.create_execution_context(), {"x": x})["y0"].isnan().any()


def overwriting(engine: trt.ICudaEngine) -> list[str]:
    return [call.name for compute, *_, call in engine._state.executable.steps if getattr(compute, "overwrites", False)]  # type: ignore[attr-defined]


def test_a_residual_that_nobody_else_reads_is_overwritten(net: Net, read: Any, execute: Any) -> None:
    y = net.convolution(net.x, name="stem")
    for name in ("first", "second"):
        inner = net.activation(net.convolution(y, name=f"{name} in", extent=1), "RELU")
        y = net.activation(net.binary(net.convolution(inner, name=f"{name} out"), y, "SUM"), "RELU")
    engine = read(net.plan(net.convolution(y, name="last", extent=1)))
    assert [name.split(" +")[0] for name in overwriting(engine)] == ["first out", "second out"]
    agree(engine, execute)
    agree(engine, execute, rows=1)


def test_a_residual_that_a_layer_made_is_overwritten(net: Net, read: Any, execute: Any) -> None:
    made = net.binary(net.convolution(net.x, name="left"), net.convolution(net.x, name="right"), "PROD")
    pooled = net.network.add_pooling_nd(made, trt.PoolingType.AVERAGE, (3, 3))
    pooled.stride_nd, pooled.padding_nd = (1, 1), (1, 1)
    engine = read(net.plan(net.binary(net.convolution(pooled.get_output(0), name="last"), made, "SUM")))
    assert [name.split(" +")[0] for name in overwriting(engine)] == ["last"]
    agree(engine, execute)


def test_a_residual_that_somebody_else_may_read_stays(net: Net, read: Any, execute: Any) -> None:
    seen = net.convolution(net.x, name="output")
    later = net.convolution(net.x, name="read later")
    viewed = net.convolution(net.x, name="viewed")
    view = net.network.add_shuffle(viewed)
    view.first_transpose = (0, 1, 3, 2)
    twice = net.convolution(net.x, name="itself")
    sums = [
        net.binary(net.convolution(net.x, name="to input"), net.x, "SUM"),
        net.binary(net.convolution(net.x, name="to output"), seen, "SUM"),
        net.binary(net.convolution(net.x, name="to later"), later, "SUM"),
        net.binary(net.convolution(net.x, name="to viewed"), viewed, "SUM"),
        net.binary(net.convolution(twice, name="to itself"), twice, "SUM"),
        net.convolution(later, name="reads later"),
        net.activation(view.get_output(0), "RELU"),
    ]
    engine = read(net.plan(seen, *sums))
    assert overwriting(engine) == []
    agree(engine, execute)


def test_a_sum_that_broadcasts_is_computed_layer_by_layer(net: Net, read: Any, execute: Any) -> None:
    pooled = net.network.add_reduce(net.x, trt.ReduceOperation.AVG, 0b1100, True).get_output(0)
    outputs = [
        net.binary(pooled, net.convolution(net.x, name="large and small"), "SUM"),
        net.binary(net.convolution(pooled, name="small and large", extent=1), net.x, "SUM"),
        net.binary(net.linear(net.x, name="a map"), pooled, "SUM"),
    ]
    agree(read(net.plan(*outputs)), execute)


def test_what_others_read_is_not_fused_away(net: Net, read: Any, execute: Any) -> None:
    shared = net.convolution(net.x, name="shared")
    gate = net.activation(shared, "SIGMOID")
    outputs = [shared, net.activation(shared, "RELU"), net.binary(shared, gate, "PROD"), net.binary(gate, gate, "SUM")]
    agree(read(net.plan(*outputs)), execute)


def test_two_products_of_one_sum(net: Net, read: Any, execute: Any) -> None:
    y = net.binary(net.convolution(net.x, name="a", stride=2), net.convolution(net.x, name="b", stride=2), "SUM")
    engine = read(net.plan(net.activation(y, "RELU")))
    assert len(steps(engine)) == 2
    agree(engine, execute)


def test_a_refit_reaches_packed_weights(net: Net, read: Any, execute: Any, logger: Any) -> None:
    y = net.activation(net.convolution(net.x, name="c"), "RELU")
    engine = read(net.plan(y, flags=[trt.BuilderFlag.REFIT]))
    agree(engine, execute)
    refitter = trt.Refitter(engine, logger)
    fresh = net.weights(CHANNELS, CHANNELS, 3, 3)
    assert refitter.set_weights("c", trt.WeightsRole.KERNEL, trt.Weights(fresh))
    assert refitter.refit_cuda_engine()
    assert len(steps(engine)) == 1
    agree(engine, execute)


def test_a_second_build_times_nothing(net: Net, builder: trt.Builder, monkeypatch: Any) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    first = net.plan(net.convolution(net.x, name="c"), cache=cache)
    for name in ("milliseconds", "time_layers"):
        monkeypatch.setattr(engine_tactic, name, lambda *_: pytest.fail("timed again"))
    again = Net(builder)
    assert again.plan(again.convolution(again.x, name="c"), cache=cache) == first


@pytest.mark.parametrize(
    ("first", "in_turns", "tactic"),
    [
        (0.8, None, "prepacked"),  # clear
        (1.1, (1.3, 1.1), "prepacked"),
        (1.1, (1.1, 1.2), "interpret"),
        (1.1, RuntimeError("out of memory"), "interpret"),
        (1.5, None, "interpret"),  # clear
    ],
)
def test_what_takes_about_as_long_is_timed_again_in_turns(
    net: Net, read: Any, monkeypatch: pytest.MonkeyPatch, first: float, in_turns: Any, tactic: str
) -> None:
    def compared(_: Trial, program: Any) -> tuple[float, float]:
        assert in_turns is not None
        if isinstance(in_turns, Exception):
            raise in_turns
        return in_turns  # type: ignore[no-any-return]

    monkeypatch.setattr(Trial, "time_interpreted", lambda _: 1.0)
    monkeypatch.setattr(Trial, "_run_prepacked", lambda trial, program: (program.run(trial._values), first))
    monkeypatch.setattr(Trial, "_in_turns", compared)
    assert read(net.plan(net.convolution(net.x, name="c")))._state.info.tactic == tactic


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("DefaultCPUAllocator: can't allocate")])
def test_inputs_that_do_not_fit_into_memory_end_no_build(
    net: Net, read: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Trial, "time_interpreted", TIME_INTERPRETED)
    monkeypatch.setattr(Subject, "example_inputs", Mock(side_effect=error))
    assert read(net.plan(net.convolution(net.x, name="c")))._state.info.tactic == "interpret"


def test_profiles_without_a_choice_are_not_timed(net: Net, logger: Any) -> None:
    config = net.builder.create_builder_config()
    for rows in (2, 4):
        profile = net.builder.create_optimization_profile()
        profile.set_shape("x", *[(rows, CHANNELS, 8, 8)] * 3)
        config.add_optimization_profile(profile)
    net.network.mark_output(net.convolution(net.x, name="c"))
    assert net.builder.build_serialized_network(net.network, config) is not None
    assert sum(f"tactic {PREPACKED}: " in text for _, text in logger.messages) == 1


@pytest.mark.parametrize("most_bytes", [0, 1 << 20])
def test_turns_time_both(net: Net, read: Any, monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    found: list[tuple[float, float]] = []
    plain = Trial._in_turns
    monkeypatch.setattr(Trial, "time_interpreted", lambda _: 1e9)
    monkeypatch.setattr(engine_tactic, "_FEW_BYTES", most_bytes)  # timed layer by layer, and as they run
    monkeypatch.setattr(engine_tactic, "_CLEAR_GAIN", 0.0)
    monkeypatch.setattr(Trial, "_in_turns", lambda trial, program: found.append(plain(trial, program)) or found[-1])
    read(net.plan(net.convolution(net.x, name="c")))
    ((layers, packed),) = found
    assert 0 < layers < NEVER and 0 < packed < NEVER


def test_a_machine_without_the_kernels_interprets(
    net: Net, read: Any, execute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = net.plan(net.activation(net.convolution(net.x, name="c"), "RELU"))
    monkeypatch.setattr(interpret, "has_prepacked_kernels", lambda: False)
    engine = read(plan)
    assert engine._state.executable is engine._state.program
    agree(engine, execute)


def test_wrong_results_are_not_chosen(net: Net, read: Any, logger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tactic, "first_difference", lambda *_: "output 0 is off")
    engine = read(net.plan(net.convolution(net.x, name="c")))
    assert engine._state.info.tactic == "interpret"
    assert any("output 0 is off" in text for _, text in logger.messages)


def test_level_0_packs_nothing(net: Net, monkeypatch: pytest.MonkeyPatch, logger: Any) -> None:
    y = net.convolution(net.x, name="c")
    net.network.mark_output(y)
    config = net.builder.create_builder_config()
    config.builder_optimization_level = 0
    profile = net.builder.create_optimization_profile()
    profile.set_shape("x", *[(2, CHANNELS, 8, 8)] * 3)
    config.add_optimization_profile(profile)
    engine = trt.Runtime(logger).deserialize_cuda_engine(net.builder.build_serialized_network(net.network, config))
    assert not engine._state.info.prepacked
