"""Scaled dot-product attention against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.aten import attention
from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Provider

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
randn = torch.randn
torch.manual_seed(0)
Q, K, V = randn(2, 4, 5, 8), randn(2, 4, 7, 8), randn(2, 4, 7, 8)
NARROW = randn(2, 4, 7, 3)  # values of another width, which TensorRT's layer may not take
DYNAMIC = {
    0: {0: (1, 2, 4), 2: (2, 5, 9)},
    1: {0: (1, 2, 4), 2: (3, 7, 9)},
    2: {0: (1, 2, 4), 2: (3, 7, 9)},
}
PADDING = torch.tensor([[True] * 7, [True] * 4 + [False] * 3]).reshape(2, 1, 1, 7)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [V, NARROW])
def test_types(value: torch.Tensor, dtype: torch.dtype) -> None:
    check_conversion(ATTENTION, (Q.to(dtype), K.to(dtype), value.to(dtype)))


@pytest.mark.parametrize("dtype", FLOATS[1:])
@pytest.mark.parametrize("scale", [None, 0.17])
@pytest.mark.parametrize("width", [32, 24])
def test_factors_are_not_rounded_to_sixteen_bits(dtype: torch.dtype, scale: float | None, width: int) -> None:
    """Factors of most widths of heads are no powers of two."""
    operands = (randn(2, 4, 12, each).to(dtype) for each in (32, 32, width))
    check_conversion(ATTENTION, (*operands, None, 0.0, False), {"scale": scale}, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_products_in_place_of_the_layer_round_their_result_alone(dtype: torch.dtype) -> None:
    """Sums of another order may end on the other side of a half."""
    operands = (randn(1, 2, 4, 12, 32).to(dtype) for _ in range(3))
    check_conversion(ATTENTION, tuple(operands), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [3, 24])
def test_tensorrt_is_given_no_values_of_another_width(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, width: int
) -> None:
    monkeypatch.setattr(attention, "current_provider", lambda: Provider.TENSORRT)
    operands = tuple(each.to(dtype) for each in (Q, K, randn(2, 4, 7, width)))
    check_conversion(ATTENTION, operands, dynamic=DYNAMIC)
    layers = emitted_layers(ATTENTION, operands)
    assert layers.count("ATTENTION_INPUT") == 1 and "SOFTMAX" not in layers and "SLICE" in layers


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", [V, NARROW])
def test_causal_is_aligned_to_the_upper_left_when_lengths_differ(value: torch.Tensor, causal: bool) -> None:
    check_conversion(ATTENTION, (Q, K, value, None, 0.0, causal), dynamic=DYNAMIC)
    check_conversion(ATTENTION, (randn(2, 4, 9, 8), K, value, None, 0.0, causal))


@pytest.mark.parametrize(
    "mask",
    [
        PADDING,
        torch.rand(5, 7) > 0.4,
        torch.rand(2, 4, 5, 7) > 0.4,
        randn(5, 7),
        randn(2, 1, 1, 7),
        randn(1, 4, 5, 7),
        torch.zeros(2, 1, 1, 7).masked_fill(~PADDING, float("-inf")),
    ],
    ids=["padding", "bool", "bool-full", "float", "float-row", "float-heads", "float-padding"],
)
@pytest.mark.parametrize("value", [V, NARROW])
def test_masks_are_kept(value: torch.Tensor, mask: torch.Tensor) -> None:
    check_conversion(ATTENTION, (Q, K, value, mask))


def test_rows_without_keys_are_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    check_conversion(ATTENTION, (Q, K, NARROW, mask))
    check_conversion(ATTENTION, (Q, K, V, mask))


@pytest.mark.parametrize("scale", [None, 0.3, 1.0])
def test_scale(scale: float | None) -> None:
    check_conversion(ATTENTION, (Q, K, V), {"scale": scale})


@pytest.mark.parametrize("width", [8, 3])
def test_grouped_heads(width: int) -> None:
    check_conversion(ATTENTION, (Q, randn(2, 2, 7, 8), randn(2, 2, 7, width)), {"enable_gqa": True}, dynamic=DYNAMIC)


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 2, 4, 5, 8)])
def test_other_ranks(shape: tuple[int, ...]) -> None:
    keys = randn(*shape[:-2], 7, 8)
    check_conversion(ATTENTION, (randn(shape), keys, keys))
    check_conversion(ATTENTION, (randn(shape), keys, keys, torch.rand(5, 7) > 0.3))


def test_batches_that_broadcast() -> None:
    check_conversion(ATTENTION, (Q, randn(1, 4, 7, 8), randn(1, 1, 7, 8)))


def test_one_attention_layer_where_its_rules_allow() -> None:
    for arguments in ((Q, K, V), (Q, K, NARROW), (Q, K, V, PADDING), (Q, K, V, None, 0.0, True)):
        layers = emitted_layers(ATTENTION, arguments)
        assert "ATTENTION_INPUT" in layers
        assert "SOFTMAX" not in layers
    assert "SOFTMAX" in emitted_layers(ATTENTION, (Q, randn(1, 4, 7, 8), V))


def test_dropout_and_other_results_are_refused() -> None:
    check_conversion(ATTENTION, (Q, K, V, None, 0.5), expect_supported=False)
    fused: Any = aten._scaled_dot_product_flash_attention_for_cpu.default
    check_conversion(fused, (Q, K, V), expect_supported=False)
    check_conversion(fused, (Q, K, V), results=(0,))


def test_samples_of_pytorch() -> None:
    for sample in samples_from_opinfo("nn.functional.scaled_dot_product_attention", torch.float32, 12):
        check_conversion(sample.op, sample.args, sample.kwargs, expect_supported=None, rtol=1e-4, atol=1e-5)
