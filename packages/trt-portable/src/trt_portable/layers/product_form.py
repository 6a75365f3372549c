"""A product by a matrix of few bits: its form, what happens to its result, and what every way of computing it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from trt_portable.dtypes import CARRIERS, FLOATS
from trt_portable.enums import DataType
from trt_portable.layers.rounding import is_scratch, round_to


@dataclass(frozen=True)
class ProductForm:
    """A product apart from its numbers.

    Attributes:
        columns: N, rows of the matrix of codes.
        depth: K, columns of the matrix of codes.
        codes: Type of the matrix.
        left: Type of the left operand: that of the codes, or a float type.
        result: Float type of the result before it is quantized.
        blocks: Extents of the scales: (1, 1), (N, 1) per channel, (N, K / block), or others that divide.
        is_rowwise: Whether the left operand has a scale for each of its rows, computed in the run.
    """

    columns: int
    depth: int
    codes: DataType
    left: DataType
    result: DataType
    blocks: tuple[int, int]
    is_rowwise: bool = False

    @property
    def is_weight_only(self) -> bool:
        """Whether the left operand is not quantized."""
        return self.left in FLOATS

    @property
    def is_per_channel(self) -> bool:
        """Whether scales leave the sum over the depth: one for all, or one per column of the result."""
        return self.blocks[1] == 1 and self.blocks[0] in (1, self.columns)


@dataclass(frozen=True)
class Finish:
    """What happens to a product before it is a result.

    Attributes:
        result: Float type.
        left_scale: (M, 1) or 0-D, float32: factors of the rows that the run computes; None where there are none.
        bias: (N,), or None.
        rectify: Whether negative numbers become 0.
        scale: 0-D: what the result is divided by before it is rounded to `output`; None where it stays a float.
        output: Type of the result.
    """

    result: DataType
    left_scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    rectify: bool = False
    scale: torch.Tensor | None = None
    output: DataType = DataType.FLOAT

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's type of the float result."""
        return CARRIERS[self.result]

    def __call__(self, product: torch.Tensor, *, has_bias: bool = False) -> torch.Tensor:
        """The result of a float product (M, N), which is lost."""
        if self.left_scale is not None:
            product = product.float()
            product = product.mul_(self.left_scale) if is_scratch(product) else product * self.left_scale
        if self.bias is not None and not has_bias:
            bias = self.bias.to(product.dtype)
            product = product.add_(bias) if is_scratch(product) else product + bias
        if self.rectify:
            product = product.relu_() if is_scratch(product) else torch.relu(product)
        product = product.to(self.dtype)
        if self.scale is None:
            return product
        product = product.float()
        steps = product.div_(self.scale.float()) if is_scratch(product) else product / self.scale.float()
        return round_to(steps, self.output)


class ProductKernel(ABC):
    """One way of computing a product."""

    name: ClassVar[str]
    is_traceable: ClassVar[bool] = True
    """Whether it consists of operators that PyTorch's compilers know."""

    @abstractmethod
    def accepts(self, form: ProductForm, device: torch.device) -> bool:
        """Whether trying makes sense."""

    @abstractmethod
    def prepare(self, codes: torch.Tensor, scale: torch.Tensor, form: ProductForm) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix and its scales as `multiply` wants them.

        Args:
            codes: (N, K), of the carrier of the codes' type.
            scale: Of `form.blocks`, float32; times the scale of the left operand, where that is constant.
            form: The product.
        """

    @abstractmethod
    def multiply(
        self, left: torch.Tensor, matrix: torch.Tensor, scale: torch.Tensor, form: ProductForm, finish: Finish
    ) -> torch.Tensor:
        """The result (M, N) of a left operand (M, K) and what was prepared."""


def spread_blocks(scale: torch.Tensor, extents: tuple[int, int]) -> torch.Tensor:
    """Scales of blocks as a matrix that broadcasts to (N, K)."""
    for axis, extent in enumerate(extents):
        if scale.shape[axis] not in (1, extent):
            scale = scale.repeat_interleave(extent // scale.shape[axis], axis)
    return scale
