"""How much products add up, held to PyTorch's own count of floating-point operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from trt_core.operator_counts import depth_of, elements_made, is_product, operands_of, work_of

aten: Any = torch.ops.aten


def _made(operator: Any, *args: Any, **kwargs: Any) -> tuple[float, int]:
    """What a call adds up by our count and by PyTorch's, which counts a product and a sum."""
    args = tuple(torch.empty(arg, device="meta") if isinstance(arg, tuple) else arg for arg in args)
    with FlopCounterMode(display=False) as counter:
        result = operator(*args, **kwargs)
    result = result[0] if isinstance(result, tuple) else result
    return work_of(operator, operands_of(operator, args, kwargs), result.numel()), counter.get_total_flops()


@given(st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_products_add_up_what_pytorch_counts(sizes: list[int]) -> None:
    batch, rows, depth, columns = sizes
    for operator, args in (
        (aten.mm.default, ((rows, depth), (depth, columns))),
        (aten.addmm.default, ((columns,), (rows, depth), (depth, columns))),
        (aten.bmm.default, ((batch, rows, depth), (batch, depth, columns))),
        (aten.baddbmm.default, ((batch, rows, columns), (batch, rows, depth), (batch, depth, columns))),
    ):
        ours, theirs = _made(operator, *args)
        assert 2 * ours == theirs, operator


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(5, 9)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.booleans(),
)
def test_convolutions_add_up_what_pytorch_counts(
    axes: int, groups: int, sizes: tuple[int, int, int], step_and_kernel: tuple[int, int], transposed: bool
) -> None:
    inside, outside, extent = sizes
    step, kernel = step_and_kernel
    channels = (inside * groups, outside) if transposed else (outside * groups, inside)
    given = ((2, inside * groups, *[extent] * axes), (*channels, *[kernel] * axes), None)
    ours, theirs = _made(
        aten.convolution.default, *given, [step] * axes, [0] * axes, [1] * axes, transposed, [0] * axes, groups
    )
    assert 2 * ours == theirs


def test_attention_adds_up_what_pytorch_counts() -> None:
    operator = aten._scaled_dot_product_flash_attention.default
    ours, theirs = _made(operator, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    assert 2 * ours == theirs


@pytest.mark.parametrize(
    ("operator", "args", "depth"),
    [
        (aten.addbmm.default, ((2, 4), (3, 2, 5), (3, 5, 4)), 15),
        (aten.addmv.default, ((2,), (2, 5), (5,)), 5),
        (aten.conv_transpose2d.input, ((1, 6, 4, 4), (6, 2, 3, 3), None, [1, 1], [0, 0], [0, 0], 2), 27),
        (aten.conv2d.default, ((1, 6, 4, 4), (4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], 2), 27),
        (aten.avg_pool1d.default, ((1, 2, 9), [3]), 3),
        (aten.avg_pool3d.default, ((1, 2, 4, 4, 4), [3]), 27),
    ],
)
def test_depths_are_the_elements_of_one_sum(operator: Any, args: tuple[Any, ...], depth: int) -> None:
    tensors = [torch.empty(arg, device="meta") if isinstance(arg, tuple) else arg for arg in args]
    assert depth_of(operator, operands_of(operator, tensors, {})) == depth
    assert is_product(operator) is ("pool" not in str(operator))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_convolutions_whose_padding_is_a_word_make_a_result_for_each_channel(padding: str) -> None:
    """`torch.inference_mode` shows them whole; of what is padded on no side, as many are counted as if it were."""
    args = (torch.ones(2, 3, 8, 8), torch.ones(32, 3, 3, 3), None, [1, 1], padding)
    operator = torch.ops.aten.conv2d.padding
    made = elements_made(operator, operands_of(operator, args, {}))
    assert made is not None
    assert made == 2 * 32 * 8 * 8 >= operator(*args).numel()
