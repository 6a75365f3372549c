"""Attention and rotary embeddings."""

from __future__ import annotations

import math
from typing import Final

from trt_portable.enums import AttentionNormalizationOp, CausalMaskKind, DataType, ElementWiseOperation, ErrorCode
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.registry import UseDefinition, operator
from trt_portable.onnx_parser.writer import NetworkWriter

_PROD: Final = ElementWiseOperation.PROD


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    net: NetworkWriter,
    x: ITensor,
    cos_cache: ITensor,
    sin_cache: ITensor,
    position_ids: ITensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> ITensor:
    """RotaryEmbedding(X, cos_cache, sin_cache, position_ids; interleaved, num_heads, rotary_embedding_dim) -> Y"""
    is_flat = net.rank(x) == 3
    heads = _split_heads(net, x, num_heads) if is_flat else x
    layer = net.layer(
        net.network.add_rotary_embedding(heads, cos_cache, sin_cache, bool(interleaved), rotary_embedding_dim)
    )
    if position_ids is not None:
        layer.set_input(3, position_ids)
    result = net.output_of(layer)
    return _join_heads(net, result) if is_flat else result


def _split_heads(net: NetworkWriter, x: ITensor, heads: int) -> ITensor:
    """(N, L, H * D) as (N, H, L, D)."""
    batch, length, width = net.extents(x)
    if heads < 1 or not isinstance(width, int) or width % heads:
        raise Unsupported(f"{heads} heads of an extent {x.shape[-1]}", ErrorCode.INVALID_NODE)
    return net.transpose(net.reshape(x, [batch, length, heads, width // heads]), (0, 2, 1, 3))


def _join_heads(net: NetworkWriter, x: ITensor) -> ITensor:
    """(N, H, L, D) as (N, L, H * D)."""
    batch, heads, length, width = net.extents(x)
    return net.reshape(net.transpose(x, (0, 2, 1, 3)), [batch, length, net.combine(heads, width, _PROD)])


@operator("Attention", since=23)
def attention(
    net: NetworkWriter,
    q: ITensor,
    k: ITensor,
    v: ITensor,
    attn_mask: ITensor | None = None,
    past_key: ITensor | None = None,
    past_value: ITensor | None = None,
    nonpad_kv_seqlen: ITensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[ITensor, ITensor, ITensor]:
    """Attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen; ...) -> (Y, present_key, present_value)

    What the network's own layer does not do (caps, paddings, scores as outputs) is read as ONNX defines it.
    """
    wants_scores = len(net.node.wanted) > 3 and net.node.wanted[3]
    is_mixed = attn_mask is not None and (bool(is_causal) or net.rank(attn_mask) < 2)
    if softcap or wants_scores or nonpad_kv_seqlen is not None or is_mixed:
        raise UseDefinition
    is_flat = net.rank(q) == 3
    if is_flat:
        q = _split_heads(net, q, q_num_heads)
        k, v = _split_heads(net, k, kv_num_heads), _split_heads(net, v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = net.concat([past_key, k], 2), net.concat([past_value, v], 2)
    width = q.shape[-1]
    if width < 1 or v.shape[-1] != width:
        raise UseDefinition
    scaled = net.with_number(q, 1 / math.sqrt(width) if scale is None else scale, ElementWiseOperation.PROD)
    kind = CausalMaskKind.NONE
    if is_causal:  # after a past the last query still sees the last key
        kind = CausalMaskKind.UPPER_LEFT if past_key is None else CausalMaskKind.LOWER_RIGHT
    layer = net.network.add_attention_v2(scaled, k, v, AttentionNormalizationOp.SOFTMAX, kind)
    if layer is None:
        raise UseDefinition
    layer.name = net.node.name
    layer.decomposable = True
    if attn_mask is not None:
        layer.mask = _whole_mask(net, attn_mask, scaled, k)
    y = layer.get_output(0)
    assert y is not None
    return _join_heads(net, y) if is_flat else y, k, v


def _whole_mask(net: NetworkWriter, mask: ITensor, q: ITensor, k: ITensor) -> ITensor:
    """A mask of rank 4 with the extents of queries and keys; where it is too short for the keys they are hidden."""
    full = net.unsqueeze(mask, range(4 - net.rank(mask)))
    if full.dtype is not DataType.BOOL:
        full = net.cast(full, q.dtype)
    extents = net.extents(full)
    columns = net.extents(k)[2]
    if isinstance(columns, int) and isinstance(extents[3], int) and 1 < extents[3] < columns:
        raise UseDefinition
    return net.expand(full, [extents[0], extents[1], net.extents(q)[2], columns])
