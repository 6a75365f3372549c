"""Grouped matrix products against eager PyTorch: by row, by group, and as a batch."""

from __future__ import annotations

import pytest
import torch

from trt_converters.aten import libraries
from trt_converters.testing import check_conversion, emitted_layers

pytestmark = pytest.mark.sampled(3)

pytest.importorskip("transformers.integrations.moe")  # defines the operator
libraries.register()
GROUPED = torch.ops.transformers.grouped_mm_fallback.default
PYTORCHS = torch.ops.aten._grouped_mm.default  # takes bfloat16 alone
DEPTH, WIDTH = 16, 24


def _by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converts as for TensorRT, where copies of matrices would be large."""
    monkeypatch.setattr(libraries, "GATHER_LIMIT", 0)
    monkeypatch.setattr(libraries, "_copies_matrices", lambda: True)


def _rows(*ends: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    offsets = torch.tensor(ends, dtype=torch.int32)
    return torch.randn(ends[-1], DEPTH, dtype=dtype), torch.randn(len(ends), DEPTH, WIDTH, dtype=dtype), offsets


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("ends", [(2, 5, 9), (0, 0, 7), (7, 7, 7), (8,)])
def test_rows_in_groups(ends: tuple[int, ...], by_group: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_group:
        _by_group(monkeypatch)
    check_conversion(GROUPED, _rows(*ends))


@pytest.mark.parametrize("by_group", [False, True])
def test_half_precision(by_group: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_group:
        _by_group(monkeypatch)
    check_conversion(GROUPED, _rows(3, 4, 9, dtype=torch.float16))
    check_conversion(PYTORCHS, _rows(3, 4, 9, dtype=torch.bfloat16))


def test_rows_may_vary_in_number() -> None:
    rows, matrices, offsets = _rows(2, 5, 8)
    check_conversion(GROUPED, (rows, matrices, offsets.clamp(max=2)), dynamic={0: {0: (2, 8, 12)}})


def test_weights_may_be_constants() -> None:
    check_conversion(GROUPED, _rows(2, 5, 8), constants=(1,))


def test_weights_are_taken_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    multiply = libraries.matrix_multiply
    monkeypatch.setattr(
        libraries,
        "matrix_multiply",
        lambda ctx, left, right, is_turned=False: taken.append(is_turned) or multiply(ctx, left, right, is_turned),
    )
    rows, matrices, offsets = _rows(2, 5, 8)
    for given in (matrices, matrices.mT.contiguous().mT):
        check_conversion(GROUPED, (rows, given, offsets), constants=(1,))
    assert taken == [False, True]


def test_a_batch_has_no_groups() -> None:
    left, right = torch.randn(2, 8, DEPTH), torch.randn(2, DEPTH, WIDTH)
    check_conversion(PYTORCHS, (left.bfloat16(), right.bfloat16()))


def test_few_rows_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NON_ZERO" not in emitted_layers(GROUPED, _rows(2, 5, 8))
    _by_group(monkeypatch)
    assert emitted_layers(GROUPED, _rows(2, 5, 8)).count("NON_ZERO") == 3


def test_too_many_groups_stay_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "EXPERT_LIMIT", 2)
    assert check_conversion(GROUPED, _rows(2, 5, 8)).verdict
    _by_group(monkeypatch)
    result = check_conversion(GROUPED, _rows(2, 5, 8), expect_supported=False)
    assert "3 groups" in result.verdict.message
