"""Loops, conditionals, plugins inside them and caches through engines: plans, profiles, refit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_core.errors import InputError
from trt_portable.execution.bounded_runs import told_number
from trt_portable.network.region import Region
from trt_portable.network.serialization import schedule

E = trt.ElementWiseOperation
L = trt.LoopOutput


def _powers(network: Any, constant: Any) -> Any:
    """``y[k] = x * 2**(k + 1)`` for k below a count that is an input, in a buffer of six rows."""
    x = network.add_input("x", trt.float32, (-1,))
    count = network.add_input("count", trt.int32, ())
    loop = network.add_loop()
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    value = loop.add_recurrence(x)
    twice = network.add_elementwise(value.get_output(0), constant(network, [2.0]), E.PROD).get_output(0)
    value.set_input(1, twice)
    rows = loop.add_loop_output(twice, L.CONCATENATE, 0)
    rows.set_input(1, constant(network, 6, np.int32))
    last = loop.add_loop_output(value.get_output(0), L.LAST_VALUE)
    for name, layer in (("rows", rows), ("last", last)):
        layer.get_output(0).name = name
        network.mark_output(layer.get_output(0))
    return count


def test_a_trip_count_is_a_shape_tensor_with_a_range(network: Any, constant: Any, load: Any, execute: Any) -> None:
    assert _powers(network, constant).is_shape_tensor
    engine = load(network, {"x": ((1,), (3,), (4,))}, {"count": ((0,), (2,), (5,))})
    assert engine.get_tensor_location("count") is trt.TensorLocation.HOST
    assert engine.get_tensor_profile_values(0, "count") == [[0], [2], [5]]
    context = engine.create_execution_context()
    x = torch.randn(3)
    for trips in (4, 1, 5):
        found = execute(context, {"x": x, "count": torch.tensor(trips, dtype=torch.int32)})
        wanted = torch.stack([x * 2 ** (k + 1) if k < trips else torch.zeros(3) for k in range(6)])
        torch.testing.assert_close(found["rows"][:trips], wanted[:trips])
        torch.testing.assert_close(found["last"], x * 2**trips)
    count = torch.tensor(6, dtype=torch.int32)
    context.set_tensor_address("count", count.data_ptr())
    assert not context.execute_async_v3(0)


def test_a_loop_without_trips_keeps_the_extents(network: Any, constant: Any, load: Any, execute: Any) -> None:
    _powers(network, constant)
    engine = load(network, {"x": ((1,), (3,), (4,))}, {"count": ((0,), (2,), (5,))})
    x = torch.randn(4)
    found = execute(engine.create_execution_context(), {"x": x, "count": torch.tensor(0, dtype=torch.int32)})
    assert found["rows"].shape == (6, 4)
    torch.testing.assert_close(found["last"], x)


def test_an_iterator_without_trips_keeps_the_extents(network: Any, constant: Any, load: Any, execute: Any) -> None:
    x = network.add_input("x", trt.float32, (5, -1))
    loop = network.add_loop()
    row = loop.add_iterator(x).get_output(0)
    going = loop.add_recurrence(network.add_cast(constant(network, 0, np.int32), trt.bool).get_output(0))
    going.set_input(1, network.add_identity(going.get_output(0)).get_output(0))
    loop.add_trip_limit(going.get_output(0), trt.TripLimit.WHILE)
    both = network.add_concatenation([row, row]).get_output(0)
    rows = loop.add_loop_output(both, L.REVERSE, 1)
    rows.set_input(1, constant(network, 3, np.int32))
    network.mark_output(rows.get_output(0))
    engine = load(network, {"x": ((5, 1), (5, 3), (5, 4))})
    (found,) = execute(engine.create_execution_context(), {"x": torch.randn(5, 4)}).values()
    assert found.shape == (8, 3)
    assert not found.any()


def test_a_count_computed_from_a_shape(network: Any, constant: Any, load: Any, execute: Any) -> None:
    """Sums the rows of an input, as many as it has: the trip count follows the extents."""
    x = network.add_input("x", trt.float32, (-1, 2))
    extent = network.add_slice(network.add_shape(x).get_output(0), (0,), (1,), (1,)).get_output(0)
    scalar = network.add_shuffle(extent)
    scalar.reshape_dims = ()
    loop = network.add_loop()
    loop.add_trip_limit(scalar.get_output(0), trt.TripLimit.COUNT)
    total = loop.add_recurrence(constant(network, [0.0, 0.0]))
    row = loop.add_iterator(x).get_output(0)
    following = network.add_elementwise(total.get_output(0), row, E.SUM).get_output(0)
    total.set_input(1, following)
    kept = loop.add_loop_output(following, L.CONCATENATE)
    kept.set_input(1, scalar.get_output(0))
    network.mark_output(kept.get_output(0))
    engine = load(network, {"x": ((1, 2), (3, 2), (9, 2))})
    context = engine.create_execution_context()
    for rows in (1, 7):
        x_value = torch.randn(rows, 2)
        (found,) = execute(context, {"x": x_value}).values()
        torch.testing.assert_close(found, x_value.cumsum(0))


def test_weights_inside_of_loops_are_listed_once_and_come_back_to_a_stripped_engine(
    network: Any, constant: Any, load: Any, execute: Any, logger: Any
) -> None:
    x, trips = network.add_input("x", trt.float32, (1, 2, 4, 4)), constant(network, 2, np.int32)
    around, inner = network.add_loop(), network.add_loop()
    for loop in (around, inner):
        loop.add_trip_limit(trips, trt.TripLimit.COUNT)
    begin = around.add_recurrence(x)
    value = inner.add_recurrence(begin.get_output(0))
    kernel = np.random.default_rng(0).standard_normal((2, 2, 1, 1)).astype(np.float32)
    conv = network.add_convolution_nd(value.get_output(0), 2, (1, 1), kernel)
    conv.name = "conv"
    value.set_input(1, conv.get_output(0))
    begin.set_input(1, inner.add_loop_output(value.get_output(0), L.LAST_VALUE).get_output(0))
    network.mark_output(around.add_loop_output(begin.get_output(0), L.LAST_VALUE).get_output(0))
    engine = load(network, flags=[trt.BuilderFlag.REFIT, trt.BuilderFlag.STRIP_PLAN])
    refitter = trt.Refitter(engine, logger)
    assert ("conv", trt.WeightsRole.KERNEL) in list(zip(*refitter.get_all(), strict=True))
    assert refitter.get_missing() == (["conv"], [trt.WeightsRole.KERNEL])
    assert refitter.get_missing_weights() == ["conv KERNEL"]
    assert refitter.set_weights("conv", trt.WeightsRole.KERNEL, kernel), logger.errors
    assert refitter.refit_cuda_engine(), logger.errors
    wanted = data = torch.randn(1, 2, 4, 4)
    for _ in range(4):
        wanted = torch.nn.functional.conv2d(wanted, torch.from_numpy(kernel))
    (found,) = execute(engine.create_execution_context(), {"x": data}).values()
    torch.testing.assert_close(found, wanted)


def test_weights_inside_a_loop_can_be_refitted(
    network: Any, constant: Any, load: Any, execute: Any, logger: Any
) -> None:
    x = network.add_input("x", trt.float32, (1, 2, 4, 4))
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, 2, np.int32), trt.TripLimit.COUNT)
    value = loop.add_recurrence(x)
    kernel = np.random.default_rng(0).standard_normal((2, 2, 1, 1)).astype(np.float32)
    conv = network.add_convolution_nd(value.get_output(0), 2, (1, 1), kernel)
    conv.name = "conv"
    value.set_input(1, conv.get_output(0))
    network.mark_output(loop.add_loop_output(value.get_output(0), L.LAST_VALUE).get_output(0))
    engine = load(network, flags=[trt.BuilderFlag.REFIT])
    context = engine.create_execution_context()
    data = torch.randn(1, 2, 4, 4)

    def check(weights: Any) -> None:
        (found,) = execute(context, {"x": data}).values()
        once = torch.nn.functional.conv2d(data, torch.from_numpy(weights))
        torch.testing.assert_close(found, torch.nn.functional.conv2d(once, torch.from_numpy(weights)))

    check(kernel)
    refitter = trt.Refitter(engine, logger)
    fresh = kernel + 1
    assert refitter.set_weights("conv", trt.WeightsRole.KERNEL, fresh), logger.errors
    assert refitter.refit_cuda_engine()
    check(fresh)
    again = trt.Runtime(logger).deserialize_cuda_engine(engine.serialize())
    context = again.create_execution_context()
    check(fresh)


def test_a_conditional_survives_a_plan_with_dynamic_extents(
    network: Any, constant: Any, load: Any, execute: Any, logger: Any
) -> None:
    """The condition is computed from data; the branches differ in extents; weights in one can be refitted."""
    x = network.add_input("x", trt.float32, (-1, 3))
    total = network.add_reduce(x, trt.ReduceOperation.SUM, 0b11, False).get_output(0)
    positive = network.add_elementwise(total, constant(network, 0.0), E.GREATER).get_output(0)
    conditional = network.add_if_conditional()
    conditional.set_condition(positive)
    inner = conditional.add_input(x).get_output(0)
    factor = network.add_constant((1, 3), np.full((1, 3), 2, np.float32))
    factor.name = "factor"
    scaled = network.add_elementwise(inner, factor.get_output(0), E.PROD).get_output(0)
    doubled = network.add_concatenation([inner, inner])
    doubled.axis = 0
    result = conditional.add_output(scaled, doubled.get_output(0)).get_output(0)
    network.mark_output(result)
    engine = load(network, {"x": ((1, 3), (2, 3), (4, 3))}, flags=[trt.BuilderFlag.REFIT])
    context = engine.create_execution_context()

    def run(data: torch.Tensor) -> torch.Tensor:
        context.set_input_shape("x", tuple(data.shape))
        context.set_tensor_address("x", data.data_ptr())
        output = torch.full((2 * len(data), 3), float("nan"))
        context.set_tensor_address(engine[1], output.data_ptr())
        assert context.execute_async_v3(0), logger.errors
        return output

    data = torch.rand(4, 3) + 0.1
    torch.testing.assert_close(run(data)[:4], data * 2)
    torch.testing.assert_close(run(-data), torch.cat((-data, -data)))
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("factor", trt.WeightsRole.CONSTANT, np.full((1, 3), 5, np.float32)), logger.errors
    assert refitter.refit_cuda_engine()
    torch.testing.assert_close(run(data)[:4], data * 5)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cache_is_updated_in_place(network: Any, load: Any, logger: Any, packed: bool) -> None:
    cache = network.add_input("cache", trt.float32, (2, 3, 8, 4))
    update = network.add_input("update", trt.float32, (-1, 3, 4) if packed else (2, 3, -1, 4))
    places = network.add_input("places", trt.int32, (2,))
    layer = network.add_kv_cache_update(cache, update, places, trt.KVCacheMode.LINEAR)
    ranges = {"update": ((2, 3, 1, 4), (2, 3, 2, 4), (2, 3, 8, 4))}
    if packed:
        layer.update_form = trt.AttentionIOForm.PACKED_NHD
        layer.update_lengths = network.add_input("lengths", trt.int32, (3,))
        ranges = {"update": ((1, 3, 4), (2, 3, 4), (16, 3, 4))}
    layer.get_output(0).name = "updated"
    network.mark_output(layer.get_output(0))
    engine = load(network, ranges)
    assert engine.get_aliased_input_tensor("updated") == "cache"
    memory = torch.zeros(2, 3, 8, 4)
    fresh = torch.randn(2, 3, 2, 4)
    given = fresh.transpose(1, 2).reshape(4, 3, 4).contiguous() if packed else fresh
    at, ends = torch.tensor([1, 7], dtype=torch.int32), torch.tensor([0, 2, 4], dtype=torch.int32)
    context = engine.create_execution_context()
    context.set_input_shape("update", tuple(given.shape))
    addresses = {"cache": memory, "update": given, "places": at, **({"lengths": ends} if packed else {})}
    for name, tensor in addresses.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    elsewhere = torch.empty_like(memory)
    context.set_tensor_address("updated", elsewhere.data_ptr())
    assert not context.execute_async_v3(0)
    assert any("same address" in error for error in logger.errors)
    context.set_tensor_address("updated", memory.data_ptr())
    assert context.execute_async_v3(0), logger.errors
    wanted = torch.zeros(2, 3, 8, 4)
    wanted[0, :, 1:3] = fresh[0]
    wanted[1, :, 7] = fresh[1, :, 0]  # what lies beyond the cache is ignored
    torch.testing.assert_close(memory, wanted)


def _endless(network: Any, constant: Any, *, collects: bool, rows: int = 4) -> None:
    """A loop that its condition never ends, or one of more rows than anybody has memory for."""
    x = network.add_input("x", trt.float32, (256,))
    loop = network.add_loop()
    if collects:
        loop.add_trip_limit(constant(network, 3, np.int32), trt.TripLimit.COUNT)
    else:
        always = network.add_elementwise(constant(network, 1.0), constant(network, 2.0), E.LESS).get_output(0)
        loop.add_trip_limit(network.add_identity(always).get_output(0), trt.TripLimit.WHILE)
    state = loop.add_recurrence(x)
    state.set_input(1, network.add_activation(state.get_output(0), trt.ActivationType.TANH).get_output(0))
    kind = L.CONCATENATE if collects else L.LAST_VALUE
    result = loop.add_loop_output(state.get_output(0), kind, 0)
    if collects:
        result.set_input(1, constant(network, rows, np.int32))
    network.mark_output(result.get_output(0))


def _assert_run_fails(engine: Any) -> None:
    context = engine.create_execution_context()
    x, y = torch.ones(256), torch.empty(256)
    for name, tensor in zip(context.engine, (x, y), strict=True):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)


def test_turns_of_a_run_are_bounded(
    network: Any, constant: Any, load: Any, logger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_PORTABLE_MAX_LOOP_TURNS", "500")
    _endless(network, constant, collects=False)
    _assert_run_fails(load(network))
    assert "more than 500 turns" in logger.errors[-1] and "TRT_PORTABLE_MAX_LOOP_TURNS" in logger.errors[-1]


@pytest.mark.parametrize(
    ("said", "is_taken"), [("", True), (" 500 ", True), ("many", False), ("-1", False), ("1e3", False)]
)
@pytest.mark.parametrize("variable", ["TRT_PORTABLE_MAX_LOOP_TURNS", "TRT_PORTABLE_MAX_LOOP_BYTES"])
def test_numbers_in_the_environment_are_numbers(
    variable: str, said: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is none left a run as Python's ValueError."""
    monkeypatch.setenv(variable, said)
    if is_taken:
        assert told_number(variable) == (int(said) if said else None)
    else:
        with pytest.raises(InputError, match=f"{variable}=.* is no number from 0"):
            told_number(variable)


def test_a_run_tells_what_the_environment_says_wrongly(
    network: Any, constant: Any, load: Any, logger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_PORTABLE_MAX_LOOP_TURNS", "many")
    _endless(network, constant, collects=False)
    _assert_run_fails(load(network))
    assert "TRT_PORTABLE_MAX_LOOP_TURNS='many' is no number from 0" in logger.errors[-1]


def test_turns_follow_from_what_a_plan_and_its_inputs_hold(
    network: Any, constant: Any, load: Any, logger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition that stays true took half a minute, and says nothing of how many turns there will be."""
    monkeypatch.setattr("trt_core.limits._TURNS", (500, 1 << 20))
    _endless(network, constant, collects=False)
    _assert_run_fails(load(network))
    assert "more than 500 turns" in logger.errors[-1] and "CallLimits(loop_turns=...)" in logger.errors[-1]


def test_turns_of_loops_in_loops_count_together(
    network: Any, constant: Any, load: Any, logger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRT_PORTABLE_MAX_LOOP_TURNS", "60")
    x = network.add_input("x", trt.float32, (2,))
    count = constant(network, 8, np.int32)
    around, inside = network.add_loop(), network.add_loop()
    for loop in (around, inside):
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
    outer = around.add_recurrence(x)
    inner = inside.add_recurrence(outer.get_output(0))
    inner.set_input(1, network.add_elementwise(inner.get_output(0), x, E.SUM).get_output(0))
    outer.set_input(1, inside.add_loop_output(inner.get_output(0), L.LAST_VALUE).get_output(0))
    network.mark_output(around.add_loop_output(outer.get_output(0), L.LAST_VALUE).get_output(0))
    context = load(network).create_execution_context()
    given, found = torch.ones(2), torch.empty(2)
    for name, tensor in zip(context.engine, (given, found), strict=True):
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)
    assert "more than 60 turns" in logger.errors[-1]
    monkeypatch.setenv("TRT_PORTABLE_MAX_LOOP_TURNS", "72")
    assert context.execute_async_v3(0)
    assert found.tolist() == [65.0, 65.0]


def test_memory_of_what_loops_collect_is_bounded(network: Any, constant: Any, load: Any, logger: Any) -> None:
    """Three rows of 1 KiB, in a result of 2^30 of them, of which the rest would be zeros."""
    _endless(network, constant, collects=True, rows=1 << 30)
    context = load(network).create_execution_context()
    x = torch.ones(256)
    for name in context.engine:
        assert context.set_tensor_address(name, x.data_ptr())
    assert not context.execute_async_v3(0)
    assert "bytes in all" in logger.errors[-1]


def test_each_scope_is_looked_into_twice_however_many_there_are(
    network: Any, constant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = _powers(network, constant)
    value = network.get_output(1)
    for _ in range(20):
        loop = network.add_loop()
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        recurrence = loop.add_recurrence(value)
        recurrence.set_input(1, network.add_unary(recurrence.get_output(0), trt.UnaryOperation.NEG).get_output(0))
        value = loop.add_loop_output(recurrence.get_output(0), L.LAST_VALUE).get_output(0)
    asked = []
    entries = trt.ILoop._entries
    monkeypatch.setattr(trt.ILoop, "_entries", lambda loop: asked.append(loop) or entries(loop))
    assert sum(isinstance(layer, Region) for layer in schedule(network._layers, network._scopes)) == 21
    assert len(asked) == 2 * 21
