"""Products in half precision into dense rows of an odd extent, by the kernels of cuBLAS.

Kernels for tensor cores write rows that begin at multiples of 16 bytes. Rows of 50257 numbers do not, and the kernel
that is left takes three times as long. There are two ways around it:

- `write_joined`: most columns are one product, the rest another, and a copy joins both.
- `write_interleaved`: every eighth row begins at the same place within 16 bytes. So each eighth of the rows is a
  product of its own, from the first column at a multiple of 16 bytes on, and is written where it belongs. The few
  columns at both ends are another product. Nothing is copied, but the matrix is read eight times.

Microseconds on an H200 for (M, 768) by (768, 50257) in float16, with the product into rows of 50264 for comparison:

| M | 50264 columns | one product | joined | interleaved | tiles of `unaligned_products_kernel` |
|---|---|---|---|---|---|
| 128 | 28 | 127 | 45 | 194 | 35 |
| 1024 | 122 | 844 | 230 | 236 | 157 |
| 8192 | 913 | 7426 | 1807 | 995 | 1082 |
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F

ALIGNED: Final = 8
"""Numbers of half precision in 16 bytes."""


def write_joined(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    """Writes ``x @ matrix.T + bias``.

    Args:
        x: (M, K) in half precision; K a multiple of 8.
        matrix: (N, K); N no multiple of 8.
        bias: (N,), or None.
        result: (M, N), dense.
    """
    torch.cat(aligned_and_rest(x, matrix, bias), -1, out=result)


def aligned_and_rest(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ matrix.T + bias`` as two tensors: as many columns as are aligned, and the others."""
    sizes = [len(matrix) - len(matrix) % ALIGNED, len(matrix) % ALIGNED]
    biases = [None, None] if bias is None else bias.split(sizes)
    most, rest = (F.linear(x, *operands) for operands in zip(matrix.split(sizes), biases, strict=True))
    return most, rest


def write_interleaved(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    """Writes the same; a bias costs another pass over the result. It begins at a multiple of 16 bytes."""
    rows, columns = result.shape
    period = period_of(columns)
    ends = torch.cat((matrix[:ALIGNED], matrix[-ALIGNED:]))
    at_ends = F.linear(x, ends)
    result[:, :ALIGNED] = at_ends[:, :ALIGNED]
    result[:, -ALIGNED:] = at_ends[:, ALIGNED:]
    for first in range(min(period, rows)):
        begin = -(first * columns) % ALIGNED
        end = begin + (columns - begin) // ALIGNED * ALIGNED
        torch.mm(x[first::period], matrix[begin:end].mT, out=result[first::period, begin:end])
    if bias is not None:
        result += bias


def period_of(columns: int) -> int:
    """After how many dense rows one begins at the same place within 16 bytes again."""
    return ALIGNED // math.gcd(columns, ALIGNED)
