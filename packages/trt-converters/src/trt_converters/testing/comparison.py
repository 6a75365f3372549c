"""Tolerances by type, and the comparison of an engine's outputs with eager's.

Tolerances are relative to the accuracy that two correct implementations of one function can promise each other:

| type     | rtol   | atol   | reason                                                         |
|----------|--------|--------|----------------------------------------------------------------|
| float32  | 2e-5   | 2e-6   | compositions of a few kernels, each within some ulp             |
| float16  | 4e-3   | 2e-3   | 10 mantissa bits, a few roundings of intermediate results       |
| bfloat16 | 3e-2   | 1e-2   | 7 mantissa bits, a few roundings of intermediate results        |
| others   | 0      | 0      | integers and booleans are exact                                 |

Long sums may differ by more, on processors whose kernels keep partial sums in the narrow type. So a result that is
beyond these tolerances is right all the same when it is as near to the result in float64 as a correct implementation
must be. Two correct kernels may differ in the order of their sums, and in the type of partial sums; which they choose
depends on the processor. How near they must be follows from the call:

- every rounding changes a value by at most the unit roundoff `u` of its type. Rounding all inputs by `u` once, with
  random signs, changes each output by some standard deviation `s`, which a few evaluations in float64 measure;
- a sum of `n` terms whose partial sums are rounded makes `n` such errors instead of one. Random errors add up to
  `sqrt(n)` times one of them (Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019);
- the result is rounded once more, by `u` of its own magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch

TOLERANCES: Final[dict[torch.dtype, tuple[float, float]]] = {
    torch.float32: (2e-5, 2e-6),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (3e-2, 1e-2),
}
"""(rtol, atol) by type; types that are not listed are compared exactly."""


def compare(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    *,
    rtol: float | None = None,
    atol: float | None = None,
    what: str = "",
    bounds: Callable[[], Sequence[tuple[torch.Tensor, torch.Tensor] | None]] | None = None,
) -> None:
    """Compares an engine's outputs with eager's.

    Args:
        outputs, expected: Tensors of the engine, and of eager.
        rtol, atol: Tolerances instead of those of `TOLERANCES`.
        what: What was computed, for the message.
        bounds: Returns the exact outputs and how far from them a correct result may be, see `rounding_bounds`. Asked
            for when an output is beyond the tolerance of its type, and none was given instead.

    Raises:
        AssertionError: Number, type, shape, a value beyond tolerance, or a NaN in another place.
    """
    assert len(outputs) == len(expected), f"{what}: {len(outputs)} outputs, PyTorch returns {len(expected)}"
    for index, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        default_rtol, default_atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        try:
            torch.testing.assert_close(
                found.cpu(),
                wanted.cpu(),
                rtol=default_rtol if rtol is None else rtol,
                atol=default_atol if atol is None else atol,
                equal_nan=True,
                msg=lambda text, index=index: f"{what}, output {index}: {text}",  # type: ignore[misc]
            )
        except AssertionError:
            if rtol is not None or atol is not None or bounds is None or found.dtype != wanted.dtype:
                raise
            exact = bounds()[index]
            if exact is None or not is_within(found, *exact):
                raise


EVALUATIONS: Final = 8
"""How often an operator is evaluated on rounded inputs."""

DEVIATIONS: Final = 4.0

Function = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def rounding_bounds(
    function: Function, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]
) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
    """Computes what a function should return, and how far from it a correct implementation may be.

    Args:
        function: Returns tensors; evaluated on floating-point inputs in float64, so it must not fix a narrow type.
        tensors: Its inputs, in the types that the implementation gets.
        dtypes: Types of the implementation's outputs.

    Returns:
        For each output the exact result and the bound on the absolute error, both float64 of the output's shape; None
        where the output is not floating-point, or the function does not compute it in float64.
    """
    try:
        return _bounds(function, tensors, dtypes)
    except (RuntimeError, NotImplementedError):  # no kernel for float64
        return [None] * len(dtypes)


def _bounds(
    function: Function, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]
) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
    generator = torch.Generator().manual_seed(0)
    wide = [tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.cpu() for tensor in tensors]
    exact, terms = _evaluate(function, wide)
    squares = [torch.zeros_like(value) if value.dtype is torch.float64 else None for value in exact]
    for _ in range(EVALUATIONS):
        rounded = [_rounded(value, given.dtype, generator) for value, given in zip(wide, tensors, strict=True)]
        for square, found, value in zip(squares, function(rounded), exact, strict=True):
            if square is not None:
                square += (found - value).square().nan_to_num(0.0, 0.0, 0.0)
    bounds: list[tuple[torch.Tensor, torch.Tensor] | None] = []
    for value, square, dtype in zip(exact, squares, dtypes, strict=True):
        if square is None or not dtype.is_floating_point:
            bounds.append(None)
            continue
        deviation = (square / EVALUATIONS).sqrt() * math.sqrt(terms)
        final = value.abs().nan_to_num(0.0, 0.0, 0.0) * _unit_roundoff(dtype)
        bounds.append((value, DEVIATIONS * (deviation + final) + torch.finfo(dtype).smallest_normal))
    return bounds


def is_within(found: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> bool:
    """Whether every element is within its bound, and NaN and infinities are where the exact result has them.

    Args:
        found: An output, of any floating-point type.
        exact, bound: What `rounding_bounds` returned, of the same shape.
    """
    if found.shape != exact.shape:
        return False
    rounded = exact.to(found.dtype)
    special = ~rounded.isfinite()
    same = (rounded == found.cpu()) | (rounded.isnan() & found.cpu().isnan())
    near = (found.cpu().double() - exact).abs() <= bound
    return bool(torch.where(special, same, near).all())


def _evaluate(function: Function, tensors: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], float]:
    """Returns the results, and how many terms are added up for an element of them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        results = function(tensors)
    made = max(1, sum(result.numel() for result in results))
    taken = max((tensor.numel() for tensor in tensors), default=1)
    # a product of matrices or a convolution makes two operations for each term, a reduction takes each element once
    return results, max(1.0, taken / made, counter.get_total_flops() / (2 * made))


def _rounded(value: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if not dtype.is_floating_point:
        return value
    signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return value * (1 + signs * _unit_roundoff(dtype))


def _unit_roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
