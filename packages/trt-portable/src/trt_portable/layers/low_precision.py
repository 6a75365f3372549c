"""Layers that only engines have: products and convolutions of few bits, and products with chosen matrices.

The builder makes the former of Q/DQ around them, and the latter of gathers: each row chooses its matrix, as tokens
choose experts.

A product reads what a preparation made of its matrix. Both know the same form and the same kernel, which the builder
chose; `trt_portable.kernels.low_precision_products` has the kernels. Of matrices to choose from, only what is chosen is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from trt_portable.dims import Dims
from trt_portable.dtypes import CARRIERS, FLOATS, INDICES, is_scratch
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import PortableError
from trt_portable.kernels.low_precision_convolutions import ConvolutionForm, kernels_of
from trt_portable.kernels.low_precision_products import (
    REFERENCE,
    FewRowsOfCodes,
    Finish,
    LowPrecisionKernel,
    ProductForm,
    decode_rows,
    levels_of,
)
from trt_portable.kernels.operands import require_operands
from trt_portable.layer_properties import boolean, dims, element_type, integer, numbers
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_rank, require_type
from trt_portable.shape_tensors import Value, as_tensor, tensor_at

_FAR: Final = 1 << 31
"""No window is farther from the next, or from the edge: kernels count places in 32 bits."""

LEFT, LEFT_SCALE, BIAS, OUTPUT_SCALE, MATRIX, SCALE = range(6)
"""Inputs of a product; scale of the left operand, bias and scale of the output may be absent."""


class _LowPrecisionLayer(ILayer):
    """What a product or convolution of few bits and its preparation share: the form, and the kernel."""

    _known: tuple[Any, LowPrecisionKernel[Any]] | None = None

    def _form(self) -> Any:
        """The product or convolution apart from its numbers."""
        raise NotImplementedError

    def _form_and_kernel(self) -> tuple[Any, LowPrecisionKernel[Any]]:
        """The form, and the chosen kernel if this version and this device have it, else the one that always works."""
        if self._known is not None:
            return self._known
        form = self._form()
        kernels = kernels_of(form)
        kernel = kernels.get(self._implementation)
        found = form, kernels[REFERENCE.name] if kernel is None or not kernel.accepts(form, self._device) else kernel
        if self._IS_FROZEN and self._device.type != "meta":
            self._known = found
        return found

    @property
    def is_traceable(self) -> bool:
        """Whether traces have the kernel that runs have."""
        return self._form_and_kernel()[1].is_traceable

    def _kernel(self, operands: Sequence[torch.Tensor | None]) -> LowPrecisionKernel[Any]:
        """The kernel; the one that always works while shapes are inferred or a run is traced, if need be."""
        form, kernel = self._form_and_kernel()
        is_real = all(x is None or (type(x) is torch.Tensor and not x.is_meta) for x in operands)
        return kernel if is_real or kernel.is_traceable else kernels_of(form)[REFERENCE.name]


class _Finished(_LowPrecisionLayer):
    """What a product and a convolution of few bits share: what is computed, and what becomes of the sums."""

    output_type = element_type(DataType.FLOAT, "Type of the result.")
    rectify = boolean(False, "Whether negative numbers become 0.")

    _read: torch.Tensor | None = None
    _read_scale: torch.Tensor | None = None
    """What was prepared, and is known to be what the kernel reads."""

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.output_type

    def _finished(
        self,
        operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        left_scale: torch.Tensor | None,
        bias: torch.Tensor | None,
        output_scale: torch.Tensor | None,
        columns: int | None,
    ) -> torch.Tensor:
        """The result of a left operand with the weights and scales that were prepared.

        Args:
            operands: These three.
            left_scale: Of the left operand, where the run computes it.
            bias: A number for each column, or None.
            output_scale: One number, or None.
            columns: Columns or channels of the result; None where the left operand has other extents than it should.
        """
        left, weights, scale = operands
        bias = None if bias is None else bias.reshape(-1)
        step = None if output_scale is None else output_scale.reshape(())
        form, kernel = self._form_and_kernel()[0], self._kernel((left, weights))
        finish = Finish(form.result, left_scale, bias, self.rectify, step, self.output_type)
        what = f"the kernel {kernel.name} of {self.name!r}"
        if self._read is not weights or self._read_scale is not scale:
            require_operands(kernel.reads(weights, scale, form), what, left, scale)
            if self._IS_FROZEN and is_scratch(left):
                self._read, self._read_scale = weights, scale
        fits = left.dtype is CARRIERS[form.left] and columns is not None and (bias is None or len(bias) == columns)
        require_operands(fits, what, left, bias)
        return kernel.compute(left, weights, scale, form, finish)


class _LowPrecisionProduct(_LowPrecisionLayer):
    """What a product and its preparation share."""

    columns = integer(0, "N.")
    depth = integer(0, "K.")
    code_type = element_type(DataType.INT8, "Type of the matrix.")
    left_type = element_type(DataType.INT8, "Type of the left operand.")
    result_type = element_type(DataType.FLOAT, "Float type of the product.")
    blocks = dims(Dims((1, 1)), "Extents of the scales of the matrix (N, K).")
    rowwise = boolean(False, "Whether the run computes the scales of the left operand.")
    has_offset = boolean(False, "Whether a number for each block is subtracted from the scaled codes.")
    levels = numbers("What the sixteen codes of 4 bits stand for, the least first; none for codes as they are.")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(self.columns > 0 and self.depth > 0, f"a matrix of {self.columns} by {self.depth}")
        require(len(self.blocks) == 2, f"scales of extents {self.blocks}")
        pairs = zip((self.columns, self.depth), self.blocks, strict=True)
        require(all(block > 0 and extent % block == 0 for extent, block in pairs), f"scales of extents {self.blocks}")
        is_known = not self.levels or (len(self.levels) == 16 and self.code_type is DataType.INT4)
        require(is_known, f"{len(self.levels)} levels of codes in {self.code_type.name}")

    def _form(self) -> ProductForm:
        rows, columns = self.blocks
        return ProductForm(
            *(self.columns, self.depth, self.code_type, self.left_type, self.result_type, (rows, columns)),
            *(self.rowwise, self.has_offset, self.levels),
        )


class PreparedMatrixLayer(_LowPrecisionProduct):
    """Brings a matrix of codes and its scales into the form that a kernel reads.

    Inputs: 0 codes (..., N, K), or (..., K, N); 1 scale: 0-D, per axis, or one per block; optional 2 the constant
    scale of the left operand; optional 3 the scale of the scales; optional 4 the offset, one per block.
    Outputs: what the kernel makes of them.
    """

    _KIND = LayerType.IDENTITY  # the kind of TensorRT's that comes closest
    _PLAN_TYPE = "PREPARED_MATRIX"
    _MAX_INPUTS = 5
    _IS_PREPARATION = True
    _NUM_OUTPUTS = 2

    is_transposed = boolean(False, "Whether the codes are (K, N), and scales as they are.")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        codes, scale = map(as_tensor, inputs[:2])
        left_scale, outer, offset = (tensor_at(inputs, at) for at in (2, 3, 4))
        assert (offset is not None) is self.has_offset
        form = self._form_and_kernel()[0]
        turns = self.is_transposed

        def matrix(value: torch.Tensor, *extents: int) -> torch.Tensor:
            return value.reshape(extents[::-1]).t() if turns else value.reshape(extents)

        codes, wide = matrix(codes, form.columns, form.depth), matrix(scale.to(torch.float32), *form.blocks)
        if offset is not None:
            wide = torch.stack((wide, matrix(offset.to(torch.float32), *form.blocks)))
        for factor in (left_scale, outer):
            if factor is not None:
                wide = wide * factor.to(torch.float32).reshape(())
        return self._kernel((codes, scale)).prepare(codes, wide.contiguous(), form)


class LowPrecisionProductLayer(_Finished, _LowPrecisionProduct):
    """``left @ (codes * scale).T``, with scales, bias, rectification and quantization of the result."""

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product
    _PLAN_TYPE = "LOW_PRECISION_PRODUCT"
    _MAX_INPUTS = 6

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        left, left_scale, bias, output_scale, matrix, scale = (tensor_at(inputs, at) for at in range(6))
        assert left is not None and matrix is not None and scale is not None
        extents = (*left.shape[:-1], self.columns)
        if left.is_meta:
            return (left.new_empty(extents, dtype=CARRIERS[self.output_type]),)
        if left_scale is not None:
            left_scale = left_scale.to(torch.float32)
            left_scale = left_scale.reshape(()) if left_scale.numel() == 1 else left_scale.reshape(-1, 1)
        operands = (left.reshape(-1, self.depth), matrix, scale)
        return (self._finished(operands, left_scale, bias, output_scale, self.columns).reshape(extents),)


class _LowPrecisionConvolution(_LowPrecisionLayer):
    """What a convolution and its preparation share."""

    kernel_shape = dims(Dims(), "(K, C / groups, R, S).")
    stride = dims(Dims(), "Per axis.")
    padding = dims(Dims(), "Per axis, before and after.")
    dilation = dims(Dims(), "Per axis.")
    groups = integer(1, "Number of groups of channels.")
    code_type = element_type(DataType.INT8, "Type of the kernel.")
    left_type = element_type(DataType.INT8, "Type of the input.")
    result_type = element_type(DataType.FLOAT, "Float type of the convolution.")
    scales = integer(1, "Number of scales of the kernel.")
    is_scaled = boolean(False, "Whether the run computes the scale of the input.")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(len(self.kernel_shape) == 4 and min(self.kernel_shape) > 0, f"a kernel of {self.kernel_shape}")
        for name in ("stride", "dilation", "padding"):
            found, least = getattr(self, name), int(name != "padding")
            require(len(found) == 2 and least <= min(found) and max(found) <= _FAR, f"{name} {found}")
        require(self.groups > 0 and self.kernel_shape[0] % self.groups == 0, f"{self.groups} groups")

    def _form(self) -> ConvolutionForm:
        maps, channels, rows, columns = self.kernel_shape
        (step_y, step_x), (pad_y, pad_x), (far_y, far_x) = self.stride, self.padding, self.dilation
        return ConvolutionForm(
            (maps, channels, rows, columns),
            (step_y, step_x),
            (pad_y, pad_x),
            (far_y, far_x),
            self.groups,
            self.code_type,
            self.left_type,
            self.result_type,
            self.scales,
            self.is_scaled,
        )


class PreparedKernelLayer(_LowPrecisionConvolution):
    """Brings a convolution's kernel and its scales into the form that is read in runs.

    Inputs: 0 codes (K, C / groups, R, S); 1 scale: one, or (K,); optional 2 the constant scale of the input.
    """

    _KIND = LayerType.IDENTITY  # the kind of TensorRT's that comes closest
    _PLAN_TYPE = "PREPARED_KERNEL"
    _MAX_INPUTS = 3
    _IS_PREPARATION = True
    _NUM_OUTPUTS = 2

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        codes, scale = map(as_tensor, inputs[:2])
        left_scale = tensor_at(inputs, 2)
        wide = scale.to(torch.float32).reshape(-1)
        if left_scale is not None:
            wide = wide * left_scale.to(torch.float32).reshape(())
        return self._kernel((codes, scale)).prepare(codes, wide, self._form_and_kernel()[0])


class LowPrecisionConvolutionLayer(_Finished, _LowPrecisionConvolution):
    """A convolution of codes, with scales, bias, rectification and quantization of the result.

    Inputs: input, its scale where the run computes it, bias, scale of the output, and what was prepared. The bias may
    be weights of the layer's own, as it is of the convolution that it stands for.
    """

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a convolution
    _PLAN_TYPE = "LOW_PRECISION_CONVOLUTION"
    _MAX_INPUTS = 6
    _ROLES = ("BIAS",)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, left_scale, bias, output_scale, kernel, scale = (tensor_at(inputs, at) for at in range(6))
        assert x is not None and kernel is not None and scale is not None
        form = self._form_and_kernel()[0]
        if x.is_meta:
            spans = [1 + far * (extent - 1) for far, extent in zip(form.dilation, form.kernel[2:], strict=True)]
            places = zip(x.shape[2:], form.padding, spans, form.stride, strict=True)
            extents = [(extent + 2 * pad - span) // step + 1 for extent, pad, span, step in places]
            return (x.new_empty((x.shape[0], form.kernel[0], *extents), dtype=CARRIERS[self.output_type]),)
        if bias is None and self._has_weights("BIAS"):
            bias = self._parameter("BIAS")
        if left_scale is not None:
            left_scale = left_scale.to(torch.float32).reshape(())
        is_image = x.dim() == 4 and x.shape[1] == form.kernel[1] * form.groups
        maps = form.kernel[0] if is_image else None
        return (self._finished((x, kernel, scale), left_scale, bias, output_scale, maps),)


MOST_ROWS: Final = 64
"""More rows choose most matrices on a GPU, and are sorted by the matrix that they choose."""
_MOST_GROUPED: Final = 1 << 20
"""Most rows that a kernel of ours takes sorted."""
_MOST_COPIED: Final = 1 << 26
"""Most elements of matrices that rows get copies of at a time, where there is no other way."""


def multiply_by_chosen(
    rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor, is_transposed: bool, is_grouped: bool = False
) -> torch.Tensor:
    """``rows[i] @ matrices[places[i]].T``; zeros where there is no such matrix.

    Args:
        rows: (S, K), floats.
        places: (S,), integers.
        matrices: (E, N, K), or (E, K, N) if they are transposed, of the type of the rows.
        is_transposed: Whether they are.
        is_grouped: Whether places ascend, and all of them are of matrices.

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
        return _sorted(rows, places, matrices, is_grouped)
    return _by_matrix(rows, places, count, columns, lambda index: matrices[index])


def multiply_by_chosen_codes(
    rows: torch.Tensor,
    places: torch.Tensor,
    matrix: torch.Tensor,
    scale: torch.Tensor,
    form: ProductForm,
    count: int,
    kernel: LowPrecisionKernel[ProductForm],
    is_grouped: bool,
) -> torch.Tensor:
    """As `multiply_by_chosen`, of matrices of few bits that lie one below the other, as a kernel prepared them."""
    columns = form.columns // count
    if isinstance(kernel, FewRowsOfCodes):
        operator = _operator("few_rows_codes_linear", rows)
        if operator is not None:
            parts, folded = kernel.parts(scale, form), (None, None, None, None)
            found: torch.Tensor = operator(rows, matrix, *folded, *parts, places, levels_of(form), count, False)
            return found
        matrices = kernel.decoded(matrix, scale, form, rows.dtype)
        return _sorted(rows, places, matrices.reshape(count, columns, form.depth), is_grouped)
    if rows.is_cuda:
        matrices = decode_rows(matrix, scale, form, 0, form.columns).to(rows.dtype)
        return _sorted(rows, places, matrices.reshape(count, columns, form.depth), is_grouped)

    def decoded(index: int) -> torch.Tensor:
        return decode_rows(matrix, scale, form, index * columns, (index + 1) * columns).to(rows.dtype)

    return _by_matrix(rows, places, count, columns, decoded)


def _operator(name: str, rows: torch.Tensor, most: int = MOST_ROWS) -> Any:
    """An operator of `trt_portable.builder.inductor.decoding` for so many rows, where a build has taught PyTorch it."""
    count = rows.shape[0]
    if not rows.is_cuda or not isinstance(count, int) or not 0 < count <= most:
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


def _sorted(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor, is_grouped: bool = False) -> torch.Tensor:
    """A grouped product of the rows in the order of what they choose, which they may have already."""
    count, columns, depth = matrices.shape
    if 0 in (count, columns, depth):  # libraries leave the result of such products as it is
        return rows.new_zeros((rows.shape[0], columns))
    kind = torch.int8 if count < 1 << 7 else torch.int16 if count < 1 << 15 else torch.int64  # few bits to sort by
    # rows in groups are all the last one's from some place on, whatever they choose: others would be left unwritten
    other = count - 1 if is_grouped else count
    choice, order = torch.where((places < 0) | (places >= count), other, places).to(kind), None
    if not is_grouped:
        choice, order = choice.sort()
    ends = torch.searchsorted(choice, torch.arange(count, device=rows.device, dtype=kind), right=True).to(torch.int32)
    grouped = _operator("grouped_linear", rows, most=_MOST_GROUPED)
    if grouped is not None:
        found: torch.Tensor = grouped(rows, order, ends, matrices)
        return found
    known = places.clamp(0, count - 1)
    is_there = (known == places).unsqueeze(1)
    if rows.dtype is not torch.bfloat16 or columns % 8 or depth % 8:
        are_few = isinstance(rows.shape[0], int) and rows.shape[0] < count
        return torch.where(is_there, (_by_copies if are_few else _by_each)(rows, known, matrices), 0)
    made = torch._grouped_mm(rows if order is None else rows[order], matrices.mT, ends)
    return made if order is None else torch.where(is_there, made[inverse_order(order)], 0)


def inverse_order(order: torch.Tensor) -> torch.Tensor:
    """Where each of some rows went, (S,), from where those in their new order came from."""
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))


def _by_each(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Products of all rows with each matrix: several times what is needed, where copies are hundreds of times that."""
    found = F.linear(rows, matrices[0])
    for index in range(1, len(matrices)):
        found = torch.where((places == index).unsqueeze(1), F.linear(rows, matrices[index]), found)
    return found


def _by_copies(rows: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Products with copies of the chosen matrices, some at a time."""
    count = rows.shape[0]
    step = max(1, _MOST_COPIED // (matrices.shape[1] * matrices.shape[2]))
    parts = [
        torch.bmm(matrices[places[at : at + step]], rows[at : at + step].unsqueeze(2)) for at in range(0, count, step)
    ]
    return torch.cat(parts).squeeze(2)


class _Chosen(ILayer):
    """What both have: where the result's columns lie, and one row of the left operand for each place."""

    is_column = boolean(False, "Whether a row's result is (N, 1), not (1, N).")
    count = integer(1, "E, how many matrices there are.")
    choices = integer(0, "How many of them a token chooses; 0 where networks do not tell.")
    matrix_bytes = integer(0, "Bytes of one of them in memory, with its scales.")
    is_grouped = boolean(False, "Whether places ascend, and all of them are of matrices.")

    def _shaped(self, rows: torch.Tensor, columns: int) -> tuple[int, ...]:
        return (rows.shape[0], columns, 1) if self.is_column else (rows.shape[0], 1, columns)


class ChosenProductLayer(_Chosen):
    """``rows[i] @ matrices[places[i]].T``; zeros where there is no such matrix.

    Inputs: 0 rows (S, 1, K) or (S, K, 1); 1 places (S,); 2 matrices (E, N, K), or (E, K, N).
    """

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product
    _PLAN_TYPE = "CHOSEN_PRODUCT"

    is_transposed = boolean(False, "Whether matrices are (E, K, N).")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        rows, places, matrices = inputs
        require_type(rows, FLOATS, "the rows")
        require_equal_types((rows, matrices), "rows and matrices")
        require_type(places, INDICES, "the places")
        for tensor, rank in ((rows, 3), (places, 1), (matrices, 3)):
            require_rank(tensor, {rank}, "an operand")

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        rows, places, matrices = map(as_tensor, inputs)
        depth, columns = matrices.shape[1:] if self.is_transposed else matrices.shape[:0:-1]
        shape = self._shaped(rows, columns)
        if rows.is_meta:
            return (rows.new_empty(shape),)
        flat = rows.reshape(-1, depth)
        require_operands(len(flat) == len(places), "a product with chosen matrices", rows, places, matrices)
        return (multiply_by_chosen(flat, places, matrices, self.is_transposed, self.is_grouped).reshape(shape),)


class ChosenCodesProductLayer(_LowPrecisionProduct, _Chosen):
    """As `ChosenProductLayer`, with matrices of few bits, one below the other, as a preparation left them.

    Inputs: 0 rows (S, 1, K) or (S, K, 1); 1 places (S,); 2 and 3 what was prepared of (E * N, K) codes.
    """

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product
    _PLAN_TYPE = "CHOSEN_CODES_PRODUCT"

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        super()._check(inputs)
        is_even = self.count > 0 and self.columns % self.count == 0
        require(is_even, f"{self.columns} rows of codes for {self.count} matrices")

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.result_type

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        rows, places, matrix, scale = map(as_tensor, inputs)
        shape = self._shaped(rows, self.columns // self.count)
        if rows.is_meta:
            return (rows.new_empty(shape, dtype=CARRIERS[self.result_type]),)
        flat, (form, _) = rows.reshape(-1, self.depth), self._form_and_kernel()
        kernel = self._kernel((rows, matrix))
        fits = kernel.reads(matrix, scale, form) and len(flat) == len(places)
        require_operands(fits, "a product with chosen codes", rows, places, scale)
        given = (flat, places, matrix, scale, form, self.count, kernel, self.is_grouped)
        return (multiply_by_chosen_codes(*given).reshape(shape),)
