"""Layers that only engines have: products and convolutions of few bits, which the builder makes of Q/DQ around them.

A product reads what a preparation made of its matrix. Both know the same form and the same kernel, which the builder
chose; `trt_portable.kernels.low_precision_products` has the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from trt_portable.attributes import boolean, dims, element_type, integer, numbers
from trt_portable.dims import Dims
from trt_portable.dtypes import CARRIERS, is_scratch
from trt_portable.enums import DataType, LayerType
from trt_portable.kernels.low_precision_convolutions import (
    CONVOLUTION_REFERENCE,
    ConvolutionForm,
    ConvolutionKernel,
    convolution_kernel,
)
from trt_portable.kernels.low_precision_products import REFERENCE, Finish, ProductForm, ProductKernel, product_kernel
from trt_portable.kernels.operands import require_operands
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require
from trt_portable.shape_tensors import Value, as_tensor

_FAR: Final = 1 << 31
"""No window is farther from the next, or from the edge: kernels count places in 32 bits."""

LEFT, LEFT_SCALE, BIAS, OUTPUT_SCALE, MATRIX, SCALE = range(6)
"""Inputs of a product; scale of the left operand, bias and scale of the output may be absent."""


class _Finished(ILayer):
    """What a product and a convolution of few bits share: what becomes of their sums."""

    output_type = element_type(DataType.FLOAT, "Type of the result.")
    rectify = boolean(False, "Whether negative numbers become 0.")

    _read: torch.Tensor | None = None
    _read_scale: torch.Tensor | None = None
    """What was prepared, and is known to be what the kernel reads."""

    def _output_dtype(self, index: int, carrier: torch.dtype) -> DataType:
        return self.output_type


class _LowPrecisionLayer(ILayer):
    """What a product and its preparation share: the form of the product, and the kernel."""

    columns = integer(0, "N.")
    depth = integer(0, "K.")
    code_type = element_type(DataType.INT8, "Type of the matrix.")
    left_type = element_type(DataType.INT8, "Type of the left operand.")
    result_type = element_type(DataType.FLOAT, "Float type of the product.")
    blocks = dims(Dims((1, 1)), "Extents of the scales of the matrix (N, K).")
    rowwise = boolean(False, "Whether the run computes the scales of the left operand.")
    has_offset = boolean(False, "Whether a number for each block is subtracted from the scaled codes.")
    levels = numbers("What the sixteen codes of 4 bits stand for, the least first; none for codes as they are.")

    _known: tuple[ProductForm, ProductKernel] | None = None

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(self.columns > 0 and self.depth > 0, f"a matrix of {self.columns} by {self.depth}")
        require(len(self.blocks) == 2, f"scales of extents {self.blocks}")
        pairs = zip((self.columns, self.depth), self.blocks, strict=True)
        require(all(block > 0 and extent % block == 0 for extent, block in pairs), f"scales of extents {self.blocks}")
        is_known = not self.levels or (len(self.levels) == 16 and self.code_type is DataType.INT4)
        require(is_known, f"{len(self.levels)} levels of codes in {self.code_type.name}")

    def _form_and_kernel(self) -> tuple[ProductForm, ProductKernel]:
        """The form, and the chosen kernel if this device has it, else the one that always works."""
        if self._known is not None:
            return self._known
        rows, columns = self.blocks
        form = ProductForm(
            *(self.columns, self.depth, self.code_type, self.left_type, self.result_type, (rows, columns)),
            *(self.rowwise, self.has_offset, self.levels),
        )
        kernel = product_kernel(self._implementation)
        found = form, kernel if kernel.accepts(form, self._device) else REFERENCE
        if self._IS_FROZEN and self._device.type != "meta":
            self._known = found
        return found

    def _kernel(self, operands: Sequence[torch.Tensor | None]) -> ProductKernel:
        """The kernel; the one that always works while shapes are inferred or a run is traced, if need be."""
        kernel = self._form_and_kernel()[1]
        is_real = all(x is None or (type(x) is torch.Tensor and not x.is_meta) for x in operands)
        return kernel if is_real or kernel.is_traceable else REFERENCE


class PreparedMatrixLayer(_LowPrecisionLayer):
    """Brings a matrix of codes and its scales into the form that a kernel reads.

    Inputs: 0 codes (..., N, K), or (..., K, N); 1 scale: 0-D, per axis, or one per block; optional 2 the constant
    scale of the left operand; optional 3 the scale of the scales; optional 4 the offset, one per block.
    Outputs: what the kernel makes of them.
    """

    _KIND = LayerType.IDENTITY  # the kind of TensorRT's that comes closest
    _IS_PREPARATION = True
    _NUM_OUTPUTS = 2

    is_transposed = boolean(False, "Whether the codes are (K, N), and scales as they are.")

    @classmethod
    def _plan_type(cls) -> str:
        return "PREPARED_MATRIX"

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        operands = [None if value is None else as_tensor(value) for value in (*inputs, *[None] * 3)[:5]]
        codes, scale, left_scale, outer, offset = operands
        assert codes is not None and scale is not None and (offset is not None) is self.has_offset
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


class LowPrecisionProductLayer(_Finished, _LowPrecisionLayer):
    """``left @ (codes * scale).T``, with scales, bias, rectification and quantization of the result."""

    _KIND = LayerType.EINSUM  # a sum of products, of which nothing expects attributes of a matrix product

    @classmethod
    def _plan_type(cls) -> str:
        return "LOW_PRECISION_PRODUCT"

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        left, left_scale, bias, output_scale, matrix, scale = (
            None if value is None else as_tensor(value) for value in inputs
        )
        assert left is not None and matrix is not None and scale is not None
        extents = (*left.shape[:-1], self.columns)
        if left.is_meta:
            return (left.new_empty(extents, dtype=CARRIERS[self.output_type]),)
        if left_scale is not None:
            left_scale = left_scale.to(torch.float32)
            left_scale = left_scale.reshape(()) if left_scale.numel() == 1 else left_scale.reshape(-1, 1)
        finish = Finish(
            self.result_type,
            left_scale,
            None if bias is None else bias.reshape(-1),
            self.rectify,
            None if output_scale is None else output_scale.reshape(()),
            self.output_type,
        )
        rows = left.reshape(-1, self.depth)
        kernel, form = self._kernel((left, matrix)), self._form_and_kernel()[0]
        if self._read is not matrix or self._read_scale is not scale:
            require_operands(kernel.reads(matrix, scale, form), f"the product {kernel.name}", left, scale)
            if self._IS_FROZEN and is_scratch(left):
                self._read, self._read_scale = matrix, scale
        bias = finish.bias
        fits = left.dtype is CARRIERS[self.left_type] and (bias is None or len(bias) == self.columns)
        require_operands(fits, f"the product {kernel.name}", left, bias)
        return (kernel.multiply(rows, matrix, scale, form, finish).reshape(extents),)


class _LowPrecisionConvolution(ILayer):
    """What a convolution and its preparation share: the form, and the kernel."""

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

    _known: tuple[ConvolutionForm, ConvolutionKernel] | None = None

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        require(len(self.kernel_shape) == 4 and min(self.kernel_shape) > 0, f"a kernel of {self.kernel_shape}")
        for name in ("stride", "dilation", "padding"):
            found, least = getattr(self, name), int(name != "padding")
            require(len(found) == 2 and least <= min(found) and max(found) <= _FAR, f"{name} {found}")
        require(self.groups > 0 and self.kernel_shape[0] % self.groups == 0, f"{self.groups} groups")

    def _form_and_kernel(self) -> tuple[ConvolutionForm, ConvolutionKernel]:
        """The form, and the chosen kernel if this device has it, else the one that always works."""
        if self._known is not None:
            return self._known
        form, kernel = self._form(), convolution_kernel(self._implementation)
        found = form, kernel if kernel.accepts(form, self._device) else CONVOLUTION_REFERENCE
        if self._IS_FROZEN and self._device.type != "meta":
            self._known = found
        return found

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

    def _kernel(self, operands: Sequence[torch.Tensor | None]) -> ConvolutionKernel:
        """The kernel; the one that always works while shapes are inferred or a run is traced, if need be."""
        kernel = self._form_and_kernel()[1]
        is_real = all(x is None or (type(x) is torch.Tensor and not x.is_meta) for x in operands)
        return kernel if is_real or kernel.is_traceable else CONVOLUTION_REFERENCE


class PreparedKernelLayer(_LowPrecisionConvolution):
    """Brings a convolution's kernel and its scales into the form that is read in runs.

    Inputs: 0 codes (K, C / groups, R, S); 1 scale: one, or (K,); optional 2 the constant scale of the input.
    """

    _KIND = LayerType.IDENTITY  # the kind of TensorRT's that comes closest
    _IS_PREPARATION = True
    _NUM_OUTPUTS = 2

    @classmethod
    def _plan_type(cls) -> str:
        return "PREPARED_KERNEL"

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        codes, scale, left_scale = (None if value is None else as_tensor(value) for value in (*inputs, None)[:3])
        assert codes is not None and scale is not None
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
    _ROLES = ("BIAS",)

    @classmethod
    def _plan_type(cls) -> str:
        return "LOW_PRECISION_CONVOLUTION"

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, left_scale, bias, output_scale, kernel, scale = (
            None if value is None else as_tensor(value) for value in inputs
        )
        assert x is not None and kernel is not None and scale is not None
        form = self._form_and_kernel()[0]
        if x.is_meta:
            spans = [1 + far * (extent - 1) for far, extent in zip(form.dilation, form.kernel[2:], strict=True)]
            places = zip(x.shape[2:], form.padding, spans, form.stride, strict=True)
            extents = [(extent + 2 * pad - span) // step + 1 for extent, pad, span, step in places]
            return (x.new_empty((x.shape[0], form.kernel[0], *extents), dtype=CARRIERS[self.output_type]),)
        if bias is None and self._has_weights("BIAS"):
            bias = self._parameter("BIAS")
        finish = Finish(
            self.result_type,
            None if left_scale is None else left_scale.to(torch.float32).reshape(()),
            None if bias is None else bias.reshape(-1),
            self.rectify,
            None if output_scale is None else output_scale.reshape(()),
            self.output_type,
        )
        chosen, bias = self._kernel((x, kernel)), finish.bias
        if self._read is not kernel or self._read_scale is not scale:
            require_operands(chosen.reads(kernel, scale, form), f"the convolution {chosen.name}", x, scale)
            if self._IS_FROZEN and is_scratch(x):
                self._read, self._read_scale = kernel, scale
        fits = (
            x.dtype is CARRIERS[self.left_type]
            and x.dim() == 4
            and x.shape[1] == form.kernel[1] * form.groups
            and (bias is None or len(bias) == form.kernel[0])
        )
        require_operands(fits, f"the convolution {chosen.name}", x, bias)
        return (chosen.convolve(x, kernel, scale, form, finish),)
