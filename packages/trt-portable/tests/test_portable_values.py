"""Numbers that the host knows answer PyTorch functions as tensors do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trt_portable.shape_tensors import HostValues, as_tensor, host_numbers

CPU = torch.device("cpu")
BINARY: list[Callable[..., Any]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.fmax,
    torch.fmin,
    torch.eq,
    torch.gt,
    torch.lt,
    torch.floor_divide,
    lambda a, b: torch.div(a, b, rounding_mode="trunc"),
]


def _host(tensor: torch.Tensor) -> HostValues:
    return HostValues.of(tensor.reshape(-1).tolist(), tensor.shape, tensor.dtype, CPU)


@pytest.mark.parametrize("function", BINARY)
@settings(max_examples=20, deadline=None)
@given(data=st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=1, max_size=6))
def test_arithmetic(function: Callable[..., Any], data: list[tuple[int, int]]) -> None:
    left, right = (torch.tensor(column) for column in zip(*data, strict=True))
    found = function(_host(left), _host(right))
    assert isinstance(found, HostValues)
    assert torch.equal(found.tensor(), function(left, right))


@pytest.mark.parametrize("function", [torch.sum, torch.prod, torch.amax, torch.amin])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions(function: Callable[..., Any], keep: bool) -> None:
    data = torch.tensor([[1, -2, 3], [4, 5, -6]])
    for axis in (0, 1):
        assert torch.equal(function(_host(data), axis, keep).tensor(), function(data, axis, keep))


def test_functions_without_a_host_form_make_a_tensor() -> None:
    found = torch.flip(_host(torch.tensor([1, 2, 3])), [0])
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [3, 2, 1]


def test_mixing_with_a_tensor_makes_a_tensor() -> None:
    found = torch.add(_host(torch.tensor([1, 2])), torch.tensor([10, 20]))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [11, 22]
    assert torch.cat([torch.tensor([1]), _host(torch.tensor([2]))]).tolist() == [1, 2]  # type: ignore[list-item]


def test_a_tensor_is_made_once() -> None:
    values = _host(torch.tensor([1, 2]))
    assert values.tensor() is values.tensor()
    assert host_numbers(as_tensor(values)) == [1, 2]


def test_casts() -> None:
    values = _host(torch.tensor([0, 3]))
    assert values.to(torch.bool).tolist() == [False, True]  # type: ignore[union-attr]
    assert values.to(torch.float32).tolist() == [0.0, 3.0]  # type: ignore[union-attr]
    assert isinstance(values.to(torch.float16), torch.Tensor)
    assert isinstance(_host(torch.tensor([2**40])).to(torch.int32), torch.Tensor)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integers_wrap_around_as_those_of_tensors_do(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    left, right = (
        torch.tensor([limits.max, limits.min, 2 ** (limits.bits // 2)], dtype=dtype),
        torch.tensor(2, dtype=dtype),
    )
    for function in (torch.add, torch.sub, torch.mul):
        for pair in ((left, right), (left, left)):
            torch.testing.assert_close(as_tensor(function(*map(_host, pair))), function(*pair), rtol=0, atol=0)
    assert as_tensor(_host(torch.tensor([2**40 + 1, -7])).to(torch.int32)).tolist() == [1, -7]


def test_what_is_too_large_for_a_shape_becomes_a_tensor() -> None:
    column, row = _host(torch.arange(60).reshape(-1, 1)), _host(torch.arange(2).reshape(1, -1))
    for found, expected in (
        (torch.add(column, row), column.tensor() + row.tensor()),
        (torch.cat([column, column]), torch.cat([column.tensor()] * 2)),
    ):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("numbers", [[], [3], [3, -1, 7]])
def test_numbers_become_a_tensor_of_a_recording_without_a_copy_from_the_host(
    numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            devices.extend(each.device.type for each in [made] if isinstance(each, torch.Tensor))
            return made

    devices: list[str] = []
    values = HostValues.of(numbers, (len(numbers), 1), torch.int64, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with FakeTensorMode(), Seen():
        made = values.tensor()
    assert made.shape == (len(numbers), 1) and made.dtype is torch.int64
    assert set(devices) == {"cuda"}
    assert values._materialized is None  # a later run would read memory of the recording
