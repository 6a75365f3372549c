"""Whether this processor's kernels for int8 add up exactly.

Without VNNI, x86 processors multiply unsigned by signed bytes and add two products into 16 bits, cut to what those
hold: two times 255 * 127 becomes 32767. PyTorch's kernels use that instruction, and their results are then off by some
percent. So they are asked, once in a process, for sums of the largest products there are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ROWS, _DEPTH, _COLUMNS = 32, 64, 32
_LARGEST: Final = 127


@functools.cache
def int_mm_is_exact() -> bool:
    """Whether `torch._int_mm` adds up exactly on the CPU; False where it does not exist."""
    return _is_exact(lambda left, matrix: torch._int_mm(left, matrix.t()))


@functools.cache
def onednn_is_exact() -> bool:
    """Whether oneDNN's product of bytes adds up exactly; False where it does not exist.

    Its convolutions are made of the same instructions.
    """
    return torch.backends.mkldnn.is_available() and _is_exact(_onednn_product)


def _onednn_product(left: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    zero = 128
    scales, zeros = torch.ones(_COLUMNS), torch.zeros(_COLUMNS, dtype=torch.int64)
    packed = torch.ops.onednn.qlinear_prepack(matrix, None)
    unsigned = (left ^ -zero).view(torch.uint8)
    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def _is_exact(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> bool:
    with _disable_current_modes(), torch.no_grad():
        left = torch.full((_ROWS, _DEPTH), _LARGEST, dtype=torch.int8)
        matrix = torch.full((_COLUMNS, _DEPTH), _LARGEST, dtype=torch.int8)
        try:
            found = multiply(left, matrix)
        except (RuntimeError, NotImplementedError, AttributeError):  # no such kernel
            return False
        return bool((found == _LARGEST * _LARGEST * _DEPTH).all())
