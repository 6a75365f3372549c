"""Linear maps on CUDA into rows of an odd extent, as the logits of many vocabularies have it.

Kernels for tensor cores write rows that begin at multiples of 16 bytes. Rows of 50257 numbers in half precision do not,
and the kernel that is left takes three times as long: 127 microseconds for (128, 768) by (768, 50257) on a Hopper GPU,
against 41 for a few columns more and a copy. So most columns are one product, the rest another, and a copy joins both.
A compiler would spare that copy and let each product write its columns of the result: rows at odd places again.
It is given two tables to choose from instead of parts to join.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F

from trt_portable.enums import DataType, LayerType
from trt_portable.runtime.fusion import linear_form
from trt_portable.runtime.program import LayerCall
from trt_portable.values import Value, as_tensor

_ALIGNED_COLUMNS: Final = 8  # of half precision
_MANY_COLUMNS: Final = 1024  # fewer take no time worth a copy
_MANY_ROWS: Final = 16  # fewer are bound by reading the matrix
_HALVES: Final = (DataType.HALF, DataType.BF16)


Join = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Puts columns (..., M) and (..., N) side by side: (..., M + N)."""


def split_odd_products(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Splits linear maps in half precision whose constant matrix (N, K) has many rows, but no multiple of 8.

    Args:
        calls: Layers in executable order, linear maps fused.
    """
    return _split(calls, _copied)


def split_traced_odd_products(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """The same for calls that a compiler is to see."""
    return _split(calls, _chosen)


def _split(calls: Sequence[LayerCall], join: Join) -> list[LayerCall]:
    constants = {call.outputs[0]: call.layer for call in calls if call.layer.type is LayerType.CONSTANT}
    split = []
    for call in calls:
        form, matrix = linear_form(call), constants.get(call.inputs[1]) if len(call.inputs) > 1 else None  # type: ignore[arg-type]
        if form is not None and form.is_transposed and matrix is not None:
            rows, columns = matrix.shape[-2:]  # type: ignore[attr-defined]
            is_half = matrix._weight_spec("CONSTANT")[0] in _HALVES
            if is_half and rows >= _MANY_COLUMNS and rows % _ALIGNED_COLUMNS and columns % _ALIGNED_COLUMNS == 0:
                call = replace(call, compute=functools.partial(_split_linear, join))
        split.append(call)
    return split


def _split_linear(join: Join, inputs: Sequence[Value | None]) -> Sequence[Value]:
    """``x @ matrix.T + bias`` for a matrix (1, ..., 1, N, K)."""
    x, matrix, *rest = (as_tensor(value) for value in inputs if value is not None)
    matrix = matrix.reshape(matrix.shape[-2:])
    bias = rest[0].reshape(-1) if rest else None
    if x.numel() < _MANY_ROWS * x.shape[-1]:
        return (F.linear(x, matrix, bias),)
    sizes = [len(matrix) - len(matrix) % _ALIGNED_COLUMNS, len(matrix) % _ALIGNED_COLUMNS]
    biases = [None, None] if bias is None else bias.split(sizes)
    most, few = (F.linear(x, *operands) for operands in zip(matrix.split(sizes), biases, strict=True))
    return (join(most, few),)


def _copied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.cat((left, right), -1)


def _chosen(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same as one choice for each element, which compilers make one kernel of."""
    is_left = torch.arange(left.shape[-1] + right.shape[-1], device=left.device) < left.shape[-1]
    return torch.where(is_left, F.pad(left, (0, right.shape[-1])), F.pad(right, (left.shape[-1], 0)))
