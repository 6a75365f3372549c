"""Loops, conditionals, assertions and plugins, through engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt

E = trt.ElementWiseOperation
L = trt.LoopOutput


def _cumulative(network: Any, x: Any, constant: Any, trips: int) -> list[Any]:
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, trips, np.int32), trt.TripLimit.COUNT)
    row = loop.add_iterator(x, 0).get_output(0)
    total = loop.add_recurrence(constant(network, [0] * 4))
    following = network.add_elementwise(total.get_output(0), row, E.SUM).get_output(0)
    total.set_input(1, following)
    kept = loop.add_loop_output(following, L.CONCATENATE, 0)
    kept.set_input(1, constant(network, 3, np.int64))
    backwards = loop.add_loop_output(following, L.REVERSE, 1)
    backwards.set_input(1, constant(network, 3, np.int64))
    return [kept, backwards, loop.add_loop_output(total.get_output(0), L.LAST_VALUE)]


def test_loop_with_count_and_iterator(run_network: Any, constant: Any) -> None:
    x = torch.randn(3, 4)
    kept, backwards, last = run_network(lambda n, t: _cumulative(n, t, constant, 3), x)
    torch.testing.assert_close(kept, x.cumsum(0))
    torch.testing.assert_close(backwards, x.cumsum(0).flip(0).T)
    torch.testing.assert_close(last, x.sum(0))


def test_loop_without_iterations_gives_the_first_value(run_network: Any, constant: Any) -> None:
    _, _, last = run_network(lambda n, t: _cumulative(n, t, constant, 0), torch.randn(3, 4))
    assert last.tolist() == [0, 0, 0, 0]


def test_a_condition_ends_a_loop_and_loops_nest(run_network: Any, constant: Any) -> None:
    def define(network: Any, x: Any) -> Any:
        loop = network.add_loop()
        value, count = loop.add_recurrence(x), loop.add_recurrence(constant(network, 0, np.int32))
        total = network.add_reduce(value.get_output(0), trt.ReduceOperation.SUM, 1, False).get_output(0)
        goes_on = network.add_elementwise(total, constant(network, 100.0), E.LESS).get_output(0)
        loop.add_trip_limit(goes_on, trt.TripLimit.WHILE)
        inner = network.add_loop()
        inner.add_trip_limit(constant(network, 2, np.int32), trt.TripLimit.COUNT)
        doubled = inner.add_recurrence(value.get_output(0))
        product = network.add_elementwise(doubled.get_output(0), constant(network, [2.0]), E.PROD)
        doubled.set_input(1, product.get_output(0))
        value.set_input(1, inner.add_loop_output(doubled.get_output(0), L.LAST_VALUE).get_output(0))
        one = constant(network, 1, np.int32)
        count.set_input(1, network.add_elementwise(count.get_output(0), one, E.SUM).get_output(0))
        return [loop.add_loop_output(r.get_output(0), L.LAST_VALUE) for r in (value, count)]

    value, count = run_network(define, torch.tensor([1.0, 2.0, 3.0]))
    assert value.tolist() == [64, 128, 192]
    assert count.item() == 3


def test_loops_survive_a_plan(network: Any, constant: Any, load: Any, execute: Any) -> None:
    x = network.add_input("x", trt.float32, (3, 4))
    for output in _cumulative(network, x, constant, 3):
        network.mark_output(output.get_output(0))
    data = torch.randn(3, 4)
    kept, *_ = execute(load(network).create_execution_context(), {"x": data}).values()
    torch.testing.assert_close(kept, data.cumsum(0))


@pytest.mark.parametrize("choice", [True, False])
def test_conditional(run_network: Any, choice: bool) -> None:
    def define(network: Any, x: Any, condition: Any) -> Any:
        conditional = network.add_if_conditional()
        conditional.set_condition(condition)
        inner = conditional.add_input(x).get_output(0)
        positive = network.add_activation(inner, trt.ActivationType.RELU).get_output(0)
        power = network.add_unary(inner, trt.UnaryOperation.EXP).get_output(0)
        return conditional.add_output(positive, power)

    x = torch.randn(2, 3)
    (found,) = run_network(define, x, torch.tensor(choice), dynamic=[(0, 0)])
    torch.testing.assert_close(found, x.clamp(min=0) if choice else x.exp())


def test_only_the_chosen_branch_runs(run_network: Any, constant: Any) -> None:
    def define(network: Any, x: Any, condition: Any) -> Any:
        conditional = network.add_if_conditional()
        conditional.set_condition(condition)
        inner = conditional.add_input(x).get_output(0)
        beyond = network.add_slice(inner, (0,), (5,), (1,)).get_output(0)
        return conditional.add_output(beyond, inner)

    (found,) = run_network(define, torch.ones(2), torch.tensor(False), dynamic=[(0, 0)])
    assert found.tolist() == [1, 1]


def test_incomplete_loops_and_conditionals_are_refused_at_build(builder: Any, logger: Any, constant: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, 2, np.int32), trt.TripLimit.COUNT)
    carried = loop.add_recurrence(x)
    network.mark_output(loop.add_loop_output(carried.get_output(0), L.LAST_VALUE).get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("next value" in error for error in logger.errors)
    carried.set_input(1, network.add_identity(carried.get_output(0)).get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is not None


def test_values_inside_a_loop_cannot_be_outputs(builder: Any, logger: Any, constant: Any) -> None:
    network = builder.create_network()
    outputs = _cumulative(network, network.add_input("x", trt.float32, (3, 4)), constant, 3)
    network.mark_output(outputs[0].get_output(0))
    network.mark_output(outputs[0].get_input(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("inside a loop" in error for error in logger.errors)


def _asserting(network: Any, constant: Any) -> Any:
    x = network.add_input("x", trt.float32, (-1,))
    extent = network.add_shape(x).get_output(0)
    equal = network.add_elementwise(extent, constant(network, [4], np.int64), E.EQUAL).get_output(0)
    network.add_assertion(equal, "x must have four elements")
    network.mark_output(network.add_identity(x).get_output(0))
    return network


def test_an_assertion_fails_the_run_in_which_it_is_false(network: Any, constant: Any, load: Any, execute: Any) -> None:
    context = load(_asserting(network, constant), {"x": ((1,), (4,), (8,))}).create_execution_context()
    execute(context, {"x": torch.zeros(4)})
    with pytest.raises((AssertionError, RuntimeError)):
        execute(context, {"x": torch.zeros(5)})


def test_an_assertion_that_is_certainly_false_fails_the_build(builder: Any, logger: Any, constant: Any) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (3,))
    extent = network.add_shape(x).get_output(0)
    equal = network.add_elementwise(extent, constant(network, [4], np.int64), E.EQUAL).get_output(0)
    network.add_assertion(equal, "x must have four elements")
    network.mark_output(network.add_identity(x).get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("four elements" in error for error in logger.errors)


class Repeat(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    """Repeats its input along axis 1, times a factor."""

    def __init__(self, factor: int) -> None:
        trt.IPluginV3.__init__(self)
        trt.IPluginV3OneCore.__init__(self)
        trt.IPluginV3OneBuild.__init__(self)
        trt.IPluginV3OneRuntime.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = "Repeat", "1", ""
        self.num_outputs = 1
        self.factor = factor
        self.configured = 0

    def get_capability_interface(self, type: Any) -> Any:  # noqa: A002 (the name is TensorRT's)
        return self

    def clone(self) -> Any:
        return Repeat(self.factor)

    def get_output_data_types(self, input_types: Any) -> Any:
        return [input_types[0]]

    def get_output_shapes(self, inputs: Any, shape_inputs: Any, expr_builder: Any) -> Any:
        shape = trt.DimsExprs(2)
        shape[0] = inputs[0][0]
        twice = expr_builder.constant(2)
        shape[1] = expr_builder.operation(trt.DimensionOperation.PROD, inputs[0][1], twice)
        return [shape]

    def supports_format_combination(self, pos: int, in_out: Any, num_inputs: int) -> bool:
        return in_out[pos].desc.format == trt.TensorFormat.LINEAR and in_out[pos].desc.type is trt.float32

    def configure_plugin(self, in_: Any, out: Any) -> None:
        self.configured += 1

    def get_fields_to_serialize(self) -> Any:
        field = trt.PluginField("factor", np.array([self.factor], np.int32), trt.PluginFieldType.INT32)
        return trt.PluginFieldCollection([field])

    def enqueue(
        self, input_desc: Any, output_desc: Any, inputs: Any, outputs: Any, workspace: int, stream: int
    ) -> None:
        assert tuple(output_desc[0].dims) == tuple(outputs[0].tensor.shape)
        assert int(inputs[0]) == inputs[0].tensor.data_ptr()
        outputs[0].tensor.copy_(inputs[0].tensor.repeat(1, 2) * self.factor)


class RepeatCreator(trt.IPluginCreatorV3One):
    def __init__(self) -> None:
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "Repeat", "1", ""
        self.field_names = trt.PluginFieldCollection([trt.PluginField("factor")])

    def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
        assert phase is trt.TensorRTPhase.RUNTIME
        return Repeat(int(field_collection[0].data[0]))


@pytest.fixture
def creator() -> Iterator[RepeatCreator]:
    made = RepeatCreator()
    assert trt.get_plugin_registry().register_creator(made)
    yield made
    assert trt.get_plugin_registry().deregister_creator(made)


def test_plugin_in_an_engine(creator: Any, network: Any, load: Any, execute: Any) -> None:
    x = network.add_input("x", trt.float32, (-1, 3))
    plugin = Repeat(5)
    layer = network.add_plugin_v3([x], [], plugin)
    assert layer.plugin is plugin
    assert tuple(layer.get_output(0).shape) == (-1, 6)
    network.mark_output(layer.get_output(0))
    context = load(network, {"x": ((1, 3), (2, 3), (4, 3))}).create_execution_context()
    assert plugin.configured == 1
    data = torch.randn(4, 3)
    (found,) = execute(context, {"x": data}).values()
    torch.testing.assert_close(found, torch.cat((data, data), 1) * 5)


def test_plan_with_an_unknown_plugin_is_refused(network: Any, builder: Any, logger: Any) -> None:
    x = network.add_input("x", trt.float32, (2, 3))
    network.mark_output(network.add_plugin_v3([x], [], Repeat(1)).get_output(0))
    creator = RepeatCreator()
    trt.get_plugin_registry().register_creator(creator)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    trt.get_plugin_registry().deregister_creator(creator)
    assert plan is not None
    assert trt.Runtime(logger).deserialize_cuda_engine(plan) is None
    assert any("'Repeat'" in error for error in logger.errors)


def test_registry_finds_creators_by_name_version_and_namespace(creator: Any) -> None:
    registry = trt.get_plugin_registry()
    assert registry.get_creator("Repeat", "1") is creator
    assert registry.get_creator("Repeat", "2") is None
    assert not registry.register_creator(creator)
    assert creator in registry.all_creators
