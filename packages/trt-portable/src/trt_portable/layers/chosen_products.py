"""Layers that only engines have: products of rows that each choose their matrix, which the builder makes of gathers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trt_portable.attributes import boolean, integer
from trt_portable.dtypes import CARRIERS, FLOATS, INDICES
from trt_portable.enums import DataType, LayerType
from trt_portable.kernels.chosen_products import multiply_by_chosen, multiply_by_chosen_codes
from trt_portable.kernels.operands import require_operands
from trt_portable.layers.low_precision import _LowPrecisionLayer
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_rank, require_type
from trt_portable.shape_tensors import Value, as_tensor


class _Chosen(ILayer):
    """What both have: where the result's columns lie, and one row of the left operand for each place."""

    is_column = boolean(False, "Whether a row's result is (N, 1), not (1, N).")

    def _shaped(self, rows: torch.Tensor, columns: int) -> tuple[int, ...]:
        return (rows.shape[0], columns, 1) if self.is_column else (rows.shape[0], 1, columns)


class ChosenProductLayer(_Chosen):
    """``rows[i] @ matrices[places[i]].T``; zeros where there is no such matrix.

    Inputs: 0 rows (S, 1, K) or (S, K, 1); 1 places (S,); 2 matrices (E, N, K), or (E, K, N).
    """

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product

    is_transposed = boolean(False, "Whether matrices are (E, K, N).")

    @classmethod
    def _plan_type(cls) -> str:
        return "CHOSEN_PRODUCT"

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        rows, places, matrices = inputs
        assert rows is not None and places is not None and matrices is not None
        require_type(rows, FLOATS, "the rows")
        require_equal_types((rows, matrices), "rows and matrices")
        require_type(places, INDICES, "the places")
        for tensor, rank in ((rows, 3), (places, 1), (matrices, 3)):
            require_rank(tensor, {rank}, "an operand")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        rows, places, matrices = (as_tensor(value) for value in inputs if value is not None)
        depth, columns = matrices.shape[1:] if self.is_transposed else matrices.shape[:0:-1]
        shape = self._shaped(rows, columns)
        if rows.is_meta:
            return (rows.new_empty(shape),)
        flat = rows.reshape(-1, depth)
        require_operands(len(flat) == len(places), "a product with chosen matrices", rows, places, matrices)
        return (multiply_by_chosen(flat, places, matrices, self.is_transposed).reshape(shape),)


class ChosenCodesProductLayer(_LowPrecisionLayer, _Chosen):
    """As `ChosenProductLayer`, with matrices of few bits, one below the other, as a preparation left them.

    Inputs: 0 rows (S, 1, K) or (S, K, 1); 1 places (S,); 2 and 3 what was prepared of (E * N, K) codes.
    """

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product

    count = integer(1, "E.")

    @classmethod
    def _plan_type(cls) -> str:
        return "CHOSEN_CODES_PRODUCT"

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        super()._check(inputs)
        is_even = self.count > 0 and self.columns % self.count == 0
        require(is_even, f"{self.columns} rows of codes for {self.count} matrices")

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.result_type

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        rows, places, matrix, scale = (as_tensor(value) for value in inputs if value is not None)
        shape = self._shaped(rows, self.columns // self.count)
        if rows.is_meta:
            return (rows.new_empty(shape, dtype=CARRIERS[self.result_type]),)
        flat, (form, _) = rows.reshape(-1, self.depth), self._form_and_kernel()
        kernel = self._kernel((rows, matrix))
        fits = kernel.reads(matrix, scale, form) and len(flat) == len(places)
        require_operands(fits, "a product with chosen codes", rows, places, scale)
        return (multiply_by_chosen_codes(flat, places, matrix, scale, form, self.count, kernel).reshape(shape),)
