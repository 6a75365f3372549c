"""Reading and writing at indices against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
torch.manual_seed(0)
randn, tensor = torch.randn, torch.tensor
X = randn(2, 6, 4, 5)
NUMBERS = torch.randint(-(2**40), 2**40, (2, 6, 4, 5))
DYNAMIC = {0: {0: (1, 2, 4), 2: (3, 4, 7)}}
ROWS = {0: {0: (1, 2, 4)}, 1: {0: (1, 2, 4)}}
PLACES = torch.randint(0, 4, (2, 6, 3, 5))
TYPES = [X * 5, X.half(), NUMBERS, NUMBERS.int()]


def like(value: torch.Tensor, *shape: int) -> torch.Tensor:
    return (randn(shape) * 9).to(value.dtype)


@pytest.mark.parametrize(
    "indices",
    [
        [tensor([0, 1, -1])],
        [tensor([0, 1]), None, tensor([[0], [-1]])],
        [None, tensor([0, 1]), tensor([[0], [-1]])],
        [tensor([1, 0]), tensor([0, -1]), tensor([2, 1]), tensor([0, -2])],
    ],
)
def test_index_with_negative_indices(indices: list[Any]) -> None:
    dynamic = {0: {2: (3, 4, 7)}}
    for value in (X, NUMBERS, X > 0):
        check_conversion(aten.index.Tensor, (value, indices), dynamic=dynamic)
    constants = tuple(range(1, 1 + sum(index is not None for index in indices)))
    check_conversion(aten.index.Tensor, (X, indices), constants=constants)


def test_negative_indices_on_a_dynamic_axis() -> None:
    check_conversion(aten.index.Tensor, (X, [None, None, tensor([-1, 0, 1])]), dynamic=DYNAMIC)
    check_conversion(aten.take.default, (X, tensor([[0, -1], [5, 7]])), dynamic=DYNAMIC)
    check_conversion(aten.index_fill.int_Scalar, (X, 2, tensor([0, -1]), 7), dynamic=DYNAMIC)


def test_masks_select_as_many_elements_as_they_hold() -> None:
    check_conversion(aten.index.Tensor, (X, [X > 0]))
    check_conversion(aten.index.Tensor, (X, [None, tensor([True, False, True, True, False, True])]))
    check_conversion(aten.masked_select.default, (X, X > 0), dynamic=ROWS)
    check_conversion(aten.nonzero.default, (NUMBERS,), dynamic=DYNAMIC)
    check_conversion(aten.nonzero_static.default, (X > 0,), {"size": 300})
    check_conversion(aten.nonzero_static.default, (X > 0,), {"size": 10})


def test_gather() -> None:
    check_conversion(aten.gather.default, (X, 2, PLACES), dynamic=ROWS)
    check_conversion(aten.gather.default, (NUMBERS, 2, PLACES[:1, :3]))
    check_conversion(aten.index_select.default, (X, -2, tensor([2, 0, 0])), dynamic=DYNAMIC)


def test_embedding_is_one_gather() -> None:
    args = (randn(7, 3), torch.randint(0, 7, (2, 5)))
    check_conversion(aten.embedding.default, args, constants=(0,), dynamic={1: {0: (1, 2, 4), 1: (1, 5, 9)}})
    layers = emitted_layers(aten.embedding.default, args, constants=(0,))
    assert [kind for kind in layers if kind != "CONSTANT"] == ["GATHER"]


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag(mode: int) -> None:
    table, indices, offsets = randn(10, 3), torch.randint(0, 10, (8,)), tensor([0, 3, 3, 6])
    args = (table, indices, offsets, False, mode, False, None, False)
    check_conversion(aten.embedding_bag.default, args, results=(0,))
    weights = randn(8) if mode == 0 else None
    ends = tensor([0, 3, 3, 8])
    args = (table, indices, ends, False, mode, False, weights, True, 2)
    check_conversion(aten.embedding_bag.padding_idx, args, results=(0,))
    # -1 is the last row of the table here, and no row at all for `_embedding_bag`
    args = (table, tensor([9, 1, 9, 2]), tensor([0, 2]), False, mode, False, None, False, -1)
    check_conversion(aten.embedding_bag.padding_idx, args, results=(0,))
    check_conversion(aten._embedding_bag.default, args, results=(0,))


def test_one_hot() -> None:
    check_conversion(aten.one_hot.default, (torch.randint(0, 4, (2, 3)), 5), dynamic={0: {0: (1, 2, 4)}})


@pytest.mark.parametrize("value", TYPES, ids=lambda value: str(value.dtype))
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduction: str, include: bool, value: torch.Tensor) -> None:
    args = (value, 2, PLACES, like(value, 2, 6, 3, 5), reduction)
    check_conversion(
        aten.scatter_reduce.two, args, {"include_self": include}, rtol=1e-2 if value.dtype == torch.half else None
    )


def test_scatter_reduce_mean_of_floats_does_not_truncate() -> None:
    args = (torch.zeros(2), 0, tensor([0, 0]), tensor([1.0, 2.0]), "mean")
    result = check_conversion(aten.scatter_reduce.two, args, {"include_self": False})
    assert result.outputs[0][0] == 1.5


@pytest.mark.parametrize("value", TYPES, ids=lambda value: str(value.dtype))
def test_sums_at_shared_indices(value: torch.Tensor) -> None:
    check_conversion(aten.scatter_add.default, (value, 2, PLACES, like(value, 2, 6, 3, 5)))
    check_conversion(aten.scatter_add.default, (value, 2, PLACES[:1, :2], like(value, 2, 6, 3, 5)))
    check_conversion(
        aten.scatter.reduce,
        (value, 2, PLACES, like(value, 2, 6, 3, 5)),
        {"reduce": "multiply"},
        rtol=1e-2 if value.dtype == torch.half else None,
    )
    args = (value, 2, tensor([0, 2, 0]), like(value, 2, 6, 3, 5))
    check_conversion(aten.index_add.default, args, {"alpha": 2}, dynamic={0: {0: (1, 2, 4)}, 2: {0: (1, 2, 4)}})
    check_conversion(aten.index_put.default, (value, [None, tensor([0, 1, 1])], like(value, 2, 3, 4, 5), True))
    check_conversion(aten.put.default, (value, tensor([0, -1, 0]), like(value, 3), True))


@pytest.mark.parametrize("value", [*TYPES, X > 0], ids=lambda value: str(value.dtype))
def test_writing(value: torch.Tensor) -> None:
    orders = torch.argsort(randn(2, 6, 4, 5), 2)[:, :, :3]
    check_conversion(aten.scatter.src, (value, 2, orders, like(value, 2, 6, 3, 5)))
    check_conversion(aten.scatter.value, (value, 2, orders, 1), dynamic=ROWS)
    check_conversion(aten.index_copy.default, (value, 2, tensor([0, 3, 1]), like(value, 2, 6, 3, 5)))
    check_conversion(aten.index_put.default, (value, [tensor([0, 1]), None, tensor([2, -1])], like(value, 2, 6, 5)))
    check_conversion(aten.index_put.default, (value, [None, tensor([0, 1])], like(value, 5)), dynamic=DYNAMIC)
    check_conversion(aten.put.default, (value, tensor([0, -1, 3]), like(value, 3)))


@pytest.mark.parametrize("value", TYPES, ids=lambda value: str(value.dtype))
def test_writing_at_masks(value: torch.Tensor) -> None:
    mask = value > 0
    chosen = like(value, int(mask.sum()))
    check_conversion(aten.index_put.default, (value, [mask], like(value)), dynamic=ROWS)
    check_conversion(aten.index_put.default, (value, [mask], chosen))
    check_conversion(aten.index_put.default, (value, [mask], chosen, True))
    check_conversion(aten.masked_scatter.default, (value, mask, like(value, 300)))


def test_distinct_values_are_refused() -> None:
    result = check_conversion(aten._unique2.default, (NUMBERS,), expect_supported=False)
    assert result.verdict.reason is Reason.DATA_DEPENDENT_SHAPE


NAMES = [
    "index_select", "gather", "take", "take_along_dim", "index_put", "index_copy", "index_add", "index_fill",
    "scatter", "scatter_add", "scatter_reduce", "index_reduce", "masked_scatter", "masked_select", "nonzero",
    "argwhere", "nonzero_static", "put", "nn.functional.embedding", "nn.functional.embedding_bag",
    "__getitem__",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_samples_of_pytorch(name: str, dtype: torch.dtype) -> None:
    for sample in samples_from_opinfo(name, dtype, 2):
        check_conversion(
            sample.op,
            sample.args,
            sample.kwargs,
            expect_supported=None,
            rtol=1e-4 if dtype.is_floating_point else None,
            atol=1e-4 if dtype.is_floating_point else None,
        )


@pytest.mark.parametrize("reduction", ["sum", "amax", "amin"])
def test_nan_and_infinity_stay_where_they_are_written(reduction: str) -> None:
    source = tensor([1.0, float("nan"), 2.0, float("inf")])
    check_conversion(aten.scatter_reduce.two, (torch.zeros(4), 0, tensor([0, 1, 1, 2]), source, reduction))
    check_conversion(aten.index_add.default, (torch.zeros(4), 0, tensor([0, 1, 1, 2]), source))
