"""Ways of convolving with a kernel of few bits, as `low_precision_products` has them for products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F

from trt_portable.dtypes import CARRIERS, PACKED, pack, unpack
from trt_portable.enums import DataType
from trt_portable.errors import present
from trt_portable.kernels.low_precision_products import (
    PRODUCT_KERNELS,
    REFERENCE,
    FastFloat8Product,
    Finish,
    Float8Product,
    IntegerProduct,
    LowPrecisionKernel,
    ProductForm,
    ProductKernel,
    Shape,
    onednn_is_exact,
)

_ZERO: Final = 128  # oneDNN's fast kernels take unsigned activations


@dataclass(frozen=True)
class ConvolutionForm:
    """A convolution in two dimensions apart from its numbers.

    Attributes:
        kernel: (K, C / groups, R, S).
        stride: Per axis.
        padding: Per axis, equal before and after.
        dilation: Per axis.
        groups: Number of groups of channels.
        codes: Type of the kernel.
        left: Type of the input: that of the codes, or a float type.
        result: Float type of the result before it is quantized.
        scales: 1, or K.
        is_scaled: Whether the run computes the scale of the input.
    """

    kernel: tuple[int, int, int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    codes: DataType
    left: DataType
    result: DataType
    scales: int
    is_scaled: bool = False

    def shapes(self, extents: Sequence[int]) -> tuple[Shape, Shape, Shape, Shape | None]:
        """Of the codes, their scales, an input of ``(N, H, W)``, and its scale where a run computes it."""
        left = (max(extents[0], 1), self.kernel[1] * self.groups, *extents[1:])
        return self.kernel, (self.scales,), left, () if self.is_scaled else None

    def as_product(self) -> ProductForm | None:
        """The product of channels that it is, if it looks at one place only."""
        maps, channels, *extents = self.kernel
        if extents != [1, 1] or self.stride != (1, 1) or self.padding != (0, 0) or self.groups != 1:
            return None
        return ProductForm(maps, channels, self.codes, self.left, self.result, (self.scales, 1))


def finished(product: torch.Tensor, finish: Finish, *, has_bias: bool = False) -> torch.Tensor:
    """The result of a float convolution (N, K, H, W); the bias is (K,), a scale of the input is 0-D."""
    bias = None if finish.bias is None else finish.bias.reshape(-1, 1, 1)
    return replace(finish, bias=bias)(product, has_bias=has_bias)


ConvolutionKernel: TypeAlias = LowPrecisionKernel[ConvolutionForm]
"""One way of computing a convolution."""


class DequantizeKernel(ConvolutionKernel):
    """The kernel stays small and becomes floats in every run; what any convolution can be computed by."""

    name = REFERENCE.name

    def accepts(self, form: ConvolutionForm, device: torch.device) -> bool:
        """Always."""
        return True

    def prepare(
        self, codes: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of 4 bits two in a byte, others as they are."""
        return (pack(codes.reshape(-1), form.codes) if form.codes in PACKED else codes), scale

    def compute(
        self, x: torch.Tensor, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm, finish: Finish
    ) -> torch.Tensor:
        """A float convolution."""
        if form.codes in PACKED:
            count = form.kernel[0] * form.kernel[1] * form.kernel[2] * form.kernel[3]
            kernel = unpack(kernel, form.codes, count).reshape(form.kernel)
        weights = (kernel.to(torch.float32) * scale.reshape(-1, 1, 1, 1)).to(finish.dtype)
        return finished(_convolved(x, weights, None, form, finish), finish)


class DequantizeKernelOnce(ConvolutionKernel):
    """The kernel becomes floats when the engine is loaded."""

    name = "dequantize_once"

    def accepts(self, form: ConvolutionForm, device: torch.device) -> bool:
        """Always; whether it may be tried is a setting."""
        return True

    def prepare(
        self, codes: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Floats."""
        return (codes.to(torch.float32) * scale.reshape(-1, 1, 1, 1)).to(CARRIERS[form.result]), scale

    def compute(
        self, x: torch.Tensor, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm, finish: Finish
    ) -> torch.Tensor:
        """A float convolution."""
        fits = finish.left_scale is None and finish.bias is not None and finish.bias.dtype is kernel.dtype
        product = _convolved(x, kernel, finish.bias if fits else None, form, finish)
        return finished(product, finish, has_bias=fits)


def _convolved(
    x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None, form: ConvolutionForm, finish: Finish
) -> torch.Tensor:
    return F.conv2d(x.to(finish.dtype), kernel, bias, form.stride, form.padding, form.dilation, form.groups)


class OneDnnConvolution(ConvolutionKernel):
    """oneDNN's int8 convolution on the CPU, with bias, rectification and quantization in the same kernel."""

    name = "onednn"
    is_traceable = False

    def accepts(self, form: ConvolutionForm, device: torch.device) -> bool:
        """int8 on both sides, on a CPU that adds up exactly."""
        fits = form.codes is DataType.INT8 is form.left and not form.is_scaled
        return fits and device.type == "cpu" and onednn_is_exact()

    def prepare(
        self, codes: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """In oneDNN's own layout."""
        scale = scale.expand(form.kernel[0]).contiguous()
        geometry = (form.stride, form.padding, form.dilation)
        packed = torch.ops.onednn.qconv_prepack(codes.contiguous(), scale, 1.0, _ZERO, *geometry, form.groups)
        return packed, scale

    def reads(self, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm) -> bool:
        """A packed kernel, and a scale for every channel of the result."""
        is_packed = kernel.is_mkldnn and kernel.dtype is torch.int8 and tuple(kernel.shape) == form.kernel
        return is_packed and scale.dtype is torch.float32 and scale.shape == form.kernel[:1]

    def compute(
        self, x: torch.Tensor, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm, finish: Finish
    ) -> torch.Tensor:
        """One kernel after the change of sign."""
        unsigned = (x ^ -_ZERO).view(torch.uint8)
        quantizes = finish.scale is not None and finish.output is DataType.INT8
        step, zero = (float(finish.scale), _ZERO) if quantizes else (1.0, 0)  # type: ignore[arg-type]
        found: torch.Tensor = torch.ops.onednn.qconv_pointwise(
            unsigned.contiguous(memory_format=torch.channels_last),
            1.0,
            _ZERO,
            kernel,
            scale,
            torch.zeros_like(scale, dtype=torch.int64),
            None if finish.bias is None else finish.bias.float(),
            form.stride,
            form.padding,
            form.dilation,
            form.groups,
            step,
            zero,
            None if quantizes else torch.float32,
            "relu" if finish.rectify else "none",
            [],
            "",
        )
        if quantizes:
            return found.view(torch.int8) ^ -_ZERO
        return Finish(finish.result, scale=finish.scale, output=finish.output)(found)


class PointwiseConvolution(ConvolutionKernel):
    """A convolution that looks at one place only, as a product of channels.

    Args:
        product: How that is multiplied.
    """

    def __init__(self, product: ProductKernel) -> None:
        self.name = product.name  # type: ignore[misc]
        self.is_traceable = product.is_traceable  # type: ignore[misc]
        self._product = product

    def accepts(self, form: ConvolutionForm, device: torch.device) -> bool:
        """Where there is such a product."""
        product = form.as_product()
        return product is not None and self._product.accepts(product, device)

    def prepare(
        self, codes: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The kernel as a matrix."""
        return self._product.prepare(codes.reshape(form.kernel[:2]), scale.reshape(-1, 1), self._form(form))

    def reads(self, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm) -> bool:
        """As the product does."""
        return self._product.reads(kernel, scale, self._form(form))

    def compute(
        self, x: torch.Tensor, kernel: torch.Tensor, scale: torch.Tensor, form: ConvolutionForm, finish: Finish
    ) -> torch.Tensor:
        """A product; channels are last in memory before and after it."""
        rows = x.permute(0, 2, 3, 1)
        found = self._product.compute(rows.reshape(-1, form.kernel[1]), kernel, scale, self._form(form), finish)
        return found.reshape(*rows.shape[:3], form.kernel[0]).permute(0, 3, 1, 2)

    @staticmethod
    def _form(form: ConvolutionForm) -> ProductForm:
        product = present(form.as_product())
        return product


CONVOLUTION_REFERENCE: Final = DequantizeKernel()

CONVOLUTION_KERNELS: Final[Mapping[str, ConvolutionKernel]] = {
    kernel.name: kernel
    for kernel in (
        OneDnnConvolution(),
        PointwiseConvolution(FastFloat8Product()),
        PointwiseConvolution(Float8Product()),
        PointwiseConvolution(IntegerProduct()),
        CONVOLUTION_REFERENCE,
        DequantizeKernelOnce(),
    )
}
"""All ways by name, the likely fastest first."""


def kernels_of(form: ProductForm | ConvolutionForm) -> Mapping[str, LowPrecisionKernel[Any]]:
    """All ways to compute a form by name, the likely fastest first; that of `REFERENCE`'s name always works."""
    return PRODUCT_KERNELS if isinstance(form, ProductForm) else CONVOLUTION_KERNELS
