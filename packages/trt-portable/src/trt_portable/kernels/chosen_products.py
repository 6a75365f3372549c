"""Products of rows that each choose their matrix, as tokens choose experts: only what is chosen is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

from trt_portable.enums import DataType
from trt_portable.errors import PortableError
from trt_portable.kernels.low_precision_products import FewRowsOfCodes, ProductForm, ProductKernel, decode_rows

MOST_ROWS: Final = 64
"""More rows choose most matrices on a GPU, and are sorted by the matrix that they choose."""
_MOST_COPIED: Final = 1 << 26
"""Most elements of matrices that rows get copies of at a time, where there is no other way."""


def multiply_by_chosen(
    rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor, is_transposed: bool
) -> torch.Tensor:
    """``rows[i] @ matrices[places[i]].T``; zeros where there is no such matrix.

    Args:
        rows: (S, K), floats.
        places: (S,), integers.
        matrices: (E, N, K), or (E, K, N) if they are transposed, of the type of the rows.
        is_transposed: Whether they are.

    Returns:
        (S, N).

    Raises:
        PortableError: What is chosen is asked of a recording, on a device that has no product for that.
    """
    matrices = matrices.mT if is_transposed else matrices
    operator = _operator("chosen_linear", rows)
    if operator is not None:
        found: torch.Tensor = operator(rows, places, matrices)
        return found
    count, columns, _ = matrices.shape
    if rows.is_cuda:
        return _sorted(rows, places, matrices)
    return _by_matrix(rows, places, count, columns, lambda index: matrices[index])


def multiply_by_chosen_codes(
    rows: torch.Tensor,
    places: torch.Tensor,
    matrix: torch.Tensor,
    scale: torch.Tensor,
    form: ProductForm,
    count: int,
    kernel: ProductKernel,
) -> torch.Tensor:
    """As `multiply_by_chosen`, of matrices of few bits that lie one below the other, as a kernel prepared them."""
    columns = form.columns // count
    if isinstance(kernel, FewRowsOfCodes):
        operator = _operator("few_rows_codes_linear", rows)
        if operator is not None:
            parts, is_e2m1 = kernel.parts(scale, form), form.codes is DataType.FP4
            found: torch.Tensor = operator(rows, matrix, *parts, places, count, is_e2m1)
            return found
        matrices = kernel.decoded(matrix, scale, form).to(rows.dtype)
        return _sorted(rows, places, matrices.reshape(count, columns, form.depth))
    if rows.is_cuda:
        matrices = decode_rows(matrix, scale, form, 0, form.columns).to(rows.dtype)
        return _sorted(rows, places, matrices.reshape(count, columns, form.depth))

    def decoded(index: int) -> torch.Tensor:
        return decode_rows(matrix, scale, form, index * columns, (index + 1) * columns).to(rows.dtype)

    return _by_matrix(rows, places, count, columns, decoded)


def _operator(name: str, rows: torch.Tensor) -> Any:
    """An operator of `trt_portable.builder.inductor.decoding` for few rows, where a build has taught PyTorch it."""
    count = rows.shape[0]
    if not rows.is_cuda or not isinstance(count, int) or not 0 < count <= MOST_ROWS:
        return None
    return getattr(torch.ops.trt_portable, name, None) if rows.dtype in (torch.float16, torch.bfloat16) else None


def _by_matrix(
    rows: torch.Tensor, places: torch.Tensor, count: int, columns: int, matrix: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """One product for each matrix that is chosen."""
    if type(places) is not torch.Tensor:
        raise PortableError("which matrices are multiplied by depends on data")
    result = rows.new_zeros((rows.shape[0], columns))
    for index in places.unique().tolist():
        if 0 <= index < count:
            members = (places == index).nonzero().squeeze(1)
            result[members] = F.linear(rows[members], matrix(index))
    return result


def _sorted(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """A grouped product of the rows in the order of what they choose."""
    count, columns, depth = matrices.shape
    known = places.clamp(0, count - 1)
    is_there = (known == places).unsqueeze(1)
    if rows.dtype is not torch.bfloat16 or columns % 8 or depth % 8:
        are_few = isinstance(rows.shape[0], int) and rows.shape[0] < count
        return torch.where(is_there, (_by_copies if are_few else _by_each)(rows, known, matrices), 0)
    choice, order = known.sort()
    ends = torch.searchsorted(choice, torch.arange(count, device=rows.device, dtype=choice.dtype), right=True)
    made = torch._grouped_mm(rows[order], matrices.mT, ends.to(torch.int32))
    return torch.where(is_there, torch.empty_like(made).index_copy(0, order, made), 0)


def _by_each(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Products of all rows with each matrix: several times what is needed, where copies are hundreds of times that."""
    found = F.linear(rows, matrices[0])
    for index in range(1, len(matrices)):
        found = torch.where((places == index).unsqueeze(1), F.linear(rows, matrices[index]), found)
    return found


def _by_copies(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Products with copies of the chosen matrices, some at a time."""
    count = rows.shape[0]
    if not isinstance(count, int):
        raise PortableError("copies of matrices are made for a known number of rows")
    step = max(1, _MOST_COPIED // (matrices.shape[1] * matrices.shape[2]))
    parts = [
        torch.bmm(matrices[places[at : at + step]], rows[at : at + step].unsqueeze(2)) for at in range(0, count, step)
    ]
    return torch.cat(parts).squeeze(2)
