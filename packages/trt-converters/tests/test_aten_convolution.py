"""Convolutions against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BATCH = {0: {0: (1, 2, 4)}}
randn = torch.randn
torch.manual_seed(0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("constants", [(1, 2), (1,), ()])
def test_convolution_with_known_and_computed_kernels(dtype: torch.dtype, constants: tuple[int, ...]) -> None:
    args = (randn(2, 3, 8, 8).to(dtype), randn(4, 3, 3, 3).to(dtype), randn(4).to(dtype), [2, 1], [1, 0], [1, 2])
    check_conversion(aten.conv2d.default, args, constants=constants)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.conv1d.default, (randn(2, 4, 9), randn(6, 2, 3), randn(6), [2], [1], [2], 2)),
        (aten.conv2d.default, (randn(2, 4, 8, 9), randn(4, 1, 3, 2), None, [1, 2], [0, 1], [1, 1], 4)),
        (aten.conv3d.default, (randn(2, 3, 5, 6, 7), randn(4, 3, 3, 2, 1), randn(4), [1, 2, 1], [1, 0, 1])),
    ],
)
def test_strides_paddings_dilations_and_groups(op: Any, args: tuple[Any, ...]) -> None:
    constants = (1, 2) if args[2] is not None else (1,)
    check_conversion(op, args, constants=constants, dynamic=BATCH)
    unbatched = (args[0][0], *args[1:])
    check_conversion(op, unbatched, constants=constants)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_paddings_put_the_odd_element_at_the_end(padding: str) -> None:
    args = (randn(2, 3, 9, 8), randn(4, 3, 2, 3), randn(4), [1, 1], padding, [1, 2])
    check_conversion(aten.conv2d.padding, args, constants=(1, 2))
    check_conversion(aten.conv1d.padding, (randn(2, 3, 9), randn(4, 3, 4), None, [1], padding), constants=(1,))


def test_spatial_extents_may_be_dynamic() -> None:
    args = (randn(2, 3, 8, 8), randn(4, 3, 3, 3), None, [2, 2], [1, 1])
    check_conversion(
        aten.conv2d.default, args, constants=(1,), dynamic={0: {0: (1, 2, 3), 2: (4, 8, 9), 3: (3, 8, 16)}}
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_transposed_convolution(dtype: torch.dtype) -> None:
    args = (randn(2, 3, 5, 5).to(dtype), randn(3, 4, 3, 3).to(dtype), randn(4).to(dtype), [2, 2], [1, 1], [1, 1])
    check_conversion(aten.conv_transpose2d.input, args, constants=(1, 2), dynamic=BATCH)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        # more output padding than padding: the result reaches behind what any kernel writes
        (aten.conv_transpose2d.input, (randn(2, 4, 5, 5), randn(4, 2, 3, 3), randn(4), [2, 2], [0, 0], [1, 1], 2)),
        (aten.conv_transpose1d.default, (randn(2, 4, 5), randn(4, 2, 3), randn(4), [3], [1], [2], 2, [2])),
        (aten.conv_transpose3d.input, (randn(2, 4, 3, 4, 5), randn(4, 2, 3, 3, 2), None, [1, 2, 2], [1, 1, 0])),
    ],
)
def test_output_padding(op: Any, args: tuple[Any, ...]) -> None:
    check_conversion(op, args, constants=(1, 2) if args[2] is not None else (1,), dynamic=BATCH)
    check_conversion(op, (args[0][0], *args[1:]))


@pytest.mark.parametrize("transposed", [False, True])
def test_convolution_of_both_directions(transposed: bool) -> None:
    args = (randn(2, 4, 9), randn(4, 2, 3), None, [2], [1], [1], transposed, [0], 2)
    check_conversion(aten.convolution.default, args, constants=(1,))


def test_a_convolution_is_one_layer() -> None:
    args = (randn(1, 3, 8, 8), randn(4, 3, 3, 3), randn(4), [1, 1], [1, 1])
    assert emitted_layers(aten.conv2d.default, args, constants=(1, 2)) == ("CONVOLUTION",)


def test_symbolic_channels_are_refused() -> None:
    args = (randn(2, 3, 8, 8), randn(4, 3, 3, 3))
    result = check_conversion(aten.conv2d.default, args, dynamic={1: {0: (1, 4, 5)}}, expect_supported=False)
    assert result.verdict.reason is Reason.DYNAMIC_SHAPE


def test_integers_are_refused() -> None:
    args = (torch.ones(1, 1, 3, 3, dtype=torch.int64), torch.ones(1, 1, 2, 2, dtype=torch.int64))
    assert (
        check_conversion(aten.conv2d.default, args, expect_supported=False).verdict.reason is Reason.UNSUPPORTED_DTYPE
    )


@pytest.mark.parametrize(
    "name",
    [
        f"nn.functional.{op}{rank}d"
        for op, ranks in (("conv", (1, 2, 3)), ("conv_transpose", (1, 2, 3)))
        for rank in ranks
    ],
)
def test_samples_of_pytorch(name: str) -> None:
    for sample in samples_from_opinfo(name, torch.float32, 6):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None, atol=1e-4, rtol=1e-4)
