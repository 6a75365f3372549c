"""Normalization of each sample: layer, group, instance and RMS norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import dtypes
from trt_converters.context import ConversionContext, Operand, axes_mask, dtype_of, rank_of, shape_of
from trt_converters.layers import (
    binary,
    cast,
    mean_square,
    reduce,
    reshape,
    squeeze,
    unary,
    unsqueeze,
)
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS

aten = torch.ops.aten


def normalize_layer(
    ctx: ConversionContext,
    input: Operand,
    axes: Sequence[int],
    scale: Operand | None,
    bias: Operand | None,
    eps: float,
    groups: int = 1,
) -> Any:
    """Adds one normalization layer.

    Args:
        ctx: The context.
        input: Floats, rank >= 2.
        axes: What mean and variance are taken over.
        scale, bias: Of the input's rank, broadcast to it; None for ones and zeros.
        eps: Added to the variance.
        groups: Groups of channels that are normalized together.
    """
    dtype, rank = dtype_of(input), rank_of(input)
    scale = None if scale is None else cast(ctx, scale, dtype)
    bias = None if bias is None else cast(ctx, bias, dtype)
    shape = next((shape_of(part) for part in (scale, bias) if part is not None), (1,) * rank)
    if groups > 1 and scale is None and bias is None:
        shape = tuple(shape_of(input)[1] if axis == 1 else 1 for axis in range(rank))
    scale = torch.ones(shape, dtype=dtype) if scale is None else scale
    bias = torch.zeros(shape, dtype=dtype) if bias is None else bias
    layer = ctx.own(
        ctx.network.add_normalization_v2(ctx.tensor(input), ctx.tensor(scale), ctx.tensor(bias), axes_mask(axes))
    )
    layer.epsilon = eps
    if groups > 1:
        layer.num_groups = groups
    return layer.get_output(0)


def per_channel(
    ctx: ConversionContext, input: Operand, weight: Operand | None, bias: Operand | None
) -> tuple[Any, Any]:
    """Returns coefficients of shape (C,) as (1, C, 1, ...), of the input's rank."""
    axes = (0, *range(2, rank_of(input)))
    weight = None if weight is None else unsqueeze(ctx, weight, axes)
    return weight, None if bias is None else unsqueeze(ctx, bias, axes)


def fixed_parameters(call: Call) -> Verdict | None:
    """Refuses absent coefficients of symbolic shape, which cannot be filled in."""
    for name in ("weight", "bias"):
        given = call.arguments.get(name)
        if given is not None and not all(isinstance(extent, int) for extent in given.shape):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{name} has shape {tuple(given.shape)}")
    return None


def _layer_norm(
    ctx: ConversionContext,
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
) -> Any:
    lead = rank_of(input) - len(normalized_shape)
    lifted = 1 if rank_of(input) == 1 else 0  # the layer wants two axes
    input = unsqueeze(ctx, input, range(lifted))
    weight, bias = (None if part is None else unsqueeze(ctx, part, range(lead + lifted)) for part in (weight, bias))
    axes = range(lead + lifted, rank_of(input))
    return squeeze(ctx, normalize_layer(ctx, input, axes, weight, bias, eps), range(lifted))


LAYER_CHECKS = (dtypes("input", FLOATS), fixed_parameters)


@converter(aten.layer_norm.default, checks=LAYER_CHECKS)
def aten_layer_norm(
    ctx: ConversionContext,
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
    cudnn_enable: bool,
) -> Any:
    """layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enable=True) -> Tensor"""  # noqa: E501
    return _layer_norm(ctx, input, normalized_shape, weight, bias, eps)


def moments(ctx: ConversionContext, input: Operand, axes: Sequence[int], eps: float) -> tuple[Any, Any]:
    """Returns mean and inverse deviation over axes, which are kept; float32."""
    value = cast(ctx, input, torch.float32)
    mean = reduce(ctx, "AVG", value, axes, True)
    variance = mean_square(ctx, binary(ctx, "SUB", value, mean, "center"), axes)
    return mean, inverse_root(ctx, variance, eps)


def inverse_root(ctx: ConversionContext, value: Operand, eps: float) -> Any:
    """Returns `1 / sqrt(value + eps)`."""
    shifted = binary(ctx, "SUM", value, torch.tensor(eps, dtype=dtype_of(value)), "eps")
    return unary(ctx, "RECIP", unary(ctx, "SQRT", shifted))


@converter(aten.native_layer_norm.default, checks=LAYER_CHECKS)
def aten_native_layer_norm(
    ctx: ConversionContext,
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
) -> tuple[Any, Any, Any]:
    """native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    assert ctx.call is not None
    result = _layer_norm(ctx, input, normalized_shape, weight, bias, eps)
    if not (ctx.call.uses(1) or ctx.call.uses(2)):
        return result, None, None
    rank = rank_of(input)
    mean, inverse = moments(ctx, input, range(rank - len(normalized_shape), rank), eps)
    dtype = ctx.result[1].dtype
    return result, cast(ctx, mean, dtype), cast(ctx, inverse, dtype)


def _group_norm(
    ctx: ConversionContext, input: Operand, groups: int, weight: Operand | None, bias: Operand | None, eps: float
) -> Any:
    flat = rank_of(input) == 2  # the layer wants an axis to normalize over
    input = unsqueeze(ctx, input, (2,)) if flat else input
    scale, shift = per_channel(ctx, input, weight, bias)
    rank = rank_of(input)
    if groups == 1:
        result = normalize_layer(ctx, input, range(1, rank), scale, shift, eps)
    elif groups == shape_of(input)[1]:
        result = normalize_layer(ctx, input, range(2, rank), scale, shift, eps)
    else:
        result = normalize_layer(ctx, input, range(2, rank), scale, shift, eps, groups)
    return squeeze(ctx, result, (2,)) if flat else result


def fixed_channels(call: Call) -> Verdict | None:
    """Refuses groups of channels that are not known while building."""
    if isinstance(call.tensor("input").shape[1], int):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, "the channels of input are symbolic")


@converter(aten.group_norm.default, checks=(*LAYER_CHECKS, fixed_channels))
def aten_group_norm(
    ctx: ConversionContext,
    input: Operand,
    num_groups: int,
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05, bool cudnn_enabled=True) -> Tensor"""  # noqa: E501
    return _group_norm(ctx, input, num_groups, weight, bias, eps)


@converter(aten.native_group_norm.default, checks=(*LAYER_CHECKS, fixed_channels))
def aten_native_group_norm(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    N: Any,
    C: int,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[Any, Any, Any]:
    """native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)"""  # noqa: E501
    assert ctx.call is not None
    result = _group_norm(ctx, input, group, weight, bias, eps)
    if not (ctx.call.uses(1) or ctx.call.uses(2)):
        return result, None, None
    members = reshape(ctx, input, [*ctx.result[1].shape, -1])
    mean, inverse = (squeeze(ctx, part, (2,)) for part in moments(ctx, members, (2,), eps))
    dtype = ctx.result[1].dtype
    return result, cast(ctx, mean, dtype), cast(ctx, inverse, dtype)


def root_mean_square_norm(
    ctx: ConversionContext, input: Operand, count: int, weight: Operand | None, eps: float | None
) -> tuple[Any, Any]:
    """Divides by the root of the mean of squares over the last `count` axes, in float32.

    Returns:
        The result, and the inverse root, in float32.
    """
    dtype, rank = dtype_of(input), rank_of(input)
    value = cast(ctx, input, torch.float32)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    inverse = inverse_root(ctx, mean_square(ctx, value, range(rank - count, rank)), eps)
    result = binary(ctx, "PROD", value, inverse, "normalize")
    if weight is not None:
        result = binary(ctx, "PROD", result, cast(ctx, weight, torch.float32), "weight")
    return cast(ctx, result, dtype), inverse


@converter(aten.rms_norm.default, checks=dtypes("input", FLOATS))
def aten_rms_norm(
    ctx: ConversionContext,
    input: Operand,
    normalized_shape: Sequence[int],
    weight: Operand | None,
    eps: float | None,
) -> Any:
    """rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"""
    return cast(
        ctx,
        root_mean_square_norm(ctx, input, len(normalized_shape), weight, eps)[0],
        ctx.result_dtype,
    )
