"""Linear maps on CUDA into rows of an odd extent, as the logits of many vocabularies have it.

Kernels for tensor cores write rows that begin at multiples of 16 bytes. Rows of 50257 numbers in half precision do not,
and the kernel that is left takes three times as long: 127 microseconds for (128, 768) by (768, 50257) on a Hopper GPU,
against 41 for a few columns more and a copy. So most columns are one product, the rest another, and a copy joins both.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def split_odd_products(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Splits linear maps in half precision whose constant matrix (N, K) has many rows, but no multiple of 8.

    Args:
        calls: Layers in executable order, linear maps fused.
    """
    constants = {call.outputs[0]: call.layer for call in calls if call.layer.type is LayerType.CONSTANT}
    split = []
    for call in calls:
        form, matrix = linear_form(call), constants.get(call.inputs[1]) if len(call.inputs) > 1 else None  # type: ignore[arg-type]
        if form is not None and form.is_transposed and matrix is not None:
            rows, columns = matrix.shape[-2:]  # type: ignore[attr-defined]
            is_half = matrix._weight_spec("CONSTANT")[0] in _HALVES
            if is_half and rows >= _MANY_COLUMNS and rows % _ALIGNED_COLUMNS and columns % _ALIGNED_COLUMNS == 0:
                call = replace(call, compute=_split_linear)
        split.append(call)
    return split


def _split_linear(inputs: Sequence[Value | None]) -> Sequence[Value]:
    """``x @ matrix.T + bias`` for a matrix (1, ..., 1, N, K)."""
    x, matrix, *rest = (as_tensor(value) for value in inputs if value is not None)
    matrix = matrix.reshape(matrix.shape[-2:])
    bias = rest[0].reshape(-1) if rest else None
    if x.numel() < _MANY_ROWS * x.shape[-1]:
        return (F.linear(x, matrix, bias),)
    sizes = [len(matrix) - len(matrix) % _ALIGNED_COLUMNS, len(matrix) % _ALIGNED_COLUMNS]
    biases = [None, None] if bias is None else bias.split(sizes)
    parts = [F.linear(x, *operands) for operands in zip(matrix.split(sizes), biases, strict=True)]
    return (torch.cat(parts, -1),)
