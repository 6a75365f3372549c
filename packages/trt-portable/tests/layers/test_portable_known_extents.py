"""Layers whose output is as large as their first input, whatever data decide of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt


def _places(network: Any, mask: Any) -> Any:
    """(n, rank): where a mask is set."""
    layer = network.add_shuffle(network.add_non_zero(mask).get_output(0))
    layer.first_transpose = (1, 0)
    return layer.get_output(0)


def _scatter_nd(network: Any, x: Any, mask: Any) -> Any:
    places = _places(network, mask)
    updates = network.add_gather_v2(x, places, trt.GatherMode.ND).get_output(0)
    doubled = network.add_elementwise(updates, updates, trt.ElementWiseOperation.SUM).get_output(0)
    return network.add_scatter(x, places, doubled, trt.ScatterMode.ND)


def _scatter_elements(network: Any, x: Any, mask: Any) -> Any:
    flat = network.add_shuffle(x)
    flat.reshape_dims = (-1,)
    column = network.add_shuffle(mask)
    column.reshape_dims = (-1,)
    places = network.add_shuffle(_places(network, column.get_output(0)))
    places.reshape_dims = (-1,)
    updates = network.add_gather(flat.get_output(0), places.get_output(0), 0).get_output(0)
    doubled = network.add_elementwise(updates, updates, trt.ElementWiseOperation.SUM).get_output(0)
    return network.add_scatter(flat.get_output(0), places.get_output(0), doubled, trt.ScatterMode.ELEMENT)


def _slopes(network: Any, x: Any, mask: Any) -> Any:
    places = _places(network, mask)
    count = network.add_shape(places).get_output(0)
    cut = network.add_slice(count, (0,), (1,), (1,)).get_output(0)
    scalar = network.add_shuffle(network.add_cast(cut, trt.float32).get_output(0))
    scalar.reshape_dims = (1, 1)
    slopes = network.add_slice(scalar.get_output(0), (0, 0), (1, 1), (1, 1)).get_output(0)
    return network.add_parametric_relu(x, slopes)


CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "scatter by coordinates": (_scatter_nd, lambda x, m: torch.where(m, 2 * x, x)),
    "scatter of elements": (_scatter_elements, lambda x, m: torch.where(m, 2 * x, x).reshape(-1)),
    "slopes": (_slopes, lambda x, m: torch.where(x < 0, x * m.sum(), x)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_output_has_the_extents_of_the_data(
    network: Any, load: Any, execute: Any, case: str, dynamic: bool
) -> None:
    define, compute = CASES[case]
    shape = (-1, 4) if dynamic else (3, 4)
    x, mask = network.add_input("x", trt.float32, shape), network.add_input("mask", trt.bool, shape)
    output = define(network, x, mask).get_output(0)
    output.name = "y"
    network.mark_output(output)
    ranges = dict.fromkeys(("x", "mask"), ((1, 4), (3, 4), (9, 4)))
    context = load(network, ranges if dynamic else None).create_execution_context()
    value, chosen = torch.randn(3, 4), torch.rand(3, 4) > 0.5
    wanted = compute(value, chosen)
    for name in ("x", "mask"):
        assert context.set_input_shape(name, (3, 4))
    assert tuple(context.get_tensor_shape("y")) == tuple(wanted.shape)
    assert context.get_max_output_size("y") == wanted.nbytes
    found = execute(context, {"x": value, "mask": chosen})["y"]
    torch.testing.assert_close(found, wanted)


def test_the_marked_classes_are_true(network: Any, constant: Any) -> None:
    """Every layer class that claims so was run here with other inputs of several extents."""
    marked = {kind.__name__ for kind in trt.ILayer.__subclasses__() if kind._LIKE_FIRST_INPUT}
    x = network.add_input("x", trt.float32, (2, 3, 8, 8))
    scale = constant(network, np.ones(3))
    lengths = constant(network, [1, 2], np.int32)
    table, row = constant(network, np.ones((2, 8, 4))), constant(network, np.ones((1, 3, 1, 1)))
    places, update = constant(network, [[0, 1]], np.int32), constant(network, np.ones((1, 8, 8)))
    layers = [
        network.add_parametric_relu(x, row),
        network.add_normalization_v2(x, row, row, 0b1100),
        network.add_scatter(x, places, update, trt.ScatterMode.ND),
        network.add_cumulative(x, constant(network, 1, np.int32), trt.CumulativeOperation.SUM, False, False),
        network.add_kv_cache_update(x, constant(network, np.ones((2, 3, 1, 8))), lengths, trt.KVCacheMode.LINEAR),
        network.add_rotary_embedding(x, table, table, False, 0),
        network.add_softmax(x),
        network.add_lrn(x, 3, 1e-4, 0.75, 1.0),
        network.add_scale(x, trt.ScaleMode.UNIFORM, trt.Weights(), trt.Weights(), trt.Weights()),
    ]
    reverse = network.add_reverse_sequence(x, lengths)
    reverse.batch_axis, reverse.sequence_axis = 0, 2
    quantized = network.add_quantize(x, scale, trt.int8)
    quantized.axis = 1
    dequantized = network.add_dequantize(quantized.get_output(0), scale, trt.float32)
    dequantized.axis = 1
    ragged_input = network.add_input("r", trt.float32, (2, 5, 1))
    ragged = network.add_ragged_softmax(ragged_input, constant(network, [[1], [2]], np.int32))
    layers += [reverse, quantized, dequantized, *([ragged] if ragged is not None else [])]
    for layer in layers:
        assert tuple(layer.get_output(0).shape) == tuple(layer.get_input(0).shape), layer
    assert marked - {"IRaggedSoftMaxLayer"} <= {type(layer).__name__ for layer in layers}
