"""Operators that are captured with sizes left open refuse what their own kernels refuse."""

from __future__ import annotations

import pytest
import torch

from trt_core import ExportError

X = torch.ones(3, 3)
REFUSED = {
    "three dimensions": (torch.cov, torch.ones(2, 2, 2)),
    "truth values": (torch.cov, X.bool()),
    "correlation": (torch.corrcoef, torch.ones(2, 2, 2)),
    "counts in two dimensions": (lambda x, w: torch.cov(x, fweights=w), X, torch.ones(3, 3).long()),
    "counts that are no integers": (lambda x, w: torch.cov(x, fweights=w), X, torch.ones(3)),
    "too few counts": (lambda x, w: torch.cov(x, fweights=w), X, torch.ones(1).long()),
    "weights that are integers": (lambda x, w: torch.cov(x, aweights=w), X, torch.ones(3).long()),
    "too few weights": (lambda x, w: torch.cov(x, aweights=w), X, torch.ones(2)),
    "one dimension twice": (lambda x: torch.gradient(x, dim=(1, -1)), X),
    "unsigned": (torch.gradient, X.byte()),
    "indices of 32 bits": (lambda x, at: torch.take_along_dim(x, at, 0), X, torch.zeros(3, 3).int()),
    "indices of one dimension": (lambda x, at: torch.take_along_dim(x, at, 0), X, torch.zeros(3).long()),
    "order": (lambda x: torch.linalg.matrix_norm(x, 2.5), X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_kernels_refuse_is_not_captured(name, captured):
    function, *given = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)):
        function(*given)
    with pytest.raises(ExportError, match="cannot be exported"):
        captured(function, *given)


def test_weights_of_as_many_observations_as_there_are_are_taken(captured):
    rows = torch.export.Dim("rows", min=2, max=8)

    def function(x, w):
        return torch.cov(x.t(), fweights=w)

    x, weights = torch.randn(4, 3), torch.tensor([1, 2, 1, 3])
    gm = captured(function, x, weights, dynamic_shapes=(({0: rows}, {0: rows}),))
    x, weights = torch.randn(5, 3), torch.tensor([1, 2, 1, 3, 1])
    torch.testing.assert_close(gm(x, weights), function(x, weights))
