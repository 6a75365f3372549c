"""A converter on the network itself, with the helpers that converters are written with."""

from __future__ import annotations

import tensorrt as trt
import torch
import torch_tensorrt
from torch_tensorrt import _enums
from torch_tensorrt.dynamo.conversion import ConverterPriority, dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion._ConversionContext import ConversionContext
from torch_tensorrt.dynamo.conversion.converter_utils import (
    SourceIR,
    broadcastable,
    cast_trt_tensor,
    get_axes_for_reduce_op,
    get_positive_dim,
    get_trt_tensor,
    has_dynamic_shape,
    set_layer_name,
)
from torch_tensorrt.dynamo.types import TRTTensor

used = []


@dynamo_tensorrt_converter(
    torch.ops.aten.logsumexp.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True
)
def logsumexp(ctx: ConversionContext, target, args, kwargs, name) -> TRTTensor:
    source = get_trt_tensor(ctx, args[0], f"{name}_input")
    axis = get_positive_dim(args[1][0], len(source.shape))
    used.append((axis, has_dynamic_shape(source.shape)))
    exp = ctx.net.add_unary(source, trt.UnaryOperation.EXP)
    set_layer_name(exp, target, f"{name}_exp", SourceIR.ATEN)
    total = ctx.net.add_reduce(exp.get_output(0), trt.ReduceOperation.SUM, get_axes_for_reduce_op(axis), False)
    set_layer_name(total, target, f"{name}_sum", SourceIR.ATEN)
    bias = get_trt_tensor(ctx, 0.0, f"{name}_bias", dtype=_enums.dtype.float32, min_rank=len(source.shape) - 1)
    assert broadcastable(total.get_output(0), bias)
    biased = ctx.net.add_elementwise(total.get_output(0), bias, trt.ElementWiseOperation.SUM).get_output(0)
    log = ctx.net.add_unary(cast_trt_tensor(ctx, biased, torch.float32, name), trt.UnaryOperation.LOG)
    set_layer_name(log, target, f"{name}_log", SourceIR.ATEN)
    return log.get_output(0)


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, (-1,)) + 1


model = Model().eval().cuda()
x = torch.randn(4, 16).cuda()
inputs = [torch_tensorrt.Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(8, 16))]
compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=inputs, min_block_size=1)
torch.testing.assert_close(compiled(x), model(x))
assert used == [(1, True)], used
