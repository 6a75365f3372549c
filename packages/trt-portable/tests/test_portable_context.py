"""Execution contexts: shapes, addresses, order of errors, allocators, observers, threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import in_threads

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]
Execute = Callable[..., dict[str, torch.Tensor]]


def relu_network(builder: trt.Builder, shape: tuple[int, ...] = (-1, 4)) -> trt.INetworkDefinition:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, shape)
    y = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return network


@pytest.fixture
def dynamic(builder: trt.Builder, load: Load) -> trt.IExecutionContext:
    engine = load(relu_network(builder), {"x": ((1, 4), (2, 4), (8, 4))})
    return engine.create_execution_context()


def test_runs_at_every_shape_of_the_profile(dynamic: Any, execute: Execute) -> None:
    for batch in (1, 2, 8, 3):
        x = torch.randn(batch, 4)
        assert torch.equal(execute(dynamic, {"x": x})["y"], x.relu())


def test_a_static_engine_needs_no_shapes(builder: Any, load: Load) -> None:
    context = load(relu_network(builder, (2, 2))).create_execution_context()
    x, y = torch.tensor([[-1.0, 2.0], [3.0, -4.0]]), torch.empty(2, 2)
    assert context.all_binding_shapes_specified
    assert context.infer_shapes() == []
    assert context.execute_v2([x.data_ptr(), y.data_ptr()])
    assert y.tolist() == [[0.0, 2.0], [3.0, 0.0]]


def test_output_may_overwrite_input(builder: Any, load: Load) -> None:
    context = load(relu_network(builder, (3,))).create_execution_context()
    x = torch.tensor([-1.0, 0.0, 5.0])
    assert context.execute_v2([x.data_ptr(), x.data_ptr()])
    assert x.tolist() == [0.0, 0.0, 5.0]


def test_outputs_may_move_onto_an_input_and_away(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    doubled = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    for name, value in (("d", doubled), ("y", network.add_identity(x).get_output(0))):
        value.name = name
        network.mark_output(value)
    context = load(network).create_execution_context()
    values, memory = torch.tensor([1.0, 2.0]), torch.empty(2)
    y = torch.empty(2)
    assert context.set_tensor_address("y", y.data_ptr())
    for place in (torch.empty(2), memory, torch.empty(2), memory):
        memory.copy_(values)
        assert context.set_tensor_address("x", memory.data_ptr())
        assert context.set_tensor_address("d", place.data_ptr())
        assert context.execute_async_v3(0)
        assert torch.equal(y, values)
        assert torch.equal(place, values + values)


def test_outputs_that_are_views_of_an_overwritten_input_keep_its_old_values(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    doubled = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)
    same = network.add_identity(x).get_output(0)
    network.mark_output(doubled)
    network.mark_output(same)
    context = load(network).create_execution_context()
    memory, copy = torch.tensor([1.0, 2.0]), torch.empty(2)
    assert context.execute_v2([memory.data_ptr(), memory.data_ptr(), copy.data_ptr()])
    assert memory.tolist() == [2.0, 4.0]
    assert copy.tolist() == [1.0, 2.0]


def test_memory_moves_between_inputs_and_outputs_from_run_to_run(builder: Any, load: Load) -> None:
    network = builder.create_network()
    a, b = (network.add_input(name, trt.float32, (3,)) for name in "ab")
    for name, result in (
        ("c", network.add_elementwise(a, b, trt.ElementWiseOperation.SUB)),
        ("d", network.add_shuffle(a)),  # a view of its input
    ):
        result.get_output(0).name = name
        network.mark_output(result.get_output(0))
    context = load(network).create_execution_context()

    @given(st.lists(st.tuples(*[st.integers(0, 4)] * 4).filter(lambda at: at[2] != at[3]), min_size=2, max_size=8))
    @settings(max_examples=60, deadline=None)
    def check(runs: list[tuple[int, int, int, int]]) -> None:
        memory = [torch.randn(3) for _ in range(5)]
        for places in runs:
            first, second = memory[places[0]].clone(), memory[places[1]].clone()
            for name, at in zip("abcd", places, strict=True):
                assert context.set_tensor_address(name, memory[at].data_ptr())
            assert context.execute_async_v3(0)
            torch.testing.assert_close([memory[at] for at in places[2:]], [first - second, first])

    check()


def test_errors_come_in_the_documented_order(dynamic: Any, logger: Any) -> None:
    assert not dynamic.execute_async_v3(0)
    assert "call set_input_shape first" in logger.errors[-1]
    assert dynamic.set_input_shape("x", (2, 4))
    assert not dynamic.execute_async_v3(0)
    assert "'x' has no address" in logger.errors[-1]
    x, y = torch.ones(2, 4), torch.zeros(2, 4)
    assert dynamic.set_tensor_address("x", x.data_ptr())
    assert not dynamic.execute_async_v3(0)
    assert "'y' has no address" in logger.errors[-1]
    assert dynamic.set_tensor_address("y", y.data_ptr())
    assert dynamic.execute_async_v3(0)
    assert y.sum() == 8
    assert dynamic.set_tensor_address("y", 0)
    assert not dynamic.execute_async_v3(0)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("x", (9, 4), r"outside the profile's range \[1, 8\]"),
        ("x", (0, 4), r"outside the profile's range \[1, 8\]"),
        ("x", (2, 5), "the network fixes it to 4"),
        ("x", (2,), "rank 1"),
        ("y", (2, 4), "this is an output"),
        ("z", (2, 4), "no tensor of that name"),
    ],
)
def test_set_input_shape_refuses(dynamic: Any, logger: Any, name: str, shape: tuple[int, ...], message: str) -> None:
    assert dynamic.set_input_shape(name, shape) is False
    assert re.search(message, logger.errors[-1])


def test_shapes_take_tuples_lists_and_dims_up_to_eight(dynamic: Any) -> None:
    for shape in ((2, 4), [3, 4], trt.Dims((4, 4))):
        assert dynamic.set_input_shape("x", shape)
        assert tuple(dynamic.get_tensor_shape("y")) == tuple(shape)
    with pytest.raises(RuntimeError, match="at most 8"):
        dynamic.set_input_shape("x", (1,) * 9)


def test_queries_before_and_after_shapes(dynamic: Any) -> None:
    assert tuple(dynamic.get_tensor_shape("x")) == (-1, 4)
    assert tuple(dynamic.get_tensor_shape("y")) == (-1, 4)
    assert tuple(dynamic.get_tensor_strides("y")) == (4, 1)
    assert dynamic.get_max_output_size("y") == -1
    assert dynamic.infer_shapes() == ["x"]
    assert dynamic.set_input_shape("x", (3, 4))
    assert dynamic.infer_shapes() == []
    assert tuple(dynamic.get_tensor_shape("y")) == (3, 4)
    assert dynamic.get_max_output_size("y") == 48
    assert dynamic.update_device_memory_size_for_shapes() == 48
    assert dynamic.engine.device_memory_size_v2 == 8 * 4 * 4
    with pytest.raises(ValueError):
        len(dynamic.get_tensor_shape("nothing"))
    assert dynamic.get_tensor_address("x") == 0


def test_profiles_have_their_own_ranges_and_a_switch_forgets_shapes(builder: Any, logger: Any) -> None:
    config = builder.create_builder_config()
    for low, high in ((1, 2), (4, 4)):
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (low, 4), (low, 4), (high, 4))
        config.add_optimization_profile(profile)
    engine = builder.build_engine_with_config(relu_network(builder), config)
    assert engine.num_optimization_profiles == 2
    assert [tuple(dims) for dims in engine.get_tensor_profile_shape("x", 0)] == [(1, 4), (1, 4), (2, 4)]
    first, second = engine.create_execution_context(), engine.create_execution_context()
    assert first.set_input_shape("x", (2, 4))
    assert not first.set_input_shape("x", (4, 4))
    assert second.set_optimization_profile_async(1, 0)
    assert second.active_optimization_profile == 1
    assert tuple(second.get_tensor_shape("y")) == (4, 4), "min == max, so the extent is known"
    assert first.set_optimization_profile_async(1, 0)
    assert tuple(first.get_tensor_shape("x")) == (4, 4)
    with pytest.raises(RuntimeError, match="profile 2 does not exist"):
        first.set_optimization_profile_async(2, 0)


def test_equal_dimension_names_need_equal_extents(builder: Any, load: Load, logger: Any) -> None:
    network = builder.create_network()
    tensors = [network.add_input(name, trt.float32, (-1,)) for name in "ab"]
    for tensor in tensors:
        tensor.set_dimension_name(0, "n")
    total = network.add_elementwise(*tensors, trt.ElementWiseOperation.SUM).get_output(0)
    network.mark_output(total)
    ranges = ((1,), (2,), (4,))
    context = load(network, {"a": ranges, "b": ranges}).create_execution_context()
    memory = torch.zeros(4)
    for name in context.engine:
        context.set_tensor_address(name, memory.data_ptr())
    context.set_input_shape("a", (3,))
    context.set_input_shape("b", (1,))
    assert not context.execute_async_v3(0)
    assert "dimension 'n' is 3 in 'a', but 1 in 'b'" in logger.errors[-1]


def test_shapes_that_do_not_fit_are_found_before_and_while_running(builder: Any, load: Load, logger: Any) -> None:
    network = builder.create_network()
    a, b = (network.add_input(name, trt.float32, (-1,)) for name in "ab")
    layer = network.add_elementwise(a, b, trt.ElementWiseOperation.SUM)
    layer.name = "the sum"
    network.mark_output(layer.get_output(0))
    ranges = ((1,), (2,), (4,))
    context = load(network, {"a": ranges, "b": ranges}).create_execution_context()
    memory = torch.zeros(4)
    for name in context.engine:
        context.set_tensor_address(name, memory.data_ptr())
    context.set_input_shape("a", (3,))
    context.set_input_shape("b", (2,))
    with pytest.raises(RuntimeError, match="the sum"):
        context.infer_shapes()
    assert not context.execute_async_v3(0)
    assert "the sum" in logger.errors[-1]


# Shape inputs ------------------------------------------------------------------------------------------


@pytest.fixture
def reshaping(builder: trt.Builder, load: Load) -> trt.IExecutionContext:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 6))
    dims = network.add_input("dims", trt.int64, (2,))
    shuffle = network.add_shuffle(x)
    shuffle.set_input(1, dims)
    shuffle.get_output(0).name = "y"
    network.mark_output(shuffle.get_output(0))
    engine = load(network, values={"dims": ((1, 1), (3, 4), (12, 12))})
    return engine.create_execution_context()


def test_shape_inputs_live_on_the_host_and_are_read_late(reshaping: Any) -> None:
    engine = reshaping.engine
    assert engine.get_tensor_location("dims") is trt.TensorLocation.HOST
    assert engine.get_tensor_location("x") is trt.TensorLocation.DEVICE
    assert engine.is_shape_inference_io("dims")
    assert engine.get_tensor_profile_values(0, "dims") == [[1, 1], [3, 4], [12, 12]]
    with pytest.raises(RuntimeError, match="not a shape input"):
        engine.get_tensor_profile_values(0, "x")
    assert reshaping.infer_shapes() == ["dims"]
    x, dims, y = torch.arange(12.0), torch.tensor([3, 4]), torch.zeros(12)
    for name, tensor in (("x", x), ("dims", dims), ("y", y)):
        assert reshaping.set_tensor_address(name, tensor.data_ptr())
    assert tuple(reshaping.get_tensor_shape("y")) == (3, 4)
    dims[:] = torch.tensor([12, 1])
    assert tuple(reshaping.get_tensor_shape("y")) == (12, 1)
    assert reshaping.execute_async_v3(0)
    assert torch.equal(y, x)


def test_numbers_outside_the_profile_are_refused(reshaping: Any, logger: Any) -> None:
    x, dims, y = torch.arange(12.0), torch.tensor([13, 1]), torch.zeros(12)
    for name, tensor in (("x", x), ("dims", dims), ("y", y)):
        reshaping.set_tensor_address(name, tensor.data_ptr())
    assert not reshaping.execute_async_v3(0)
    assert "outside the profile's range [1, 12]" in logger.errors[-1]
    with pytest.raises(RuntimeError, match="outside the profile's range"):
        reshaping.infer_shapes()


def test_infer_shapes_writes_shape_outputs(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 3))
    extents = network.add_shape(x).get_output(0)
    narrow = network.add_cast(extents, trt.int32).get_output(0)
    narrow.name = "extents"
    assert network.mark_output_for_shapes(narrow)
    context = load(network, {"x": ((1, 3), (2, 3), (9, 3))}).create_execution_context()
    assert context.engine.get_tensor_location("extents") is trt.TensorLocation.HOST
    found = torch.zeros(2, dtype=torch.int32)
    context.set_tensor_address("extents", found.data_ptr())
    context.set_input_shape("x", (7, 3))
    assert context.infer_shapes() == []
    assert found.tolist() == [7, 3]
    found.zero_()
    assert context.execute_async_v3(0), "an input of which only the extents count needs no memory"
    assert found.tolist() == [7, 3]


# Observers, settings -----------------------------------------------------------------------------------


class Times(trt.IProfiler):
    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.layers: list[str] = []

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        assert ms >= 0.0
        self.layers.append(layer_name)


def test_profiler_receives_each_layer(builder: Any, load: Load, execute: Execute) -> None:
    network = relu_network(builder, (2,))
    network.get_layer(0).name = "the relu"
    context = load(network).create_execution_context()
    context.profiler = times = Times()
    execute(context, {"x": torch.ones(2)})
    assert times.layers == ["the relu"]
    context.enqueue_emits_profile = False
    execute(context, {"x": torch.ones(2)})
    assert times.layers == ["the relu"]
    assert context.report_to_profiler()
    assert times.layers == ["the relu"] * 2
    assert not context.report_to_profiler()


class Listener(trt.IDebugListener):
    def __init__(self) -> None:
        trt.IDebugListener.__init__(self)
        self.seen: list[tuple[Any, ...]] = []

    def process_debug_tensor(
        self,
        addr: int,
        location: Any,
        type: Any,  # noqa: A002 - the name in the interface
        shape: Any,
        name: str,
        stream: int,
    ) -> None:
        value = np.frombuffer((np.ctypeslib.ctypes.c_float * 2).from_address(addr), dtype=np.float32).tolist()
        self.seen.append((location, type, tuple(shape), name, value))


def test_debug_listener_sees_marked_tensors(builder: Any, load: Load, execute: Execute) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    inner = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    inner.name = "inner"
    outer = network.add_unary(inner, trt.UnaryOperation.NEG).get_output(0)
    network.mark_output(outer)
    assert network.mark_debug(inner)
    engine = load(network)
    assert engine.is_debug_tensor("inner")
    context = engine.create_execution_context()
    listener = Listener()
    assert context.set_debug_listener(listener)
    execute(context, {"x": torch.tensor([-1.0, 2.0])})
    assert listener.seen == []
    assert context.set_tensor_debug_state("inner", True)
    assert not context.set_tensor_debug_state("outer", True)
    execute(context, {"x": torch.tensor([-1.0, 2.0])})
    assert listener.seen == [(trt.TensorLocation.HOST, trt.float32, (2,), "inner", [0.0, 2.0])]


def test_contexts_run_in_threads(builder: Any, load: Load, execute: Execute) -> None:
    engine = load(relu_network(builder), {"x": ((1, 4), (2, 4), (64, 4))})
    failures: list[str] = []

    def work(seed: int) -> None:
        context = engine.create_execution_context()
        for step in range(50):
            x = torch.randn(1 + (seed + step) % 64, 4)
            if not torch.equal(execute(context, {"x": x})["y"], x.relu()):
                failures.append(f"{seed} {step}")

    in_threads(work, range(4))
    assert not failures


def test_settings_are_kept(dynamic: Any) -> None:
    dynamic.name = "worker"
    dynamic.debug_sync = True
    dynamic.persistent_cache_limit = 10
    assert (dynamic.name, dynamic.debug_sync, dynamic.persistent_cache_limit) == ("worker", True, 10)
    dynamic.nvtx_verbosity = trt.ProfilingVerbosity.DETAILED
    assert dynamic.nvtx_verbosity is trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    assert dynamic.set_input_consumed_event(0)
    assert dynamic.get_input_consumed_event() == 0


def test_user_managed_memory(builder: Any, load: Load, logger: Any) -> None:
    engine = load(relu_network(builder, (4,)))
    assert engine.device_memory_size_v2 == 16
    managed = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    x, y = torch.tensor([-1.0, 2.0, -3.0, 4.0]), torch.empty(4)
    for name, tensor in zip(engine, (x, y), strict=True):
        assert managed.set_tensor_address(name, tensor.data_ptr())
    assert not managed.execute_async_v3(0)
    assert "call set_device_memory first" in logger.errors.pop()
    logger.messages.clear()
    managed.set_device_memory(512, 16)
    assert not logger.errors
    assert managed.execute_async_v3(0)
    assert torch.equal(y, x.relu())
    managed.set_device_memory(512, 15)
    assert "needs 16 bytes" in logger.errors[-1]
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE)
    context = engine.create_execution_context(config)
    assert context.get_runtime_config() is config
    context.set_device_memory(512, 16)
    assert "not created with user-managed" in logger.errors[-1]


def test_user_managed_memory_is_that_of_the_profile_in_use(builder: Any, logger: Any) -> None:
    """A context takes as many bytes as the engine says for its profile, wherever the CPU has them."""
    network = relu_network(builder, (-1, 4))
    config = builder.create_builder_config()
    for most in (2, 64):
        profile = builder.create_optimization_profile()
        profile.set_shape(network.get_input(0).name, (1, 4), (2, 4), (most, 4))
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    memory = torch.empty(4096, dtype=torch.uint8)
    for index in (0, 1):
        assert context.set_optimization_profile_async(index, 0)
        context.set_device_memory(memory.data_ptr() + 16, engine.get_device_memory_size_for_profile_v2(index))
        assert not logger.errors
    context.set_device_memory(memory.data_ptr(), engine.get_device_memory_size_for_profile_v2(0))
    assert "profile 1 needs" in logger.errors[-1]
