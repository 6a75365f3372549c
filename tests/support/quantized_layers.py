"""Quantized layers as libraries leave them, which tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

DEPTH, COLUMNS = 512, 256


def pack_words(values: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """The layout's definition, bit by bit: code i of a row takes bits `bits * i` and on of its stream."""
    rows = values.movedim(axis, -1)
    packed = torch.zeros(*rows.shape[:-1], rows.shape[-1] * bits // 32, dtype=torch.int64)
    for index in range(rows.shape[-1] * bits):
        bit = (rows[..., index // bits] >> (index % bits)) & 1
        packed[..., index // 32] |= bit.to(torch.int64) << (index % 32)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).movedim(-1, axis)


class QuantLinear(nn.Module):
    """A layer in the layout of GPTQ or AWQ, as `gptqmodel` names its parts; computed here from what was packed."""

    def __init__(
        self, bits: int, size: int, *, awq: bool = False, ordered: bool = True, symmetric: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.bits, groups = bits, DEPTH // size
        codes = torch.randint(0, 2**bits, (DEPTH, COLUMNS))
        zeros = torch.randint(0, 2**bits, (groups, COLUMNS))
        zeros = torch.full_like(zeros, 2 ** (bits - 1)) if symmetric else zeros
        owner = torch.arange(DEPTH) // size
        owner = owner if ordered else owner[torch.randperm(DEPTH)]
        self.register_buffer("scales", (torch.rand(groups, COLUMNS) * 0.01 + 0.001).half())
        self.register_buffer("bias", torch.randn(COLUMNS).half())
        places = torch.arange(COLUMNS)
        if awq:  # the lowest bits hold columns 0, 2, 4, 6, 1, 3, 5, 7 of eight
            places = places.unflatten(0, (-1, 8))[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten()
        else:
            self.register_buffer("g_idx", owner.to(torch.int32))
        self.register_buffer("qweight", pack_words(codes[:, places], bits, 1 if awq else 0))
        self.register_buffer("qzeros", pack_words(zeros[:, places], bits, 1))
        self.weight = ((codes - zeros[owner]) * self.scales[owner].float()).half().float()
        self._codes, self._zeros, self._size = codes, zeros, size

    def pack_for_cpus(self) -> None:
        """What the first call of `TorchAtenLinear` and `TorchAtenAwqLinear` does to their buffers."""
        self.scales, codes = self.scales.to(torch.bfloat16), self._codes.t()
        if hasattr(self, "g_idx"):
            self.ret_idx = self.g_idx.argsort(stable=True).to(torch.int32)
            codes = codes[:, self.ret_idx]
        self.qweight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int().contiguous(), 1)
        self.qzeros = (8 - self._zeros.to(torch.bfloat16)) * self.scales
        self.scales_and_zeros = torch.stack([self.scales, self.qzeros], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.qweight.dtype is torch.int32:
            return x @ self.weight.to(x.dtype) + self.bias.to(x.dtype)
        half = (x[:, self.ret_idx] if hasattr(self, "ret_idx") else x).to(torch.bfloat16)
        made = torch.ops.aten._weight_int4pack_mm_for_cpu(half, self.qweight, self._size, self.scales_and_zeros)
        return made.to(x.dtype) + self.bias.to(x.dtype)


QuantLinear.__module__ = "gptqmodel.nn_modules.qlinear"


class _Held:
    """A weight as `optimum.quanto` holds it: codes, and for each group of a row a scale, and what is subtracted."""

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None) -> None:
        self._data, self._scale, self._shift, self.axis = codes, scale, shift, 0
        self.shape, self.dtype, self.data = (COLUMNS, DEPTH), scale.dtype, self


class QLinear(nn.Module):
    """A frozen layer of `optimum.quanto`, of 2, 4 or 8 bits, or of float8; computed here from what was packed."""

    def __init__(self, bits: int, size: int, dtype: torch.dtype, *, code: torch.dtype = torch.int8) -> None:
        super().__init__()
        torch.manual_seed(bits)
        groups, self.activation_qtype = COLUMNS * DEPTH // size, None
        self.register_buffer("bias", torch.randn(COLUMNS).to(dtype))
        scale, shift = (torch.rand(groups, 1) * 0.01 + 0.001).to(dtype), None
        if bits == 8:
            codes = torch.randint(-100, 100, (groups, size)).to(code)
        else:
            codes = torch.randint(0, 2**bits, (groups, size), dtype=torch.uint8)
            shift = (scale.float() * (2 ** (bits - 1) - 0.5)).to(dtype)
        whole = codes.float() * scale.float() - (0.0 if shift is None else shift.float())
        self.weight, self._whole = _Held(codes, scale, shift), whole.view(COLUMNS, DEPTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.float(), self._whole, self.bias.float()).to(x.dtype)


QLinear.__module__ = "optimum.quanto.nn.qlinear"


class HQQLinear(nn.Module):
    """A layer of `hqq`: groups of a row, or of a column, with zero points that are floats; computed from its codes."""

    def __init__(self, bits: int, size: int, dtype: torch.dtype, *, axis: int = 1) -> None:
        super().__init__()
        torch.manual_seed(bits)
        shape = (COLUMNS * DEPTH // size, size) if axis == 1 else (size, COLUMNS * DEPTH // size)
        codes = torch.randint(0, 2**bits, shape, dtype=torch.int32)
        ends = (shape[0], 1) if axis == 1 else (1, shape[1])
        scale, zero = torch.rand(ends).to(dtype) * 0.01 + 0.001, (torch.rand(ends) * 2**bits).to(dtype)
        count = 10 if bits == 3 else 8 // bits
        strips = functional.pad(codes, (0, 0, 0, -len(codes) % count)).chunk(count)  # the first in the highest bits
        words = sum((strip << bits * (count - 1 - at) for at, strip in enumerate(strips)), torch.zeros((), dtype=int))
        self.W_q = nn.Parameter(words.to(torch.int32 if bits == 3 else torch.uint8), requires_grad=False)
        self.bias, self.compute_dtype = torch.randn(COLUMNS).to(dtype), dtype
        packing = "3bit_32" if bits == 3 else f"{bits}bit_u8"
        self.meta: dict[str, Any] = {"scale": scale, "zero": zero, "axis": axis, "packing": packing}
        self.meta |= {"shape": torch.Size((COLUMNS, DEPTH)), "view_as_float": False, "unpack_view_dtype": words.dtype}
        self._whole = ((codes - zero.float()) * scale.float()).reshape(COLUMNS, DEPTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.float(), self._whole, self.bias.float()).to(x.dtype)


HQQLinear.__module__ = "hqq.core.quantize"


def rounded_to_mxfp4(matrices: torch.Tensor) -> torch.Tensor:
    """Numbers as those that transformers makes of MXFP4: codes of E2M1 times a power of two for 32 along K."""
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    columns = matrices.mT
    codes = levels[torch.randint(0, 8, columns.shape)] * columns.sign()
    powers = torch.exp2(torch.randint(-9, -3, (*columns.shape[:2], columns.shape[2] // 32)).float())
    return (codes.unflatten(-1, (-1, 32)) * powers[..., None]).flatten(-2).mT.contiguous()


class InBlocks(nn.Module):
    """Products as ModelOpt's export leaves them: weights, and activations if told so, in blocks."""

    def __init__(self, block: int, bits: tuple[int, int, int, int], quantizes_input: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 256)
        self.block, self.bits, self.quantizes_input = block, bits, quantizes_input
        self.register_buffer("largest", torch.tensor(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.ops.tensorrt.dynamic_block_quantize_op
        for layer in (self.first, self.second):
            weight = keep(layer.weight, self.block, layer.weight.detach().abs().amax(), *self.bits)
            value = keep(x, self.block, self.largest, *self.bits) if self.quantizes_input else x
            x = functional.linear(value, weight, layer.bias).relu()
        return x


NVFP4, MXFP8 = (16, (4, 2, 8, 4)), (32, (8, 4, 9, 8))
