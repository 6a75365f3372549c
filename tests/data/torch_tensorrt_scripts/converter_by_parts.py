"""A converter of one mode of an operator, made of parts that are there."""

from __future__ import annotations

import torch
import torch_tensorrt
from torch_tensorrt.dynamo import SourceIR
from torch_tensorrt.dynamo.conversion import ConversionContext, impl

x = torch.randn(2, 5).cuda()
used = []


@torch_tensorrt.dynamo.conversion.dynamo_tensorrt_converter(
    torch.ops.aten.gelu.default,
    capability_validator=lambda node, settings: "approximate" in node.kwargs and node.kwargs["approximate"] == "tanh",
    supports_dynamic_shapes=True,
    priority=torch_tensorrt.dynamo.conversion.ConverterPriority.HIGH,
    requires_output_allocator=True,
)
def gelu(ctx: ConversionContext, target, args, kwargs, name):
    used.append(name)

    def mul(left, right, part):
        return impl.elementwise.mul(
            ctx, target, name=f"{name}_{part}", source_ir=SourceIR.ATEN, lhs_val=left, rhs_val=right
        )

    def add(left, right, part):
        return impl.elementwise.add(
            ctx, target, name=f"{name}_{part}", source_ir=SourceIR.ATEN, lhs_val=left, rhs_val=right
        )

    cube = mul(mul(args[0], 0.044715, "scaled"), mul(args[0], args[0], "square"), "cube")
    inner = mul(add(args[0], cube, "sum"), 0.7978845608, "inner")
    bent = impl.activation.tanh(ctx, target, name=f"{name}_tanh", source_ir=SourceIR.ATEN, input_val=inner)
    return mul(mul(args[0], 0.5, "half"), add(bent, 1.0, "plus"), "product")


for mode, count in (("tanh", 1), ("none", 0)):
    used.clear()
    model = torch.nn.GELU(approximate=mode).cuda().eval()
    compiled = torch_tensorrt.compile(model, arg_inputs=(x,), min_block_size=1)
    assert str(compiled.graph)
    torch.testing.assert_close(compiled(x), model(x))
    assert len(used) == count, (mode, used)
