"""Plans as an attacker writes them: known networks with changed structures, sealed again, loaded and run.

``python plan_fuzzer.py FIRST LAST [NETWORK]`` runs the cases of these seeds in one process and prints each before it
runs, so that whoever started it knows which one ended the process. `TRT_PORTABLE_GUARD_PAGES` puts operands between
pages that nobody may touch; bound memory always lies so. `TRT_FUZZ_DEVICE=cuda` runs on a GPU, where there are no such
pages: ``tools/sanitize.py`` watches there.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from guarded_memory import guarded

import trt_portable as trt
from trt_portable import enums
from trt_portable.dtypes import CARRIERS
from trt_portable.network.serialization import leaf_entries
from trt_portable.plan.plan_file import Plan, read_plan, write_plan

N, T = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
E = trt.ElementWiseOperation
DEVICE: Final = os.environ.get("TRT_FUZZ_DEVICE", "cpu")
MEMORY: Final = 3 << 30
"""Bytes of address space that a case may add; what needs more fails, as it should, without harm to others."""


class Net:
    """A network with short ways to add what most of them have."""

    def __init__(self) -> None:
        self.builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
        self.network = self.builder.create_network()
        self.random = np.random.default_rng(0)

    def input(self, name: str, shape: tuple[int, ...], dtype: Any = trt.float32) -> Any:
        return self.network.add_input(name, dtype, shape)

    def constant(self, *shape: int) -> Any:
        array = (self.random.standard_normal(shape) / 3).astype(np.float32)
        return self.network.add_constant(shape, array).get_output(0)

    def numbers(self, values: Any, dtype: Any = np.int32) -> Any:
        array = np.array(values, dtype)
        return self.network.add_constant(array.shape, array).get_output(0)

    def linear(self, x: Any, columns: int, rows: int) -> Any:
        """A linear map with a bias."""
        rank = len(x.shape)
        matrix = self.constant(*(1,) * (rank - 2), columns, rows)
        product = self.network.add_matrix_multiply(x, N, matrix, T).get_output(0)
        return self.network.add_elementwise(product, self.constant(*(1,) * (rank - 1), columns), E.SUM).get_output(0)

    def plan(self, *outputs: Any, **profile: Any) -> bytes:
        for tensor in outputs:
            self.network.mark_output(tensor)
        config = self.builder.create_builder_config()
        config.builder_optimization_level = 0
        if profile:
            ranges = self.builder.create_optimization_profile()
            for name, shapes in profile.items():
                is_shape = isinstance(shapes[0], tuple)
                (ranges.set_shape if is_shape else ranges.set_shape_input)(name, *shapes)
            config.add_optimization_profile(ranges)
        built = self.builder.build_serialized_network(self.network, config)
        assert built is not None
        return bytes(built)


def _linear() -> bytes:
    net = Net()
    x = net.input("x", (-1, 16))
    hidden = net.network.add_activation(net.linear(x, 24, 16), trt.ActivationType.RELU).get_output(0)
    return net.plan(net.linear(hidden, 8, 24), x=((1, 16), (4, 16), (6, 16)))


def _gates() -> bytes:
    net = Net()
    x = net.input("x", (-1, 16))
    hidden = net.linear(x, 24, 16)
    gate = net.network.add_activation(hidden, trt.ActivationType.SIGMOID).get_output(0)
    gated = net.network.add_elementwise(hidden, gate, E.PROD).get_output(0)
    clip = net.network.add_activation(gated, trt.ActivationType.CLIP)
    clip.alpha, clip.beta = -0.5, 2.0
    is_nan = net.network.add_unary(gated, trt.UnaryOperation.ISNAN).get_output(0)
    clamped = net.network.add_select(is_nan, gated, clip.get_output(0)).get_output(0)
    return net.plan(clamped, x=((1, 16), (4, 16), (6, 16)))


def _convolution() -> bytes:
    net = Net()
    x = net.input("x", (1, 4, 9, 9))
    weights = (net.random.standard_normal((8, 4, 3, 3)) / 3).astype(np.float32)
    layer = net.network.add_convolution_nd(x, 8, (3, 3), weights, np.zeros(8, np.float32))
    layer.stride_nd, layer.padding_nd = (2, 2), (1, 1)
    y = net.network.add_activation(layer.get_output(0), trt.ActivationType.RELU).get_output(0)
    pool = net.network.add_pooling_nd(y, trt.PoolingType.AVERAGE, (2, 2))
    pool.padding_nd = (1, 1)
    back = net.network.add_deconvolution_nd(
        pool.get_output(0), 4, (2, 2), (net.random.standard_normal((8, 4, 2, 2))).astype(np.float32)
    )
    back.stride_nd = (2, 2)
    return net.plan(back.get_output(0))


def _attention() -> bytes:
    net = Net()
    query, key, value = (net.input(name, (1, 4, rows, 8)) for name, rows in zip("qkv", (5, 7, 7), strict=True))
    layer = net.network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
    return net.plan(layer.get_output(0))


def _lstm() -> bytes:
    """As converters write it: a product of the whole sequence, and a loop over the rest."""
    net = Net()
    x = net.input("x", (5, 3, 6))
    network, width = net.network, 4
    gates = net.linear(x, 4 * width, 6)
    count = net.numbers(5)
    matrix, bias = net.constant(4 * width, width), net.constant(1, 4 * width)
    first = [net.constant(3, width) for _ in range(2)]
    loop = network.add_loop()
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    row = loop.add_iterator(gates).get_output(0)
    hidden, cell = (loop.add_recurrence(state) for state in first)
    inner = network.add_matrix_multiply(hidden.get_output(0), N, matrix, T).get_output(0)
    total = network.add_elementwise(row, network.add_elementwise(inner, bias, E.SUM).get_output(0), E.SUM).get_output(0)
    parts = [network.add_slice(total, (0, at * width), (3, width), (1, 1)).get_output(0) for at in range(4)]
    kinds = [trt.ActivationType.SIGMOID] * 2 + [trt.ActivationType.TANH, trt.ActivationType.SIGMOID]
    entry, forget, new, leave = (
        network.add_activation(part, kind).get_output(0) for part, kind in zip(parts, kinds, strict=True)
    )
    kept = network.add_elementwise(forget, cell.get_output(0), E.PROD).get_output(0)
    added = network.add_elementwise(entry, new, E.PROD).get_output(0)
    after = network.add_elementwise(kept, added, E.SUM).get_output(0)
    bent = network.add_activation(after, trt.ActivationType.TANH).get_output(0)
    shown = network.add_elementwise(leave, bent, E.PROD).get_output(0)
    hidden.set_input(1, shown)
    cell.set_input(1, after)
    rows = loop.add_loop_output(shown, trt.LoopOutput.CONCATENATE, 0)
    rows.set_input(1, count)
    return net.plan(
        rows.get_output(0), loop.add_loop_output(cell.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
    )


def _loop() -> bytes:
    net = Net()
    x = net.input("x", (2, 4))
    loop = net.network.add_loop()
    count = net.numbers(3)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    state.set_input(1, net.linear(state.get_output(0), 4, 4))
    rows = loop.add_loop_output(state.get_output(0), trt.LoopOutput.CONCATENATE, 0)
    rows.set_input(1, count)
    return net.plan(rows.get_output(0))


def _integers() -> bytes:
    net = Net()
    x, y = net.input("x", (8,), trt.int32), net.input("y", (8,), trt.int32)
    quotient = net.network.add_elementwise(x, y, E.DIV).get_output(0)
    return net.plan(net.network.add_elementwise(quotient, y, E.FLOOR_DIV).get_output(0))


def _places() -> bytes:
    net = Net()
    x, at = net.input("x", (4, 6)), net.input("at", (4, 3), trt.int32)
    network = net.network
    gathered = network.add_gather(x, at, 1).get_output(0)
    picked = network.add_gather_v2(x, at, trt.GatherMode.ELEMENT)
    picked.axis = 1
    scattered = network.add_scatter(x, at, picked.get_output(0), trt.ScatterMode.ELEMENT)
    scattered.axis = 1
    values = network.add_topk(scattered.get_output(0), trt.TopKOperation.MAX, 2, 0b10)
    one_hot = network.add_one_hot(at, net.numbers([0.0, 1.0], np.float32), net.numbers(6), -1)
    return net.plan(gathered, values.get_output(0), one_hot.get_output(0))


def _images() -> bytes:
    net = Net()
    x, grid = net.input("x", (1, 3, 6, 6)), net.input("grid", (1, 4, 4, 2))
    network = net.network
    resized = network.add_resize(x)
    resized.shape = (1, 3, 9, 7)
    resized.resize_mode = trt.InterpolationMode.LINEAR
    sampled = network.add_grid_sample(x, grid)
    padded = network.add_padding_nd(x, (1, 2), (2, 1))
    normal = network.add_lrn(x, 3, 1e-4, 0.75, 2.0)
    return net.plan(*(layer.get_output(0) for layer in (resized, sampled, padded, normal)))


def _rows() -> bytes:
    net = Net()
    x = net.input("x", (2, 6, 8))
    network = net.network
    normal = network.add_normalization_v2(x, net.constant(1, 1, 8), net.constant(1, 1, 8), 0b100).get_output(0)
    moved = network.add_shuffle(normal)
    moved.first_transpose, moved.reshape_dims = (0, 2, 1), (2, 4, 12)
    parts = [network.add_slice(moved.get_output(0), (0, 0, at), (2, 4, 6), (1, 1, 1)).get_output(0) for at in (0, 6)]
    joined = network.add_concatenation(parts)
    joined.axis = 1
    reduced = network.add_reduce(joined.get_output(0), trt.ReduceOperation.SUM, 0b100, False).get_output(0)
    running = network.add_cumulative(reduced, net.numbers(1), trt.CumulativeOperation.SUM, False, False)
    return net.plan(running.get_output(0))


def _codes() -> bytes:
    """An int8 product and an int8 convolution, as explicit quantization writes them."""
    net = Net()
    network = net.network

    def quantized(x: Any, scale: Any) -> Any:
        codes = network.add_quantize(x, scale, trt.int8).get_output(0)
        return network.add_dequantize(codes, scale, trt.float32).get_output(0)

    x = net.input("x", (4, 32))
    scale = net.numbers(0.02, np.float32)
    columns = network.add_constant((16,), np.full(16, 0.01, np.float32)).get_output(0)
    weights = net.constant(16, 32)
    held = network.add_quantize(weights, columns, trt.int8)
    held.axis = 0
    wide = network.add_dequantize(held.get_output(0), columns, trt.float32)
    wide.axis = 0
    product = network.add_matrix_multiply(quantized(x, scale), N, wide.get_output(0), T)
    return net.plan(product.get_output(0))


def _cache() -> bytes:
    net = Net()
    network = net.network
    cache, fresh, start = net.input("c", (2, 3, 8, 4)), net.input("f", (2, 3, 2, 4)), net.input("s", (2,), trt.int32)
    layer = network.add_kv_cache_update(cache, fresh, start, trt.KVCacheMode.LINEAR)
    return net.plan(layer.get_output(0))


def _few_bits() -> bytes:
    """A product with int4 weights in groups, and an int8 convolution."""
    net = Net()
    network = net.network

    def quantized(x: Any, scale: Any) -> Any:
        codes = network.add_quantize(x, scale, trt.int8).get_output(0)
        return network.add_dequantize(codes, scale, trt.float32).get_output(0)

    x, image = net.input("x", (4, 64)), net.input("i", (1, 4, 6, 6))
    groups = network.add_constant((16, 2), np.full((16, 2), 0.1, np.float32)).get_output(0)
    codes = network.add_quantize(net.constant(16, 64), groups, trt.int4).get_output(0)
    matrix = network.add_dequantize(codes, groups, trt.float32).get_output(0)
    product = network.add_matrix_multiply(x, N, matrix, T).get_output(0)
    scale = net.numbers(0.02, np.float32)
    columns = network.add_constant((8,), np.full(8, 0.01, np.float32)).get_output(0)
    held = network.add_quantize(net.constant(8, 4, 3, 3), columns, trt.int8)
    held.axis = 0
    wide = network.add_dequantize(held.get_output(0), columns, trt.float32)
    wide.axis = 0
    convolution = network.add_convolution_nd(quantized(image, scale), 8, (3, 3), trt.Weights(), trt.Weights())
    convolution.set_input(1, wide.get_output(0))
    convolution.padding_nd = (1, 1)
    return net.plan(product, convolution.get_output(0))


def _shapes() -> bytes:
    """Extents that follow from shape tensors, and from data."""
    net = Net()
    network = net.network
    x = net.input("x", (-1, 6))
    shape = network.add_shape(x).get_output(0)
    doubled = network.add_elementwise(shape, net.numbers([2, 1], np.int64), E.PROD).get_output(0)
    fill = network.add_fill((), trt.FillOperation.LINSPACE, trt.float32)
    fill.set_input(0, doubled)
    fill.set_input(1, net.numbers(1.0, np.float32))
    fill.set_input(2, net.numbers([0.5, 2.0], np.float32))
    moved = network.add_shuffle(fill.get_output(0))
    moved.reshape_dims = (-1, 3)
    picked = network.add_slice(x, (0, 1), (1, 4), (1, 1))
    picked.mode = trt.SampleMode.WRAP
    places = network.add_non_zero(picked.get_output(0)).get_output(0)
    return net.plan(moved.get_output(0), network.add_shape(places).get_output(0), x=((1, 6), (2, 6), (4, 6)))


def _boxes() -> bytes:
    net = Net()
    network = net.network
    boxes, scores = net.input("b", (1, 9, 4)), net.input("s", (1, 9, 2))
    layer = network.add_nms(boxes, scores, net.numbers(3))
    layer.set_input(3, net.numbers(0.5, np.float32))
    sums = network.add_einsum([boxes, scores], "bnc,bnk->bck").get_output(0)
    lengths = net.input("l", (1,), trt.int32)
    turned = network.add_reverse_sequence(scores, lengths)
    turned.batch_axis, turned.sequence_axis = 0, 1
    kept = network.add_parametric_relu(sums, net.constant(1, 4, 2)).get_output(0)
    chosen = network.add_select(network.add_elementwise(kept, sums, E.GREATER).get_output(0), kept, sums).get_output(0)
    return net.plan(layer.get_output(1), chosen, turned.get_output(0))


def _experts() -> bytes:
    """A mixture of experts, behind a rotary embedding at positions."""
    net = Net()
    network = net.network
    x, places = net.input("x", (1, 2, 3, 4)), net.input("p", (1, 3), trt.int32)
    turned = network.add_rotary_embedding(x, net.constant(6, 2), net.constant(6, 2), False, 4)
    turned.set_input(3, places)
    hidden, chosen, scores = (
        net.input(name, shape, dtype)
        for name, shape, dtype in (
            ("h", (1, 3, 4), trt.float32),
            ("e", (1, 3, 2), trt.int32),
            ("s", (1, 3, 2), trt.float32),
        )
    )
    layer = network.add_moe(hidden, chosen, scores)
    layer.set_gated_weights(net.constant(3, 4, 5), net.constant(3, 4, 5), net.constant(3, 5, 4), trt.MoEActType.SILU)
    return net.plan(turned.get_output(0), layer.get_output(0))


def _choice() -> bytes:
    """Branches that make different things, and a loop that ends when data say so."""
    net = Net()
    network = net.network
    x, condition = net.input("x", (2, 4)), net.input("c", (), trt.bool)
    conditional = network.add_if_conditional()
    conditional.set_condition(condition)
    inner = conditional.add_input(x).get_output(0)
    positive = network.add_activation(net.linear(inner, 4, 4), trt.ActivationType.RELU).get_output(0)
    power = network.add_unary(inner, trt.UnaryOperation.EXP).get_output(0)
    chosen = conditional.add_output(positive, power).get_output(0)
    loop = network.add_loop()
    loop.add_trip_limit(net.numbers(6), trt.TripLimit.COUNT)
    state = loop.add_recurrence(chosen)
    half = network.add_elementwise(state.get_output(0), net.constant(1, 4), E.PROD).get_output(0)
    least = network.add_reduce(half, trt.ReduceOperation.MAX, 0b11, False).get_output(0)
    loop.add_trip_limit(
        network.add_elementwise(least, net.numbers(1e-3, np.float32), E.GREATER).get_output(0), trt.TripLimit.WHILE
    )
    state.set_input(1, half)
    rows = loop.add_loop_output(half, trt.LoopOutput.REVERSE, 0)
    rows.set_input(1, net.numbers(6))
    return net.plan(
        loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0), rows.get_output(0)
    )


def _packed() -> bytes:
    """A cache that is updated by packed rows, and rows that are quantized when they are there."""
    net = Net()
    network = net.network
    cache, fresh, start = net.input("c", (2, 1, 8, 4)), net.input("f", (6, 1, 4)), net.input("s", (2,), trt.int32)
    layer = network.add_kv_cache_update(cache, fresh, start, trt.KVCacheMode.LINEAR)
    layer.update_form = trt.AttentionIOForm.PACKED_NHD
    layer.update_lengths = net.input("l", (3,), trt.int32)
    x = net.input("x", (4, 32))
    scaled = network.add_dynamic_quantize_v2(x, (1, -1), trt.int8, trt.float32)
    left = network.add_dequantize(scaled.get_output(0), scaled.get_output(1), trt.float32)
    left.block_shape = (1, -1)
    columns = network.add_constant((16,), np.full(16, 0.01, np.float32)).get_output(0)
    held = network.add_quantize(net.constant(16, 32), columns, trt.int8)
    held.axis = 0
    wide = network.add_dequantize(held.get_output(0), columns, trt.float32)
    wide.axis = 0
    product = network.add_matrix_multiply(left.get_output(0), N, wide.get_output(0), T).get_output(0)
    return net.plan(layer.get_output(0), product)


def _rotation() -> bytes:
    """Rotary embeddings of rows and of positions, in pairs of neighbours and of halves, of a part of a head and all."""
    net = Net()
    network = net.network
    x, places = net.input("x", (2, 3, 5, 8)), net.input("p", (2, 5), trt.int64)
    apart = network.add_rotary_embedding(x, net.constant(2, 5, 2), net.constant(2, 5, 2), True, 4).get_output(0)
    placed = network.add_rotary_embedding(apart, net.input("cos", (7, 4)), net.input("sin", (7, 4)), False, 0)
    placed.set_input(3, places)
    return net.plan(placed.get_output(0))


def _masked() -> bytes:
    """Attention of grouped heads under a mask, over as many keys as data say, and causal with quantized weights."""
    net = Net()
    network = net.network
    query, key, value = (
        net.input(name, (2, heads, rows, 8)) for name, heads, rows in zip("qkv", (4, 2, 2), (5, 7, 7), strict=True)
    )
    layer = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
    layer.mask = net.input("m", (2, 1, 5, 7), trt.bool)
    layer.key_value_lengths = net.input("l", (2,), trt.int32)
    other = network.add_attention_v2(
        layer.get_output(0), key, value, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.LOWER_RIGHT
    )
    other.normalization_quantize_scale = net.numbers(0.02, np.float32)
    other.normalization_quantize_to_type = trt.int8
    return net.plan(other.get_output(0))


def _sequences() -> bytes:
    """Attention of sequences that lie end to end, over others that do."""
    net = Net()
    query, key, value = (net.input(name, (rows, 2, 8)) for name, rows in zip("qkv", (6, 9, 9), strict=True))
    layer = net.network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
    layer.query_form = layer.key_value_form = trt.AttentionIOForm.PACKED_NHD
    layer.query_lengths = net.input("ql", (3,), trt.int32)
    layer.key_value_lengths = net.input("kl", (3,), trt.int32)
    return net.plan(layer.get_output(0))


def _nested() -> bytes:
    """A loop in a loop, which walks backwards through what the outer one makes, and one that data end."""
    net = Net()
    network = net.network
    x = net.input("x", (3, 4))
    outer = network.add_loop()
    outer.add_trip_limit(net.numbers(3), trt.TripLimit.COUNT)
    total = outer.add_recurrence(x)
    inner = network.add_loop()
    inner.add_trip_limit(net.numbers(3), trt.TripLimit.COUNT)
    row = inner.add_iterator(total.get_output(0), 0, True).get_output(0)
    state = inner.add_recurrence(net.constant(4))
    state.set_input(1, network.add_elementwise(state.get_output(0), row, E.SUM).get_output(0))
    rows = inner.add_loop_output(state.get_output(0), trt.LoopOutput.CONCATENATE, 0)
    rows.set_input(1, net.numbers(3))
    total.set_input(1, rows.get_output(0))
    again = network.add_loop()
    kept = again.add_recurrence(outer.add_loop_output(total.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0))
    most = network.add_reduce(kept.get_output(0), trt.ReduceOperation.MAX, 0b11, False).get_output(0)
    again.add_trip_limit(
        network.add_elementwise(most, net.numbers(0.1, np.float32), E.GREATER).get_output(0), trt.TripLimit.WHILE
    )
    kept.set_input(1, network.add_activation(kept.get_output(0), trt.ActivationType.TANH).get_output(0))
    return net.plan(again.add_loop_output(kept.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0))


def _growing() -> bytes:
    """A state that is twice as long after each turn."""
    net = Net()
    network = net.network
    x = net.input("x", (-1, 4))
    loop = network.add_loop()
    loop.add_trip_limit(net.numbers(3), trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    state.set_input(1, network.add_concatenation([state.get_output(0)] * 2).get_output(0))
    last = loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE).get_output(0)
    return net.plan(
        network.add_reduce(last, trt.ReduceOperation.SUM, 0b01, False).get_output(0), x=((1, 4), (2, 4), (4, 4))
    )


def _told() -> bytes:
    """Extents, counts and places that come as data."""
    net = Net()
    network = net.network
    x = net.input("x", (4, 6))
    two, one = (net.numbers(numbers) for numbers in ([1, 2], [1, 1]))
    part = network.add_slice(x, (0, 0), (2, 3), (1, 1))
    for at, tensor in enumerate((one, two, one)):
        part.set_input(at + 1, tensor)
    found = network.add_topk(x, trt.TopKOperation.MIN, 2, 0b10)
    found.set_input(1, net.numbers(3))
    pairs = network.add_non_zero(x).get_output(0)
    chosen = network.add_gather_v2(x, network.add_shuffle(pairs).get_output(0), trt.GatherMode.ND)
    turned = network.add_shuffle(pairs)
    turned.first_transpose = (1, 0)
    chosen.set_input(1, turned.get_output(0))
    written = network.add_scatter(x, net.input("at", (3, 2), trt.int64), net.input("u", (3,)), trt.ScatterMode.ND)
    wide = network.add_unsqueeze(written.get_output(0), net.numbers([0]))
    back = network.add_squeeze(wide.get_output(0), net.numbers([0]))
    sums = network.add_reduce(chosen.get_output(0), trt.ReduceOperation.SUM, 0b1, False).get_output(0)
    return net.plan(part.get_output(0), found.get_output(1), sums, back.get_output(0))


class Repeat(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    """A plugin that writes its input twice, side by side."""

    def __init__(self, factor: int) -> None:
        for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
            base.__init__(self)
        self.factor = factor
        self.num_outputs, self.plugin_name, self.plugin_version, self.plugin_namespace = 1, "Twice", "1", ""

    def get_capability_interface(self, type: Any) -> Any:  # noqa: A002 (the name is TensorRT's)
        return self

    def clone(self) -> Any:
        return Repeat(self.factor)

    def get_output_data_types(self, input_types: Any) -> Any:
        return [input_types[0]]

    def get_output_shapes(self, inputs: Any, shape_inputs: Any, exprBuilder: Any) -> Any:
        shape = trt.DimsExprs(2)
        shape[0] = inputs[0][0]
        shape[1] = exprBuilder.operation(trt.DimensionOperation.PROD, inputs[0][1], exprBuilder.constant(2))
        return [shape]

    def supports_format_combination(self, pos: int, in_out: Any, num_inputs: int) -> bool:
        return bool(in_out[pos].desc.format == trt.TensorFormat.LINEAR)

    def configure_plugin(self, in_: Any, out: Any) -> None:
        pass

    def on_shape_change(self, in_: Any, out: Any) -> None:
        pass

    def attach_to_context(self, context: Any) -> Any:
        return Repeat(self.factor)

    def get_fields_to_serialize(self) -> Any:
        return trt.PluginFieldCollection([trt.PluginField("factor", np.array([self.factor], np.int32))])

    def get_valid_tactics(self) -> list[int]:
        return []

    def set_tactic(self, tactic: int) -> None:
        pass

    def enqueue(
        self, input_desc: Any, output_desc: Any, inputs: Any, outputs: Any, workspace: Any, stream: Any
    ) -> None:
        """Writes what the engine says that there is room for."""
        outputs[0].tensor.copy_(inputs[0].tensor.repeat(1, 2) * self.factor)


class RepeatCreator(trt.IPluginCreatorV3One):
    """Makes them, for plans."""

    def __init__(self) -> None:
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "Twice", "1", ""
        self.field_names = trt.PluginFieldCollection([trt.PluginField("factor")])

    def create_plugin(self, name: str, field_collection: Any, phase: Any) -> Any:
        return Repeat(int(field_collection[0].data[0]))


_CREATOR: Final = RepeatCreator()


def _plugin() -> bytes:
    net = Net()
    trt.get_plugin_registry().register_creator(_CREATOR)
    x = net.input("x", (2, 3))
    layer = net.network.add_plugin_v3([x], [], Repeat(5))
    return net.plan(net.network.add_unary(layer.get_output(0), trt.UnaryOperation.ABS).get_output(0))


def _ranks() -> bytes:
    """Collectives of two ranks, which run where this process has joined a group that only seems to have another one."""
    net = Net()
    summed = net.network.add_dist_collective(
        net.input("x", (4, 6)), trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, [0, 1]
    )
    part = net.network.add_dist_collective(
        net.linear(summed.get_output(0), 6, 6), trt.CollectiveOperation.SCATTER, trt.ReduceOperation.NONE, 1, [0, 1]
    )
    summed.num_ranks = part.num_ranks = 2
    part.metadata = "process group 'tp'"
    x = part.get_output(0)
    kinds = trt.CollectiveOperation
    for kind, reduction, root in (
        (kinds.ALL_GATHER, trt.ReduceOperation.NONE, -1),
        (kinds.REDUCE_SCATTER, trt.ReduceOperation.MAX, -1),
        (kinds.BROADCAST, trt.ReduceOperation.NONE, 0),
        (kinds.ALL_TO_ALL, trt.ReduceOperation.NONE, -1),
        (kinds.GATHER, trt.ReduceOperation.NONE, 0),
    ):
        layer = net.network.add_dist_collective(x, kind, reduction, root, [0, 1])
        layer.num_ranks = 2
        x = layer.get_output(0)
    return net.plan(x)


NETWORKS: Final[dict[str, Callable[[], bytes]]] = {
    "experts": _experts,
    "choice": _choice,
    "packed": _packed,
    "plugin": _plugin,
    "linear": _linear,
    "gates": _gates,
    "convolution": _convolution,
    "attention": _attention,
    "lstm": _lstm,
    "loop": _loop,
    "integers": _integers,
    "places": _places,
    "images": _images,
    "rows": _rows,
    "codes": _codes,
    "cache": _cache,
    "few bits": _few_bits,
    "shapes": _shapes,
    "boxes": _boxes,
    "rotation": _rotation,
    "masked": _masked,
    "sequences": _sequences,
    "nested": _nested,
    "growing": _growing,
    "told": _told,
}
FORGED: Final = {**NETWORKS, "ranks": _ranks}
"""All that are changed; those of other ranks run nowhere by themselves."""
INTEGERS: Final = (0, 1, -1, 2, 3, 5, 8, 64, 1000, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63))
SMALL: Final = (0, 1, -1, 2, 3, 5, 8, 16)
NAMES: Final = tuple(
    name
    for kind in vars(enums).values()
    if isinstance(kind, type) and hasattr(kind, "__members__")
    for name in kind.__members__
)


def _leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value that is no list or object, as what holds it and where."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)):
            yield from _leaves(value)
        else:
            yield tree, key


def changed(plan: Plan, chance: random.Random) -> bytes:
    """A plan with one to three changes of its structure, sealed again."""
    structure = json.loads(json.dumps(plan.structure))
    network, engine = structure["network"], structure["engine"]
    if chance.random() < 0.7:
        engine["prepacked"] = True
        for layer in leaf_entries(network["layers"]):
            layer["implementation"] = layer["implementation"] or chance.choice(("onednn", "mkl", "layers", "recurrent"))
    for _ in range(chance.randint(1, 3)):
        part = chance.choices((network["layers"], network["tensors"], engine["io"], engine), (6, 4, 1, 1))[0]
        places = list(_leaves(part))
        holder, key = chance.choice(places)
        value = holder[key]
        if isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, int):
            holder[key] = chance.choice(SMALL if chance.random() < 0.7 else INTEGERS)
        elif isinstance(value, float):
            holder[key] = chance.choice((0.0, -1.0, 1e30, float(chance.choice(SMALL))))
        elif isinstance(value, str) and value in NAMES:
            holder[key] = chance.choice(NAMES)
        if part is network["tensors"] and chance.random() < 0.8:
            _agree(structure)
    if chance.random() < 0.3:
        _rewire(network, engine, chance)
    return bytes(write_plan({"network": network, "engine": engine}, plan.weights, structure["features"]))


def _rewire(network: dict[str, Any], engine: dict[str, Any], chance: random.Random) -> None:
    """What no change of one value makes: other operands, other weights, lists of other lengths, layers twice."""
    layers = list(leaf_entries(network["layers"]))
    layer, kind = chance.choice(layers), chance.randrange(5)
    ids = [tensor["id"] for tensor in network["tensors"]]
    if kind == 0 and layer["inputs"]:
        layer["inputs"][chance.randrange(len(layer["inputs"]))] = chance.choice([*ids, None])
    elif kind == 1 and len(engine["weight_slots"]) > 1:
        first, second = chance.sample(engine["weight_slots"], 2)
        first["weights"], second["weights"] = second["weights"], first["weights"]
    elif kind == 2:
        lists = [value for value in layer["attributes"].values() if isinstance(value, list)]
        for numbers in lists[:1]:
            numbers.append(chance.choice(SMALL)) if chance.random() < 0.5 or not numbers else numbers.pop()
    elif kind == 3:
        tensor = chance.choice(network["tensors"])
        shape = tensor["shape"]
        shape.insert(chance.randint(0, len(shape)), chance.choice(SMALL)) if chance.random() < 0.5 or not shape else (
            shape.pop()
        )
    else:
        network["layers"].insert(chance.randint(0, len(network["layers"])), json.loads(json.dumps(layer)))


def _agree(structure: dict[str, Any]) -> None:
    """Lets bindings and profiles say what the tensors say."""
    tensors = {tensor["id"]: tensor for tensor in structure["network"]["tensors"]}
    for binding in structure["engine"]["io"]:
        tensor = tensors.get(binding["id"])
        if tensor is not None:
            binding["shape"], binding["dtype"] = list(tensor["shape"]), tensor["dtype"]
            binding["extents"] = []
    structure["engine"]["profiles"] = [{"shapes": {}, "values": {}, "extra_memory_target": 1.0}]


def run(plan: bytes, chance: random.Random) -> str:
    """Loads and runs a plan as an application does; says how it ended.

    Raises:
        Exception: What should not leave the API did.
    """
    engine = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(plan)
    if engine is None:
        return "refused"
    context = engine.create_execution_context()
    if context is None:
        return "no context"
    held = []
    for name in engine:
        if engine.get_tensor_mode(name) is not trt.TensorIOMode.INPUT:
            continue
        declared = tuple(engine.get_tensor_shape(name))
        assert min(declared, default=0) >= 0 or not context.set_input_shape(name, declared), "a negative extent"
        extents = [extent if extent >= 0 else chance.choice((1, 2, 4)) for extent in declared]
        if not context.set_input_shape(name, extents) or np.prod(extents, dtype=object) > 1 << 20:
            return "no shape"
        size = context._shapes.by_name[name].bytes_of(tuple(extents))  # no more than the engine says, of codes too
        given = torch.zeros(size, dtype=torch.uint8)
        if engine.get_tensor_format(name) is trt.TensorFormat.LINEAR and size:
            drawn = _random(extents, CARRIERS[engine.get_tensor_dtype(name)], chance).reshape(-1)
            given = drawn.view(torch.uint8)[:size]
        held.append(_bound(given, engine.get_tensor_location(name)))
        context.set_tensor_address(name, held[-1].data_ptr())
    for name in engine:
        if engine.get_tensor_mode(name) is trt.TensorIOMode.OUTPUT:
            size = context.get_max_output_size(name)
            if size < 0:
                return "no size"  # such outputs want an allocator
            if size > 1 << 26:
                return "too large"
            held.append(_bound(torch.zeros(max(size, 1), dtype=torch.uint8), engine.get_tensor_location(name)))
            context.set_tensor_address(name, held[-1].data_ptr())
    outcomes = {context.execute_async_v3(0) for _ in range(2)}
    if DEVICE != "cpu":
        torch.cuda.synchronize()
    return "ran" if outcomes == {True} else "failed"


def _bound(tensor: torch.Tensor, location: trt.TensorLocation) -> torch.Tensor:
    """Memory where the engine says that it reads or writes it."""
    return guarded(tensor) if DEVICE == "cpu" or location is trt.TensorLocation.HOST else tensor.to(DEVICE)


def _random(extents: list[int], dtype: torch.dtype, chance: random.Random) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(extents).to(dtype)
    if dtype is torch.bool:
        return torch.rand(extents) < 0.5
    info = torch.iinfo(dtype)
    values = torch.tensor([0, 1, -1 if info.min < 0 else 2, 2, 3, info.min, info.max], dtype=dtype)
    return values[torch.randint(0, len(values), extents)]


def main(first: int, last: int, only: str = "") -> None:
    """Runs the cases of some seeds."""
    torch.set_num_threads(1)
    plans = {name: read_plan(make()) for name, make in FORGED.items() if only in ("", name)}
    names = sorted(plans)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if DEVICE != "cpu":  # what drivers and libraries of a GPU map is no memory of a case, and is much
        torch.ones(8, 8, device=DEVICE).matmul(torch.ones(8, 8, device=DEVICE))
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, hard))
    counts: dict[str, int] = {}
    for seed in range(first, last):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        name = chance.choice(names)
        sys.stdout.write(f"case {seed} {name}\n")
        sys.stdout.flush()
        try:
            plan = changed(plans[name], chance)
        except (ValueError, OverflowError):
            continue  # what JSON cannot say
        outcome = run(plan, chance)
        counts[outcome] = counts.get(outcome, 0) + 1
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    with trt.device(DEVICE):
        main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
