"""Changes of frozen tensors, whichever way they come about."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trt_frontends.torch_compile.compiled_graph import FrozenTensors


def _tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 4)), torch.randn(4, 5).t(), torch.arange(6), torch.zeros(0), torch.tensor(True)]


def test_tensors_that_stay_are_unchanged() -> None:
    tensors = _tensors()
    frozen = FrozenTensors(tensors)
    assert frozen.unchanged(tensors)
    assert frozen.changed(tensors) == ()
    assert frozen.are_alive


def _in_place(tensors: list[torch.Tensor]) -> None:
    with torch.no_grad():
        tensors[0].mul_(2)


def _through_data(tensors: list[torch.Tensor]) -> None:
    tensors[0].data.mul_(2)


def _through_a_part_of_data(tensors: list[torch.Tensor]) -> None:
    tensors[0].data[2, 1] = 7.0


def _new_data(tensors: list[torch.Tensor]) -> None:
    tensors[0].data = tensors[0].data.clone()


def _new_object(tensors: list[torch.Tensor]) -> None:
    tensors[0] = nn.Parameter(tensors[0].detach())


def _through_a_view(tensors: list[torch.Tensor]) -> None:
    tensors[0].detach()[1].fill_(3)


@pytest.mark.parametrize(
    "change", [_in_place, _through_data, _through_a_part_of_data, _new_data, _new_object, _through_a_view]
)
def test_a_change_is_seen(change: Callable[[list[torch.Tensor]], None]) -> None:
    tensors = _tensors()
    frozen = FrozenTensors(tensors)
    change(tensors)
    assert not frozen.unchanged(tensors)
    assert frozen.changed(tensors) == (0,)


def test_tensors_of_inference_mode_have_no_version() -> None:
    with torch.inference_mode():
        tensors = [torch.ones(3), torch.ones(2)]
        frozen = FrozenTensors(tensors)
        assert frozen.unchanged(tensors)
        tensors[1].add_(1)
        assert frozen.changed(tensors) == (1,)


def test_tensors_are_not_kept_alive() -> None:
    tensors = _tensors()
    frozen = FrozenTensors(tensors)
    del tensors[2]
    gc.collect()
    assert not frozen.are_alive
    assert not frozen.unchanged([*tensors, torch.zeros(1)])


def test_frozen_tensors_can_be_swapped() -> None:
    tensors = _tensors()[:2]
    frozen = FrozenTensors(tensors)
    torch.utils.swap_tensors(tensors[0], nn.Parameter(torch.ones(3, 4)))
    assert frozen.changed(tensors) == (0,)
    assert not frozen.unchanged(tensors)


@given(
    st.sampled_from([torch.float16, torch.float32, torch.float64, torch.complex128, torch.int8]),
    st.lists(st.integers(1, 4), max_size=4),
    st.booleans(),
)
def test_scaling_through_data_is_seen_whatever_the_type_and_layout(
    dtype: torch.dtype, shape: list[int], transposed: bool
) -> None:
    value = torch.ones(shape, dtype=dtype)
    if transposed and shape:
        value = value.transpose(0, -1)
    frozen = FrozenTensors([value])
    value.data.mul_(2)
    assert frozen.changed([value]) == (0,)


@given(st.integers(0, 15), st.integers(0, 7), st.booleans())
def test_any_element_of_a_small_tensor_written_through_data_is_seen(row: int, column: int, transposed: bool) -> None:
    value = torch.zeros(16, 8)
    value = value.t() if transposed else value
    frozen = FrozenTensors([value])
    (value.data.t() if transposed else value.data)[row, column] = 1
    assert frozen.changed([value]) == (0,)


@pytest.mark.parametrize("shape", [(100, 100), (1000, 1000)])
def test_scaling_a_large_tensor_through_data_is_seen(shape: tuple[int, int]) -> None:
    dense = torch.ones(shape)
    for value in (dense, dense.t(), dense[:, ::2], dense[:1].expand(shape)):
        frozen = FrozenTensors([value])
        assert frozen.unchanged([value])
        dense.data.mul_(2)
        assert frozen.changed([value]) == (0,)
