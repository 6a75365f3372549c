"""What PyTorch's fused transformer encoder layer computes, in operators that engines have."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from trt_core.internals import has_kernel

_NAME: Final = "aten::_transformer_encoder_layer_fwd"


def declare_encoder_layer() -> None:
    """Tells PyTorch the shape of the layer's result where it does not know it, which is before 2.13.

    Without it Dynamo captures no code that calls the layer once sizes vary. It knows the shape for every backend then.
    """
    if not has_kernel(_NAME, "Meta"):
        torch.library.register_fake(_NAME, lambda src, *_, **__: torch.empty_like(src))


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decomposes `aten::_transformer_encoder_layer_fwd`, which `nn.TransformerEncoderLayer` calls at inference.

    Args:
        src: (N, L, E).
        mask: Nonzero where a key takes no part: (L, L) with `mask_type` 0, (N, L) with 1, (N, heads, L, L) with 2.
        mask_type: Which of the three.
        embed_dim, num_heads, use_gelu, norm_first, eps: As the layer has them.
        qkv_weight, qkv_bias: (3 E, E) and (3 E,): of queries, keys and values.
        proj_weight, proj_bias: (E, E) and (E,): behind the attention.
        norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2: (E,) each: of both norms.
        ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2: (F, E), (F,), (E, F) and (E,): of the feed-forward part.
    """

    def first_norm(value: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(value, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(value: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(value, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(value: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(value, qkv_weight, qkv_bias).chunk(3, dim=-1)
        query, key, content = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(query, key, content, _keys_that_count(mask, mask_type))
        return functional.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(value: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(value, ffn_weight_1, ffn_bias_1)
        active = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(active, ffn_weight_2, ffn_bias_2)

    if norm_first:
        attended = src + attention(first_norm(src))
        return attended + feed_forward(second_norm(attended))
    attended = first_norm(src + attention(src))
    return second_norm(attended + feed_forward(attended))


def _keys_that_count(mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor | None:
    if mask is None:
        return None
    counts = mask.to(torch.bool).logical_not()
    return counts[:, None, None, :] if mask_type == 1 else counts
