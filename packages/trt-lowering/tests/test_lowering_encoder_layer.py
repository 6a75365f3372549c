from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trt_lowering.decomposition_table import Source, find_decomposition, transformer_encoder_layer

FUSED = torch.ops.aten._transformer_encoder_layer_fwd.default
WIDTH, HEADS = 8, 2


def _arguments(norm_first: bool, use_gelu: bool) -> tuple[Any, ...]:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, batch_first=True).eval()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    attention = layer.self_attn
    return (
        WIDTH, HEADS, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight,
        attention.out_proj.bias, use_gelu, norm_first, 1e-5, layer.norm1.weight, layer.norm1.bias, layer.norm2.weight,
        layer.norm2.bias, layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias,
    )  # fmt: skip


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("use_gelu", [False, True])
def test_it_computes_what_the_fused_operator_does(norm_first: bool, use_gelu: bool) -> None:
    src, arguments = torch.randn(3, 5, WIDTH), _arguments(norm_first, use_gelu)
    torch.testing.assert_close(transformer_encoder_layer(src, *arguments), FUSED(src, *arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mask_type", "shape"), [(0, (5, 5)), (1, (3, 5)), (2, (3, HEADS, 5, 5))])
def test_every_kind_of_mask(mask_type: int, shape: tuple[int, ...]) -> None:
    src, arguments = torch.randn(3, 5, WIDTH), _arguments(False, False)
    mask = torch.rand(shape) > 0.6
    mask[..., 0] = False  # every row keeps a key: what attends to nothing has no defined result
    expected = FUSED(src, *arguments, mask, mask_type)
    found = transformer_encoder_layer(src, *arguments, mask, mask_type)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_lowering_finds_it() -> None:
    found = find_decomposition(FUSED)
    assert found is not None
    assert found.source is Source.OWN
