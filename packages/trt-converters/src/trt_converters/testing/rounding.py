"""How far from the exact result a correct implementation may end up, computed from the call itself.

Two correct kernels may differ in the order of their sums, and in the type that they keep partial sums in; which they
choose depends on the processor. So a result in a narrow type is judged by its distance from the result in float64, with
a bound that follows from the call:

- every rounding changes a value by at most the unit roundoff `u` of its type. Rounding all inputs by `u` once, with
  random signs, changes each output by some standard deviation `s`, which a few evaluations in float64 measure;
- a sum of `n` terms whose partial sums are rounded makes `n` such errors instead of one. Random errors add up to
  `sqrt(n)` times one of them (Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019);
- the result is rounded once more, by `u` of its own magnitude.

Hence the bound `4 * (sqrt(n) * s + u * |y|)`, plus the smallest number that the type can represent; 4 standard
deviations leave out fewer than one in ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch

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
