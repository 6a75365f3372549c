"""Linear maps on CUDA into rows of an odd extent, as the logits of many vocabularies have it: which they are.

`trt_portable.kernels.unaligned_products` has ways to compute them, faster than the kernel that writes such rows.
Compilers are given an operator for those that are outputs of an engine, and the builder measures ways for it
(`trt_portable.builder.inductor.unaligned_products`). Others they are given as two tables to choose from, and fuse
that with what reads them; parts to join they would write into rows at odd places again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F

from trt_portable.enums import DataType, LayerType
from trt_portable.execution.program import Compute, LayerCall, PlacedCompute
from trt_portable.fusion.epilogues import linear_form
from trt_portable.kernels.unaligned_products import ALIGNED, aligned_and_rest, write_interleaved, write_joined
from trt_portable.shape_tensors import Value, as_tensor

_MANY_COLUMNS: Final = 1024  # fewer take no time worth a copy
_MANY_ROWS: Final = 16  # fewer are bound by reading the matrix
_INTERLEAVED_ROWS: Final = 2048  # so many make up for reading the matrix eight times
_HALVES: Final = (DataType.HALF, DataType.BF16)


def split_unaligned_products(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Splits linear maps in half precision whose constant matrix (N, K) has many rows, but no multiple of 8.

    Args:
        calls: Layers in executable order, linear maps fused.
    """
    return _replaced(calls, lambda call: UnalignedProduct())


def split_traced_unaligned_products(calls: Sequence[LayerCall], outputs: Collection[int] = ()) -> list[LayerCall]:
    """The same for calls that a compiler is to see.

    Args:
        calls: Layers in executable order, linear maps fused.
        outputs: Ids of tensors that have to be written as they are.
    """
    return _replaced(calls, lambda call: _operator if call.outputs[0] in outputs else _chosen_product)


def _replaced(calls: Sequence[LayerCall], make: Callable[[LayerCall], Compute]) -> list[LayerCall]:
    constants = {call.outputs[0]: call.layer for call in calls if call.layer.type is LayerType.CONSTANT}
    found = []
    for call in calls:
        form, matrix = linear_form(call), constants.get(call.inputs[1]) if len(call.inputs) > 1 else None  # type: ignore[arg-type]
        if form is not None and form.is_transposed and matrix is not None:
            rows, columns = matrix.shape[-2:]  # type: ignore[attr-defined]
            is_half = matrix._weight_spec("CONSTANT")[0] in _HALVES
            if is_half and rows >= _MANY_COLUMNS and rows % ALIGNED and columns and columns % ALIGNED == 0:
                call = replace(call, compute=make(call))
        found.append(call)
    return found


def _operands(inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """``x`` (..., K), the matrix (N, K), and the bias (N,)."""
    x, matrix, *rest = (as_tensor(value) for value in inputs if value is not None)
    return x, matrix.reshape(matrix.shape[-2:]), rest[0].reshape(-1) if rest else None


def _has_few_rows(x: torch.Tensor) -> bool:
    return x.numel() < _MANY_ROWS * x.shape[-1]


class UnalignedProduct(PlacedCompute):
    """``x @ matrix.T + bias`` for a matrix (1, ..., 1, N, K)."""

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result (..., N), dense."""
        return self._run(inputs, None)

    def place(self, inputs: Sequence[Value | None], target: torch.Tensor) -> Sequence[Value]:
        """The same, into memory that is given."""
        return self._run(inputs, target)

    def _run(self, inputs: Sequence[Value | None], target: torch.Tensor | None) -> Sequence[Value]:
        x, matrix, bias = _operands(inputs)
        if _has_few_rows(x):
            return (F.linear(x, matrix, bias),)
        shape = (*x.shape[:-1], len(matrix))
        if target is None or target.shape != shape or target.dtype is not x.dtype or not target.is_contiguous():
            target = x.new_empty(shape)
        flat, result = x.reshape(-1, x.shape[-1]), target.view(-1, len(matrix))
        pays = bias is None and x.is_cuda and len(flat) >= _INTERLEAVED_ROWS
        (write_interleaved if pays else write_joined)(flat, matrix, bias, result)
        return (target,)


def _chosen_product(inputs: Sequence[Value | None]) -> Sequence[Value]:
    """The same as one choice for each element, which compilers make one kernel of, with what reads it."""
    x, matrix, bias = _operands(inputs)
    if _has_few_rows(x):
        return (F.linear(x, matrix, bias),)
    most, rest = aligned_and_rest(x, matrix, bias)
    is_most = torch.arange(len(matrix), device=x.device) < most.shape[-1]
    return (torch.where(is_most, F.pad(most, (0, rest.shape[-1])), F.pad(rest, (most.shape[-1], 0))),)


def _operator(inputs: Sequence[Value | None]) -> Sequence[Value]:
    """The same as one operator, of `trt_portable.builder.inductor.unaligned_products`."""
    x, matrix, bias = _operands(inputs)
    if _has_few_rows(x):
        return (F.linear(x, matrix, bias),)
    flat = torch.ops.trt_portable.unaligned_linear(x.reshape(-1, x.shape[-1]), matrix, bias)
    return (flat.view(*x.shape[:-1], len(matrix)),)
