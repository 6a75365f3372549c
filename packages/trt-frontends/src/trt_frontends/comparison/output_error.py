"""How far one output is from another: the figures that an accuracy report is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.control_flow import ControlFlowMode, is_control_flow
from trt_core.held_arguments import held_to_signature
from trt_core.internals import HigherOrderOperator, pytree

NUMERIC: Final = (torch.Tensor, bool, int, float, complex)
"""Types of leaves of a result that are compared by value."""


def tensors_of(result: Any) -> list[torch.Tensor]:
    """Returns the tensors in a result, in order; numbers count as tensors without axes."""
    return [as_tensor(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, NUMERIC)]


def as_tensor(leaf: Any) -> torch.Tensor:
    """Returns a tensor as it is, and a Python number as a tensor without axes."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    is_long = isinstance(leaf, int) and not -(2**63) <= leaf < 2**63
    return torch.tensor(float(leaf) if is_long else leaf, device="cpu")


HISTOGRAM_LOW: Final = -12
HISTOGRAM_HIGH: Final = 4
"""Exponents of ten that the histogram of absolute errors spans; it has one bin for each, and one for exact elements."""


@dataclass(frozen=True)
class OutputError:
    """How far an output is from its reference. Non-finite elements are counted, and left out of every other figure.

    Attributes:
        max_abs, mean_abs: Worst and mean absolute error.
        max_rel, mean_rel: Worst and mean error relative to the element of the reference, where that is not zero.
        scaled: Worst absolute error over the largest magnitude of the reference; what a tolerance is compared with. It
            is infinite where a NaN or an infinity is in one of the two alone. Integers and booleans are right or wrong:
            of these it is at least the share of the elements that differ.
        cosine: Cosine of the angle between the two, as vectors; 1 where both are zero.
        snr_db: Signal-to-noise ratio in decibels, infinite where they are equal.
        nans, infinities: Elements that are not a number, and infinite ones: (in the output, in the reference).
        elements: Elements that were compared.
        histogram: Counts of absolute errors: exact ones first, then by decade from 1e-12 up, the last bin open.
    """

    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float
    scaled: float
    cosine: float
    snr_db: float
    nans: tuple[int, int]
    infinities: tuple[int, int]
    elements: int
    histogram: tuple[int, ...]


@held_to_signature
def measure_error(found: torch.Tensor, reference: torch.Tensor) -> OutputError:
    """Compares an output with its reference; both of one shape, of any type, on any device.

    Computed in float64; complex tensors count as pairs of numbers. Integers are equal only where they are so exactly.
    """
    share = _share_of_other_integers(found, reference)
    left, right = _numbers(found), _numbers(reference)
    nans = (int(left.isnan().sum()), int(right.isnan().sum()))
    infinities = (int(left.isinf().sum()), int(right.isinf().sum()))
    agreeing = (left.isnan() & right.isnan()) | (left == right)
    comparable = left.isfinite() & right.isfinite()
    mismatched = bool((~comparable & ~agreeing).any())
    left, right = left[comparable], right[comparable]
    difference = (left - right).abs()
    largest = _max(right.abs())
    worst = _max(difference)
    relative = difference[right != 0] / right[right != 0].abs()
    scaled = math.inf if mismatched else 0.0 if worst == 0 else worst / largest if largest else math.inf
    return OutputError(
        max_abs=worst,
        mean_abs=_mean(difference),
        max_rel=_max(relative),
        mean_rel=_mean(relative),
        scaled=max(scaled, share),
        cosine=_cosine(left, right),
        snr_db=_decibels(float(right.square().sum()), float(difference.square().sum())),
        nans=nans,
        infinities=infinities,
        elements=found.numel(),
        histogram=_histogram(difference),
    )


def worst_of(errors: list[OutputError]) -> OutputError:
    """Returns the errors of one output on several inputs as one: worst figures, means over elements, summed counts."""
    elements = sum(error.elements for error in errors)

    def weighted(values: list[float]) -> float:
        weights = [error.elements for error in errors]
        return sum(map(_product, values, weights)) / elements if elements else 0.0

    return OutputError(
        max_abs=max(error.max_abs for error in errors),
        mean_abs=weighted([error.mean_abs for error in errors]),
        max_rel=max(error.max_rel for error in errors),
        mean_rel=weighted([error.mean_rel for error in errors]),
        scaled=max(error.scaled for error in errors),
        cosine=min(error.cosine for error in errors),
        snr_db=min(error.snr_db for error in errors),
        nans=(sum(error.nans[0] for error in errors), sum(error.nans[1] for error in errors)),
        infinities=(sum(error.infinities[0] for error in errors), sum(error.infinities[1] for error in errors)),
        elements=elements,
        histogram=tuple(map(sum, zip(*(error.histogram for error in errors), strict=True))),
    )


def _share_of_other_integers(found: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns the share of elements that differ, of integers and booleans; 0 for other types."""
    if any(item.is_floating_point() or item.is_complex() for item in (found, reference)) or not found.numel():
        return 0.0
    return float((found.detach().cpu() != reference.detach().cpu()).to(torch.float64).mean())


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.double().flatten()


def _product(value: float, weight: int) -> float:
    return value * weight if weight else 0.0


def _max(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    norms = float(left.norm()), float(right.norm())
    if not all(norms):
        return 1.0 if norms[0] == norms[1] else 0.0
    return float((left / norms[0]) @ (right / norms[1]))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _histogram(difference: torch.Tensor) -> tuple[int, ...]:
    bins = HISTOGRAM_HIGH - HISTOGRAM_LOW
    inexact = difference[difference > 0]
    decades = inexact.log10().floor().clamp(HISTOGRAM_LOW, HISTOGRAM_HIGH - 1).long() - HISTOGRAM_LOW
    counts = torch.bincount(decades, minlength=bins).tolist()
    return (difference.numel() - inexact.numel(), *counts)


class WideMode(ControlFlowMode):
    """Computes everything that is floating-point in float64, and complex numbers in complex128.

    Operands are widened one operator at a time, so weights need no second copy. An operator that writes to a narrow
    tensor computes in that tensor's own type.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator on widened operands."""
        kwargs = kwargs or {}
        if isinstance(function, HigherOrderOperator):
            if not is_control_flow(function):
                raise NotImplementedError(f"{function} has no form for float64")
            return self.run_bodies(function, pytree.tree_map(_widened, args), kwargs)
        if any(tensor.dtype in _WIDE for tensor in _written(function, args, kwargs)):
            narrow = next(_written(function, args, kwargs)).dtype
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda item: _narrowed(item, narrow), (args, kwargs))
            return function(*args, **kwargs)
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return function(*args, **kwargs)


def run_wide(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function in float64.

    Raises:
        Exception: What an operator without a kernel for float64 raises, whatever that is.
    """
    mode: ControlFlowMode = WideMode()  # type: ignore[no-untyped-call]  # its base has no annotations
    with torch.no_grad(), mode:
        return function(*args, **kwargs)


_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
        return value.to(_WIDE[value.dtype])
    return value


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype in (torch.float64, torch.complex128) else tensor


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                yield value
