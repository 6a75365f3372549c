"""What the operators of bitsandbytes compute, in PyTorch's own: how it stores weights of 4 bits, and products of int8.

Nothing here imports it. A weight of 4 bits is places in a table of sixteen values; elements that lie next to each other
in memory share a scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

TABLES: Final[Mapping[str, tuple[float, ...]]] = {
    "nf4": (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    "fp4": (
        *(0.0, 0.0052083334885537624, 0.6666666865348816, 1.0),
        *(0.3333333432674408, 0.5, 0.1666666716337204, 0.25),
        *(0.0, -0.0052083334885537624, -0.6666666865348816, -1.0),
        *(-0.3333333432674408, -0.5, -0.1666666716337204, -0.25),
    ),
}
"""What a code stands for, by the name of the format (QLoRA, arXiv 2305.14314, appendix E, for the first)."""

_CPU_ROWS: Final = 32
"""Rows of a tile of the library's own layout for CPUs."""
_NESTED_BLOCK: Final = 256
"""Scales that share a scale, where they have one."""
_STEPS: Final = 127.0
"""The largest code of int8."""


def codes_in_rows(packed: torch.Tensor, shape: Sequence[int], *, tiled: bool) -> torch.Tensor:
    """Returns the codes of a weight of 4 bits.

    Args:
        packed: Two codes in a byte, in any type and shape.
        shape: The weight's.
        tiled: Whether they lie in tiles of 32 rows and 2 columns, for CPUs: a byte has one of the first 16 rows in its
            low half. Otherwise rows follow each other, the first code of a byte in its high half.

    Returns:
        uint8, of the shape.
    """
    halves = packed if packed.dtype is torch.uint8 else packed.contiguous().view(torch.uint8)
    if tiled:
        rows, columns = shape
        tiles = halves.reshape(rows // _CPU_ROWS, columns // 2, _CPU_ROWS)
        codes = torch.cat((tiles & 15, tiles >> 4), -1)
        codes = codes.reshape(*codes.shape[:-1], _CPU_ROWS, 2)
        return codes.transpose(1, 2).reshape(rows, columns)
    codes = torch.stack((halves.reshape(-1) >> 4, halves.reshape(-1) & 15), -1).reshape(-1)
    return codes[: math.prod(shape)].reshape(tuple(shape))


def dequantize_blocks(
    codes: torch.Tensor, absmax: torch.Tensor, code: torch.Tensor, blocksize: int, dtype: torch.dtype
) -> torch.Tensor:
    """Computes `bitsandbytes::dequantize_blockwise`: `code[codes] * absmax`, a scale for each block in memory."""
    values, steps = code.to(torch.float32)[codes.to(torch.int64)], absmax.to(torch.float32).reshape(-1)
    if codes.dim() and codes.shape[-1] % blocksize == 0:
        blocks = (*codes.shape[:-1], codes.shape[-1] // blocksize)
        return (values.reshape(*blocks, blocksize) * steps.reshape(*blocks, 1)).reshape(codes.shape).to(dtype)
    wide = steps.repeat_interleave(blocksize)[: codes.numel()]
    return (values * wide.reshape(codes.shape)).to(dtype)


def dequantize_4bit(
    A: torch.Tensor, absmax: torch.Tensor, blocksize: int, quant_type: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Computes `bitsandbytes::dequantize_4bit`."""
    table = torch.tensor(TABLES[quant_type], device=A.device)
    return dequantize_blocks(codes_in_rows(A, shape, tiled=False), absmax, table, blocksize, dtype)


def _gemv_4bit(
    A: torch.Tensor, B: torch.Tensor, shapeB: Sequence[int], absmax: torch.Tensor, code: torch.Tensor, blocksize: int
) -> torch.Tensor:
    tiled = absmax.dim() == 2  # (K / blocksize, N), as they lie beside tiles
    steps = absmax.t() if tiled else absmax
    return functional.linear(
        A, dequantize_blocks(codes_in_rows(B, shapeB, tiled=tiled), steps, code, blocksize, A.dtype)
    )


def _gemm_4bit(
    A: torch.Tensor,
    B: torch.Tensor,
    shapeB: Sequence[int],
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    if absmax_8bit is not None:
        assert absmax_code is not None and absmax_offset is not None
        absmax = dequantize_blocks(absmax_8bit, absmax, absmax_code, _NESTED_BLOCK, torch.float32) + absmax_offset
    return functional.linear(A, dequantize_4bit(B, absmax, blocksize, quant_type, shapeB, A.dtype), bias)


def _quantize_rows(A: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if threshold > 0:
        raise NotImplementedError("which columns are left out is data")
    wide = A.to(torch.float32)
    largest = wide.abs().amax(-1)
    return (wide * (_STEPS / largest).unsqueeze(-1)).round().to(torch.int8), largest, None


def _scaled_product(
    A: torch.Tensor,
    B: torch.Tensor,
    row_stats: torch.Tensor,
    col_stats: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    weight = B.to(torch.float32) * (col_stats.to(torch.float32) / _STEPS).reshape(-1, 1)
    product = functional.linear(A.to(torch.float32), weight) * (row_stats.reshape(-1) / _STEPS).reshape(
        *A.shape[:-1], 1
    )
    return (product if bias is None else product + bias).to(dtype or torch.float16)


FORMS: Final[Mapping[str, Callable[..., Any]]] = {
    "bitsandbytes::dequantize_blockwise": dequantize_blocks,
    "bitsandbytes::dequantize_4bit": dequantize_4bit,
    "bitsandbytes::gemv_4bit": _gemv_4bit,
    "bitsandbytes::gemm_4bit": _gemm_4bit,
    "bitsandbytes::int8_vectorwise_quant": _quantize_rows,
    "bitsandbytes::int8_scaled_mm": _scaled_product,
}
"""What computes an operator, by its name; called with the operator's arguments, by name."""
