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
must be; `trt_converters.testing.rounding` derives how near that is from the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from trt_converters.testing.rounding import is_within

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
