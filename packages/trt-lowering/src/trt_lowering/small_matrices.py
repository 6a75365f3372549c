"""Inverses, solutions, determinants and Cholesky factors of small matrices, step by step in elementwise operators.

PyTorch computes them in libraries of linear algebra, and TensorRT has no layers for them. Models of cameras, filters
and Gaussians invert matrices of 2 to 6 rows by the batch. Where eager raises an error, for a matrix that has no inverse
or is not positive definite, these return infinities or NaN, as engines do not look at values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

MOST_ROWS: Final = 8
"""Matrices of more rows stay whole: each row takes some ten operators."""


def inverse(self: torch.Tensor) -> torch.Tensor:
    """Decomposes `aten::linalg_inv` and `aten::inverse`: (..., N, N) to (..., N, N)."""
    return _eliminated(self, _identity(self))[0]


def inverse_and_info(A: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Decomposes `aten::linalg_inv_ex`: the inverse, and (...,), int32, which row had no pivot, from 1; 0 for none."""
    if check_errors:
        raise NotImplementedError("an error that depends on values")
    found, pivots, _ = _eliminated(A, _identity(A))
    missing = pivots == 0
    first = missing.to(torch.int32).argmax(-1) + 1
    return found, torch.where(missing.any(-1), first, 0).to(torch.int32)


def solve(A: torch.Tensor, B: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    """Decomposes `aten::linalg_solve` of matrices with as many dimensions: (..., N, N) and (..., N, K)."""
    if not left or A.dim() != B.dim():
        raise NotImplementedError("a solution for vectors, or from the right")
    return _eliminated(A, B)[0]


def determinant(self: torch.Tensor) -> torch.Tensor:
    """Decomposes `aten::det` and `aten::linalg_det`: (..., N, N) to (...,), the product of pivots with its sign."""
    _, pivots, sign = _eliminated(self, None)
    # behind a pivot of zero stand what no number is
    is_zero = (pivots == 0).any(-1)
    return torch.where(is_zero, 0.0, pivots.prod(-1) * sign).to(self.dtype)


def sign_and_logarithm(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Decomposes `aten::linalg_slogdet`: the sign of the determinant and the logarithm of its size, (...,) each."""
    _, pivots, sign = _eliminated(A, None)
    is_zero = (pivots == 0).any(-1)
    sign = torch.where(is_zero, 0.0, pivots.sign().prod(-1) * sign).to(A.dtype)
    return sign, torch.where(is_zero, -torch.inf, pivots.abs().log().sum(-1))


def _sign_and_logarithm(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return sign_and_logarithm(self)


def logarithm(self: torch.Tensor) -> torch.Tensor:
    """Decomposes `aten::logdet`: the logarithm of determinants, NaN where one is negative, (...,)."""
    sign, size = sign_and_logarithm(self)
    return torch.where(sign < 0, torch.nan, size)


def cholesky(self: torch.Tensor, *, upper: bool = False) -> torch.Tensor:
    """Decomposes `aten::linalg_cholesky`: (..., N, N) to its lower, or upper, triangular factor."""
    rows = _rows_of(self)
    rest, columns = self, []
    for step in range(rows):
        column = rest[..., :, step : step + 1] / rest[..., step : step + 1, step : step + 1].sqrt()
        column = torch.where(_numbers(self).unsqueeze(-1) >= step, column, 0.0)
        columns.append(column)
        rest = rest - column * column.transpose(-1, -2)
    factor = torch.cat(columns, -1)
    return factor.transpose(-1, -2) if upper else factor


def solve_triangular(
    self: torch.Tensor, B: torch.Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> torch.Tensor:
    """Decomposes `aten::linalg_solve_triangular`: (..., N, N) and (..., N, K) to (..., N, K)."""
    if not left:
        transposed = solve_triangular(
            self.transpose(-1, -2), B.transpose(-1, -2), upper=not upper, unitriangular=unitriangular
        )
        return transposed.transpose(-1, -2)
    rows = _rows_of(self)
    solved: dict[int, torch.Tensor] = {}
    for row in reversed(range(rows)) if upper else range(rows):
        found = B[..., row : row + 1, :]
        for column, known in solved.items():
            found = found - self[..., row : row + 1, column : column + 1] * known
        solved[row] = found if unitriangular else found / self[..., row : row + 1, row : row + 1]
    return torch.cat([solved[row] for row in range(rows)], -2)


def solve_by_factor(self: torch.Tensor, input2: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Decomposes `aten::cholesky_solve`: (..., N, K) and the factor (..., N, N) of a matrix to (..., N, K)."""
    lower = input2.transpose(-1, -2) if upper else input2
    half = solve_triangular(lower, self, upper=False)
    return solve_triangular(lower.transpose(-1, -2), half, upper=True)


def _eliminated(matrix: torch.Tensor, right: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Gauss-Jordan elimination, with the largest element of a column as its pivot.

    Args:
        matrix: (..., N, N).
        right: (..., N, K); None where no solution is wanted.

    Returns:
        The solution (..., N, K), the pivots (..., N), and the sign of the permutation of rows, (...,).
    """
    rows, numbers = _rows_of(matrix), _numbers(matrix)
    pivots: list[torch.Tensor] = []
    whole = matrix if right is None else torch.cat([matrix, right], -1)
    sign: Any = 1.0
    for step in range(rows):
        chosen = whole[..., step:, step].abs().argmax(-1, keepdim=True) + step
        order = torch.where(numbers == step, chosen, torch.where(numbers == chosen, step, numbers))
        whole = whole.gather(-2, order.unsqueeze(-1).expand(whole.shape))
        row = whole[..., step : step + 1, :]
        pivots.append(row[..., 0, step])
        sign = torch.where(chosen[..., 0] == step, 1.0, -1.0) * sign
        row = row / row[..., step : step + 1]
        others = whole - whole[..., step : step + 1] * row
        whole = torch.where((numbers == step).unsqueeze(-1), row, others)
    return whole[..., rows:], torch.stack(pivots, -1), sign


def _rows_of(matrix: torch.Tensor) -> int:
    rows = matrix.shape[-1]
    if not isinstance(rows, int) or not 0 < rows <= MOST_ROWS or matrix.is_complex():
        raise NotImplementedError(f"matrices of {rows} rows")
    return rows


def _numbers(matrix: torch.Tensor) -> torch.Tensor:
    return torch.arange(_rows_of(matrix), device=matrix.device)


def _identity(matrix: torch.Tensor) -> torch.Tensor:
    return torch.eye(_rows_of(matrix), dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)


SMALL_MATRICES: Final[dict[str, Callable[..., Any]]] = {
    "aten::linalg_inv": inverse,
    "aten::inverse": inverse,
    "aten::linalg_inv_ex": inverse_and_info,
    "aten::linalg_solve": solve,
    "aten::det": determinant,
    "aten::linalg_det": determinant,
    "aten::linalg_slogdet": sign_and_logarithm,
    "aten::slogdet": _sign_and_logarithm,
    "aten::logdet": logarithm,
    "aten::linalg_cholesky": cholesky,
    "aten::cholesky_solve": solve_by_factor,
    "aten::linalg_solve_triangular": solve_triangular,
}
"""Decompositions by operator; a matrix that is too large is refused by `NotImplementedError`."""
