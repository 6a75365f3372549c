"""Objects of the API at the head of a ``with`` statement."""

from __future__ import annotations

from typing import Any

import pytest

import trt_portable as trt

MANAGED = (
    "Builder",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILogger",
    "INetworkDefinition",
    "Logger",
    "Refitter",
    "Runtime",
)
"""The classes to which TensorRT's bindings give `common_enter` and `common_exit`, but for the ONNX parser."""


@pytest.mark.parametrize("name", MANAGED)
def test_the_class_has_both_methods(name: str) -> None:
    kind = getattr(trt, name)
    assert kind.__enter__ is trt.common_enter
    assert kind.__exit__ is trt.common_exit


def test_a_build_and_a_run_in_with_statements() -> None:
    with (
        trt.Logger(trt.Logger.ERROR) as logger,
        trt.Builder(logger) as builder,
        builder.create_network() as network,
        builder.create_builder_config() as config,
    ):
        x = network.add_input("x", trt.float32, (2,))
        network.mark_output(network.add_identity(x).get_output(0))
        config.set_flag(trt.BuilderFlag.REFIT)
        with builder.build_serialized_network(network, config) as plan:
            assert isinstance(plan, trt.IHostMemory)
    with trt.Runtime(logger) as runtime, runtime.deserialize_cuda_engine(plan) as engine:
        with trt.Refitter(engine, logger) as refitter:
            assert refitter.get_all() == ([], [])
        with engine.create_execution_context() as context:
            assert context.engine is engine


def test_what_goes_wrong_inside_goes_on(logger: Any) -> None:
    with pytest.raises(KeyError), trt.Builder(logger):
        raise KeyError
