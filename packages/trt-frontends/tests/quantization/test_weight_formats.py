"""The table of formats in docs/howto/quantization.md: what a weight takes in plan and memory, where it is decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trt_frontends
import trt_portable as trt
from trt_core.bitsandbytes_operators import TABLES
from trt_core.quantization import e2m1_codes, quantize
from trt_runtime import TRTModule
from trt_runtime.module import engines_of

DEPTH, COLUMNS = 512, 640  # more than a tile that is decoded at a time
SETTINGS: dict[str, Any] = {"optimization_level": 0, "min_block_size": 1, "debug": True}


class Codes(nn.Module):
    """A product by codes, of four bits two in a byte, that are decoded by arithmetic of PyTorch's operators.

    Args:
        bits: Of a code.
        size: Elements of a row that share a scale; 0 for all.
        zeros: Whether scales come with zero points.
        table: What codes stand for; None where they are integers.
        order: Whether groups are of columns that lie apart, as in GPTQ with act-order.
    """

    def __init__(
        self, bits: int, size: int = 0, *, zeros: bool = False, table: torch.Tensor | None = None, order: bool = False
    ) -> None:
        super().__init__()
        self.bits, groups = bits, DEPTH // (size or DEPTH)
        codes = torch.randint(0, 2**bits, (COLUMNS, DEPTH), dtype=torch.uint8)
        self.register_buffer("codes", codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4)
        self.register_buffer("scale", torch.rand(COLUMNS, groups) * 0.01 + 0.001)
        middle = torch.full((COLUMNS, groups), 2 ** (bits - 1), dtype=torch.uint8)
        shift = torch.randint(0, 2**bits, (COLUMNS, groups), dtype=torch.uint8) if zeros else middle
        self.register_buffer("zero", shift)
        self.register_buffer("table", table)
        owner = torch.arange(DEPTH) // (DEPTH // groups)
        self.register_buffer("owner", owner[torch.randperm(DEPTH)] if order else owner)

    def weight(self) -> torch.Tensor:
        codes = self.codes
        if self.bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), -1).reshape(COLUMNS, DEPTH)
        if self.table is not None:
            return self.table[codes.long()] * self.scale[:, self.owner]
        return (codes.float() - self.zero[:, self.owner].float()) * self.scale[:, self.owner]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight().to(x.dtype))


class Floats(nn.Module):
    """A product by values of few bits that PyTorch has a type for, with scales of blocks of a row.

    Args:
        size: Elements of a block; 0 for a row.
        scale: Type of the scales; those in float8_e4m3fn have a scale of their own.
        bits: 4 for E2M1, two in a byte.
    """

    def __init__(self, size: int = 0, scale: torch.dtype = torch.float32, bits: int = 8) -> None:
        super().__init__()
        values, self.bits = torch.randn(COLUMNS, DEPTH) * 2, bits
        held = quantize(values, torch.ones(()), torch.float8_e4m3fn, bits)
        codes = e2m1_codes(held)
        self.register_buffer("values", held if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4)
        powers = torch.exp2(torch.randint(-5, 0, (COLUMNS, DEPTH // (size or DEPTH))).float())
        self.register_buffer("scale", powers.to(scale))
        self.register_buffer("table", torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]))
        self.register_buffer("outer", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.values
        if self.bits == 4:
            values = self.table[torch.stack((values & 15, values >> 4), -1).reshape(COLUMNS, DEPTH).long()]
        scale = self.scale.float() * self.outer if self.scale.dtype is torch.float8_e4m3fn else self.scale.float()
        blocks = values.float().unflatten(1, (scale.shape[1], -1)) * scale.unsqueeze(-1)
        return F.linear(x, blocks.reshape(COLUMNS, DEPTH).to(x.dtype))


def _table(kind: str) -> torch.Tensor:
    return torch.tensor(TABLES[kind])


E8M0, E4M3 = torch.float8_e8m0fnu, torch.float8_e4m3fn
SCALE = 32
"""Bits of a scale, and of a zero point."""
PACKED, TILES = "int4pack", "dequantize_in_tiles"
FORMATS: dict[str, tuple[Any, float, str]] = {
    "int8": (lambda: Codes(8), 8 + SCALE / DEPTH, "int8pack"),
    "int8 asymmetric": (lambda: Codes(8, zeros=True), 8 + 2 * SCALE / DEPTH, TILES),
    **{f"int4 in {size}": (lambda size=size: Codes(4, size), 4 + SCALE / size, PACKED) for size in (32, 64, 128, 256)},
    **{
        f"int4 in {size} asymmetric": (lambda size=size: Codes(4, size, zeros=True), 4 + 2 * SCALE / size, PACKED)
        for size in (32, 64, 128, 256)
    },
    "act-order": (lambda: Codes(4, 128, zeros=True, order=True), 4 + 2 * SCALE / 128 + 64 / COLUMNS, PACKED),
    "nf4": (lambda: Codes(4, 64, table=_table("nf4")), 4 + SCALE / 64, TILES),
    "fp4": (lambda: Codes(4, 64, table=_table("fp4")), 4 + SCALE / 64, TILES),
    "float8": (lambda: Floats(), 8 + SCALE / DEPTH, TILES),
    "mxfp8": (lambda: Floats(32, E8M0), 8 + 8 / 32, TILES),
    "nvfp4": (lambda: Floats(16, E4M3, bits=4), 4 + 8 / 16, TILES),
    "mxfp4": (lambda: Floats(32, E8M0, bits=4), 4 + 8 / 16, TILES),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_codes_stay_codes_and_are_decoded_inside_of_the_product(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, bits, way = FORMATS[name]
    model, x = make().eval(), torch.randn(3, DEPTH, dtype=dtype)
    result: Any = trt_frontends.compile(model, arg_inputs=(x,), **SETTINGS)
    report = result.meta["partition_report"]
    assert report.coverage == 1.0 and not report.weights_in_floats
    expected = model(x)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(result(x), expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    (engine,) = (loaded.native for loaded in engines_of(result))
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    layers = {layer["LayerType"]: layer["TacticName"] for layer in json.loads(text)["Layers"]}
    assert not {"MATRIX_MULTIPLY", "DEQUANTIZE", "LINEAR"} & layers.keys(), layers
    assert layers["LOW_PRECISION_PRODUCT"] == way
    (plan,) = (child.plan.numel() for child in result.modules() if isinstance(child, TRTModule))
    elements = DEPTH * COLUMNS
    assert 8 * (plan - (12 << 10)) / elements < bits + 0.2  # some kilobytes of layers
    held = [value for value in engine._state.program.constants if isinstance(value, torch.Tensor)]
    scales = 2 * SCALE / 16 if "fp4" in name or "fp8" in name else SCALE / 16  # widened when an engine is loaded
    assert 8 * sum(value.nbytes for value in held) / elements < bits + scales
