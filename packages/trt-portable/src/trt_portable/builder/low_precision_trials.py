"""Products and convolutions of few bits with made-up numbers, on which their kernels are compared and timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from trt_portable.builder.timing import first_difference
from trt_portable.dtypes import CARRIERS, FP4_VALUES
from trt_portable.enums import DataType
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_KERNELS, CONVOLUTION_REFERENCE, ConvolutionForm
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, REFERENCE, Finish, ProductForm
from trt_portable.shape_tensors import Value

_BIAS, _OUTPUT_SCALE = 2, 3


class Case(ABC):
    """What the choice of a kernel depends on, beside the device; equal cases share a choice."""

    reference: Any

    @abstractmethod
    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the case."""

    @abstractmethod
    def trial(self, device: torch.device) -> Trial:
        """The case with numbers."""


def _output(entry: Mapping[str, Any]) -> DataType | None:
    """The type that a result is quantized to; None if it is not."""
    return None if entry["inputs"][_OUTPUT_SCALE] is None else DataType[entry["attributes"]["output_type"]]


@dataclass(frozen=True)
class ProductCase(Case):
    """A product.

    Attributes:
        form: Apart from its numbers.
        rows: Of the left operand.
        has_bias: Whether there is a bias.
        rectifies: Whether negative numbers become 0.
        output: The type that the result is quantized to, or None.
    """

    form: ProductForm
    rows: int
    has_bias: bool
    rectifies: bool
    output: DataType | None

    reference = REFERENCE

    @staticmethod
    def of(entry: Mapping[str, Any], rows: int) -> ProductCase:
        """The case of a layer of a plan."""
        attributes = entry["attributes"]
        form = ProductForm(
            columns=attributes["columns"],
            depth=attributes["depth"],
            codes=DataType[attributes["code_type"]],
            left=DataType[attributes["left_type"]],
            result=DataType[attributes["result_type"]],
            blocks=tuple(attributes["blocks"]),
            is_rowwise=attributes["rowwise"],
        )
        return ProductCase(form, rows, entry["inputs"][_BIAS] is not None, attributes["rectify"], _output(entry))

    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the form."""
        return [kernel for kernel in PRODUCT_KERNELS.values() if kernel.accepts(self.form, device)]

    def trial(self, device: torch.device) -> Trial:
        """The product with numbers."""
        return ProductTrial(self, device)


@dataclass(frozen=True)
class ConvolutionCase(Case):
    """A convolution.

    Attributes:
        form: Apart from its numbers.
        image: Batch and spatial extents of the input.
        has_bias: Whether there is a bias.
        rectifies: Whether negative numbers become 0.
        output: The type that the result is quantized to, or None.
    """

    form: ConvolutionForm
    image: tuple[int, int, int]
    has_bias: bool
    rectifies: bool
    output: DataType | None

    reference = CONVOLUTION_REFERENCE

    @staticmethod
    def of(entry: Mapping[str, Any], image: tuple[int, int, int]) -> ConvolutionCase:
        """The case of a layer of a plan."""
        attributes = entry["attributes"]
        form = ConvolutionForm(
            kernel=tuple(attributes["kernel_shape"]),
            stride=tuple(attributes["stride"]),
            padding=tuple(attributes["padding"]),
            dilation=tuple(attributes["dilation"]),
            groups=attributes["groups"],
            codes=DataType[attributes["code_type"]],
            left=DataType[attributes["left_type"]],
            result=DataType[attributes["result_type"]],
            scales=attributes["scales"],
            is_scaled=attributes["is_scaled"],
        )
        has_bias = entry["inputs"][_BIAS] is not None or "BIAS" in entry["weights"]
        return ConvolutionCase(form, image, has_bias, attributes["rectify"], _output(entry))

    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the form."""
        return [kernel for kernel in CONVOLUTION_KERNELS.values() if kernel.accepts(self.form, device)]

    def trial(self, device: torch.device) -> Trial:
        """The convolution with numbers."""
        return ConvolutionTrial(self, device)


class Trial(ABC):
    """A case with made-up numbers.

    Args:
        case: What is computed.
        device: Where.

    Attributes:
        values: The input.
    """

    values: list[Value]

    def __init__(self, case: Any, device: torch.device) -> None:
        self.form = case.form
        self._device = device
        self._generator = torch.Generator().manual_seed(0)
        self._case = case
        self.finish = Finish(case.form.result, rectify=case.rectifies, output=case.form.result)
        self._make()
        self._expected = self.run(case.reference, self.prepare(case.reference))
        if case.output is not None:
            scale = (self._expected.float().abs().amax() / 100).clamp(min=1e-6)
            self.finish = replace(self.finish, scale=scale, output=case.output)
            self._expected = self.run(case.reference, self.prepare(case.reference))

    @abstractmethod
    def _make(self) -> None:
        """Makes the numbers."""

    @abstractmethod
    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights for a kernel."""

    @abstractmethod
    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The result by a kernel."""

    def difference(self, kernel: Any) -> str | None:
        """What is wrong with a kernel's result, in words."""
        found = self.run(kernel, self.prepare(kernel))
        return first_difference([_comparable(found)], [_comparable(self._expected)])

    def _floats(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def _factors(self, *shape: int) -> torch.Tensor:
        return ((torch.rand(shape, generator=self._generator) + 0.5) / 64).to(self._device)

    def _codes(self, dtype: DataType, *shape: int) -> torch.Tensor:
        """Values of a type, in its carrier."""
        if dtype is DataType.INT8:
            made = torch.randint(-127, 128, shape, generator=self._generator)
        elif dtype is DataType.INT4:
            made = torch.randint(-8, 8, shape, generator=self._generator)
        elif dtype is DataType.FP4:
            made = torch.tensor(FP4_VALUES)[torch.randint(0, 16, shape, generator=self._generator)]
        else:
            made = self._floats(*shape)
        return made.to(CARRIERS[dtype]).to(self._device)

    def _bias(self, count: int) -> torch.Tensor | None:
        return self._floats(count).to(self._device, CARRIERS[self.form.result]) if self._case.has_bias else None


class ProductTrial(Trial):
    """A product with made-up numbers."""

    def _make(self) -> None:
        form, rows = self.form, max(self._case.rows, 1)
        self._matrix = self._codes(form.codes, form.columns, form.depth)
        self._scale = self._factors(*form.blocks)
        self.values = [self._codes(form.left, rows, form.depth)]
        left_scale = self._factors(rows, 1) * 64 if form.is_rowwise else None
        self.finish = replace(self.finish, left_scale=left_scale, bias=self._bias(form.columns))

    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix for a kernel."""
        found: tuple[torch.Tensor, torch.Tensor] = kernel.prepare(self._matrix, self._scale, self.form)
        return found

    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The product by a kernel."""
        found: torch.Tensor = kernel.multiply(self.values[0], *prepared, self.form, self.finish)
        return found


class ConvolutionTrial(Trial):
    """A convolution with made-up numbers."""

    def _make(self) -> None:
        form, (batch, *extents) = self.form, self._case.image
        self._kernel = self._codes(form.codes, *form.kernel)
        self._scale = self._factors(form.scales)
        channels = form.kernel[1] * form.groups
        self.values = [self._codes(form.left, max(batch, 1), channels, *extents)]
        left_scale = self._factors() * 64 if form.is_scaled else None
        self.finish = replace(self.finish, left_scale=left_scale, bias=self._bias(form.kernel[0]))

    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights for a kernel."""
        found: tuple[torch.Tensor, torch.Tensor] = kernel.prepare(self._kernel, self._scale, self.form)
        return found

    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The convolution by a kernel."""
        found: torch.Tensor = kernel.convolve(self.values[0], *prepared, self.form, self.finish)
        return found


def _comparable(result: torch.Tensor) -> torch.Tensor:
    """Results in a type whose tolerance forgives what rounds the other way."""
    return {torch.int8: result.half, torch.float8_e4m3fn: result.bfloat16}.get(result.dtype, lambda: result)()
