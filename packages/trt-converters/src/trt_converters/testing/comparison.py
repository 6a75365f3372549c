"""Tolerances by type, and the comparison of an engine's outputs with eager's.

Tolerances are relative to the accuracy that two correct implementations of one function can promise each other:

| type     | rtol   | atol   | reason                                                         |
|----------|--------|--------|----------------------------------------------------------------|
| float32  | 2e-5   | 2e-6   | compositions of a few kernels, each within some ulp             |
| float16  | 4e-3   | 2e-3   | 10 mantissa bits, a few roundings of intermediate results       |
| bfloat16 | 3e-2   | 1e-2   | 7 mantissa bits, a few roundings of intermediate results        |
| others   | 0      | 0      | integers and booleans are exact                                 |
"""

from __future__ import annotations

from collections.abc import Sequence
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
) -> None:
    """Compares an engine's outputs with eager's.

    Raises:
        AssertionError: Number, type, shape, a value beyond tolerance, or a NaN in another place.
    """
    assert len(outputs) == len(expected), f"{what}: {len(outputs)} outputs, PyTorch returns {len(expected)}"
    for index, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        default_rtol, default_atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        torch.testing.assert_close(
            found.cpu(),
            wanted.cpu(),
            rtol=default_rtol if rtol is None else rtol,
            atol=default_atol if atol is None else atol,
            equal_nan=True,
            msg=lambda text, index=index: f"{what}, output {index}: {text}",  # type: ignore[misc]
        )
