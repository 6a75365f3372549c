"""What operators are expected to make is what they make, or somewhat more, and never less."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_core.operator_counts import can_grow, elements_in, elements_made, operands_of
from trt_runtime.program.operator_growth import most_elements

aten = torch.ops.aten
X = torch.zeros(2, 3, 8, 7)
M = torch.zeros(5, 4)
INDICES = torch.tensor([[0, 1], [2, 3]])

CALLS: dict[str, tuple[Any, ...]] = {
    "range": (aten.arange.start_step, 0.5, 9.7, 0.3),
    "range down": (aten.arange.start_step, 9, -3, -2),
    "range from zero": (aten.arange.default, 10),
    "noise": (aten.randint.default, 9, [3, 4]),
    "normal noise": (aten.normal.float_float, 0.0, 1.0, [3, 4]),
    "identity": (aten.eye.m, 3, 4),
    "triangle": (aten.tril_indices.default, 3, 4),
    "tile": (aten.tile.default, X, [2, 3]),
    "repeat": (aten.repeat.default, X, [2, 3, 1, 1, 1]),
    "pad": (aten.constant_pad_nd.default, X, [1, 2, 3, -4]),
    "edges": (aten.replication_pad2d.default, X, [1, 2, 3, 4]),
    "products": (aten.kron.default, X, X),
    "windows": (aten.im2col.default, X, [3, 2], [1, 1], [1, 2], [2, 1]),
    "sizes": (aten.upsample_nearest2d.default, X, [16, 5]),
    "factors": (aten.upsample_bilinear2d.vec, X, None, False, [1.7, 2.3]),
    "antialiased": (aten._upsample_bicubic2d_aa.default, X, [4, 5], False),
    "broadcast": (aten.add.Tensor, M[:, None], M[None]),
    "choice": (aten.where.self, M[:, None] > 0, M[None], M),
    "matrices": (aten.matmul.default, X, torch.zeros(3, 7, 9)),
    "matrix and vector": (aten.matmul.default, M, torch.zeros(4)),
    "outer product": (aten.outer.default, torch.zeros(5), torch.zeros(7)),
    "sum and product": (aten.addmm.default, torch.zeros(1), torch.zeros(5, 1), torch.zeros(1, 6)),
    "linear": (aten.linear.default, X, torch.zeros(9, 7)),
    "inner": (aten.inner.default, M, torch.zeros(3, 4)),
    "contraction": (aten.tensordot.default, X, X, [1], [1]),
    "einsum": (aten.einsum.default, "...ij,kj->k...i", [X, torch.zeros(5, 7)]),
    "einsum that says no result": (aten.einsum.default, "ij,jk", [M, torch.zeros(4, 3)]),
    "distances": (aten.cdist.default, M, torch.zeros(3, 4)),
    "distances between all": (aten.pdist.default, torch.zeros(9, 4)),
    "correlations": (aten.corrcoef.default, torch.rand(6, 4)),
    "whole factors": (aten.linalg_svd.default, torch.rand(2, 9)),
    "tuples": (aten.cartesian_prod.default, [torch.zeros(3), torch.zeros(4), torch.zeros(2)]),
    "combinations": (aten.combinations.default, torch.zeros(7), 3),
    "blocks": (aten.block_diag.default, [M, torch.zeros(3)]),
    "bilinear": (aten.bilinear.default, M, M, torch.zeros(6, 4, 4)),
    "indices": (aten.index.Tensor, X, [None, torch.tensor([[0], [1]]), None, torch.tensor([1, 2, 3])]),
    "mask": (aten.index.Tensor, X, [torch.ones(2, 3, dtype=torch.bool)]),
    "selection": (aten.index_select.default, X, 1, torch.tensor([0, 0, 0, 1, 2])),
    "embedding": (aten.embedding.default, M, INDICES),
    "gather": (aten.gather.default, M, 0, torch.zeros(3, 4, dtype=torch.int64)),
    "quantiles": (aten.quantile.default, M, torch.tensor([0.1, 0.5, 0.9]), 1),
    "filled": (aten.full.default, [3, 4], 1.0),
    "strided": (aten.empty_strided.default, [3, 4], [4, 1]),
    "window": (aten.hann_window.default, 9),
    "steps": (aten.linspace.default, 0, 1, 9),
    "permutation": (aten.randperm.default, 9),
    "classes": (aten.one_hot.default, INDICES, 6),
    "samples": (aten.multinomial.default, torch.ones(3, 4), 9, True),
    "powers": (aten.linalg_vander.default, torch.zeros(4)),
    "diagonals": (aten.diag_embed.default, M, 3),
    "diagonal": (aten.diag.default, torch.zeros(4), -3),
    "flat diagonal": (aten.diagflat.default, M, 1),
    "overlapping windows": (aten.unfold_copy.default, torch.zeros(3, 9), 1, 4, 1),
    "pool": (aten.adaptive_avg_pool2d.default, X, [9, 5]),
    "pool with places": (aten.adaptive_max_pool2d.default, X, [9, 5]),
    "convolution": (aten.conv2d.default, X, torch.zeros(5, 3, 3, 2), None, [1, 2], [9, 1], [2, 1]),
    "deconvolution": (aten.conv_transpose2d.input, X, torch.zeros(3, 2, 3, 2), None, [3, 2], [1, 0], [1, 1]),
    "any convolution": (
        aten.convolution.default,
        *(X, torch.zeros(3, 1, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 3),
    ),
    "spectrum": (aten.fft_rfft.default, M, 40),
    "repeated": (aten.repeat_interleave.self_int, M, 3, 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_expected_bounds_what_is_made(name: str) -> None:
    operator, *given = CALLS[name]
    operands = operands_of(operator, given, {})
    made = elements_made(operator, operands)
    assert made is not None
    results = operator(*given)
    count = max(result.numel() for result in ([results] if isinstance(results, torch.Tensor) else results))
    assert count <= made <= 2 * count


HUGE: dict[str, tuple[Any, ...]] = {
    "a size beyond any number": (aten.full.default, [1 << 40] * 40, 1.0),
    "broadcast": (aten.mul.Tensor, torch.zeros(1 << 14, 1), torch.zeros(1, 1 << 14)),
    "choices without end": (aten.combinations.default, torch.zeros(1 << 10), 500),
    "padding": (aten.conv1d.default, torch.zeros(1, 1, 4), torch.zeros(1, 1, 1), None, [1], [1 << 40]),
    "values on the way": (aten.mvlgamma.default, torch.zeros(1 << 16), 1 << 20),
    "values on the way to one": (aten.special_multigammaln.default, torch.zeros(1), 1 << 30),
    "noise": (aten.normal.float_float, 0.0, 1.0, [1 << 40]),
    "memory between elements": (aten.new_empty_strided.default, M, [2], [1 << 40]),
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("told", [None, 100])
def test_what_is_too_much(name: str, told: int | None) -> None:
    operator, *given = HUGE[name]
    operands = operands_of(operator, given, {})
    made = elements_made(operator, operands)
    assert made is not None
    assert made > most_elements(told, operands)


def test_arguments_without_sense_are_the_operators_own_concern() -> None:
    assert elements_made(aten.tile.default, operands_of(aten.tile.default, [X, "two"], {})) is None
    assert elements_made(aten.index_select.default, operands_of(aten.index_select.default, [M, 9, INDICES], {})) is None
    for pool, given in ((aten.max_pool2d.default, [M[0], []]), (aten.avg_pool1d.default, [M[0, 0], [], [0]])):
        assert elements_made(pool, operands_of(pool, given, {})) is None
    factor = aten.linalg_qr.default
    assert elements_made(factor, operands_of(factor, [], {})) is None


def test_other_operators_are_nobodys_concern() -> None:
    assert not can_grow(aten.cat.default)
    assert elements_made(aten.cat.default, {"tensors": [(2, 3)]}) is None


def test_elements_of_lists_count() -> None:
    assert elements_in(operands_of(aten.cat.default, [[M, X]], {})) == M.numel() + X.numel()
