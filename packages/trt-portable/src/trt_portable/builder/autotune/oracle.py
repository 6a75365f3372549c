"""Whether a candidate computes what it should, as far as its types can tell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import torch

from trt_portable.shape_tensors import Value, as_tensor

# Relative to the size of an output. Products in another order, TF32 and 10 or 7 bits of mantissa differ by less;
# a wrong kernel by more.
_TOLERANCES: Final = {torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
_ROUNDED: Final = {torch.float8_e4m3fn: 0.1, torch.float8_e5m2: 0.2}
"""The same for outputs of types that nothing is computed in: numbers between two of theirs may go either way."""
_LEAST_SIZE: Final = 1e-6  # of an element: smaller numbers are what is left where large ones cancel
_PIECE: Final = 1 << 22  # elements
_LEAST_EQUAL: Final = 0.99  # of integers: a maximum among equals may be another one


def first_difference(
    found: Sequence[Value], expected: Sequence[Value], computed_in: Collection[torch.dtype] = ()
) -> str | None:
    """What is wrong with outputs, in words; None when they agree as far as types allow.

    Args:
        found: What a candidate makes.
        expected: What it should make.
        computed_in: Types of what the outputs are computed from: a float32 that comes from half precision is no better.
    """
    within = max((_TOLERANCES.get(dtype, 0.0) for dtype in computed_in), default=0.0)
    if len(found) != len(expected):
        return f"{len(found)} outputs instead of {len(expected)}"
    for index, (have, want) in enumerate(zip(map(as_tensor, found), map(as_tensor, expected), strict=True)):
        if have.shape != want.shape or have.dtype is not want.dtype:
            return f"output {index} is {have.dtype} {tuple(have.shape)}, not {want.dtype} {tuple(want.shape)}"
        if not want.numel():
            continue
        tolerance = _TOLERANCES.get(want.dtype) or _ROUNDED.get(want.dtype)
        parts = _parts(have, want)
        if tolerance is None:
            equal = sum(int((left == right).sum()) for left, right in parts) / want.numel()
            if equal < _LEAST_EQUAL:
                return f"output {index}: {equal:.1%} of the elements are equal"
            continue
        said = _float_difference(parts, max(tolerance, within), want.dtype)
        if said is not None:
            return f"output {index} {said}"
    return None


def _parts(have: torch.Tensor, want: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two tensors piece by piece: what is computed of a piece in double precision is a small part of either."""
    pieces = (tensor.reshape(-1).split(_PIECE) for tensor in (have, want))
    return list(zip(*pieces, strict=True))


def _float_difference(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], tolerance: float, dtype: torch.dtype
) -> str | None:
    """How numbers differ by more than a part of their size, or where they are finite."""
    least = max(_LEAST_SIZE, torch.finfo(dtype).smallest_normal)  # below it, half precision loses bits
    sums: list[torch.Tensor] = []  # per piece: places finite in one only, other infinities, error, size, finite places
    for left, right in parts:
        have, want = left.double(), right.double()
        finite = torch.isfinite(want)
        elsewhere = finite != torch.isfinite(have)
        other = ~finite & (have.nan_to_num() != want.nan_to_num())
        errors, sizes = (torch.where(finite & ~elsewhere, value, 0.0).square().sum() for value in (have - want, want))
        sums.append(torch.stack([elsewhere.sum(), other.sum(), errors, sizes, finite.sum()]))
    places, others, error, size, count = torch.stack(sums).sum(0).tolist()
    if places:
        return "is finite in other places"
    if others:
        return "has other infinities or NaN"
    error, size = error**0.5, size**0.5
    if error > tolerance * max(size, least * count**0.5):
        return f"is off by {error / max(size, 1e-30):.2g} of its size"
    return None


class SameResult:
    """Holds what was written to what was written first.

    Args:
        result: Where.
    """

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result
        self._wanted: torch.Tensor | None = None

    def __call__(self) -> bool:
        """Whether the result is what it was, and gives it other values."""
        if self._wanted is None:
            self._wanted = self._result.clone()
        is_right = first_difference([self._result], [self._wanted]) is None
        self._result.fill_(torch.nan)
        return is_right
