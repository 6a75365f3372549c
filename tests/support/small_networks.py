"""Networks of one layer, as `make_engine` takes their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trt_core import trt


def relu(network: Any, tensors: Sequence[Any]) -> list[Any]:
    """y = relu(x)."""
    return [network.add_activation(tensors[0], trt.ActivationType.RELU).get_output(0)]


def double(network: Any, tensors: Sequence[Any]) -> list[Any]:
    """y = x + x."""
    return [network.add_elementwise(tensors[0], tensors[0], trt.ElementWiseOperation.SUM).get_output(0)]


def nonzero(network: Any, tensors: Sequence[Any]) -> list[Any]:
    """Where x is not 0, (rank, count) int64."""
    return [network.add_non_zero(tensors[0], trt.DataType.INT64).get_output(0)]


def summed_over_ranks(network: Any, tensors: Sequence[Any]) -> list[Any]:
    """The sum of x on two ranks."""
    layer = network.add_dist_collective(
        tensors[0], trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, [0, 1]
    )
    layer.num_ranks = 2
    return [layer.get_output(0)]
