"""Builds: what is refused, what the configuration keeps, what is reported on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import trt_portable as trt
from trt_portable.builder import builder as builder_module
from trt_portable.execution.program import Program

Load = Callable[..., trt.ICudaEngine]
Execute = Callable[..., dict[str, torch.Tensor]]
SUM = trt.ElementWiseOperation.SUM


def identity_network(builder: trt.Builder, shape: tuple[int, ...] = (2,)) -> trt.INetworkDefinition:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, shape)
    y = network.add_identity(x).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return network


def build(builder: Any, network: Any, **settings: Any) -> Any:
    config = builder.create_builder_config()
    for name, value in settings.items():
        setattr(config, name, value)
    return builder.build_serialized_network(network, config)


# Refusals ----------------------------------------------------------------------------------------------


def test_an_output_is_needed(builder: Any, logger: Any) -> None:
    network = builder.create_network()
    network.add_input("x", trt.float32, (1,))
    assert build(builder, network) is None
    assert "at least one output" in logger.errors[-1]


def test_names_are_unique(builder: Any, logger: Any) -> None:
    network = identity_network(builder)
    network.get_output(0).name = "x"
    assert build(builder, network) is None
    assert "must be unique" in logger.errors[-1]


@pytest.mark.parametrize("shape", [(-1, 2**63 - 1, 3), (-1, -1, 3)])
def test_profiles_of_more_elements_than_can_be_counted(builder: Any, logger: Any, shape: tuple[int, ...]) -> None:
    """PyTorch's own error left the builder; only the greatest extents may be without a bound."""
    most = 2**63 - 1
    network = identity_network(builder, shape)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", (1, most, 3), (2, most, 3), (2, most, 3))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is None
    assert "more elements than can be counted" in logger.errors[-1]
    if shape[1] < 0:
        config, profile = builder.create_builder_config(), builder.create_optimization_profile()
        profile.set_shape("x", (1, 1, 3), (2, 2, 3), (most, most, 3))
        config.add_optimization_profile(profile)
        assert builder.build_serialized_network(network, config) is not None


def test_dynamic_inputs_need_a_profile(builder: Any, logger: Any) -> None:
    network = identity_network(builder, (-1, 2))
    assert build(builder, network) is None
    assert "needs an optimization profile" in logger.errors[-1]
    config = builder.create_builder_config()
    assert config.add_optimization_profile(builder.create_optimization_profile()) == 0
    assert not builder.is_network_supported(network, config)
    assert "no shape for the dynamic input 'x'" in logger.errors[-1]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("x", (1,), "rank 1"),
        ("x", (1, 3), "fixes it to 2"),
        ("z", (1, 2), "not an input"),
    ],
)
def test_profiles_must_suit_the_network(
    builder: Any, logger: Any, name: str, shape: tuple[int, ...], message: str
) -> None:
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 2), (1, 2), (4, 2))
    profile.set_shape(name, shape, shape, shape)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(identity_network(builder, (-1, 2)), config) is None
    assert message in logger.errors[-1]


def test_values_are_for_shape_tensors_only(builder: Any, logger: Any) -> None:
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape_input("x", (1, 1), (1, 1), (1, 1))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(identity_network(builder), config) is None
    assert "not a shape tensor" in logger.errors[-1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_capability": trt.EngineCapability.DLA_STANDALONE}, "needs NVIDIA hardware"),
        ({"default_device_type": trt.DeviceType.DLA}, "no DLA"),
        (
            {"flags": 1 << int(trt.BuilderFlag.REFIT) | 1 << int(trt.BuilderFlag.REFIT_INDIVIDUAL)},
            "REFIT_INDIVIDUAL excludes",
        ),
    ],
)
def test_settings_without_a_meaning_here_are_refused(
    builder: Any, logger: Any, settings: dict[str, Any], message: str
) -> None:
    assert build(builder, identity_network(builder), **settings) is None
    assert message in logger.errors[-1]


def test_strict_mode_raises_with_the_rule(builder: Any) -> None:
    network = builder.create_network()
    with trt.strict(), pytest.raises(trt.NetworkError, match="at least one output"):
        build(builder, network)


def test_wrong_types_are_type_errors(builder: Any) -> None:
    with pytest.raises(TypeError, match="logger"):
        trt.Builder(None)
    with pytest.raises(TypeError, match="config"):
        builder.build_serialized_network(identity_network(builder), None)
    with pytest.raises(TypeError, match="flag"):
        builder.create_builder_config().set_flag(4)


class Recorder(trt.IErrorRecorder):
    def __init__(self) -> None:
        trt.IErrorRecorder.__init__(self)
        self.errors: list[tuple[Any, str]] = []

    def report_error(self, arg0: Any, arg1: str) -> bool:
        self.errors.append((arg0, arg1))
        return False


def test_children_inherit_the_error_recorder(builder: Any) -> None:
    builder.error_recorder = recorder = Recorder()
    network = builder.create_network()
    assert network.error_recorder is recorder
    assert build(builder, network) is None
    code, text = recorder.errors[-1]
    assert isinstance(code, trt.ErrorCodeTRT)
    assert "at least one output" in text
    assert len(text) <= trt.IErrorRecorder.MAX_DESC_LENGTH


def test_a_logger_that_raises_does_no_harm(capsys: Any) -> None:
    class Broken(trt.ILogger):
        def log(self, severity: Any, msg: str) -> None:
            raise ValueError("broken")

    builder = trt.Builder(Broken())
    assert build(builder, builder.create_network()) is None
    assert "Exception caught in log()" in capsys.readouterr().err


# Configuration -----------------------------------------------------------------------------------------


def test_flags(builder: Any) -> None:
    config = builder.create_builder_config()
    assert config.flags == 1 << int(trt.BuilderFlag.TF32)
    config.set_flag(trt.BuilderFlag.REFIT)
    assert config.get_flag(trt.BuilderFlag.REFIT)
    config.clear_flag(trt.BuilderFlag.TF32)
    assert config.flags == 1 << int(trt.BuilderFlag.REFIT)
    config.reset()
    assert config.get_flag(trt.BuilderFlag.TF32)


def test_memory_pools(builder: Any, logger: Any) -> None:
    config = builder.create_builder_config()
    pool = trt.MemoryPoolType
    config.set_memory_pool_limit(pool.WORKSPACE, 1 << 30)
    assert config.get_memory_pool_limit(pool.WORKSPACE) == 1 << 30
    for kind, size in ((pool.DLA_MANAGED_SRAM, 5000), (pool.TACTIC_SHARED_MEMORY, 1 << 30)):
        before = config.get_memory_pool_limit(kind)
        config.set_memory_pool_limit(kind, size)
        assert config.get_memory_pool_limit(kind) == before
        assert kind.name in logger.errors[-1]


def test_other_settings(builder: Any, logger: Any) -> None:
    config = builder.create_builder_config()
    config.builder_optimization_level = 9
    assert config.builder_optimization_level == 5
    config.builder_optimization_level = -1
    assert config.builder_optimization_level == 5
    assert config.set_tactic_sources(1) and config.get_tactic_sources() == 1
    assert not config.set_tactic_sources(1 << 20)
    config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    assert config.get_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03)
    layer = identity_network(builder).get_layer(0)
    config.set_device_type(layer, trt.DeviceType.DLA)
    assert config.is_device_type_set(layer)
    config.reset_device_type(layer)
    assert config.get_device_type(layer) is trt.DeviceType.GPU
    assert not config.can_run_on_DLA(layer)
    assert builder.max_threads == 1
    builder.max_threads = 0
    assert builder.max_threads == 1


def test_profiles_refuse_what_is_inconsistent(builder: Any) -> None:
    profile = builder.create_optimization_profile()
    assert bool(profile)
    assert profile.get_shape("x") == [] == profile.get_shape_input("x")
    for low, opt, high in (((2,), (1,), (3,)), ((1,), (1, 1), (1,)), ((-1,), (1,), (1,))):
        with pytest.raises(RuntimeError):
            profile.set_shape("x", low, opt, high)
    with pytest.raises(RuntimeError, match="at most 64"):
        profile.set_shape_input("x", [0] * 65, [0] * 65, [0] * 65)
    profile.set_shape("x", (1,), (2,), (3,))
    assert [tuple(dims) for dims in profile.get_shape("x")] == [(1,), (2,), (3,)]
    profile.set_shape_input("s", [-1], [0], [5])
    assert profile.get_shape_input("s") == [[-1], [0], [5]]
    profile.extra_memory_target = 2.0
    assert profile.extra_memory_target == 1.0


# Progress, streams -------------------------------------------------------------------------------------


class Monitor(trt.IProgressMonitor):
    def __init__(self, stop_at: str = "", fail: bool = False) -> None:
        trt.IProgressMonitor.__init__(self)
        self.stop_at, self.fail = stop_at, fail
        self.open: list[str] = []
        self.steps: dict[str, int] = {}
        self.promised: dict[str, int] = {}

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        assert parent_phase == (self.open[-1] if self.open else None)
        self.open.append(phase_name)
        self.promised[phase_name] = num_steps

    def step_complete(self, phase_name: str, step: int) -> bool:
        assert self.steps.get(phase_name, 0) == step
        self.steps[phase_name] = step + 1
        if self.fail:
            raise ValueError("no")
        return self.stop_at != phase_name

    def phase_finish(self, phase_name: str) -> None:
        assert self.open.pop() == phase_name


def test_progress_is_reported_step_by_step(builder: Any) -> None:
    monitor = Monitor()
    assert build(builder, identity_network(builder), progress_monitor=monitor) is not None
    assert monitor.steps == monitor.promised
    assert not monitor.open


@pytest.mark.parametrize("monitor", [Monitor(stop_at="Optimize layers"), Monitor(fail=True)])
def test_the_monitor_can_stop_a_build(builder: Any, monitor: Monitor) -> None:
    assert build(builder, identity_network(builder), progress_monitor=monitor) is None
    assert not monitor.open


def _no_memory(kind: type[Exception]) -> None:
    raise kind("no more of it")


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: _no_memory(torch.OutOfMemoryError),
        lambda: _no_memory(MemoryError),
        lambda: torch.empty(1 << 50, device="cpu"),
    ],
    ids=["device", "Python", "host"],
)
def test_running_out_of_memory_is_reported(
    builder: Any, logger: Any, monkeypatch: pytest.MonkeyPatch, allocate: Callable[[], object]
) -> None:
    def fail(*_: Any) -> None:
        allocate()

    plan = build(builder, identity_network(builder))
    monkeypatch.setattr(Program, "load_constants", fail)
    assert trt.Runtime(logger).deserialize_cuda_engine(plan) is None
    monkeypatch.setattr(builder_module, "choose_tactic", fail)
    assert build(builder, identity_network(builder)) is None
    assert len(logger.errors) == 2
    assert all("Error Code 5" in text and "out of memory: " in text for text in logger.errors)


class Sink(trt.IStreamWriter):
    def __init__(self, capacity: int) -> None:
        trt.IStreamWriter.__init__(self)
        self.capacity, self.data = capacity, b""

    def write(self, data: bytes) -> int:
        taken = data[: self.capacity - len(self.data)]
        self.data += taken
        return len(taken)


class Source(trt.IStreamReaderV2):
    def __init__(self, data: bytes) -> None:
        trt.IStreamReaderV2.__init__(self)
        self.data, self.at = data, 0

    def read(self, num_bytes: int, stream: int) -> bytes:
        chunk = self.data[self.at : self.at + min(num_bytes, 1000)]
        self.at += len(chunk)
        return chunk

    def seek(self, offset: int, where: Any) -> bool:
        return False


def test_streams(builder: Any, logger: Any) -> None:
    network, config = identity_network(builder), builder.create_builder_config()
    sink = Sink(1 << 30)
    assert builder.build_serialized_network_to_stream(network, config, sink)
    assert not builder.build_serialized_network_to_stream(network, config, Sink(10))
    runtime = trt.Runtime(logger)
    assert runtime.deserialize_cuda_engine(Source(sink.data)).num_io_tensors == 2
    assert runtime.deserialize_cuda_engine(Source(sink.data[:-1])) is None


def test_build_time_grows_linearly_in_layers(builder: Any) -> None:
    """Not by the clock: by the work of the passes, which visit each layer once."""
    monitor = Monitor()
    network = builder.create_network()
    tensor = network.add_input("x", trt.float32, (2,))
    for _ in range(300):
        tensor = network.add_activation(tensor, trt.ActivationType.RELU).get_output(0)
    network.mark_output(tensor)
    assert build(builder, network, progress_monitor=monitor) is not None
    assert monitor.steps["Optimize layers"] == 300
