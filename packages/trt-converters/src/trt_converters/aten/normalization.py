"""Normalization of each sample (layer, group, instance and RMS norms), and of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.call import Call
from trt_converters.checks import dtypes, only_results
from trt_converters.context import ConversionContext, Operand, axes_mask, dtype_of, rank_of, shape_of
from trt_converters.layers import binary, cast, mean_square, reduce, reshape, squeeze, unary, unsqueeze
from trt_converters.registry import convert_each, converter
from trt_core import Reason, Verdict, to_trt, trt
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
    operands = (ctx.tensor(part) for part in (input, scale, bias))
    layer = ctx.network.add_normalization_v2(*operands, axes_mask(axes))
    return ctx.output(layer, epsilon=eps, num_groups=groups if groups > 1 else None)


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


convert_each(
    {aten.layer_norm.default: lambda ctx, cudnn_enable, **given: _layer_norm(ctx, **given)}, checks=LAYER_CHECKS
)


def moments(ctx: ConversionContext, input: Operand, axes: Sequence[int], eps: float) -> tuple[Any, Any, Any, Any]:
    """Returns the centered input; mean, inverse deviation and biased variance over axes, which are kept; float32."""
    value = cast(ctx, input, torch.float32)
    mean = reduce(ctx, "AVG", value, axes, True)
    centered = binary(ctx, "SUB", value, mean, "center")
    variance = mean_square(ctx, centered, axes)
    return centered, mean, inverse_root(ctx, variance, eps), variance


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
    result = _layer_norm(ctx, input, normalized_shape, weight, bias, eps)
    if not (ctx.call.uses(1) or ctx.call.uses(2)):
        return result, None, None
    rank = rank_of(input)
    _, mean, inverse, _ = moments(ctx, input, range(rank - len(normalized_shape), rank), eps)
    dtype = ctx.result[1].dtype
    return result, cast(ctx, mean, dtype), cast(ctx, inverse, dtype)


def _group_norm(
    ctx: ConversionContext, input: Operand, num_groups: int, weight: Operand | None, bias: Operand | None, eps: float
) -> Any:
    flat = rank_of(input) == 2  # the layer wants an axis to normalize over
    input = unsqueeze(ctx, input, (2,)) if flat else input
    scale, shift = per_channel(ctx, input, weight, bias)
    rank = rank_of(input)
    groups = 1 if num_groups == shape_of(input)[1] else num_groups
    result = normalize_layer(ctx, input, range(1 if num_groups == 1 else 2, rank), scale, shift, eps, groups)
    return squeeze(ctx, result, (2,)) if flat else result


def has_channels(call: Call) -> Verdict | None:
    """Refuses inputs without a channel axis of known extent."""
    shape = call.tensor("input").shape
    if len(shape) < 2:
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, f"input has rank {len(shape)}, not 2 or more")
    if not isinstance(shape[1], int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, "the channels of input are symbolic")
    return None


convert_each(
    {aten.group_norm.default: lambda ctx, cudnn_enabled, **given: _group_norm(ctx, **given)},
    checks=(*LAYER_CHECKS, has_channels),
)


@converter(aten.native_group_norm.default, checks=(*LAYER_CHECKS, has_channels))
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
    result = _group_norm(ctx, input, group, weight, bias, eps)
    if not (ctx.call.uses(1) or ctx.call.uses(2)):
        return result, None, None
    members = reshape(ctx, input, [*ctx.result[1].shape, -1])
    _, *statistics, _ = moments(ctx, members, (2,), eps)
    mean, inverse = (squeeze(ctx, part, (2,)) for part in statistics)
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
    ctx: ConversionContext, input: Operand, normalized_shape: Sequence[int], weight: Operand | None, eps: float | None
) -> Any:
    """rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"""
    return cast(ctx, root_mean_square_norm(ctx, input, len(normalized_shape), weight, eps)[0], ctx.result_dtype)


# Normalization of batches -------------------------------------------------------------------------------------------
# With running statistics it is an affine map.


def keeps_statistics(call: Call) -> Verdict | None:
    """Refuses a call that updates running statistics behind its schema's back."""
    arguments = call.arguments
    training = arguments.get("training", arguments.get("use_input_stats", False))
    if training and arguments["running_mean"] is not None:
        return Verdict.refuse(Reason.MUTATION, "it updates running statistics; call eval() on the model")
    return None


CHECKS = (dtypes("input", FLOATS), has_channels)


def affine(ctx: ConversionContext, input: Operand, scale: Operand, shift: Operand) -> Any:
    """Returns `input * scale + shift` with one coefficient per channel.

    Args:
        ctx: The context.
        input: (N, C, ...), floats.
        scale, shift: (C,), float32.

    Returns:
        One scale layer where it applies: rank 4 or more, and coefficients that are known.
    """
    dtype, rank = dtype_of(input), rank_of(input)
    scale, shift = cast(ctx, scale, dtype), cast(ctx, shift, dtype)
    if isinstance(scale, torch.Tensor) and isinstance(shift, torch.Tensor) and rank >= 4:
        layer = ctx.network.add_scale_nd(
            ctx.tensor(input),
            trt.ScaleMode.CHANNEL,
            shift=ctx.weights(shift),
            scale=ctx.weights(scale),
            power=trt.Weights(to_trt(dtype)),
            channel_axis=1,
        )
        return ctx.output(layer)
    axes = (0, *range(2, rank))
    product = binary(ctx, "PROD", input, unsqueeze(ctx, scale, axes), "scale")
    return binary(ctx, "SUM", product, unsqueeze(ctx, shift, axes), "shift")


def normalize_with(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    mean: Operand,
    variance: Operand,
    eps: float,
) -> Any:
    """Normalizes each channel with statistics of shape (C,): one affine map."""
    mean, variance = cast(ctx, mean, torch.float32), cast(ctx, variance, torch.float32)
    weight = None if weight is None else cast(ctx, weight, torch.float32)
    bias = None if bias is None else cast(ctx, bias, torch.float32)
    if all(part is None or isinstance(part, torch.Tensor) for part in (weight, bias, mean, variance)):
        scale = (variance + eps).rsqrt() * (1.0 if weight is None else weight)
        return affine(ctx, input, scale, (0.0 if bias is None else bias) - mean * scale)
    scale = inverse_root(ctx, variance, eps)
    scale = scale if weight is None else binary(ctx, "PROD", scale, weight)
    offset = binary(ctx, "PROD", mean, scale)
    shift = unary(ctx, "NEG", offset) if bias is None else binary(ctx, "SUB", bias, offset)
    return affine(ctx, input, scale, shift)


def normalize_batch(
    ctx: ConversionContext, input: Operand, weight: Operand | None, bias: Operand | None, eps: float
) -> tuple[Any, Any, Any, Any]:
    """Normalizes each channel with the statistics of the batch.

    Returns:
        The result; mean, inverse deviation and biased variance of the channels, each (C,), float32.
    """
    rank = rank_of(input)
    axes = (0, *range(2, rank))
    centered, mean, inverse, variance = moments(ctx, input, axes, eps)
    result = binary(ctx, "PROD", centered, inverse, "normalize")
    for operation, part in (("PROD", weight), ("SUM", bias)):
        if part is not None:
            result = binary(ctx, operation, result, unsqueeze(ctx, cast(ctx, part, torch.float32), axes))
    flat = [squeeze(ctx, part, axes) for part in (mean, inverse, variance)]
    return cast(ctx, result, dtype_of(input)), flat[0], flat[1], flat[2]


def _batch_norm(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
    training: bool,
    running_mean: Operand | None = None,
    running_var: Operand | None = None,
    **_: Any,
) -> tuple[Any, Any, Any]:
    if training or running_mean is None:
        result, mean, inverse, _ = normalize_batch(ctx, input, weight, bias, eps)
        return result, mean, inverse
    return normalize_with(ctx, input, weight, bias, running_mean, running_var, eps), None, None


def statistics_in_float32(call: Call) -> Verdict | None:
    """Refuses saved statistics of another type than the layers compute them in."""
    for index, item in enumerate(call.result[1:], start=1):
        if call.uses(index) and item.dtype is not torch.float32:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"item {index} of the result is {item.dtype}")
    return None


convert_each(
    {aten.batch_norm.default: lambda ctx, **arguments: _batch_norm(ctx, **arguments)[0]},
    checks=(*CHECKS, keeps_statistics),
)
convert_each({aten.native_batch_norm.default: _batch_norm}, checks=(*CHECKS, keeps_statistics, statistics_in_float32))
convert_each({aten._native_batch_norm_legit.no_stats: _batch_norm}, checks=(*CHECKS, statistics_in_float32))
convert_each(
    {
        aten._native_batch_norm_legit_no_training.default: lambda ctx, **arguments: (
            (_batch_norm(ctx, training=False, **arguments)[0], None, None)
        ),
        aten._batch_norm_no_update.default: lambda ctx, **arguments: (
            (_batch_norm(ctx, training=False, **arguments)[0], None, None, None)
        ),
    },
    checks=(*CHECKS, only_results(0)),
)


@converter(aten._native_batch_norm_legit_functional.default, checks=(*CHECKS, statistics_in_float32))
def aten__native_batch_norm_legit_functional(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand,
    running_var: Operand,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any, Any, Any]:
    """_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""  # noqa: E501
    if not training:
        result = normalize_with(ctx, input, weight, bias, running_mean, running_var, eps)
        return result, None, None, running_mean, running_var
    result, mean, inverse, variance = normalize_batch(ctx, input, weight, bias, eps)
    shape = ctx.symbolic_shape("input")
    count = ctx.size(math.prod(extent for axis, extent in enumerate(shape) if axis != 1))
    if isinstance(count, int):
        correction: Any = torch.tensor([count / max(count - 1, 1)])
    else:
        total = cast(ctx, count, torch.float32)
        correction = binary(ctx, "DIV", total, binary(ctx, "SUB", total, torch.ones(())))
    unbiased = binary(ctx, "PROD", variance, correction, "unbiased")
    # PyTorch describes them as float32 whatever the type of the running ones is
    types = [item.dtype for item in ctx.call.result[3:]]
    pairs = zip((running_mean, running_var), (mean, unbiased), types, strict=True)
    return result, mean, inverse, *(_moving(ctx, *pair, momentum) for pair in pairs)


def _moving(ctx: ConversionContext, running: Operand, current: Operand, dtype: torch.dtype, momentum: float) -> Any:
    kept = binary(ctx, "PROD", cast(ctx, running, torch.float32), torch.tensor(1 - momentum))
    return cast(ctx, binary(ctx, "SUM", kept, binary(ctx, "PROD", current, torch.tensor(momentum))), dtype)


@converter(aten.instance_norm.default, checks=(*CHECKS, keeps_statistics))
def aten_instance_norm(
    ctx: ConversionContext,
    input: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand | None,
    running_var: Operand | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor"""  # noqa: E501
    if not use_input_stats:
        return normalize_with(ctx, input, weight, bias, running_mean, running_var, eps)
    axes = range(2, rank_of(input))
    return normalize_layer(ctx, input, axes, *per_channel(ctx, input, weight, bias), eps)
