"""Sizes at which a model's code takes another way are served where both come to the same, and refused elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from function_module import Calls
from torch.nn import functional

import trt_frontends
from trt_core import Input, InputError


def _cropped(x: torch.Tensor) -> torch.Tensor:
    pad = (4 - x.shape[1] % 4) % 4
    y = functional.pad(x, (0, pad)).unflatten(1, (-1, 4)).cumsum(1).flatten(1)
    if pad > 0:
        y = y[:, : x.shape[1]]
    return y + 1


def _cropped_and_added(x: torch.Tensor) -> torch.Tensor:
    pad = (4 - x.shape[1] % 4) % 4
    y = functional.pad(x, (0, pad))
    if pad > 0:
        y = y[:, : x.shape[1]]
    return y + x


def _sliced_twice(x: torch.Tensor) -> torch.Tensor:
    length = x.shape[1]
    return x[:, : length // 4 * 4][:, :length] + 1


def _windows(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    down, right = -rows % 3, -columns % 2
    y = functional.pad(x, (0, right, 0, down)).unflatten(1, (-1, 2)).flip(2).flatten(1).roll(1, 0)
    if down > 0 or right > 0:
        y = y[:rows, :columns]
    return y.contiguous()


def _resized(x: torch.Tensor) -> torch.Tensor:
    rows, columns = x.shape
    table = torch.arange(16.0).view(1, 1, 4, 4)
    if (rows // 4) * (columns // 4) == 16 and rows == columns:
        return x + table.sum()
    return x + functional.interpolate(table, size=(rows // 4, columns // 4), mode="bicubic").sum()


def _other_for_squares(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == x.shape[1] else x + 1


def _other_for_fours(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[1] % 4 == 0 else x + 1


def _other_for_long_fours(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] % 4 == 0 and x.shape[1] > 30:
        return x * 2
    return x + 1


def _other_for_few(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[1] % 12 == 0 and x.shape[1] < 20 else _cropped(x)


def _other_for_one(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 1 and x.shape[1] % 4 == 0:
        return x[:, : x.shape[1]] + 1
    return x * 3 if x.shape[1] == 1 else x + 1


@pytest.mark.parametrize("usual", [16, 17], ids=["multiple", "other"])
@pytest.mark.parametrize("function", [_cropped, _cropped_and_added, _sliced_twice])
def test_ways_that_come_to_the_same(function: Callable[[torch.Tensor], torch.Tensor], usual: int) -> None:
    columns = Input(min_shape=(2, 5), opt_shape=(2, usual), max_shape=(2, 34))
    compiled = trt_frontends.compile(Calls(function), arg_inputs=[columns], min_block_size=1)
    for length in range(5, 35):
        x = torch.randn(2, length)
        torch.testing.assert_close(compiled(x), function(x))


def test_ways_that_two_sizes_decide() -> None:
    pictures = Input(min_shape=(4, 4), opt_shape=(6, 6), max_shape=(9, 8))
    compiled = trt_frontends.compile(Calls(_windows), arg_inputs=[pictures], min_block_size=1)
    for rows, columns in ((6, 6), (6, 7), (7, 6), (7, 7), (9, 8), (4, 5)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), _windows(x))


def test_ways_of_which_one_is_for_squares() -> None:
    pictures = Input(min_shape=(8, 8), opt_shape=(16, 16), max_shape=(32, 32))
    compiled = trt_frontends.compile(Calls(_resized), arg_inputs=[pictures], min_block_size=1)
    for rows, columns in ((16, 16), (16, 17), (20, 20), (12, 24), (8, 32), (19, 19)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), _resized(x))


def test_a_way_for_squares_that_differs_serves_squares() -> None:
    pictures = Input(min_shape=(8, 8), opt_shape=(16, 16), max_shape=(32, 32))
    compiled = trt_frontends.compile(Calls(_other_for_squares), arg_inputs=[pictures], min_block_size=1)
    for size in (8, 16, 17, 32):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x), 2 * x)
    with pytest.raises(InputError, match=r"x\.shape\[1\] == x\.shape\[0\]"):
        compiled(torch.randn(16, 17))


@pytest.mark.parametrize("function", [_other_for_fours, _other_for_long_fours, _other_for_few, _other_for_one])
def test_ways_that_differ_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    columns = Input(min_shape=(2, 1), opt_shape=(2, 17), max_shape=(2, 40))
    compiled = trt_frontends.compile(Calls(function), arg_inputs=[columns], min_block_size=1)
    served = 0
    for length in range(1, 41):
        x = torch.randn(2, length)
        try:
            found = compiled(x)
        except InputError:
            continue
        torch.testing.assert_close(found, function(x))
        served += 1
    assert 20 < served < 40
