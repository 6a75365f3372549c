"""Converters under the older API that they support: TensorRT 10.16, without what came with version 11."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import trt_portable
from trt_converters.support import ConverterSupport
from trt_converters.testing import check_conversion, emitted_layers, record_call
from trt_core import CompilationSettings, Reason

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
LATER_NAMES = ("CausalMaskKind", "AttentionIOForm", "DLAWorkspaceAllocationStrategy")
VERSIONED = ("trt_converters.aten.attention", "trt_converters.aten.resampling", "trt_converters.support")
randn = torch.randn


@pytest.fixture(autouse=True)
def attention_layers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Answers with version 10.16 and takes away what it lacks; lists whether each attention layer was causal."""
    for module in VERSIONED:
        monkeypatch.setattr(importlib.import_module(module), "provider_version", lambda: (10, 16))
    for name in LATER_NAMES:
        monkeypatch.delattr(trt_portable, name, raising=False)
    network = trt_portable.INetworkDefinition
    later = network.add_attention_v2
    causal_layers: list[bool] = []
    within: list[Any] = []

    def add_attention(self: Any, *operands: Any) -> Any:
        causal_layers.append(operands[-1])
        within.append(operands)
        try:
            return earlier(self, *operands)
        finally:
            within.pop()

    def add_attention_v2(self: Any, *operands: Any) -> Any:
        assert within, "10.16 has no add_attention_v2"
        return later(self, *operands)

    earlier = network.add_attention
    monkeypatch.setattr(network, "add_attention", add_attention)
    monkeypatch.setattr(network, "add_attention_v2", add_attention_v2)
    return causal_layers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention(dtype: torch.dtype, attention_layers: list[bool]) -> None:
    query, key = randn(2, 4, 5, 8).to(dtype), randn(2, 4, 7, 8).to(dtype)
    check_conversion(ATTENTION, (query, key, key))
    check_conversion(ATTENTION, (query, key, key, torch.rand(5, 7) > 0.3))
    check_conversion(ATTENTION, (query, key, key, randn(2, 1, 5, 7).to(dtype)))
    assert attention_layers == [False] * 3


def test_a_causal_layer_needs_equal_lengths(attention_layers: list[bool]) -> None:
    same = randn(2, 4, 5, 8)
    check_conversion(ATTENTION, (same, same, same, None, 0.0, True))
    assert attention_layers == [True]
    check_conversion(ATTENTION, (same, randn(2, 4, 7, 8), randn(2, 4, 7, 8), None, 0.0, True))
    check_conversion(ATTENTION, (same, randn(2, 4, 3, 8), randn(2, 4, 3, 8), None, 0.0, True))
    # a mask says where the causal one is aligned, which that release does not let us choose
    assert attention_layers == [True, False, False]


def test_causal_attention_of_symbolic_lengths(attention_layers: list[bool]) -> None:
    lengths = {2: (2, 5, 9)}
    x, y = randn(2, 4, 5, 8), randn(2, 4, 6, 8)
    check_conversion(ATTENTION, (x, y, y, None, 0.0, True), dynamic={0: lengths, 1: {2: (3, 6, 9)}, 2: {2: (3, 6, 9)}})
    assert True not in attention_layers


def test_grouped_heads(attention_layers: list[bool]) -> None:
    kv = randn(1, 2, 6, 8)
    check_conversion(ATTENTION, (randn(1, 4, 6, 8), kv, kv), {"enable_gqa": True})
    assert attention_layers == [False]


def test_volumes_are_not_sampled() -> None:
    call = record_call(aten.grid_sampler_3d.default, (randn(1, 2, 3, 4, 4), randn(1, 2, 2, 2, 3), 0, 0, False))
    verdict = ConverterSupport(CompilationSettings()).verdict(call.node)
    assert verdict.reason is Reason.PROVIDER_VERSION
    check_conversion(aten.grid_sampler_2d.default, (randn(1, 2, 4, 4), randn(1, 3, 3, 2), 0, 0, False))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantization(dtype: torch.dtype) -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    library = torch.ops.quantized_decomposed
    low, high = (-128, 127) if dtype is torch.int8 else (-448, 448)
    quantize = (library.quantize_per_tensor.default, (randn(3, 4), 0.05, 0, low, high, dtype))
    assert "QUANTIZE" in emitted_layers(*quantize)
    stored = randn(3, 4).mul(20).to(dtype)
    dequantize = (library.dequantize_per_tensor.default, (stored, 0.05, 0, low, high, dtype))
    assert "DEQUANTIZE" in emitted_layers(*dequantize, constants=(0,))


def test_per_channel_weights() -> None:
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    weight = torch.randint(-100, 100, (3, 4), dtype=torch.int8)
    args = (weight, torch.rand(3) + 0.1, torch.zeros(3, dtype=torch.int64), 0, -128, 127, torch.int8)
    operator = torch.ops.quantized_decomposed.dequantize_per_channel.default
    check_conversion(operator, args, constants=(0, 1, 2))
    assert "DEQUANTIZE" in emitted_layers(operator, args, constants=(0, 1, 2))


ROWS = {0: {0: (1, 2, 5)}}


@pytest.mark.parametrize(
    ("op", "args", "dynamic"),
    [
        (aten.squeeze.dims, (randn(2, 1, 3), [1]), ROWS),
        (aten.unsqueeze.default, (randn(2, 3), 1), ROWS),
        (aten.slice.Tensor, (randn(2, 5, 3), 1, 1, 4), ROWS),
        (aten.tril.default, (randn(4, 4),), {0: {0: (1, 4, 6)}}),
        (aten.unfold.default, (randn(6, 3), 0, 3, 2), {0: {0: (5, 6, 9)}}),
        (aten.topk.default, (torch.randperm(12).float().reshape(2, 6), 3), ROWS),
        (aten.nonzero.default, (torch.tensor([[1, 0], [0, 2]]),), None),
        (aten.layer_norm.default, (randn(2, 6), [6], randn(6), randn(6)), ROWS),
        (aten.group_norm.default, (randn(2, 4, 3, 3), 2, randn(4), randn(4)), ROWS),
        (aten.cumsum.default, (randn(2, 5), 1), ROWS),
        (aten.upsample_bilinear2d.default, (randn(2, 2, 4, 4), [8, 8], False), ROWS),
        (aten.upsample_nearest2d.default, (randn(1, 2, 4, 4).bfloat16(), [8, 8]), None),
        (aten.one_hot.default, (torch.tensor([0, 2, 1]), 4), {0: {0: (1, 3, 5)}}),
        (aten.pad.default, (randn(2, 3, 4).bfloat16(), [1, 2], "reflect"), ROWS),
        (aten.atan.default, (randn(2, 3).bfloat16(),), ROWS),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else None,
)
def test_layers_of_both_versions(op: Any, args: Any, dynamic: Any) -> None:
    check_conversion(op, args, dynamic=dynamic)
