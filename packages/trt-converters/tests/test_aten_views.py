"""Shapes, slices and joins against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import ExtentOf, check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
torch.manual_seed(0)
randn = torch.randn
X = randn(2, 6, 4, 5)
NUMBERS = torch.randint(-(2**40), 2**40, (2, 6, 4, 5))
DYNAMIC = {0: {0: (1, 2, 4), 2: (4, 4, 7)}}
OPEN_END = 2**63 - 1


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.view.default, (X, [ExtentOf(0, 0), -1])),
        (aten.flatten.using_ints, (X, 1)),
        (aten.flatten.using_ints, (X, 0, 1)),
        (aten.unflatten.int, (X, 1, [2, -1])),
        (aten.permute.default, (X, [0, -1, 1, 2])),
        (aten.transpose.int, (X, -1, 1)),
        (aten.movedim.intlist, (X, [0, 1], [-1, 0])),
        (aten.unsqueeze.default, (X, -1)),
        (aten.channel_shuffle.default, (X, 3)),
        (aten.split.Tensor, (X, 4, 1)),
        (aten.split_with_sizes.default, (X, [1, 2, 3], 1)),
        (aten.chunk.default, (X, 4, 1)),
        (aten.unbind.int, (X, 1)),
        (aten.tensor_split.indices, (X, [1, 4], 1)),
        (aten.select.int, (X, 2, -1)),
        (aten.select.int, (X, 2, 1)),
        (aten.narrow.default, (X, 2, 1, 2)),
        (aten.unfold.default, (X, 2, 2, 1)),
        (aten.flip.default, (X, [0, -1])),
        (aten.roll.default, (X, [1, -2], [0, 2])),
        (aten.roll.default, (X, [7], [])),
        (aten.repeat.default, (X, [2, 1, 3, 1])),
        (aten.tile.default, (X, [2, 1])),
        (aten.repeat_interleave.self_int, (X, 3, 1)),
    ],
)
def test_movement(op: Any, args: tuple[Any, ...]) -> None:
    check_conversion(op, args, dynamic=DYNAMIC)
    check_conversion(op, args)
    for other in (NUMBERS, X > 0, X.bfloat16()):
        check_conversion(op, (other, *args[1:]))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.reshape.default, ([1, 1],)),
        (aten.unsqueeze.default, (0,)),
        (aten.squeeze.dim, (0,)),
        (aten.flip.default, ([0],)),
        (aten.repeat.default, ([2, 2],)),
        (aten.expand.default, ([2, 3],)),
        (aten.roll.default, ([1], [])),
        (aten.unfold.default, (0, 1, 1)),
        (aten.index_select.default, (0, torch.tensor([0]))),
        (aten.gather.default, (0, torch.tensor(0))),
        (aten.take.default, (torch.tensor([0, 0]),)),
        (aten.scatter.value, (0, torch.tensor(0), 2.0)),
    ],
)
def test_zero_dimensional_tensors(op: Any, args: tuple[Any, ...]) -> None:
    check_conversion(op, (torch.tensor(3.5), *args))


@pytest.mark.sampled
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("end", [None, 2, -1, OPEN_END])
@pytest.mark.parametrize("start", [None, 0, 1, -4, -9])
def test_slices_with_negative_and_open_ends_on_a_dynamic_axis(start: int | None, end: int | None, step: int) -> None:
    if (start, end) != (-4, 2):  # empty or not, depending on the extent
        check_conversion(aten.slice.Tensor, (X, 2, start, end, step), dynamic=DYNAMIC, expect_supported=None)
    check_conversion(aten.slice.Tensor, (NUMBERS, 2, start, end, step), expect_supported=None)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(None, None, 1), (1, 3, 1), (-2, None, 1), (3, OPEN_END, 1), (0, 4, 2), (1, None, 2), (-3, None, 2)],
)
def test_slice_scatter_with_open_ends_and_steps(start: int | None, end: int | None, step: int) -> None:
    part = aten.slice.Tensor(X, 2, start, end, step)
    rows = {0: {0: (1, 2, 4)}, 1: {0: (1, 2, 4)}}
    check_conversion(aten.slice_scatter.default, (X, randn(part.shape), 2, start, end, step), dynamic=rows)
    part = aten.slice.Tensor(NUMBERS, 2, start, end, step)
    check_conversion(aten.slice_scatter.default, (NUMBERS, part + 1, 2, start, end, step))


def test_slice_scatter_on_a_dynamic_axis() -> None:
    source = randn(2, 6, 2, 5)
    for rest in ((1, 3, 1), (-2, None, 1), (0, 4, 2)):
        check_conversion(aten.slice_scatter.default, (X, source, 2, *rest), dynamic={0: {2: (4, 4, 7)}})
    check_conversion(aten.select_scatter.default, (X, randn(2, 6, 5), 2, -1), dynamic={0: {2: (3, 4, 7)}})


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_diagonals(offset: int) -> None:
    check_conversion(aten.diagonal.default, (randn(4, 5), offset))
    check_conversion(aten.diagonal.default, (X, offset, 1, -1), dynamic={0: {0: (1, 2, 4)}})
    source = randn(torch.diagonal(randn(4, 5), offset).shape)
    check_conversion(aten.diagonal_scatter.default, (randn(4, 5), source, offset))


def test_trace_keeps_integers() -> None:
    check_conversion(aten.trace.default, (randn(4, 5),))
    check_conversion(aten.trace.default, (torch.full((3, 3), 2**31 - 1, dtype=torch.int32),))


@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 1), (3,)])
def test_squeeze(shape: tuple[int, ...]) -> None:
    check_conversion(aten.squeeze.default, (randn(shape),))
    check_conversion(aten.squeeze.dim, (randn(shape), -1))
    check_conversion(aten.squeeze.dims, (randn(shape), [0, -1] if len(shape) > 1 else [0]))


def test_expand() -> None:
    check_conversion(aten.expand.default, (randn(2, 1, 3), [7, -1, 4, -1]), dynamic={0: {0: (2, 2, 4)}})
    check_conversion(aten.expand_as.default, (randn(1, 3), randn(5, 4, 3)), dynamic={1: {0: (1, 5, 6)}})
    assert emitted_layers(aten.expand.default, (X, [-1, -1, -1, -1])) == ("IDENTITY",)


def test_pixel_shuffle() -> None:
    dynamic = {0: {0: (1, 2, 3), 2: (1, 3, 5)}}
    check_conversion(aten.pixel_shuffle.default, (randn(2, 8, 3, 4), 2), dynamic=dynamic)
    check_conversion(aten.pixel_unshuffle.default, (randn(2, 8, 4, 6), 2), dynamic={0: {0: (1, 2, 3)}})


def test_cat_and_stack_promote() -> None:
    rows = {0: {0: (1, 2, 4)}, 1: {0: (1, 2, 4)}}
    check_conversion(aten.cat.default, ([X, NUMBERS], 1), dynamic=rows)
    check_conversion(aten.stack.default, ([X, X], -1), dynamic=rows)
    check_conversion(aten.stack.default, ([torch.tensor(1.0), torch.tensor(2.0)],))
    check_conversion(aten.cat.default, ([X > 0, X < 0], -1), constants=(1,))


def test_as_strided_reads_the_memory_of_its_argument() -> None:
    check_conversion(aten.as_strided.default, (randn(4, 5), [2, 3], [5, 2], 1))
    check_conversion(aten.as_strided.default, (randn(4, 5).t(), [2, 3], [5, 2], 1))
    beyond = randn(100)[10:30]
    refused = check_conversion(aten.as_strided.default, (beyond, [2], [50], 5), expect_supported=False)
    assert refused.verdict.reason is Reason.UNSUPPORTED_ARGUMENT


def test_static_movement_needs_no_shape_arithmetic() -> None:
    assert emitted_layers(aten.view.default, (X, [2, -1])) == ("SHUFFLE",)
    assert emitted_layers(aten.slice.Tensor, (X, 2, 1, 3)) == ("SLICE",)
    assert emitted_layers(aten.repeat.default, (X, [2, 1, 1, 1])) == ("SLICE",)
    # one symbolic extent is left to the layer, a slice of another axis does not touch it
    assert emitted_layers(aten.flatten.using_ints, (X, 1), dynamic={0: {0: (1, 2, 4)}}) == ("SHUFFLE",)
    assert emitted_layers(aten.slice.Tensor, (X, 2, 1, 3), dynamic={0: {0: (1, 2, 4)}}) == ("SLICE",)


NAMES = [
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "squeeze", "unsqueeze", "expand",
    "repeat", "tile", "repeat_interleave", "flip", "roll", "rot90", "unbind", "chunk", "split", "split_with_sizes",
    "cat", "stack", "hstack", "vstack", "dstack", "select", "narrow", "slice_scatter",
    "select_scatter", "diagonal_scatter", "diagonal", "diag", "diag_embed", "trace", "as_strided", "unfold",
    "meshgrid", "broadcast_to", "kron", "nn.functional.pixel_shuffle", "nn.functional.channel_shuffle",
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, 2):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None)
