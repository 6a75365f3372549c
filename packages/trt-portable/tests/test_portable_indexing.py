"""Gather, scatter, one-hot, non-zero and reversal, against loops over coordinates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

G = trt.GatherMode
S = trt.ScatterMode
RELAXED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@RELAXED
@given(
    axis=st.integers(0, 2),
    shape=st.lists(st.integers(0, 3), min_size=0, max_size=2),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    dynamic=st.booleans(),
)
def test_gather_along_an_axis(run_network: Any, axis: int, shape: list[int], dtype: torch.dtype, dynamic: bool) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    indices = torch.randint(0, x.shape[axis], shape).to(dtype)
    (found,) = run_network(lambda n, a, i: n.add_gather(a, i, axis), x, indices, dynamic=dynamic)
    assert np.array_equal(found.numpy(), np.take(x.numpy(), indices.numpy(), axis))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_indices_out_of_bounds_read_zero(run_network: Any, axis: int) -> None:
    x, at = torch.arange(1.0, 7).reshape(3, 2), torch.tensor([2, 3, -1, -4])
    data = torch.stack([x, -x], -1).movedim(0, axis)

    def gather(network: Any, values: Any, indices: Any) -> Any:
        return network.add_gather(values, indices, axis)

    for dynamic, wanted in (
        ([], [[5, 6], [0, 0], [5, 6], [0, 0]]),
        ([(0, axis)], [[5, 6], [0, 0], [0, 0], [0, 0]]),
    ):
        (found,) = run_network(gather, data, at, dynamic=dynamic)
        assert found.movedim(axis, 0)[..., 0].tolist() == wanted
        assert torch.equal(found.movedim(axis, 0)[..., 1], -found.movedim(axis, 0)[..., 0])


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gather_with_a_shared_batch(run_network: Any, axis: int, dynamic: bool) -> None:
    x, at = torch.arange(24.0).reshape(2, 3, 4), torch.tensor([[0, 2, 1], [1, 1, 0]])

    def define(network: Any, data: Any, indices: Any) -> Any:
        layer = network.add_gather_v2(data, indices, G.DEFAULT)
        layer.axis, layer.num_elementwise_dims = axis, 1
        return layer

    (found,) = run_network(define, x, at, dynamic=dynamic)
    assert torch.equal(found, torch.stack([x[b].index_select(axis - 1, at[b]) for b in range(2)]))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gather_of_elements(run_network: Any, axis: int, dynamic: bool) -> None:
    x = torch.arange(12).reshape(3, 4)
    at = torch.randint(0, 3, (3, 4), dtype=torch.int32)

    def define(network: Any, data: Any, indices: Any) -> Any:
        layer = network.add_gather_v2(data, indices, G.ELEMENT)
        layer.axis = axis
        return layer

    (found,) = run_network(define, x, at, dynamic=dynamic)
    assert np.array_equal(found.numpy(), np.take_along_axis(x.numpy(), at.numpy().astype(np.int64), axis))


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("length", [1, 2])
def test_gather_by_coordinates(run_network: Any, shared: int, length: int) -> None:
    x = torch.arange(48.0).reshape(2, 2, 3, 4)
    at = torch.randint(0, 2, (2, 5, length))

    def define(network: Any, data: Any, indices: Any) -> Any:
        layer = network.add_gather_v2(data, indices, G.ND)
        layer.num_elementwise_dims = shared
        return layer

    (found,) = run_network(define, x, at, dynamic=[(0, 3), (1, 1)])
    for row, column in itertools.product(range(2), range(5)):
        source = x[row] if shared else x
        assert torch.equal(found[row, column], source[tuple(at[row, column].tolist())])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64, torch.int8])
def test_scatter_of_elements(run_network: Any, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 4, dtype=dtype)
    at = torch.tensor([[2, 0, 1, 0], [0, 1, 2, 2]], dtype=torch.int32)
    updates = torch.arange(1, 9).reshape(2, 4).to(dtype)
    (found,) = run_network(lambda n, *t: n.add_scatter(*t, S.ELEMENT), x, at, updates, dynamic=[(0, 0), (2, 0), (1, 0)])
    wanted = x.numpy().copy()
    np.put_along_axis(wanted, at.numpy().astype(np.int64), updates.numpy(), 0)
    assert np.array_equal(found.numpy(), wanted)
    assert not x.any()


def test_scatter_by_coordinates(run_network: Any) -> None:
    x, at = torch.zeros(3, 4, 2), torch.tensor([[0, 1], [2, 3]])
    updates = torch.arange(1.0, 5).reshape(2, 2)
    (found,) = run_network(lambda n, *t: n.add_scatter(*t, S.ND), x, at, updates)
    wanted = x.clone()
    wanted[0, 1], wanted[2, 3] = updates[0], updates[1]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_one_hot(run_network: Any, constant: Any, axis: int) -> None:
    at = torch.tensor([[0, 2], [1, 5]], dtype=torch.int32)

    def define(network: Any, indices: Any) -> Any:
        return network.add_one_hot(indices, constant(network, [-1, 4], np.int32), constant(network, 3, np.int32), axis)

    (found,) = run_network(define, at, dynamic=True)
    wanted = torch.where(torch.nn.functional.one_hot(at.long(), 6)[..., :3].bool(), 4, -1)
    assert torch.equal(found, wanted.movedim(-1, axis).int())


@RELAXED
@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=3), wide=st.booleans())
def test_non_zero_gives_a_column_per_element(run_network: Any, shape: list[int], wide: bool) -> None:
    x = torch.randint(0, 2, shape, dtype=torch.int32)
    kind = trt.int64 if wide else trt.int32
    (found,) = run_network(lambda n, t: n.add_non_zero(t, kind), x)
    assert np.array_equal(found.numpy(), np.stack(np.nonzero(x.numpy())))


def test_reverse_sequence(run_network: Any) -> None:
    x, lengths = torch.arange(12.0).reshape(4, 3), torch.tensor([1, 4, 2], dtype=torch.int32)
    (found,) = run_network(lambda n, *t: n.add_reverse_sequence(*t), x, lengths, dynamic=[(0, 0)])
    for column, length in enumerate(lengths.tolist()):
        assert found[:, column].tolist() == [*x[:length, column].flip(0).tolist(), *x[length:, column].tolist()]
