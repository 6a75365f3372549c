"""Scaled dot-product attention: one attention layer where its rules allow, products and a softmax elsewhere."""

from __future__ import annotations

import math
from typing import Any

import torch

from trt_converters.aten.arithmetic import compute_type
from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import argument, dtypes, only_results, rank
from trt_converters.context import ConversionContext, Operand, dtype_of, is_exactly, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    crop_and_pad,
    dimension,
    expand,
    index_range,
    reshape,
    select,
    slice_axis,
    softmax,
    squeeze,
    unary,
    unsqueeze,
    with_rank,
)
from trt_converters.registry import convert_each
from trt_core import Provider, Reason, Verdict, current_provider, provider_version, trt
from trt_core.dtypes import FLOATS
from trt_core.sizes.expressions import is_same_size

aten = torch.ops.aten


def one_kind_of_mask(call: Call) -> Verdict | None:
    """Refuses a mask beside the causal one, and masks of a type of their own."""
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    if mask is None:
        return None
    if call["is_causal"]:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "a mask and is_causal=True exclude each other")
    if mask.dtype not in FLOATS | {torch.bool}:
        return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"the mask is {mask.dtype}")
    return None


def known_heads(call: Call) -> Verdict | None:
    """Refuses head counts and head sizes that are not known while building."""
    for name in ("query", "key", "value"):
        shape = call.tensor(name).shape
        if not isinstance(shape[-1], int) or (len(shape) > 3 and not isinstance(shape[-3], int)):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"heads of {name} are symbolic: {tuple(shape)}")
    return None


CHECKS = (
    dtypes("query", FLOATS),
    rank("query", 2),
    argument("dropout_p", lambda p: p == 0, "dropout draws random numbers"),
    one_kind_of_mask,
    known_heads,
)


def attend(
    ctx: ConversionContext,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None,
    causal: bool,
    scale: float | None,
) -> Any:
    """Returns `softmax(query @ key^T * scale + mask) @ value`.

    Args:
        ctx: The context.
        query: (..., Hq, Sq, D).
        key: (..., H, S, D); H divides Hq, each head serves Hq / H query heads.
        value: (..., H, S, Dv).
        mask: None; bool, True where a key takes part; or floats that are added. Broadcast to (..., Hq, Sq, S).
        causal: Whether query i sees keys 0 to i only, whatever the lengths are.
        scale: Factor of the scores; 1 / sqrt(D) by default.
    """
    width = shape_of(query)[-1]
    factor = 1.0 / math.sqrt(width) if scale is None else scale
    kind = _causal_kind(ctx) if causal else None
    if causal and kind is None:
        mask = _causal_mask(ctx, query, key)
    if _fits_layer(ctx):
        return _attention_of_one_width(ctx, _scaled(ctx, query, factor), key, value, mask, kind)
    if causal and mask is None:
        mask = _causal_mask(ctx, query, key)
    wide, keys, values = (cast(ctx, part, torch.float32) for part in (query, key, value))
    return cast(ctx, _composed(ctx, wide, keys, values, factor, mask), dtype_of(query))


def _scaled(ctx: ConversionContext, query: Operand, factor: Any) -> Any:
    """Returns the query times the factor of the scores, which few factors are of 16 bits as they are of 32."""
    if is_exactly(factor, 1):
        return query
    dtype = dtype_of(query)
    wide = cast(ctx, query, compute_type(dtype, factor, is_scaled=True))
    return cast(ctx, binary(ctx, "PROD", wide, factor, "scale"), dtype)


def _fits_layer(ctx: ConversionContext) -> bool:
    """Whether the layer takes the operands: one batch, head sizes that agree, at most four axes."""
    query, key, value = (ctx.symbolic_shape(name) for name in ("query", "key", "value"))
    if not len(query) == len(key) == len(value) or len(query) not in (3, 4):
        return False
    batches = all(
        is_same_size(left, right)
        for shape in (key, value)
        for left, right in zip(query[: len(query) - 3], shape[: len(query) - 3], strict=True)
    )
    heads = all(isinstance(shape[-3], int) for shape in (query, key, value)) or len(query) == 3
    widths = query[-1] == key[-1]
    shared = len(query) == 3 and all(is_same_size(query[0], shape[0]) for shape in (key, value))
    grouped = len(query) == 4 and heads and key[1] == value[1] and int(query[1]) % int(key[1]) == 0
    return batches and widths and (shared or grouped)


def _causal_kind(ctx: ConversionContext) -> Any:
    """What `add_attention` is told, None where only a mask can say it.

    Before TensorRT 11 the alignment of the causal mask cannot be chosen, so it must not matter.
    """
    if provider_version() >= (11, 0):
        return trt.CausalMaskKind.UPPER_LEFT
    query, key = ctx.symbolic_shape("query"), ctx.symbolic_shape("key")
    return True if is_same_size(query[-2], key[-2]) else None


def _causal_mask(ctx: ConversionContext, query: Operand, key: Operand) -> Any:
    """Returns the bool mask (Sq, S) that lets query i see keys 0 to i."""
    rows = index_range(ctx, dimension(ctx, query, rank_of(query) - 2))
    columns = index_range(ctx, dimension(ctx, key, rank_of(key) - 2))
    rows, columns = unsqueeze(ctx, rows, (1,)), unsqueeze(ctx, columns, (0,))
    if isinstance(rows, torch.Tensor) and isinstance(columns, torch.Tensor):
        return columns <= rows
    return binary(ctx, "LESS", columns, binary(ctx, "SUM", rows, torch.ones((), dtype=torch.int64)), "causal")


def _attention_of_one_width(
    ctx: ConversionContext, query: Operand, key: Operand, value: Operand, mask: Operand | None, kind: Any
) -> Any:
    """Attends to values that are wider or narrower than keys.

    TensorRT's documentation says of one width alone, so the other operands get zeros, which change nothing.
    """
    width = shape_of(value)[-1]
    missing = 0 if current_provider() is Provider.PORTABLE else shape_of(key)[-1] - width
    query, key = (_with_zeros(ctx, part, -missing) for part in (query, key))
    result = _attention_layer(ctx, query, key, _with_zeros(ctx, value, missing), mask, kind)
    return slice_axis(ctx, result, rank_of(result) - 1, 0, width) if missing > 0 else result


def _with_zeros(ctx: ConversionContext, value: Operand, count: int) -> Operand:
    """Appends columns of zeros; nothing where their count is negative."""
    none = [0] * rank_of(value)
    return crop_and_pad(ctx, value, none, [*none[1:], max(count, 0)], 0.0)


def _attention_layer(
    ctx: ConversionContext, query: Operand, key: Operand, value: Operand, mask: Operand | None, kind: Any
) -> Any:
    unbatched = rank_of(query) == 3
    if unbatched:  # (N, S, D): N heads of one sample when known, else N samples of one head
        axis = 0 if shape_of(query)[0] >= 0 else 1
        if mask is not None:
            mask = unsqueeze(ctx, with_rank(ctx, mask, 3), (axis,))
        query, key, value = (unsqueeze(ctx, part, (axis,)) for part in (query, key, value))
    operands = [ctx.tensor(part) for part in (query, key, value)]
    softmax_norm = trt.AttentionNormalizationOp.SOFTMAX
    if provider_version() >= (11, 0):
        attention = ctx.network.add_attention_v2(
            *operands, softmax_norm, trt.CausalMaskKind.NONE if kind is None else kind
        )
    else:
        attention = ctx.network.add_attention(*operands, softmax_norm, kind is not None)
    ctx.own(attention)
    attention.decomposable = True  # a fused kernel need not exist for every type and size
    if mask is not None:
        attention.mask = ctx.tensor(_full_mask(ctx, with_rank(ctx, mask, 4), query, key))
        if attention.mask is None:  # the property drops what it does not take without a word
            raise ctx.fail("TensorRT refused the mask of an attention layer")
    result = attention.get_output(0)
    return squeeze(ctx, result, (axis,)) if unbatched else result


def _full_mask(ctx: ConversionContext, mask: Operand, query: Operand, key: Operand) -> Any:
    """Gives a mask the layer's type and its last two extents; batch and heads are broadcast by the layer."""
    if dtype_of(mask) is not torch.bool:
        mask = cast(ctx, mask, dtype_of(query))
    shape = shape_of(mask)
    if shape[2] != 1 and shape[3] != 1:
        return mask
    sizes = [dimension(ctx, mask, 0), dimension(ctx, mask, 1), dimension(ctx, query, 2), dimension(ctx, key, 2)]
    return expand(ctx, mask, sizes)


def _composed(
    ctx: ConversionContext, query: Operand, key: Operand, value: Operand, factor: Any, mask: Operand | None
) -> Any:
    """The layers of attention in float32, as PyTorch computes what none of its kernels takes."""
    query_shape, key_shape = ctx.symbolic_shape("query"), ctx.symbolic_shape("key")
    if len(query_shape) >= 3 and len(key_shape) >= 3:
        heads = query_shape[-3]
        key, value = (_repeat_heads(ctx, name, part, heads) for name, part in (("key", key), ("value", value)))
    scores = matrix_multiply(ctx, _scaled(ctx, query, factor), key, transpose_right=True, suffix="scores")
    weights = softmax(ctx, scores, rank_of(scores) - 1) if mask is None else _masked_softmax(ctx, scores, mask)
    return matrix_multiply(ctx, weights, value, suffix="context")


def _masked_softmax(ctx: ConversionContext, scores: Any, mask: Operand) -> Any:
    """Rows without any key are zero, as PyTorch has them; a plain softmax would make them NaN."""
    lowest = torch.tensor(torch.finfo(torch.float32).min)
    if dtype_of(mask) is not torch.bool:
        scores = binary(ctx, "SUM", scores, cast(ctx, mask, torch.float32), "mask")
        mask = binary(ctx, "GREATER", scores, torch.tensor(float("-inf")))
        mask = binary(ctx, "OR", mask, unary(ctx, "ISNAN", scores))
    masked = select(ctx, mask, scores, lowest)
    return select(ctx, mask, softmax(ctx, masked, rank_of(masked) - 1), torch.zeros(()))


def _repeat_heads(ctx: ConversionContext, name: str, value: Operand, heads: Any) -> Any:
    """Gives keys or values as many heads as queries have: each is repeated in place."""
    shape = ctx.symbolic_shape(name)
    own = shape[-3]
    if not isinstance(own, int) or not isinstance(heads, int) or own in (1, heads):
        return value
    rank = len(shape)
    repeated = unsqueeze(ctx, value, (rank - 2,))
    sizes = [*shape[:-2], heads // own, *shape[-2:]]
    repeated = expand(ctx, repeated, sizes, [*shape[:-2], 1, *shape[-2:]])
    return reshape(ctx, repeated, [*shape[:-3], heads, *shape[-2:]])


def _attention(
    ctx: ConversionContext,
    query: Operand,
    key: Operand,
    value: Operand,
    is_causal: bool,
    scale: float | None,
    attn_mask: Operand | None = None,
    attn_bias: Operand | None = None,
    **_: Any,
) -> Any:
    """What all of PyTorch's attentions compute; kernels differ in what else they return, for their gradients."""
    return attend(ctx, query, key, value, attn_bias if attn_mask is None else attn_mask, is_causal, scale)


convert_each({aten.scaled_dot_product_attention.default: _attention}, checks=CHECKS, random=True)
convert_each(
    {
        (
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
        ): lambda ctx, **arguments: (_attention(ctx, **arguments),),
    },
    checks=(*CHECKS, only_results(0)),
    random=True,
)
