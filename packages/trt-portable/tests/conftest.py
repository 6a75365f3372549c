"""What the tests of engines share: CPU engines, a logger that remembers, and short ways to build and run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import trt_portable as trt
from trt_portable.builder.autotune.engine_tactic import Trial
from trt_portable.dtypes import CARRIERS, FROM_TORCH
from trt_portable.network.serialization import layers_from_json, network_to_json
from trt_portable.shape_tensors import as_tensor


class RecordingLogger(trt.ILogger):
    """Keeps every message, and prints errors, which pytest shows where a test fails."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages: list[tuple[Any, str]] = []

    def log(self, severity: Any, msg: str) -> None:
        self.messages.append((severity, msg))
        if int(severity) <= int(trt.Logger.ERROR):
            sys.stderr.write(f"{msg}\n")

    @property
    def errors(self) -> list[str]:
        return [text for severity, text in self.messages if int(severity) <= int(trt.Logger.ERROR)]


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with trt.device("cpu"):
        yield


@pytest.fixture
def compiled_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a tactic makes is faster than interpreting."""
    monkeypatch.setattr(Trial, "time_interpreted", lambda _: 1e9)
    monkeypatch.setattr(Trial, "race", lambda _, programs: [1e9, *map(float, range(len(programs)))])


@pytest.fixture
def logger() -> RecordingLogger:
    return RecordingLogger()


@pytest.fixture
def builder(logger: RecordingLogger) -> trt.Builder:
    return trt.Builder(logger)


Ranges = Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]


@pytest.fixture
def load(builder: trt.Builder, logger: RecordingLogger) -> Callable[..., trt.ICudaEngine]:
    """Builds, serializes and deserializes a network; `shapes` and `values` make the profile."""

    def load(
        network: trt.INetworkDefinition,
        shapes: Ranges | None = None,
        values: Ranges | None = None,
        flags: Sequence[Any] = (),
        config: trt.IBuilderConfig | None = None,
    ) -> trt.ICudaEngine:
        config = config or builder.create_builder_config()
        for flag in flags:
            config.set_flag(flag)
        if shapes or values:
            profile = builder.create_optimization_profile()
            for name, ranges in (shapes or {}).items():
                profile.set_shape(name, *ranges)
            for name, ranges in (values or {}).items():
                profile.set_shape_input(name, *ranges)
            assert config.add_optimization_profile(profile) >= 0
        plan = builder.build_serialized_network(network, config)
        assert plan is not None, logger.errors
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        assert engine is not None, logger.errors
        return engine

    return load


def execute(context: trt.IExecutionContext, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Binds tensors, runs, and returns the outputs beside them, whose shapes must be known beforehand."""
    engine = context.engine
    tensors = {name: tensor.contiguous() for name, tensor in inputs.items()}
    device = next((tensor.device for tensor in tensors.values()), None)
    for name, tensor in tensors.items():
        assert context.set_input_shape(name, tuple(tensor.shape))
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.infer_shapes() == []
    outputs = {}
    for name in engine:
        if engine.get_tensor_mode(name) is trt.TensorIOMode.OUTPUT:
            dtype = CARRIERS[engine.get_tensor_dtype(name)]
            outputs[name] = torch.empty(tuple(context.get_tensor_shape(name)), dtype=dtype, device=device)
            assert context.set_tensor_address(name, outputs[name].data_ptr())
    assert context.execute_async_v3(0)
    return outputs


@pytest.fixture(name="execute")
def _execute() -> Callable[..., dict[str, torch.Tensor]]:
    return execute


@pytest.fixture
def layer_by_layer() -> Callable[..., Callable[..., list[torch.Tensor]]]:
    """Makes of a network what runs its layers one by one, without a builder: no pass, no fusion, no tactic."""

    def make(network: trt.INetworkDefinition, device: str = "cpu") -> Callable[..., list[torch.Tensor]]:
        structure, weights = network_to_json(network)
        structure = json.loads(json.dumps(structure))
        image = layers_from_json(structure)
        image.bind({key: tensor.to(device) for key, tensor in weights.items()}, structure["layers"], device)

        def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
            pairs = zip(image.inputs, inputs, strict=True)
            values: dict[int, Any] = {id(image.tensors[at]): value for at, value in pairs}
            for layer in image.layers:
                results = layer._compute([None if t is None else values[id(t)] for t in layer._inputs])
                values.update((id(t), result) for t, result in zip(layer._outputs, results, strict=True))
            return [as_tensor(values[id(image.tensors[at])]) for at in image.outputs]

        return run

    return make


@pytest.fixture(name="run_network")
def _run_network(logger: RecordingLogger) -> Callable[..., list[torch.Tensor]]:
    """Defines a network on the given inputs, runs its layers after a round trip through JSON, and holds
    every inferred shape and type to what the run gave."""

    def run_network(
        define: Callable[..., Any],
        *inputs: torch.Tensor,
        dynamic: Sequence[tuple[int, int]] | bool = (),
    ) -> list[torch.Tensor]:
        network = trt.Builder(logger).create_network()
        tensors = []
        for number, value in enumerate(inputs):
            shape = [
                -1 if dynamic is True or (dynamic and (number, axis) in dynamic) else extent
                for axis, extent in enumerate(value.shape)
            ]
            tensors.append(network.add_input(f"x{number}", FROM_TORCH[value.dtype], shape))
        results = define(network, *tensors)
        assert results is not None, logger.errors
        outputs = [
            result if isinstance(result, trt.ITensor) else result.get_output(0)
            for result in (results if isinstance(results, (list, tuple)) else [results])
        ]
        for output in outputs:
            network.mark_output(output)
        assert not network._validate(), network._validate()
        structure, weights = network_to_json(network)
        structure = json.loads(json.dumps(structure))
        image = layers_from_json(structure)
        image.bind(weights, structure["layers"], "cpu")
        values: dict[int, Any] = {id(image.tensors[at]): value for at, value in zip(image.inputs, inputs, strict=True)}
        for layer in image.layers:
            operands = [None if tensor is None else values[id(tensor)] for tensor in layer._inputs]
            for tensor, value in zip(layer._outputs, layer._compute(operands), strict=True):
                values[id(tensor)] = value
        found = [as_tensor(values[id(image.tensors[at])]) for at in image.outputs]
        for output, value in zip(outputs, found, strict=True):
            assert len(output.shape) == value.ndim
            assert all(want in (-1, have) for want, have in zip(output.shape, value.shape, strict=True))
            assert CARRIERS[output.dtype] is value.dtype
        return found

    return run_network


def constant(network: trt.INetworkDefinition, value: Any, dtype: Any = np.float32) -> trt.ITensor:
    """The output of a constant layer."""
    array = np.array(value, dtype=dtype)
    return network.add_constant(array.shape, trt.Weights(array)).get_output(0)


@pytest.fixture(name="constant")
def _constant() -> Callable[..., trt.ITensor]:
    return constant


@pytest.fixture
def network(builder: trt.Builder) -> trt.INetworkDefinition:
    """An empty network."""
    return builder.create_network()


@pytest.fixture
def objects(builder: Any, logger: Any, network: Any) -> dict[str, Any]:
    """One object of every class that the API makes."""
    x = network.add_input("x", trt.float32, (1, 2, 3, 4))
    layer = network.add_identity(x)
    network.mark_output(layer.get_output(0))
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(builder.build_serialized_network(network, config))
    kinds = (trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE)
    made = [
        *(builder, network, x, layer, config, runtime, engine),
        network.add_attention_v2(x, x, x, *kinds),
        network.add_loop(),
        network.add_if_conditional(),
        builder.create_optimization_profile(),
        config.create_timing_cache(b""),
        engine.create_execution_context(),
        engine.create_engine_inspector(),
        engine.create_runtime_config(),
        engine.create_serialization_config(),
        trt.Refitter(engine, logger),
        trt.get_plugin_registry(),
    ]
    return {type(item).__name__: item for item in made}


@pytest.fixture
def fake_world() -> Iterator[None]:
    """Two ranks, of which this process is the first; the other one exists in name only."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()
