"""Convolution, deconvolution and pooling, against sums over explicit windows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

P = trt.PaddingMode
T = trt.PoolingType
RELAXED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPATIAL = [(0, 2), (0, 3)]


def _padding(mode: Any, extent: int, before: int, after: int, stride: int, span: int) -> tuple[int, int, int]:
    """Padding before, padding after, and number of windows, from the documented formulas."""
    if mode in (P.SAME_UPPER, P.SAME_LOWER):
        windows = math.ceil(extent / stride)
        total = max((windows - 1) * stride + span - extent, 0)
        small = total // 2
        return (small, total - small, windows) if mode is P.SAME_UPPER else (total - small, small, windows)
    room = extent + before + after - span
    windows = (math.floor if mode is P.EXPLICIT_ROUND_DOWN else math.ceil)(room / stride) + 1
    return before, after, windows


WINDOWS = {
    "mode": st.sampled_from(list(P)),
    "kernel": st.integers(1, 3),
    "stride": st.integers(1, 3),
    "before": st.integers(0, 1),
    "after": st.integers(0, 2),
    "dynamic": st.booleans(),
}


@RELAXED
@given(**WINDOWS, dilation=st.integers(1, 2), groups=st.sampled_from([1, 2]))
def test_convolution(
    run_network: Any,
    mode: Any,
    kernel: int,
    stride: int,
    before: int,
    after: int,
    dynamic: bool,
    dilation: int,
    groups: int,
) -> None:
    x, w, b = torch.randn(2, 4, 7, 6), torch.randn(6, 4 // groups, kernel, kernel), torch.randn(6)
    span = 1 + dilation * (kernel - 1)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_convolution_nd(tensor, 6, (kernel, kernel), w.numpy(), b.numpy())
        layer.stride_nd = (stride, stride)
        layer.pre_padding, layer.post_padding = (before, before), (after, after)
        layer.padding_mode, layer.dilation_nd, layer.num_groups = mode, (dilation, dilation), groups
        return layer

    (found,) = run_network(define, x, dynamic=SPATIAL if dynamic else ())
    pads = [_padding(mode, extent, before, after, stride, span) for extent in x.shape[2:]]
    wide = np.zeros((2, 4, 30, 30))
    (top, _, rows), (left, _, columns) = pads
    wide[:, :, top : top + 7, left : left + 6] = x.double().numpy()
    wanted = np.zeros((2, 6, rows, columns))
    for channel, row, column in itertools.product(range(6), range(rows), range(columns)):
        group = channel // (6 // groups)
        size = 4 // groups
        window = wide[:, group * size : (group + 1) * size][
            :, :, row * stride : row * stride + span : dilation, column * stride : column * stride + span : dilation
        ]
        wanted[:, channel, row, column] = (window * w[channel].double().numpy()).sum((1, 2, 3)) + b[channel].item()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


@RELAXED
@given(**WINDOWS, dilation=st.integers(1, 2), groups=st.sampled_from([1, 2]))
def test_deconvolution(
    run_network: Any,
    mode: Any,
    kernel: int,
    stride: int,
    before: int,
    after: int,
    dynamic: bool,
    dilation: int,
    groups: int,
) -> None:
    x, w = torch.randn(1, 4, 4, 5), torch.randn(4, 6 // groups, kernel, kernel)
    span = 1 + dilation * (kernel - 1)
    if mode in (P.SAME_UPPER, P.SAME_LOWER):
        total = max(span - stride, 0)
        cut = (total // 2, total - total // 2)
        before, after = cut if mode is P.SAME_UPPER else cut[::-1]
    sizes = [(extent - 1) * stride + span for extent in x.shape[2:]]
    if any(size - before - after < 1 for size in sizes):
        return

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_deconvolution_nd(tensor, 6, (kernel, kernel), w.numpy())
        layer.stride_nd, layer.padding_mode = (stride, stride), mode
        layer.pre_padding, layer.post_padding = (before, before), (after, after)
        layer.dilation_nd, layer.num_groups = (dilation, dilation), groups
        return layer

    (found,) = run_network(define, x, dynamic=SPATIAL if dynamic else ())
    full = np.zeros((1, 6, *sizes))
    for group, row, column in itertools.product(range(groups), range(4), range(5)):
        inputs = slice(group * (4 // groups), (group + 1) * (4 // groups))
        outputs = slice(group * (6 // groups), (group + 1) * (6 // groups))
        stamp = np.einsum("nc,ckhw->nkhw", x[:, inputs, row, column].double(), w[inputs].double())
        full[
            :,
            outputs,
            row * stride : row * stride + span : dilation,
            column * stride : column * stride + span : dilation,
        ] += stamp
    wanted = full[:, :, before : sizes[0] - after, before : sizes[1] - after]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


@RELAXED
@given(**WINDOWS, kind=st.sampled_from(list(T)), excludes=st.booleans())
def test_pooling(
    run_network: Any,
    mode: Any,
    kernel: int,
    stride: int,
    before: int,
    after: int,
    dynamic: bool,
    kind: Any,
    excludes: bool,
) -> None:
    x = torch.randn(1, 2, 7, 6)
    pads = [_padding(mode, extent, before, after, stride, kernel) for extent in x.shape[2:]]
    wanted = np.zeros((1, 2, pads[0][2], pads[1][2]))
    for row, column in itertools.product(range(pads[0][2]), range(pads[1][2])):
        first = [row * stride - pads[0][0], column * stride - pads[1][0]]
        inner = [(max(f, 0), min(f + kernel, e)) for f, e in zip(first, (7, 6), strict=True)]
        declared = [
            (max(f, -pad[0]), min(f + kernel, e + pad[1])) for f, e, pad in zip(first, (7, 6), pads, strict=True)
        ]
        if any(low >= high for low, high in inner):
            return  # a window of padding only has no defined value
        window = x[:, :, slice(*inner[0]), slice(*inner[1])].double()
        counted = inner if excludes else declared
        area = math.prod(high - low for low, high in counted)
        largest, mean = window.amax((2, 3)), window.sum((2, 3)) / area
        wanted[:, :, row, column] = {
            T.MAX: largest,
            T.AVERAGE: mean,
            T.MAX_AVERAGE_BLEND: 0.75 * largest + 0.25 * mean,
        }[kind]

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_pooling_nd(tensor, kind, (kernel, kernel))
        layer.stride_nd, layer.padding_mode = (stride, stride), mode
        layer.pre_padding, layer.post_padding = (before, before), (after, after)
        layer.average_count_excludes_padding, layer.blend_factor = excludes, 0.25
        return layer

    (found,) = run_network(define, x, dynamic=SPATIAL if dynamic else ())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


KINDS = pytest.mark.parametrize("kind", ["convolution", "deconvolution", "pooling"])


def _add_windows(network: Any, kind: str, shape: tuple[int, ...], size: int) -> Any:
    """A layer of 2 channels whose windows are squares, over an input of a shape."""
    x = network.add_input("x", trt.float32, shape)
    if kind == "pooling":
        return network.add_pooling_nd(x, trt.PoolingType.AVERAGE, (size, size))
    add = network.add_convolution_nd if kind == "convolution" else network.add_deconvolution_nd
    return add(x, 2, (size, size), np.ones((2, 2, size, size), np.float32))


@KINDS
@pytest.mark.parametrize("dynamic", [0, 1, 2, 3])
def test_extents_that_nobody_knows_are_computed_without_pytorch(
    network: Any, monkeypatch: pytest.MonkeyPatch, kind: str, dynamic: int
) -> None:
    if dynamic == 1 and kind != "pooling":
        dynamic = 0  # filters need a constant number of channels
    shape = tuple(-1 if axis == dynamic else extent for axis, extent in enumerate((3, 2, 5, 6)))
    layer = _add_windows(network, kind, shape, 3)
    monkeypatch.setattr(type(layer), "_compute", lambda *_: pytest.fail("some releases of PyTorch refuse"))
    layer.stride_nd = (2, 2)
    spatial = (11, 13) if kind == "deconvolution" else (2, 2)
    expected = tuple(-1 if axis == dynamic else extent for axis, extent in enumerate((3, 2, *spatial)))
    assert tuple(layer.get_output(0).shape) == expected


@KINDS
@pytest.mark.parametrize("batch", [3, -1])
def test_windows_that_surely_do_not_fit_are_refused(network: Any, logger: Any, kind: str, batch: int) -> None:
    layer = _add_windows(network, kind, (batch, 2, 2, 6), 3)
    if kind == "deconvolution":
        layer.pre_padding = layer.post_padding = (2, 2)  # nothing is left of 4 rows
    with pytest.raises(ValueError, match="should return >= 0"):  # invalid extents have no length
        len(layer.get_output(0).shape)
    assert kind.upper() in logger.errors[-1]


def test_three_dimensions(run_network: Any) -> None:
    x, w = torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 2, 2, 2)
    (found,) = run_network(lambda n, t: n.add_convolution_nd(t, 3, (2, 2, 2), w.numpy()), x, dynamic=[(0, 0)])
    torch.testing.assert_close(found, F.conv3d(x, w))
    (found,) = run_network(lambda n, t: n.add_pooling_nd(t, T.MAX, (2, 2, 2)), x)
    torch.testing.assert_close(found, F.max_pool3d(x, 2, 1))


def test_kernel_and_bias_as_inputs(run_network: Any) -> None:
    x, w, b = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.randn(3)

    def define(network: Any, tensor: Any, kernel: Any, bias: Any) -> Any:
        layer = network.add_convolution_nd(tensor, 3, (3, 3), trt.Weights())
        layer.set_input(1, kernel)
        layer.set_input(2, bias)
        return layer

    torch.testing.assert_close(run_network(define, x, w, b)[0], F.conv2d(x, w, b))


@pytest.mark.parametrize("pre", [(0, 0), (1, 2), (-1, 0)])
def test_padding_with_zeros(run_network: Any, pre: tuple[int, int]) -> None:
    x = torch.randn(1, 1, 4, 4)
    (found,) = run_network(lambda n, t: n.add_padding_nd(t, pre, (2, -1)), x)
    torch.testing.assert_close(found, F.pad(x, [pre[1], -1, pre[0], 2]))
