"""Weights in the layouts of GPTQ, AWQ and NF4, unpacked by plain arithmetic, stay codes, and values are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from trt_core import CompilationSettings
from trt_core.attributes import read_attribute
from trt_core.quantization import dequantize
from trt_lowering import lower

aten = torch.ops.aten

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BELOW = (-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0)
_ABOVE = (0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1)
NF4 = torch.tensor([*_BELOW, *_ABOVE])


def packed(values: torch.Tensor, axis: int, bits: int) -> torch.Tensor:
    """Integers of few bits in those of 32 along an axis, the first in the lowest bits."""
    parts = values.to(torch.int64).movedim(axis, -1).unflatten(-1, (-1, 32 // bits))
    words = (parts << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).movedim(-1, axis).contiguous()


class PackedRows(nn.Module):
    """GPTQ's layout: codes packed along the inputs, zero points along the outputs, each input in a group of its own."""

    def __init__(self, bits: int, groups: int, size: int, columns: int, ordered: bool, symmetric: bool) -> None:
        super().__init__()
        depth, half = groups * size, 2 ** (bits - 1)
        self.bits, self.depth, self.columns = bits, depth, columns
        codes = torch.randint(0, 2**bits, (depth, columns))
        zeros = torch.full((groups, columns), half) if symmetric else torch.randint(0, 2**bits, (groups, columns))
        owner = torch.arange(depth) // size
        self.register_buffer("qweight", packed(codes, 0, bits))
        self.register_buffer("qzeros", packed(zeros, 1, bits))
        self.register_buffer("scales", torch.rand(groups, columns) + 0.1)
        self.register_buffer("g_idx", owner if ordered else owner[torch.randperm(depth)])
        self.weight = (codes - zeros[self.g_idx]) * self.scales[self.g_idx]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifts, mask = torch.arange(0, 32, self.bits, dtype=torch.int32), 2**self.bits - 1
        codes = (self.qweight[:, None] >> shifts[:, None]).bitwise_and(mask).reshape(self.depth, self.columns)
        zeros = (self.qzeros[..., None] >> shifts).bitwise_and(mask).reshape(-1, self.columns)
        return x @ (self.scales[self.g_idx] * (codes - zeros[self.g_idx]))


class PackedColumns(nn.Module):
    """AWQ's layout: codes and zero points packed along the outputs, in an order of their own, and halves."""

    def __init__(self, groups: int, size: int, columns: int) -> None:
        super().__init__()
        codes, zeros = (torch.randint(0, 16, (rows, columns)) for rows in (groups * size, groups))
        order = torch.arange(columns).unflatten(0, (-1, 8))[:, torch.tensor(AWQ_ORDER)].flatten()
        self.size = size
        self.register_buffer("qweight", packed(codes[:, order], 1, 4))
        self.register_buffer("qzeros", packed(zeros[:, order], 1, 4))
        self.register_buffer("scales", (torch.rand(groups, columns) + 0.1).half())
        wide = self.scales.repeat_interleave(size, 0)
        self.weight = (codes - zeros.repeat_interleave(size, 0)) * wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.tensor(AWQ_ORDER).argsort()

        def unpack(words: torch.Tensor) -> torch.Tensor:
            parts = (words[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)).bitwise_and(15)
            return parts[..., places].flatten(-2)

        zeros = unpack(self.qzeros).repeat_interleave(self.size, 0)
        weight = (unpack(self.qweight) - zeros) * self.scales.repeat_interleave(self.size, 0)
        return (x.half() @ weight).to(x.dtype)


class LookedUp(nn.Module):
    """NF4's layout: places in a table, the first of two in the upper half of a byte, scales of blocks of all."""

    def __init__(self, rows: int, columns: int, size: int) -> None:
        super().__init__()
        self.size, self.shape = size, (rows, columns)
        codes = torch.randint(0, 16, (rows * columns,))
        self.register_buffer("held", ((codes[::2] << 4) | codes[1::2]).to(torch.uint8)[:, None])
        self.register_buffer("scales", torch.rand(rows * columns // size) + 0.1)
        self.register_buffer("levels", NF4)
        self.weight = (NF4[codes].view(-1, size) * self.scales[:, None]).view(rows, columns).t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = torch.stack((self.held >> 4, self.held & 15), -1).flatten().to(torch.int64)
        weight = self.levels[codes].view(-1, self.size) * self.scales[:, None]
        return functional.linear(x, weight.view(self.shape))


def check(module: Any, depth: int, bits: int, tolerance: float = 1e-5) -> torch.fx.GraphModule:
    """Lowers a module; its weight must stay codes of so many bits, and its values must be those of its layout."""
    x = torch.randn(3, depth)
    kept = {dequantize, aten.matmul.default, aten.linear.default, aten.index.Tensor, aten.index_select.default}
    with torch.no_grad():
        program = torch.export.export(module.eval(), (x,))
        gm = lower(program, CompilationSettings(), preserve=kept.__contains__)
        (found,) = gm(x) if isinstance(gm(x), tuple) else (gm(x),)
        wanted = x @ module.weight.to(x.dtype)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
    (weight,) = gm.graph.find_nodes(op="call_function", target=dequantize)
    assert weight.args[0].op == "get_attr" and weight.args[0].meta["val"].dtype is torch.int8
    assert weight.args[3] == bits
    floats = [read_attribute(gm, node.target) for node in gm.graph.find_nodes(op="get_attr")]
    assert all(value.numel() < module.weight.numel() for value in floats if value.is_floating_point())
    return gm


@settings(max_examples=5, deadline=None)
@given(
    st.sampled_from([4, 8]),
    st.integers(2, 4),
    st.sampled_from([32, 64, 128]),
    st.sampled_from([8, 24]),
    st.booleans(),
    st.booleans(),
)
def test_codes_packed_along_inputs(
    bits: int, groups: int, size: int, columns: int, ordered: bool, symmetric: bool
) -> None:
    torch.manual_seed(0)
    gm = check(PackedRows(bits, groups, size, columns, ordered, symmetric), groups * size, bits)
    targets = [node.target for node in gm.graph.nodes]
    assert (aten.index_select.default in targets) is not ordered  # inputs take the order of the codes, not weights
    assert (aten.sub.Tensor in targets) is not symmetric


@settings(max_examples=2, deadline=None)
@given(st.integers(2, 3), st.sampled_from([32, 64, 128]), st.sampled_from([16, 40]))
def test_codes_packed_along_outputs(groups: int, size: int, columns: int) -> None:
    torch.manual_seed(0)
    check(PackedColumns(groups, size, columns), groups * size, 4, 5e-3)


@pytest.mark.parametrize(("rows", "columns", "size"), [(24, 128, 64), (16, 256, 128), (8, 96, 64)])
def test_codes_that_are_places_in_a_table(rows: int, columns: int, size: int) -> None:
    torch.manual_seed(0)
    gm = check(LookedUp(rows, columns, size), columns, 4)
    (table,) = (node.args[0] for node in gm.graph.find_nodes(op="call_function", target=aten.index.Tensor))
    torch.testing.assert_close(read_attribute(gm, table.target), NF4)


def test_groups_of_different_sizes_stay_floats() -> None:
    torch.manual_seed(0)
    module = PackedRows(4, 2, 64, 8, False, False)
    module.g_idx = torch.cat((torch.zeros(50), torch.ones(78))).to(torch.int64)[torch.randperm(128)]
    x = torch.randn(3, 128)
    kept = {dequantize, aten.matmul.default}
    expected = module(x)
    gm = lower(torch.export.export(module, (x,)), CompilationSettings(), preserve=kept.__contains__)
    assert not gm.graph.find_nodes(op="call_function", target=dequantize)
    torch.testing.assert_close(gm(x)[0] if isinstance(gm(x), tuple) else gm(x), expected)
