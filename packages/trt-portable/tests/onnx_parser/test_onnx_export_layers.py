"""Loops, conditionals and layers that have no operator of their own in ONNX: the same numbers in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_running import build, run

import trt_portable as trt
from trt_portable.layers.transformer import IAttentionOutputLayer
from trt_portable.onnx_export import ExportError, export_onnx

SUM, PROD, LESS = trt.ElementWiseOperation.SUM, trt.ElementWiseOperation.PROD, trt.ElementWiseOperation.LESS


def new_network() -> trt.INetworkDefinition:
    return trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR)).create_network()


def compared(
    network: trt.INetworkDefinition, data: Mapping[str, Any], *, rtol: float = 1e-5, atol: float = 1e-6
) -> list[Any]:
    """What ONNX Runtime makes of a network, once it is found to be what our engine makes."""
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(export_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, dict(data))
    engine = build(network, {name: np.shape(value) for name, value in data.items()}, data)
    for ours, theirs in zip(run(engine, data), found, strict=True):
        numbers = np.asarray(ours)
        assert numbers.dtype == theirs.dtype
        assert numbers.shape == theirs.shape
        np.testing.assert_allclose(numbers, theirs, rtol=rtol, atol=atol)
    return found


def constant(network: trt.INetworkDefinition, number: Any) -> trt.ITensor:
    return network.add_constant(np.shape(number), np.asarray(number)).get_output(0)


def binary(network: trt.INetworkDefinition, left: trt.ITensor, right: trt.ITensor, op: Any) -> trt.ITensor:
    return network.add_elementwise(left, right, op).get_output(0)


def total_of(network: trt.INetworkDefinition, x: trt.ITensor) -> trt.ITensor:
    return network.add_reduce(x, trt.ReduceOperation.SUM, (1 << len(x.shape)) - 1, False).get_output(0)


def mark(network: trt.INetworkDefinition, *tensors: trt.ITensor) -> None:
    for tensor in tensors:
        network.mark_output(tensor)


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize(("axis", "kind"), [(0, "CONCATENATE"), (1, "CONCATENATE"), (0, "REVERSE")])
def test_counted_loops(turns: int, axis: int, kind: str) -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (2, 3))
    count = constant(network, np.int64(turns))
    loop = network.add_loop()
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    value = loop.add_recurrence(x)
    following = binary(network, value.get_output(0), constant(network, np.full((1, 1), 1.5, np.float32)), PROD)
    value.set_input(1, following)
    last = loop.add_loop_output(value.get_output(0), trt.LoopOutput.LAST_VALUE)
    every = loop.add_loop_output(following, getattr(trt.LoopOutput, kind), axis)
    every.set_input(1, count)
    mark(network, last.get_output(0), every.get_output(0))
    compared(network, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


@pytest.mark.parametrize("kind", ["CONCATENATE", "REVERSE"])
@pytest.mark.parametrize("start", [1.0, 3.0, 100.0])
def test_loops_with_a_condition_fill_up_with_zeros(kind: str, start: float) -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (2,))
    loop = network.add_loop()
    value = loop.add_recurrence(x)
    grown = binary(network, value.get_output(0), value.get_output(0), SUM)
    value.set_input(1, grown)
    goes_on = binary(network, total_of(network, value.get_output(0)), constant(network, np.float32(50)), LESS)
    loop.add_trip_limit(goes_on, trt.TripLimit.WHILE)
    last = loop.add_loop_output(value.get_output(0), trt.LoopOutput.LAST_VALUE)
    every = loop.add_loop_output(grown, getattr(trt.LoopOutput, kind), 0)
    every.set_input(1, constant(network, np.int64(9)))
    mark(network, last.get_output(0), every.get_output(0))
    _, found = compared(network, {"x": np.full(2, start, np.float32)})
    assert found.shape == (9, 2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_loops_walk_along_tensors(reverse: bool, axis: int) -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (4, 4))
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, np.int64(4)), trt.TripLimit.COUNT)
    walked = loop.add_iterator(x, axis, reverse).get_output(0)
    total = loop.add_recurrence(constant(network, np.zeros(4, np.float32)))
    total.set_input(1, binary(network, total.get_output(0), walked, SUM))
    every = loop.add_loop_output(total.get_output(0), trt.LoopOutput.CONCATENATE, 0)
    every.set_input(1, constant(network, np.int64(4)))
    mark(network, every.get_output(0))
    compared(network, {"x": np.arange(16, dtype=np.float32).reshape(4, 4)})


def test_a_condition_on_what_a_loop_walks_along_is_refused() -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (4,))
    loop = network.add_loop()
    loop.name = "walk"
    walked = loop.add_iterator(x, 0).get_output(0)
    loop.add_trip_limit(binary(network, walked, constant(network, np.float32(1)), LESS), trt.TripLimit.WHILE)
    value = loop.add_recurrence(constant(network, np.float32(0)))
    value.set_input(1, binary(network, value.get_output(0), walked, SUM))
    mark(network, loop.add_loop_output(value.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0))
    with pytest.raises(ExportError, match=r"'walk'.*condition reads what it walks along"):
        export_onnx(network)


@pytest.mark.parametrize("start", [-5.0, 0.5, 20.0])
def test_conditionals_in_loops_in_conditionals(start: float) -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (2,))
    outer = network.add_if_conditional()
    outer.set_condition(binary(network, constant(network, np.float32(0)), total_of(network, x), LESS))
    inside = outer.add_input(x).get_output(0)
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, np.int64(4)), trt.TripLimit.COUNT)
    value = loop.add_recurrence(inside)
    inner = network.add_if_conditional()
    inner.set_condition(binary(network, total_of(network, value.get_output(0)), constant(network, np.float32(9)), LESS))
    entered = inner.add_input(value.get_output(0)).get_output(0)
    more = binary(network, entered, constant(network, np.ones(1, np.float32)), SUM)
    twice = binary(network, entered, entered, SUM)
    value.set_input(1, inner.add_output(more, twice).get_output(0))
    looped = loop.add_loop_output(value.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
    negated = network.add_unary(inside, trt.UnaryOperation.NEG).get_output(0)
    mark(network, outer.add_output(looped, negated).get_output(0), outer.add_output(inside, negated).get_output(0))
    compared(network, {"x": np.array([start, 1], np.float32)})


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_boxes_that_overlap(data: st.DataObject) -> None:
    """Equal scores too: both take the earlier box first."""
    batches, boxes, classes = (data.draw(st.integers(1, most)) for most in (2, 12, 3))
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 4, (batches, boxes, 4)).astype(np.float32)
    levels = data.draw(st.sampled_from([2, 1 << 20]))  # few levels: most scores are equal
    scores = (rng.integers(1, levels, (batches, boxes, classes)) / levels).astype(np.float32)
    network = new_network()
    inputs = [network.add_input(name, trt.float32, x.shape) for name, x in (("boxes", corners), ("scores", scores))]
    layer = network.add_nms(*inputs, constant(network, np.int32(data.draw(st.integers(1, 4)))), trt.int64)
    layer.bounding_box_format = data.draw(st.sampled_from(list(trt.BoundingBoxFormat.__members__.values())))
    layer.topk_box_limit = data.draw(st.sampled_from([4, 5000] if levels > 2 else [5000]))
    layer.set_input(3, constant(network, np.float32(0.3)))
    layer.set_input(4, constant(network, np.float32(0.2)))
    mark(network, layer.get_output(0), layer.get_output(1))
    compared(network, {"boxes": corners, "scores": scores})


def test_rows_of_different_lengths() -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (2, 3, 5))
    bounds = network.add_input("bounds", trt.int32, (2, 3, 1))
    mark(network, network.add_ragged_softmax(x, bounds).get_output(0))
    lengths = np.array([1, 5, 3, 2, 4, 1], np.int32).reshape(2, 3, 1)
    compared(network, {"x": np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32), "bounds": lengths})


@pytest.mark.parametrize("kind", [trt.ActivationType.SCALED_TANH, trt.ActivationType.SOFTPLUS])
def test_values_of_16_bits_are_multiplied_by_the_number_itself(kind: Any) -> None:
    network = new_network()
    layer = network.add_activation(network.add_input("x", trt.float16, (4001,)), kind)
    layer.alpha, layer.beta = 3.3, 0.7
    mark(network, layer.get_output(0))
    compared(network, {"x": np.linspace(-4, 4, 4001, dtype=np.float16)}, rtol=2**-10, atol=2**-10)


def test_scores_of_16_bits_are_scaled_by_the_number_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are scores, as keys and values choose one number each."""
    factor, rows = 0.100067, np.random.default_rng(0).uniform(-50, 50, (1, 1, 64, 8)).astype(np.float16)
    network = new_network()
    query, key, value = (network.add_input(name, trt.float16, (1, 1, 64 if name == "q" else 8, 8)) for name in "qkv")
    layer = network.add_attention_v2(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE)
    mark(network, layer.get_output(0))
    monkeypatch.setattr(IAttentionOutputLayer, "_factor", factor)
    session = onnxruntime.InferenceSession(export_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"])
    one = np.eye(8, dtype=np.float16)[None, None]
    found = session.run(None, {"q": rows, "k": one, "v": one})[0]
    scores = rows.astype(np.float32) * np.float32(factor)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), rtol=2**-10, atol=1e-6)


def test_variances_of_16_bits_are_wider() -> None:
    network = new_network()
    x = network.add_input("x", trt.float16, (2, 4, 3, 5))
    scale, bias = (constant(network, np.full((1, 4, 1, 1), number, np.float16)) for number in (1.5, 0.5))
    layer = network.add_normalization_v2(x, scale, bias, 0b1100)
    layer.num_groups, layer.epsilon = 2, 1e-12
    mark(network, layer.get_output(0))
    values = np.random.default_rng(0).standard_normal((2, 4, 3, 5))
    values[0] *= 3e3
    values[1] = 1
    compared(network, {"x": values.astype(np.float16)}, rtol=2**-9, atol=2**-9)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("part", [0, 4])
@pytest.mark.parametrize("by_ids", [False, True])
def test_rotated_positions(interleaved: bool, part: int, by_ids: bool) -> None:
    rng = np.random.default_rng(0)
    half = (part or 8) // 2
    arrays = {"x": rng.standard_normal((2, 3, 5, 8)).astype(np.float32)}
    for name in ("cosines", "sines"):
        arrays[name] = rng.standard_normal((7, half) if by_ids else (2, 5, half)).astype(np.float32)
    if by_ids:
        arrays["ids"] = rng.integers(0, 7, (2, 5))
    network = new_network()
    inputs = [
        network.add_input(name, trt.int64 if name == "ids" else trt.float32, x.shape) for name, x in arrays.items()
    ]
    layer = network.add_rotary_embedding(*inputs[:3], interleaved, part)
    if by_ids:
        layer.set_input(3, inputs[3])
    mark(network, layer.get_output(0))
    compared(network, arrays)


@pytest.mark.parametrize("with_lengths", [False, True])
def test_caches_are_written_at_places(with_lengths: bool) -> None:
    rng = np.random.default_rng(0)
    cache, update = (rng.standard_normal((3, 2, rows, 4)).astype(np.float32) for rows in (6, 2))
    network = new_network()
    old, new = network.add_input("cache", trt.float32, cache.shape), network.add_input("new", trt.float32, update.shape)
    places = network.add_input("places", trt.int32, (3,))
    layer = network.add_kv_cache_update(old, new, places, trt.KVCacheMode.LINEAR)
    if with_lengths:
        layer.update_lengths = constant(network, np.array([2, 1, 0], np.int32))
    mark(network, layer.get_output(0))
    data = {"cache": cache, "new": update, "places": np.array([0, 3, 5], np.int32)}
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(export_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, data)
    wanted = cache.copy()
    for row, (place, count) in enumerate(zip((0, 3, 5), (2, 1, 0) if with_lengths else (2, 2, 1), strict=True)):
        wanted[row, :, place : place + count] = update[row, :, :count]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("computed", [(1,), (1, 2), (0, 1, 2)])
def test_slices_of_some_axes_by_computed_numbers(computed: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    network = new_network()
    given = network.add_input("x", trt.float32, (4, -1, 5))
    layer = network.add_slice(given, (0, 1), (2, 3), (0, 2))
    layer.axes = (1, 2)
    data = {"x": x[:, :1]}
    for index, numbers in enumerate(((0, 1), (2, 2), (0, 2))):
        if index in computed:
            layer.set_input(index + 1, network.add_input(f"numbers{index}", trt.int32, (2,)))
            data[f"numbers{index}"] = np.array(numbers, np.int32)
    mark(network, layer.get_output(0))
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(export_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, data)
    np.testing.assert_array_equal(found, x[:, [0, 0]][:, :, [1, 3]])


@pytest.mark.parametrize("mode", ["CLAMP", "REFLECT", "FILL"])
def test_some_axes_of_any_size_are_padded(mode: str) -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (-1, 2, -1))
    length = network.add_gather(network.add_shape(x).get_output(0), constant(network, [2]), 0).get_output(0)
    layer = network.add_slice(x, (-1,), (0,), (1,))
    layer.set_input(2, binary(network, length, constant(network, [3]), SUM))
    layer.axes, layer.mode = (2,), getattr(trt.SampleMode, mode)
    if mode == "FILL":
        layer.set_input(4, constant(network, np.float32(7)))
    mark(network, layer.get_output(0))
    data = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    assert compared(network, {"x": data})[0].shape == (3, 2, 7)


def test_flags_are_chosen_between() -> None:
    network = new_network()
    flags = [network.add_input(name, trt.bool, (4,)) for name in "abc"]
    mark(network, network.add_select(*flags).get_output(0))
    a, b, c = np.unpackbits(np.arange(8, dtype=np.uint8)[:, None], axis=1)[:4, 5:].T.astype(bool)
    compared(network, {"a": a, "b": b, "c": ~c})


def test_no_constants_are_left_that_nothing_reads() -> None:
    network = new_network()
    x = network.add_input("x", trt.float32, (2, 3))
    network.add_constant((4,), np.ones(4, np.float32))
    mark(network, network.add_slice(x, (0, 1), (2, 2), (1, 1)).get_output(0))
    graph = export_onnx(network).graph
    read = {name for node in graph.node for name in node.input}
    assert {weights.name for weights in graph.initializer} <= read
