"""Linear algebra of small matrices runs in engines, with the values of eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from function_module import Calls

import trt_frontends
from trt_core import Input

pytestmark = pytest.mark.sampled(4)

OPERATORS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    # x: (N, rows, rows), float32
    "inv": torch.linalg.inv,
    "inverse": torch.inverse,
    "inv_ex": lambda x: tuple(torch.linalg.inv_ex(x)),
    "inv_ex of what has none": lambda x: torch.linalg.inv_ex(x * (x.new_ones(x.shape[-1]).cumsum(0) > 1)).info,
    "solve": lambda x: torch.linalg.solve(x, x[..., :2].sin()),
    "det": torch.det,
    "det of what has no inverse": lambda x: torch.linalg.det(torch.cat([x[..., :1], x[..., :-1]], -1)),
    "det of zeros": lambda x: torch.linalg.det(x * 0),
    "slogdet": lambda x: [*torch.linalg.slogdet(x), *torch.slogdet(x.flip(-1))],
    "slogdet of what has no inverse": lambda x: tuple(torch.slogdet(torch.cat([x[..., :1], x[..., :-1]], -1))),
    "logdet": lambda x: torch.logdet(x) + torch.logdet(x @ x.mT),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[-1])),
    "cholesky, upper": lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[-1]), upper=True),
    "cholesky_solve": lambda x: torch.cholesky_solve(x[..., :2], x.tril()),
    "cholesky_solve, upper": lambda x: torch.cholesky_solve(x, x.triu(), upper=True),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x.tril(), x[..., :1], upper=False),
    "solve_triangular, upper": lambda x: torch.linalg.solve_triangular(x.triu(), x, upper=True),
    "solve_triangular, right": lambda x: torch.linalg.solve_triangular(x.triu(), x[..., :2, :], upper=True, left=False),
    "solve_triangular of ones": lambda x: torch.linalg.solve_triangular(x, x, upper=False, unitriangular=True),
}


def _matrices(count: int, rows: int) -> torch.Tensor:
    """Rows in an order in which a pivot has to be looked for, and none is small."""
    turned = torch.linalg.qr(torch.randn(count, rows, rows)).Q @ torch.diag(torch.linspace(1, 3, rows))
    turned[0] = torch.eye(rows).flip(0) * 2
    return turned


@pytest.mark.parametrize(
    ("name", "rows"), [*((name, 3) for name in OPERATORS), ("inv", 2), ("solve", 6), ("det", 5), ("cholesky", 4)]
)
def test_small_matrices_are_in_one_engine(name: str, rows: int) -> None:
    model = Calls(OPERATORS[name])
    if name.startswith(("solve_triangular", "cholesky_solve")):
        make = lambda count, size: _matrices(count, size) * 0.2 + torch.eye(size)  # noqa: E731
    else:
        make = _matrices
    inputs = [Input(min_shape=(1, rows, rows), opt_shape=(4, rows, rows), max_shape=(8, rows, rows))]
    compiled = trt_frontends.compile(model, arg_inputs=inputs, require_full_compilation=True, optimization_level=0)
    for count in (1, 3, 8):
        x = make(count, rows)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("name", "rows"), [("inv", 9), ("inverse", 16), ("cholesky", 9)])
def test_larger_matrices_stay_in_pytorch(name: str, rows: int) -> None:
    model, x = Calls(OPERATORS[name]), _matrices(2, rows)
    compiled = trt_frontends.compile(model, arg_inputs=[x], min_block_size=1)
    assert any("linalg" in node.op or name in node.op for node in compiled.meta["partition_report"].torch_nodes)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_torch_compile_says_what_eager_says_of_a_matrix_without_an_inverse() -> None:
    model = Calls(lambda x: torch.linalg.inv(x) * 2 + 1)
    compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1, "optimization_level": 0})
    x = _matrices(3, 3)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError, match="could not be completed"):
        compiled(torch.ones(3, 3, 3))


@pytest.mark.parametrize(("name", "given"), [("inv", 0.0), ("solve", 0.0), ("cholesky", -1.0)])
def test_what_cannot_be_inverted_is_no_number_where_engines_compute_it(name: str, given: float, tmp_path: Path) -> None:
    compute = {"inv": torch.linalg.inv, "solve": lambda x: torch.linalg.solve(x, x), "cholesky": torch.linalg.cholesky}
    model, x = Calls(compute[name]), torch.full((2, 3, 3), given)
    compiled = trt_frontends.compile(model, arg_inputs=[x + 2 * torch.eye(3)], min_block_size=1, optimization_level=0)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    with pytest.raises(torch.linalg.LinAlgError):
        model(x)
    for door in (compiled, trt_frontends.load(tmp_path / "model.trtp")):
        assert not door(x).isfinite().all(-1).all(-1).any()
