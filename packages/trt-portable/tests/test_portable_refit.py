"""Refit: named weights, roles, stripped plans, identical and individual refit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]
FLAG = trt.BuilderFlag


def array(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32)


SCALE, SHIFT = array(2, 3), array(10, 20)


@pytest.fixture
def network(builder: trt.Builder) -> trt.INetworkDefinition:
    """y = x * scale + shift, with `scale` named and both in layers of the same names."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    scale = network.add_constant((2,), SCALE)
    shift = network.add_constant((2,), SHIFT)
    scale.name, shift.name = "scale", "shift"
    assert network.set_weights_name(SCALE, "the scale")
    scaled = network.add_elementwise(x, scale.get_output(0), trt.ElementWiseOperation.PROD)
    total = network.add_elementwise(scaled.get_output(0), shift.get_output(0), trt.ElementWiseOperation.SUM)
    network.mark_output(total.get_output(0))
    return network


def run(context: trt.IExecutionContext) -> list[float]:
    x, y = torch.ones(2), torch.empty(2)
    assert context.execute_v2([x.data_ptr(), y.data_ptr()])
    return list(y.tolist())


def test_by_name_and_by_role(network: Any, load: Load, logger: Any) -> None:
    engine = load(network, flags=[FLAG.REFIT])
    assert engine.refittable
    context = engine.create_execution_context()
    assert run(context) == [12.0, 23.0]
    refitter = trt.Refitter(engine, logger)
    assert refitter.get_all_weights() == ["the scale", "shift CONSTANT"]
    assert refitter.get_all() == (["scale", "shift"], [trt.WeightsRole.CONSTANT] * 2)
    assert refitter.get_missing() == ([], []) and refitter.get_missing_weights() == []
    prototype = refitter.get_weights_prototype("the scale")
    assert (prototype.dtype, prototype.size) == (trt.float32, 2)
    assert refitter.get_weights_prototype("nothing").size == -1
    fresh = array(5, 6)
    assert refitter.set_named_weights("the scale", trt.Weights(fresh))
    assert refitter.get_named_weights("the scale").numpy().tolist() == [5.0, 6.0]
    assert refitter.get_weights_location("the scale") is trt.TensorLocation.HOST
    assert refitter.set_weights("shift", trt.WeightsRole.CONSTANT, array(0, 1))
    assert run(context) == [12.0, 23.0], "nothing changes before the refit"
    assert refitter.refit_cuda_engine()
    fresh[:] = 99
    assert run(context) == [5.0, 7.0], "the context stays valid, the caller's memory is free"
    assert refitter.refit_cuda_engine_async(0)


@pytest.mark.parametrize("kept", [False, True])
def test_memory_that_stays_is_not_copied(network: Any, load: Load, logger: Any, kept: bool) -> None:
    engine = load(network, flags=[FLAG.REFIT])
    context = engine.create_execution_context()
    refitter = trt.Refitter(engine, logger)
    refitter.weights_are_kept = kept
    fresh = array(5, 6)
    assert refitter.set_named_weights("the scale", trt.Weights(fresh))
    assert refitter.refit_cuda_engine()
    assert run(context) == [15.0, 26.0]
    fresh[:] = 0
    assert run(context) == ([10.0, 20.0] if kept else [15.0, 26.0])


def test_what_does_not_suit_is_refused(network: Any, load: Load, logger: Any) -> None:
    refitter = trt.Refitter(load(network, flags=[FLAG.REFIT]), logger)
    assert not refitter.set_named_weights("nothing", trt.Weights(array(1, 2)))
    assert not refitter.set_named_weights("the scale", trt.Weights(array(1, 2, 3)))
    assert not refitter.set_named_weights("the scale", np.ones(2, np.int32))
    assert not refitter.set_weights("scale", trt.WeightsRole.KERNEL, array(1, 2))
    assert len(logger.errors) == 4
    assert refitter.set_named_weights("the scale", array(1, 2))
    assert refitter.unset_named_weights("the scale")
    assert not refitter.unset_named_weights("the scale")


def test_an_engine_without_refit(network: Any, load: Load, logger: Any) -> None:
    engine = load(network)
    assert not engine.refittable
    refitter = trt.Refitter(engine, logger)
    assert refitter.get_all_weights() == []
    assert not refitter.refit_cuda_engine()
    assert not refitter.set_named_weights("the scale", array(1, 2))


def test_individual_refit_reaches_marked_weights_only(network: Any, load: Load, logger: Any) -> None:
    assert network.mark_weights_refittable("the scale")
    refitter = trt.Refitter(load(network, flags=[FLAG.REFIT_INDIVIDUAL]), logger)
    assert refitter.get_all_weights() == ["the scale"]
    assert not refitter.set_weights("shift", trt.WeightsRole.CONSTANT, array(0, 1))


def test_identical_refit(network: Any, load: Load, logger: Any) -> None:
    engine = load(network, flags=[FLAG.REFIT_IDENTICAL])
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_named_weights("the scale", array(2, 3))
    assert refitter.refit_cuda_engine()
    assert refitter.set_named_weights("the scale", array(2, 4))
    assert not refitter.refit_cuda_engine()
    assert run(engine.create_execution_context()) == [12.0, 23.0]


@pytest.mark.parametrize("flags", [[FLAG.STRIP_PLAN], [FLAG.STRIP_PLAN, FLAG.REFIT]])
def test_stripped_plans(network: Any, load: Load, logger: Any, flags: list[Any]) -> None:
    engine = load(network, flags=flags)
    assert engine.get_engine_stat(trt.EngineStat.STRIPPED_WEIGHTS_SIZE) == 16
    assert engine.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE) == 16
    context = engine.create_execution_context()
    x, y = torch.ones(2), torch.empty(2)
    assert not context.execute_v2([x.data_ptr(), y.data_ptr()])
    assert "refit it first" in logger.errors[-1]
    refitter = trt.Refitter(engine, logger)
    assert refitter.get_missing_weights() == ["the scale", "shift CONSTANT"]
    assert refitter.set_named_weights("the scale", SCALE)
    assert not refitter.refit_cuda_engine()
    assert "1 weights are missing, first 'shift CONSTANT'" in logger.errors[-1]
    assert refitter.set_named_weights("shift CONSTANT", SHIFT)
    assert refitter.refit_cuda_engine()
    assert run(context) == [12.0, 23.0]
    assert refitter.get_missing_weights() == []


def test_numbers_that_stay_in_a_stripped_plan_are_there_after_the_refit(
    builder: Any, load: Load, execute: Any, logger: Any
) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (1, 3))
    scale = network.add_constant((1, 3), array(1, 2, 3))
    scale.name = "scale"
    places = network.add_constant((2,), np.array([2, 0], np.int32)).get_output(0)
    scaled = network.add_elementwise(x, scale.get_output(0), trt.ElementWiseOperation.PROD).get_output(0)
    y = network.add_gather(scaled, places, 1).get_output(0)
    y.name = "y"
    network.mark_output(y)
    engine = load(network, flags=[FLAG.STRIP_PLAN, FLAG.REFIT])
    refitter = trt.Refitter(engine, logger)
    assert refitter.get_missing() == (["scale"], [trt.WeightsRole.CONSTANT])
    assert refitter.set_weights("scale", trt.WeightsRole.CONSTANT, array(1, 2, 3))
    assert refitter.refit_cuda_engine()
    assert execute(engine.create_execution_context(), {"x": torch.ones(1, 3)})["y"].tolist() == [[3.0, 1.0]]


def reload(engine: trt.ICudaEngine, logger: Any, *flags: Any) -> trt.ICudaEngine:
    config = engine.create_serialization_config()
    for flag in flags:
        assert config.set_flag(flag)
    plan = engine.serialize_with_config(config)
    loaded = trt.Runtime(logger).deserialize_cuda_engine(plan)
    assert loaded is not None
    return loaded


def test_serialization_keeps_what_the_engine_has_now(network: Any, load: Load, logger: Any) -> None:
    engine = load(network, flags=[FLAG.REFIT])
    refitter = trt.Refitter(engine, logger)
    refitter.set_named_weights("the scale", array(7, 7))
    assert refitter.refit_cuda_engine()
    full = reload(engine, logger)
    assert run(full.create_execution_context()) == [17.0, 27.0]
    assert full.refittable
    without = reload(engine, logger, trt.SerializationFlag.EXCLUDE_WEIGHTS)
    assert trt.Refitter(without, logger).get_missing_weights() == ["the scale", "shift CONSTANT"]


def test_a_refitted_stripped_engine_is_refittable_again_on_request(network: Any, load: Load, logger: Any) -> None:
    engine = load(network, flags=[FLAG.STRIP_PLAN, FLAG.REFIT])
    refitter = trt.Refitter(engine, logger)
    refitter.set_named_weights("the scale", SCALE)
    refitter.set_named_weights("shift CONSTANT", SHIFT)
    assert refitter.refit_cuda_engine()
    assert not reload(engine, logger).refittable
    again = reload(engine, logger, trt.SerializationFlag.INCLUDE_REFIT)
    assert again.refittable
    assert run(again.create_execution_context()) == [12.0, 23.0]


def test_weights_can_be_left_out_of_refittable_engines_only(network: Any, load: Load, logger: Any) -> None:
    engine = load(network)
    config = engine.create_serialization_config()
    config.set_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    assert config.get_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    assert engine.serialize_with_config(config) is None
    assert "refittable engine" in logger.errors[-1]
    assert config.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS) and config.flags == 0
    with pytest.raises(RuntimeError):
        config.flags = 1 << 9


def test_equal_weights_are_stored_once_and_refitted_apart(builder: Any, load: Load, logger: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    shared = array(1, 2)
    tensor = x
    for name in ("first", "second"):
        constant = network.add_constant((2,), shared)
        constant.name = name
        tensor = network.add_elementwise(tensor, constant.get_output(0), trt.ElementWiseOperation.SUM).get_output(0)
    network.mark_output(tensor)
    engine = load(network, flags=[FLAG.REFIT])
    assert engine.get_engine_stat() == 8
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("second", trt.WeightsRole.CONSTANT, array(10, 10))
    assert refitter.refit_cuda_engine()
    assert run(engine.create_execution_context()) == [12.0, 13.0]
    assert run(reload(engine, logger).create_execution_context()) == [12.0, 13.0]


def test_numbers_that_shapes_depend_on_can_be_refitted(builder: Any, load: Load, logger: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 6))
    dims = network.add_constant((2,), np.array([-1, 3], dtype=np.int64))
    dims.name = "dims"
    shuffle = network.add_shuffle(x)
    shuffle.set_input(1, dims.get_output(0))
    shuffle.get_output(0).name = "y"
    network.mark_output(shuffle.get_output(0))
    engine = load(
        network,
        {"x": ((1, 6), (2, 6), (4, 6))},
        flags=[FLAG.REFIT, FLAG.STRIP_PLAN],
    )
    context = engine.create_execution_context()
    context.set_input_shape("x", (2, 6))
    assert tuple(context.get_tensor_shape("y")) == (4, 3), "shape numbers are never stripped"
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("dims", trt.WeightsRole.CONSTANT, np.array([-1, 2], dtype=np.int64))
    assert refitter.refit_cuda_engine()
    assert tuple(context.get_tensor_shape("y")) == (6, 2)
