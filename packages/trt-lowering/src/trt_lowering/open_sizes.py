"""Composite operators whose own kernels read sizes as numbers, which fixes them, in operators that do not.

The same functions say what the operators return while a program is captured, and decompose them afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.nn import functional


def kronecker_product(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Decomposes `aten::kron`, whose own kernel reads sizes as numbers: one product of both, axes of extent 1 between.

    Args:
        self: (a0, a1, ...).
        other: (b0, b1, ...); the shorter shape gets ones in front.

    Returns:
        (a0 * b0, a1 * b1, ...).
    """
    rank = max(self.dim(), other.dim())
    left, right = ([1] * (rank - value.dim()) + list(value.shape) for value in (self, other))
    spread = self.reshape([size for extent in left for size in (extent, 1)])
    repeated = other.reshape([size for extent in right for size in (1, extent)])
    return (spread * repeated).reshape([one * two for one, two in zip(left, right, strict=True)])


def take_along_dim(self: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Decomposes `aten::take_along_dim`, whose own kernel reads sizes as numbers: axes but `dim` are broadcast."""
    if dim is None:
        return self.flatten().gather(0, indices.flatten())
    if indices.dtype is not torch.int64 or indices.dim() != self.dim():
        raise RuntimeError("take_along_dim: indices are int64, of as many dimensions as what is taken from")
    axis = dim % self.dim()
    shapes = [list(value.shape) for value in (self, indices)]
    for shape in shapes:
        shape[axis] = 1
    shared = list(torch.broadcast_shapes(*shapes))
    wide = [[*shared[:axis], value.shape[axis], *shared[axis + 1 :]] for value in (self, indices)]
    return self.expand(wide[0]).gather(axis, indices.expand(wide[1]))


def max_pool1d(
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Decomposes `aten::max_pool1d`, whose own kernel reads the length as a number: windows of one row."""
    row = self.unsqueeze(-2)
    steps = stride or kernel_size
    pooled = functional.max_pool2d(row, (1, *kernel_size), (1, *steps), (0, *padding), (1, *dilation), ceil_mode)
    return pooled.squeeze(-2)


def gradient(
    self: torch.Tensor,
    *,
    spacing: float | Sequence[float] | Sequence[torch.Tensor] | None = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[torch.Tensor]:
    """Decomposes `aten::gradient`: differences of both neighbours, and of one side at the ends.

    Args:
        self: Any shape, real numbers; `edge_order + 1` elements or more along each dimension.
        spacing: Distance of neighbours, a distance or the places themselves, (n,), for each dimension; 1 by default.
        dim: The dimensions; all by default.
        edge_order: 1 or 2, of the differences at the ends.

    Returns:
        One tensor for each dimension, shaped like `self`.
    """
    axes = list(range(self.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    steps = list(spacing) if isinstance(spacing, (list, tuple)) else [1 if spacing is None else spacing] * len(axes)
    if len(steps) != len(axes):
        raise RuntimeError(f"gradient has {len(axes)} dimensions and {len(steps)} spacings")
    if edge_order not in (1, 2):
        raise RuntimeError("gradient only supports edge_order=1 and edge_order=2")
    if len({axis % self.dim() for axis in axes}) < len(axes):
        raise RuntimeError(f"gradient: a dimension appears twice in {axes}")
    if self.dtype is torch.uint8:
        raise RuntimeError("gradient does not support uint8 input")
    return [_slope(self, axis, step, edge_order) for axis, step in zip(axes, steps, strict=True)]


def _slope(self: torch.Tensor, axis: int, step: Any, edge_order: int) -> torch.Tensor:
    count = self.shape[axis]
    torch._check(count > edge_order)
    share: torch.Tensor | float = 0.5
    rise = self.narrow(axis, 1, count - 1) - self.narrow(axis, 0, count - 1)
    if isinstance(step, torch.Tensor):
        shape = [1] * self.dim()
        shape[axis] = count - 1
        run = (step[1:] - step[:-1]).reshape(shape)
        before, after = run.narrow(axis, 0, count - 2), run.narrow(axis, 1, count - 2)
        share = before / (before + after)  # the nearer neighbour counts more
        slopes = rise / run
    else:
        slopes = rise / step
    left, right = slopes.narrow(axis, 0, count - 2), slopes.narrow(axis, 1, count - 2)
    middle = left + (right - left) * share
    first, last = slopes.narrow(axis, 0, 1), slopes.narrow(axis, count - 2, 1)
    if edge_order == 2:
        next_to_first, next_to_last = middle.narrow(axis, 0, 1), middle.narrow(axis, count - 3, 1)
        if isinstance(step, torch.Tensor):
            before_first, after_first = (run.narrow(axis, place, 1) for place in (0, 1))
            before_last, after_last = (run.narrow(axis, count - 3 + place, 1) for place in (0, 1))
            bend = (slopes.narrow(axis, 1, 1) - first) / (before_first + after_first)
            bend_at_end = (last - slopes.narrow(axis, count - 3, 1)) / (before_last + after_last)
            first, last = first - bend * before_first, last + bend_at_end * after_last
        else:
            first, last = 2 * first - next_to_first, 2 * last - next_to_last
    return torch.cat([first, middle, last], axis)


def matrix_norm(
    self: torch.Tensor,
    ord: float,  # noqa: A002 - the schema's name
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Decomposes `aten::linalg_matrix_norm` of a number: sums of columns or rows, or singular values.

    Args:
        self: Any shape of two dimensions or more.
        ord: 1, 2 or infinity; negative for the least instead of the greatest.
        dim: Rows and columns.
        keepdim: Whether they stay, with extent 1.
        dtype: What is computed in.
    """
    value = self if dtype is None else self.to(dtype)
    rows, columns = (axis % self.dim() for axis in dim)
    if rows == columns or abs(ord) not in (1, 2, float("inf")):
        raise RuntimeError(f"linalg.matrix_norm: order {ord} is not supported for dimensions {tuple(dim)}")
    found: torch.Tensor
    if abs(ord) == 2:  # singular values lie where columns do
        values = torch.linalg.svdvals(value.movedim((rows, columns), (-2, -1)))
        found = values.unsqueeze(-2).movedim((-2, -1), (rows, columns))
        reduced = columns
    else:
        summed, reduced = (rows, columns) if abs(ord) == 1 else (columns, rows)
        found = value.abs().sum(summed, keepdim=True)
    found = found.amax(reduced, keepdim=True) if ord > 0 else found.amin(reduced, keepdim=True)
    return found if keepdim else found.squeeze((rows, columns))


def norm(
    self: torch.Tensor,
    ord: float | None = None,  # noqa: A002 - the schema's name
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Decomposes `aten::linalg_norm`: of matrices where a number is given for two dimensions, else of vectors."""
    axes = list(dim) if dim is not None else list(range(self.dim())) if ord is not None else None
    if ord is not None and axes is not None and len(axes) == 2:
        return matrix_norm(self, ord, axes, keepdim, dtype=dtype)
    if ord is not None and dim is None and self.dim() > 2:
        raise RuntimeError("linalg.norm: if ord is specified and dim is not, the input must be 1D or 2D")
    found: torch.Tensor = torch.linalg.vector_norm(self, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    return found


def covariance(
    self: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decomposes `aten::cov`, whose own kernel looks at values: weights are taken to be none below 0, and some above.

    Args:
        self: (variables, observations), or (observations,).
        correction: What is taken off the number of observations.
        fweights: (observations,), integers: how often each was observed.
        aweights: (observations,): how much each counts.

    Returns:
        (variables, variables), or () of one variable.
    """
    if self.dim() > 2 or self.dtype is torch.bool:
        raise RuntimeError("cov(): expected numbers of two or fewer dimensions")
    observed = self.reshape(1, -1) if self.dim() < 2 else self
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None:
            _require_weights(name, given, observed.shape[1])
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    if weights is None:
        total: Any = observed.shape[1]
        centred = observed - observed.sum(1, keepdim=True) / total
        weighted, degrees = centred, torch.sym_max(total - correction, 0)
    else:
        total = weights.sum()
        centred = observed - (observed * weights).sum(1, keepdim=True) / total
        lost = correction if aweights is None or not correction else correction * (weights * aweights).sum() / total
        weighted, degrees = centred * weights, (total - lost).clamp(min=0)
    found: torch.Tensor = weighted @ centred.mH / degrees
    return found.squeeze()


def _require_weights(name: str, given: torch.Tensor, count: int) -> None:
    """Refuses weights of observations that `aten::cov` refuses."""
    is_float = given.is_floating_point()
    if given.dim() > 1 or given.dtype is torch.bool or given.is_complex() or is_float != (name == "aweights"):
        kind = "floating-point numbers" if name == "aweights" else "integers"
        raise RuntimeError(f"cov(): expected {name} to be {kind} of one or fewer dimensions")
    if given.numel() != count:
        raise RuntimeError(f"cov(): expected one of {name} for each observation")


def correlation(self: torch.Tensor) -> torch.Tensor:
    """Decomposes `aten::corrcoef`: the covariance of variables that vary by 1."""
    shared = covariance(self)
    if not shared.dim():
        return shared / shared
    spread = (shared.diagonal().real if shared.is_complex() else shared.diagonal()).sqrt()
    found = shared / spread.unsqueeze(1) / spread
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)


_INTERPOLATIONS: Final = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    self: torch.Tensor,
    q: torch.Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    ignore_nan: bool = False,
) -> torch.Tensor:
    """Decomposes `aten::quantile` and `aten::nanquantile`: sorts, and weighs the two elements around each place.

    Args:
        self: Any shape, float32 or float64.
        q: Which quantiles, from 0 to 1: a number, (), or (Q,), which makes a first dimension.
        dim: The dimension that is sorted; None for all.
        keepdim: Whether it stays, with extent 1.
        interpolation: `linear`, `lower`, `higher`, `midpoint` or `nearest`.
        ignore_nan: Whether NaN counts as no element; otherwise it makes the result NaN.

    Raises:
        RuntimeError: As PyTorch's kernel does, for what it does not take.
    """
    if self.dtype not in (torch.float32, torch.float64):
        raise RuntimeError("quantile() input tensor must be either float or double dtype")
    if isinstance(q, torch.Tensor) and (q.dim() > 1 or q.dtype != self.dtype):
        raise RuntimeError("quantile() q must be a scalar or 1D tensor of the same dtype as the input tensor")
    if isinstance(q, float | int) and not 0 <= q <= 1:
        raise RuntimeError(f"quantile() q must be in the range [0, 1] but got {q}")
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(f"quantile() interpolation must be one of {_INTERPOLATIONS}, but got {interpolation}")
    parts = q if isinstance(q, torch.Tensor) else torch.full((), q, dtype=self.dtype, device=self.device)
    row = self.flatten() if dim is None or not self.dim() else self.movedim(dim, -1)
    ordered = row.sort(-1).values  # NaN comes last
    is_nan = ordered.isnan()
    if ignore_nan:
        places = (parts.reshape(-1) * (is_nan.logical_not().sum(-1, keepdim=True) - 1)).clamp(min=0)
    else:
        last = ordered.shape[-1] - 1
        places = (parts.reshape(-1) * last).masked_fill(is_nan.any(-1, keepdim=True), last)
    rounding = {"higher": torch.ceil, "nearest": torch.round}.get(interpolation, torch.floor)
    below = rounding(places)
    found = ordered.gather(-1, below.to(torch.int64))
    if interpolation in ("linear", "midpoint"):
        above = ordered.gather(-1, places.ceil().to(torch.int64))
        weight = places - below if interpolation == "linear" else torch.full_like(places, 0.5)
        found = torch.lerp(found, above, weight)
    if keepdim:
        axis = -1 if dim is None or not self.dim() else dim % self.dim()
        found = found.reshape([1] * self.dim() + [-1]) if axis < 0 else found.unsqueeze(axis)
    return found.movedim(-1, 0) if parts.dim() else found.squeeze(-1)


_GRADIENTS: Final = (
    *("scalarint", "scalararray", "array", "scalarrayint", "scalarrayarray", "tensorarrayint", "tensorarray"),
)

OPEN_SIZES: Final[dict[str, Callable[..., Any]]] = {
    "aten::kron": kronecker_product,
    "aten::take_along_dim": take_along_dim,
    "aten::max_pool1d": max_pool1d,
    **{f"aten::gradient.{overload}": gradient for overload in _GRADIENTS},
    "aten::linalg_matrix_norm": matrix_norm,
    "aten::linalg_norm": norm,
    "aten::cov": covariance,
    "aten::corrcoef": correlation,
    **dict.fromkeys(("aten::quantile", "aten::quantile.scalar"), quantile),
    **dict.fromkeys(("aten::nanquantile", "aten::nanquantile.scalar"), functools.partial(quantile, ignore_nan=True)),
}
"""Decompositions of composite operators whose own kernels allow one size only, by operator."""
