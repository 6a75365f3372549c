"""Extents of outputs in plans: right wherever they are said, checked where outputs are written, and never believed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.builder import builder as builder_module
from trt_portable.errors import Refusal
from trt_portable.network.layer import LAYER_CLASSES
from trt_portable.plan.extents import evaluate, expression_of, sizes_by_symbol
from trt_portable.plan.plan_file import read_plan, write_plan

LOW, HIGH = 1, 12


def _build(kind: str) -> Any:
    """An engine of two inputs, (a, 4, b, b) and (c, 4), whose outputs have extents of the given kind."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, 4, -1, -1))
    y = network.add_input("y", trt.DataType.FLOAT, (-1, 4))
    result = {"windows": _windows, "rows": _rows, "broadcast": _broadcast, "data": _data}[kind](network, x, y)
    result.name = "z"
    network.mark_output(result)
    for name, tensor in (("x", x), ("y", y)):  # an input that nothing reads is dropped
        used = network.add_identity(tensor).get_output(0)
        used.name = f"same {name}"
        network.mark_output(used)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (LOW, 4, 3, 3), (4, 4, 5, 5), (HIGH, 4, HIGH, HIGH))
    profile.set_shape("y", (LOW, 4), (4, 4), (HIGH, 4))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return plan


def _windows(network: Any, x: Any, y: Any) -> Any:
    weights = trt.Weights(torch.ones(2, 4, 3, 3).numpy())
    layer = network.add_convolution_nd(x, 2, (3, 3), weights)
    layer.stride_nd, layer.padding_nd = (2, 2), (1, 1)
    return network.add_pooling_nd(layer.get_output(0), trt.PoolingType.MAX, (2, 2)).get_output(0)


def _rows(network: Any, x: Any, y: Any) -> Any:
    means = network.add_reduce(x, trt.ReduceOperation.AVG, 0b1100, False).get_output(0)
    joined = network.add_concatenation([means, y]).get_output(0)
    flat = network.add_shuffle(joined)
    flat.reshape_dims = (-1, 2)
    return flat.get_output(0)


def _broadcast(network: Any, x: Any, y: Any) -> Any:
    means = network.add_reduce(x, trt.ReduceOperation.AVG, 0b1100, False).get_output(0)
    return network.add_elementwise(means, y, trt.ElementWiseOperation.SUM).get_output(0)


def _data(network: Any, x: Any, y: Any) -> Any:
    return network.add_non_zero(y).get_output(0)


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    return {kind: _build(kind) for kind in ("windows", "rows", "broadcast", "data")}


def _engine(plan: Any) -> Any:
    return trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan)


@settings(max_examples=25)
@given(rows=st.integers(LOW, HIGH), size=st.integers(3, HIGH), others=st.integers(LOW, HIGH))
@pytest.mark.parametrize("kind", ["windows", "rows"])
def test_expressions_say_what_layers_make(plans: dict[str, Any], kind: str, rows: int, size: int, others: int) -> None:
    state = _engine(plans[kind])._state
    shapes = ((rows, 4, size, size), (others, 4))
    report = state.infer(shapes, {})
    assert state.output_shapes(shapes) == tuple(tuple(value.shape) for value in report.outputs)


def test_what_inference_only_assumes_is_not_said(plans: dict[str, Any]) -> None:
    """Rows that are broadcast count one or many; shape inference takes them for equal."""
    engine = _engine(plans["broadcast"])
    assert engine._state.output_shapes(((1, 4, 3, 3), (5, 4))) is None
    context = engine.create_execution_context()
    context.set_input_shape("x", (1, 4, 3, 3))
    context.set_input_shape("y", (5, 4))
    assert tuple(context.get_tensor_shape("z")) == (5, 4)


def test_profiles_without_bounds_say_extents_too() -> None:
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, -1, 2, -1))
    network.mark_output(network.add_unary(x, trt.UnaryOperation.NEG).get_output(0))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 1, 2, 1), (4, 4, 2, 4), (1 << 20, 1 << 20, 2, 1 << 20))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    assert _engine(plan)._state.output_shapes(((7, 3, 2, 5),)) == ((7, 3, 2, 5),)


def _many_sizes(count: int) -> Any:
    """The state of an engine of `count` inputs, each of which has eight sizes of its own."""
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network()
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.builder_optimization_level = 0
    for index in range(count):
        x = network.add_input(f"x{index}", trt.DataType.FLOAT, (-1,) * 8)
        profile.set_shape(x.name, (1,) * 8, (2,) * 8, (8,) * 8)
        if index < 1:
            network.mark_output(network.add_unary(x, trt.UnaryOperation.NEG).get_output(0))
    config.add_optimization_profile(profile)
    return _engine(builder.build_serialized_network(network, config))._state


def test_very_many_sizes_are_not_tried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 inputs took 9 seconds, and twice as many four times as long."""
    tried: list[Any] = []
    made = builder_module._made
    monkeypatch.setattr(builder_module, "_made", lambda *given: tried.append(given) or made(*given))
    shapes = ((3, 1, 4, 1, 5, 8, 2, 6),)
    assert _many_sizes(4).output_shapes(shapes * 4) == shapes
    assert len(tried) == 3 + 2 * 4 * 8
    tried.clear()
    monkeypatch.setattr(builder_module, "_MOST_INFERRED", 300)
    state = _many_sizes(4)
    assert not tried
    assert state.output_shapes(shapes * 4) is None
    assert tuple(state.infer(shapes * 4, {}).outputs[0].shape) == shapes[0]


def test_equal_layers_are_asked_once_what_they_make_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    kind = LAYER_CLASSES["UNARY"]
    compute = kind._compute

    def noted(layer: Any, inputs: Any) -> Any:
        if inputs[0].is_meta:
            asked.append(tuple(inputs[0].shape))
        return compute(layer, inputs)

    monkeypatch.setattr(kind, "_compute", noted)
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, 4))
    for operation in [trt.UnaryOperation.EXP, trt.UnaryOperation.SIN] * 3:
        x = network.add_unary(x, operation).get_output(0)
    network.mark_output(x)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.builder_optimization_level = 0
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    config.add_optimization_profile(profile)
    state = _engine(builder.build_serialized_network(network, config))._state
    assert sorted(asked) == [(rows, 4) for rows in (1, 2, 8) for _ in range(2)]
    assert state.infer(((5, 4),), {}).outputs[0].shape == (5, 4)
    assert asked[6:] == [(5, 4)] * 2


def test_shapes_that_layers_refuse_are_still_refused_before_a_run() -> None:
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1,))
    pairs = network.add_shuffle(x)
    pairs.reshape_dims = (-1, 2)
    network.mark_output(pairs.get_output(0))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1,), (4,), (8,))
    config.add_optimization_profile(profile)
    context = _engine(builder.build_serialized_network(network, config)).create_execution_context()
    context.set_input_shape("x", (6,))
    assert context.infer_shapes() == []
    context.set_input_shape("x", (7,))
    with pytest.raises(RuntimeError, match="infer_shapes"):
        context.infer_shapes()


def test_extents_that_depend_on_data_are_not_said(plans: dict[str, Any]) -> None:
    assert _engine(plans["data"])._state.output_shapes(((1, 4, 3, 3), (5, 4))) is None


def test_runs_agree(plans: dict[str, Any]) -> None:
    context = _engine(plans["rows"]).create_execution_context()
    x, y = torch.rand(3, 4, 3, 3), torch.rand(5, 4)
    context.set_input_shape("x", tuple(x.shape))
    context.set_input_shape("y", tuple(y.shape))
    assert context.infer_shapes() == []
    outputs = {name: torch.empty(tuple(context.get_tensor_shape(name))) for name in ("z", "same x", "same y")}
    for name, tensor in {"x": x, "y": y, **outputs}.items():
        context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(0)
    torch.testing.assert_close(outputs["z"], torch.cat([x.mean((2, 3)), y]).reshape(-1, 2))


def _changed(plan: Any, extents: Any) -> Any:
    read = read_plan(bytes(plan))
    structure = json.loads(json.dumps(read.structure))
    (entry,) = (entry for entry in structure["engine"]["io"] if entry["name"] == "z")
    entry["extents"] = extents
    return write_plan(structure, read.weights)


def test_a_forged_expression_writes_nothing(plans: dict[str, Any]) -> None:
    engine = _engine(_changed(plans["rows"], ["1.0", 2]))
    context = engine.create_execution_context()
    x, y = torch.rand(3, 4, 3, 3), torch.rand(5, 4)
    context.set_input_shape("x", tuple(x.shape))
    context.set_input_shape("y", tuple(y.shape))
    assert tuple(context.get_tensor_shape("z")) == (5, 2)
    guarded = torch.full((64,), 7.0)
    for name, tensor in {"x": x, "y": y, "same x": x.clone(), "same y": y.clone(), "z": guarded[8:]}.items():
        context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)
    assert guarded.eq(7).all()


@pytest.mark.parametrize(
    "extents",
    [
        [1],
        ["2.0", 2],
        ["0.4", 2],
        ["0", 2],
        [["size", 0, 0], 2],
        [["floordiv", 1], 2],
        [["add", None, 1], 2],
        [["add"], 2],
        [["add", *[1] * 300], 2],
        [["add", 1.5, 1], 2],
        [[], 2],
        ["x", 2],
        [2**63, 2],
    ],
)
def test_what_is_no_expression_is_refused_when_loaded(plans: dict[str, Any], extents: Any) -> None:
    assert _engine(_changed(plans["rows"], extents)) is None


def test_expressions_without_a_value_are_refused() -> None:
    symbols = sizes_by_symbol(((0, 4),))
    for expression in (["floordiv", 4, "0.0"], ["mod", 4, "0.0"], ["add", "0.0", -1]):
        with pytest.raises(Refusal, match="extent"):
            evaluate(expression, symbols)
    with pytest.raises(Refusal, match="extent"):
        evaluate(["mul", *[["mul", 1 << 40, 1 << 40]] * 8], symbols)
    with pytest.raises(Refusal, match="exceeds 64 bits"):  # before it has more digits than can be written
        evaluate(["add", ["mul", *[["mul", *[1 << 40] * 64]] * 64], 1], symbols)


def test_what_cannot_be_said_is_none() -> None:
    assert expression_of(object(), {}) is None
    assert expression_of(7, {}) == 7


@pytest.mark.parametrize("count", [4, 20])
def test_expressions_that_nest_too_deep_to_be_read_are_not_said(count: int) -> None:
    network = trt.Builder(trt.Logger()).create_network()
    y = network.add_input("x", trt.DataType.FLOAT, (1, 1, -1, 4))
    for _ in range(count):  # a third more rows
        pool = network.add_pooling_nd(y, trt.PoolingType.MAX, (3, 1))
        pool.stride_nd, pool.padding_nd = (3, 1), (1, 0)
        joined = network.add_concatenation([pool.get_output(0)] * 4)
        joined.axis = 2
        y = joined.get_output(0)
    y.name = "z"
    network.mark_output(y)
    config = network.builder.create_builder_config()
    profile = network.builder.create_optimization_profile()
    profile.set_shape("x", (1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 8, 4))
    config.add_optimization_profile(profile)
    engine = _engine(network.builder.build_serialized_network(network, config))
    (said,) = [tensor.extents for tensor in engine._state.info.io if not tensor.is_input]
    assert (said[2] is None) == (count == 20)
    rows = 5
    for _ in range(count):
        rows = (rows + 2) // 3 * 4
    context = engine.create_execution_context()
    assert context.set_input_shape("x", (1, 1, 5, 4))
    assert tuple(context.get_tensor_shape("z")) == (1, 1, rows, 4)


def test_what_a_layer_assumed_before_it_was_changed_is_forgotten() -> None:
    network = trt.Builder(trt.Logger()).create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, -1, 4))
    rows = network.add_shuffle(x)
    rows.reshape_dims = (1, -1, 4)
    first = network.add_constant((1, 1, 4), trt.Weights(torch.zeros(1, 1, 4).numpy())).get_output(0)
    joined = network.add_concatenation([first, rows.get_output(0)])
    assert joined.axis == 0  # there every other extent has to agree: the number of rows has to be 1
    joined.axis = 1
    shape = network.add_shape(rows.get_output(0)).get_output(0)
    count = network.add_slice(shape, (1,), (1,), (1,)).get_output(0)
    parts = network.add_slice(joined.get_output(0), (0, 0, 0), (1, 1, 1), (1, 1, 1))
    parts.axes, parts.start, parts.stride = (1,), (1,), (1,)
    parts.set_input(2, count)
    assert tuple(parts.get_output(0).shape) == (1, -1, 4)


@pytest.mark.parametrize("how", ["repeated", "gathered", "broadcast"])
def test_data_that_grew_out_of_a_number_takes_no_memory_while_extents_are_found(how: str) -> None:
    """The greatest mask of the profile has 2^40 elements, which nothing may make one by one."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (-1, -1))
    extents = network.add_shape(x).get_output(0)
    one = network.add_constant((1, 1), trt.Weights(torch.ones(1, 1, dtype=torch.int64).numpy())).get_output(0)
    mask = network.add_slice(one, (0, 0), (1, 1), (0, 0))
    mask.set_input(2, extents)
    grown = mask.get_output(0)
    if how == "gathered":
        zero = network.add_constant((1,), trt.Weights(torch.zeros(1, dtype=torch.int64).numpy())).get_output(0)
        for axis in (0, 1):
            count = network.add_slice(extents, (axis,), (1,), (1,)).get_output(0)
            zeros = network.add_slice(zero, (0,), (1,), (0,))
            zeros.set_input(2, count)
            one = network.add_gather(one, zeros.get_output(0), axis).get_output(0)
        grown = one
    elif how == "broadcast":
        grown = network.add_elementwise(grown, one, trt.ElementWiseOperation.SUM).get_output(0)
    result = network.add_elementwise(
        network.add_cast(grown, trt.DataType.FLOAT).get_output(0), x, trt.ElementWiseOperation.SUM
    ).get_output(0)
    result.name = "z"
    network.mark_output(result)
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 1), (3, 5), (1 << 20, 1 << 20))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    assert _engine(plan)._state.output_shapes(((3, 5),)) == ((3, 5),)
