"""Pooling of windows that are larger than their axis, and of integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt
from trt_portable.errors import Refusal

P = trt.PaddingMode
T = trt.PoolingType
SPATIAL = [(0, 2), (0, 3)]


@pytest.mark.parametrize("kind", [T.MAX, T.AVERAGE])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1)])
def test_windows_far_larger_than_a_dynamic_input_cost_no_more_than_it(
    run_network: Any, kind: Any, before: int, after: int
) -> None:
    size = 1 << 20

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_pooling_nd(tensor, kind, (size, 2))
        layer.stride_nd, layer.padding_mode = (size, 2), P.EXPLICIT_ROUND_UP
        layer.pre_padding, layer.post_padding = (before, 0), (after, 0)
        layer.average_count_excludes_padding = False
        return layer

    x = torch.randn(1, 2, 4, 5)
    (found,) = run_network(define, x, dynamic=SPATIAL)
    wanted = F.avg_pool2d(F.pad(x, (0, 0, before, after)), (4 + before + after, 2), ceil_mode=True)
    torch.testing.assert_close(found, F.max_pool2d(x, (4, 2), ceil_mode=True) if kind is T.MAX else wanted)


def test_a_window_that_does_not_fit_is_refused_whenever_that_is_known(network: Any, run_network: Any) -> None:
    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_pooling_nd(tensor, T.MAX, (4, 2))
        layer.post_padding = (1, 0)
        return layer

    with pytest.raises(ValueError, match="should return >= 0"):  # invalid extents have no length
        len(define(network, network.add_input("x", trt.float32, (1, 2, 2, 5))).get_output(0).shape)
    assert run_network(define, torch.randn(1, 2, 3, 5), dynamic=SPATIAL)[0].shape == (1, 2, 1, 4)
    with pytest.raises(Refusal, match="a window of 4 does not fit in 3 elements"):
        run_network(define, torch.randn(1, 2, 2, 5), dynamic=SPATIAL)


@pytest.mark.parametrize("excludes", [False, True])
def test_averages_in_three_dimensions_of_windows_larger_than_the_input(run_network: Any, excludes: bool) -> None:
    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_pooling_nd(tensor, T.AVERAGE, (3, 1, 3))
        layer.padding_nd, layer.average_count_excludes_padding = (1, 0, 1), excludes
        return layer

    x = torch.randn(1, 2, 1, 4, 2)
    (found,) = run_network(define, x)
    counted = F.pad(torch.ones(1, 1, 1, 4, 2), (1, 1, 0, 0, 1, 1), value=0.0 if excludes else 1.0)
    kernel = torch.ones(1, 1, 3, 1, 3)
    sums = F.conv3d(x.transpose(0, 1), kernel, padding=(1, 0, 1)).transpose(0, 1)
    torch.testing.assert_close(found, sums / F.conv3d(counted, kernel))


def test_a_blend_of_integers_is_rounded(run_network: Any) -> None:
    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_pooling_nd(tensor, T.MAX_AVERAGE_BLEND, (1, 4))
        layer.blend_factor = 0.5
        return layer

    (found,) = run_network(define, torch.tensor([[[[-128, 1, 2, 127]]]], dtype=torch.int8))
    assert found.dtype is torch.int8 and found.tolist() == [[[[64]]]]
