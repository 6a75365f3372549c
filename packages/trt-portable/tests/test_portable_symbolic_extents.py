"""Extents that layers say of symbolic inputs without running their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from counted_calls import count_calls

import trt_portable as trt
from trt_core.internals import ShapeEnv
from trt_portable.network.inference import known_facts
from trt_portable.network.layer import ILayer

E = trt.ElementWiseOperation
M = trt.MatrixOperation


def _matrix_products(network: Any, x: Any, y: Any) -> list[Any]:
    """Products of x (n, 4, m), y (n, 4, m) and vectors of them."""
    row = network.add_reduce(x, trt.ReduceOperation.SUM, 0b10, False).get_output(0)
    layers = [
        network.add_matrix_multiply(x, M.NONE, y, M.TRANSPOSE),
        network.add_matrix_multiply(x, M.TRANSPOSE, y, M.NONE),
        network.add_matrix_multiply(x, M.NONE, row, M.VECTOR),
        network.add_matrix_multiply(row, M.VECTOR, y, M.TRANSPOSE),
        network.add_matrix_multiply(row, M.VECTOR, row, M.VECTOR),
    ]
    one = network.add_reduce(x, trt.ReduceOperation.MAX, 0b01, True).get_output(0)
    return [*layers, network.add_matrix_multiply(one, M.NONE, y, M.TRANSPOSE)]


def _attentions(network: Any) -> list[Any]:
    """Attentions of four heads with keys of their own length, with two heads of keys, and masks, to begin with."""
    queries = network.add_input("queries", trt.float32, (-1, 4, -1, 8))
    length = network.add_input("keys", trt.float32, (-1, 2, -1, 8))
    keys = network.add_elementwise(length, length, E.SUM).get_output(0)
    one, few = (network.add_input(name, trt.float32, (1, 4, rows, 8)) for name, rows in (("one", -1), ("few", 1)))
    mask = network.add_input("mask", trt.bool, (-1, 1, 1, 1))
    row = network.add_input("row", trt.float32, (-1, 4, -1, 5))
    keys_of_row = network.add_input("keys_of_row", trt.float32, (1, 4, 5, 8))
    kind, causal = trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.LOWER_RIGHT
    added = [
        network.add_attention_v2(queries, queries, queries, kind, trt.CausalMaskKind.NONE),
        network.add_attention_v2(queries, keys, length, kind, causal),
        network.add_attention_v2(queries, one, one, kind, causal),
        network.add_attention_v2(one, one, one, kind, trt.CausalMaskKind.NONE),
        network.add_attention_v2(few, keys_of_row, keys_of_row, kind, trt.CausalMaskKind.NONE),
    ]
    added[-2].mask, added[-1].mask = mask, row
    return [layer for each in added for layer in (each._input, each._output)]


def _along_last(layer: Any) -> Any:
    layer.axis = 2
    return layer


def _shared(layer: Any) -> Any:
    layer.num_elementwise_dims = 1
    return layer


@pytest.fixture
def layers(network: Any, constant: Any) -> list[Any]:
    """Layers of a network with inputs of dynamic extents."""
    x = network.add_input("x", trt.float32, (-1, 4, -1))
    y = network.add_unary(x, trt.UnaryOperation.ABS).get_output(0)
    picture = network.add_input("picture", trt.float32, (-1, 3, -1, -1))
    total = network.add_reduce(x, trt.ReduceOperation.SUM, 0b100, True).get_output(0)
    flags = network.add_unary(total, trt.UnaryOperation.ISINF).get_output(0)
    places = network.add_input("places", trt.int64, (2, -1))
    pairs = network.add_input("pairs", trt.int64, (-1, -1, 2))
    cube = network.add_cast(y, trt.int64).get_output(0)
    rows, axis = constant(network, np.ones(4), np.int32), constant(network, 2, np.int32)
    column = constant(network, np.ones((1, 4, 1)))
    return [
        *(network.add_elementwise(x, y, op) for op in (E.SUM, E.DIV, E.POW, E.FLOOR_DIV, E.LESS)),
        network.add_elementwise(x, column, E.PROD),
        network.add_elementwise(flags, flags, E.AND),
        *(network.add_unary(x, op) for op in (trt.UnaryOperation.EXP, trt.UnaryOperation.ISNAN)),
        network.add_unary(flags, trt.UnaryOperation.NOT),
        network.add_activation(x, trt.ActivationType.SOFTSIGN),
        network.add_select(flags, x, y),
        network.add_cast(x, trt.int32),
        *(network.add_reduce(x, trt.ReduceOperation.AVG, 0b101, keep) for keep in (True, False)),
        network.add_softmax(x),
        network.add_gather(x, places, 1),
        network.add_concatenation([x, y]),
        _along_last(network.add_concatenation([x, total, y])),
        network.add_scale(picture, trt.ScaleMode.CHANNEL, np.ones(3, np.float32), np.ones(3, np.float32), None),
        network.add_normalization_v2(x, column, column, 0b110),
        network.add_lrn(picture, 3, 1e-4, 0.75, 1.0),
        network.add_cumulative(x, axis, trt.CumulativeOperation.SUM, True, True),
        network.add_reverse_sequence(x, rows),
        network.add_scatter(x, cube, y, trt.ScatterMode.ELEMENT),
        network.add_gather_v2(x, cube, trt.GatherMode.ELEMENT),
        network.add_gather_v2(x, pairs, trt.GatherMode.ND),
        _shared(network.add_gather_v2(x, pairs, trt.GatherMode.ND)),
        network.add_einsum([x, y, column], "abc,dbc,ebf->adf"),
        *_matrix_products(network, x, y),
        *_attentions(network),
    ]


def _defined(layer: Any) -> tuple[Any, ...]:
    """What the definition of a layer makes of its inputs."""
    inference = layer._network._inference
    with inference.symbols.mode():
        facts: tuple[Any, ...] = inference._facts(layer, layer._compute([inference._value(x) for x in layer._inputs]))
    inference.symbols.settle()
    return facts


def test_what_layers_say_is_what_their_definitions_make(layers: Sequence[Any]) -> None:
    for layer in layers:
        said = known_facts(layer, layer._network._inference.symbols)
        assert said is not None, layer
        assert said == _defined(layer), layer


def _sliced(network: Any, x: Any, told: Any, axis: Any) -> Any:
    layer = network.add_slice(x, (0,) * 7, (1,) * 7, (1,) * 7)
    layer.mode = trt.SampleMode.FILL
    layer.set_input(1, told)
    layer.set_input(2, told)
    return layer


def _places(network: Any, x: Any) -> Any:
    return network.add_cast(x, trt.int32).get_output(0)


def _flattened(network: Any, x: Any, told: Any, axis: Any) -> Any:
    layer = network.add_shuffle(x)
    layer.reshape_dims = (0, 0, 0, -1)
    return layer


@pytest.mark.parametrize(
    "add",
    [
        *(_sliced, _flattened),
        lambda net, x, told, axis: net.add_squeeze(net.add_unsqueeze(x, axis).get_output(0), axis),
        lambda net, x, told, axis: net.add_cumulative(x, axis, trt.CumulativeOperation.SUM, False, False),
        lambda net, x, told, axis: net.add_scatter(x, _places(net, x), x, trt.ScatterMode.ELEMENT),
        lambda net, x, told, axis: net.add_gather_v2(x, _places(net, x), trt.GatherMode.ELEMENT),
        lambda net, x, told, axis: net.add_einsum([x, x], "abcdefg,abcdefg->abc"),
    ],
)  # fmt: skip
def test_new_symbols_cost_little(network: Any, constant: Any, add: Any) -> None:
    """PyTorch compares products of so many symbols for a second, where it asks in which order a tensor lies."""
    axis = constant(network, 2, np.int32)

    def extents(name: str) -> Any:
        x, told = network.add_input(name, trt.float32, (-1,) * 7), network.add_input(f"{name}s", trt.int64, (7,))
        return add(network, x, told, axis).get_output(0).shape

    extents("x")  # which imports what there is to import
    assert count_calls(lambda: extents("y")) < 100_000


def test_no_definition_runs_for_layers_that_say_what_they_make(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    for kind in ILayer.__subclasses__():
        compute = kind._compute

        def counted(layer: Any, inputs: Any, compute: Any = compute) -> Any:
            evaluated.append(type(layer).__name__)
            return compute(layer, inputs)

        monkeypatch.setattr(kind, "_compute", counted)
    x = network.add_input("x", trt.float32, (-1, 4, -1))
    for _ in range(20):
        product = network.add_matrix_multiply(x, M.NONE, x, M.TRANSPOSE).get_output(0)
        scores = network.add_softmax(product).get_output(0)
        update = network.add_matrix_multiply(scores, M.NONE, x, M.NONE).get_output(0)
        x = network.add_elementwise(x, update, E.SUM).get_output(0)
    assert evaluated == []


def test_extents_that_may_agree_are_said_as_the_definition_makes_them(network: Any) -> None:
    x, y, z = (network.add_input(name, trt.float32, (-1, 4)) for name in "xyz")
    fixed = network.add_input("fixed", trt.float32, (3, 4))
    flags = network.add_unary(z, trt.UnaryOperation.ISNAN).get_output(0)
    wide = network.add_input("wide", trt.float32, (-1, -1))
    layers = [
        *(network.add_elementwise(left, right, E.SUM) for left, right in ((x, y), (y, x), (x, fixed), (fixed, y))),
        *(network.add_select(flags, left, right) for left, right in ((x, y), (y, fixed))),
        network.add_matrix_multiply(x, M.TRANSPOSE, wide, M.NONE),
        network.add_matrix_multiply(wide, M.NONE, fixed, M.NONE),
    ]
    for layer in layers:
        said = known_facts(layer, network._inference.symbols)
        assert said is not None and said == _defined(layer), layer


def test_tensors_that_are_joined_agree_around_the_axis(network: Any) -> None:
    parts = [network.add_input(name, trt.float32, extents) for name, extents in (("x", (-1, -1)), ("y", (5, 4)))]
    layer = network.add_concatenation(parts)
    (joined,) = layer._known_facts(network._inference.symbols)
    assert (joined.extents[0] - 5).is_Symbol and joined.extents[1] == 4
    row = network.add_input("row", trt.float32, (-1,))
    (doubled,) = network.add_concatenation([row, row])._known_facts(network._inference.symbols)
    assert doubled.extents == (2 * row._extents[0],)


def test_extents_that_may_differ_are_left_to_the_definition(network: Any) -> None:
    x, y = (network.add_input(name, trt.float32, (-1, 4)) for name in "xy")
    layer = network.add_elementwise(network.add_concatenation([x, y]).get_output(0), x, E.SUM)
    assert layer._known_facts(network._inference.symbols) is None
    assert tuple(layer.get_output(0).shape) == (-1, 4)
    queries = network.add_input("queries", trt.float32, (2, 4, -1, 8))
    kinds = trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE
    attention = network.add_attention_v2(queries, queries, queries, *kinds)
    attention.mask = network.add_input("mask", trt.bool, (2, 4, -1, -1))
    assert attention._output._known_facts(network._inference.symbols) is None
    assert tuple(attention.get_output(0).shape) == (2, 4, -1, 8)


def test_layers_know_the_symbols_alone_that_they_are_given(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    create = ShapeEnv.create_unbacked_symint

    def counted(environment: Any, *arguments: Any) -> Any:
        made.append(environment)
        return create(environment, *arguments)

    monkeypatch.setattr(ShapeEnv, "create_unbacked_symint", counted)
    inputs = [network.add_input(f"x{at}", trt.float32, (-1,)) for at in range(40)]
    assert not made
    for left, right in pairwise(inputs):
        both = network.add_concatenation([left, right]).get_output(0)
        layer = network.add_elementwise(both, left, E.SUM)  # for which PyTorch assumes that an extent is another
        assert tuple(layer.get_output(0).shape) == (-1,)
    assert len(made) <= 4 * len(inputs)


def test_what_data_tells_has_a_number_of_its_own(network: Any) -> None:
    x, y = (network.add_input(name, trt.float32, (-1, 4)) for name in "xy")
    places = [network.add_non_zero(tensor, trt.int64).get_output(0) for tensor in (x, y, x)]
    z = network.add_input("z", trt.float32, (-1,))
    counts = [tensor._extents[-1] for tensor in (*places, z)]
    assert len({str(count) for count in (x._extents[0], y._extents[0], *counts)}) == 6


@pytest.mark.timeout(60)  # PyTorch multiplies expressions out before it compares them: twice the time for each square
@pytest.mark.parametrize("grow", ["squares", "products of sums"])
def test_expressions_without_end_are_sizes_that_only_a_run_tells(network: Any, constant: Any, grow: str) -> None:
    def size(name: str) -> Any:
        shape = network.add_shape(network.add_input(name, trt.float32, (-1,))).get_output(0)
        one = network.add_constant((1,), np.ones(1, np.int64)).get_output(0)
        return network.add_elementwise(shape, one, E.SUM).get_output(0)

    number = size("x")
    for step in range(24):
        other = number if grow == "squares" else size(f"x{step}")
        number = network.add_elementwise(number, other, E.PROD).get_output(0)
    fill = network.add_fill((0,), trt.FillOperation.LINSPACE, trt.float32)
    fill.set_input(0, number)
    fill.set_input(1, constant(network, np.zeros(())))
    fill.set_input(2, constant(network, np.ones(1)))
    assert tuple(fill.get_output(0).shape) == (-1,)
    expression = fill.get_output(0)._extents[0]
    assert len(expression.free_symbols) < 8 and len(str(expression)) < 400


def test_a_sum_of_many_extents_stays_one(network: Any) -> None:
    parts = [network.add_input(f"x{at}", trt.float32, (-1, 4)) for at in range(100)]
    joined = network.add_concatenation(parts)
    joined.axis = 0
    assert len(joined.get_output(0)._extents[0].free_symbols) == 100


def test_the_largest_along_an_axis_of_unknown_extent(network: Any) -> None:
    x = network.add_input("x", trt.float32, (-1, -1))
    layer = network.add_topk(x, trt.TopKOperation.MAX, 3, 0b10)
    assert [tuple(layer.get_output(i).shape) for i in range(2)] == [(-1, 3), (-1, 3)]
