"""Folds batch normalization into the convolution before it, so that what is quantized is what is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_frontends.quantization.editing import ProgramEditor
from trt_lowering.operator_traits import argument

aten = torch.ops.aten

_CONVOLUTIONS = frozenset({aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv2d.padding})


def fold_normalization(editor: ProgramEditor) -> int:
    """Folds what normalizes the result of a convolution at inference, and returns how many there were."""
    folded = 0
    for node in list(editor.graph.nodes):
        if node.target is aten.batch_norm.default and _fold(editor, node):
            folded += 1
    return folded


def _fold(editor: ProgramEditor, node: fx.Node) -> bool:
    convolution = argument(node, "input")
    if argument(node, "training") or not isinstance(convolution, fx.Node) or convolution.target not in _CONVOLUTIONS:
        return False
    if len(convolution.users) != 1 or any(user.op == "output" for user in node.users):
        return False
    weight = argument(convolution, "weight")
    kernel, mean, variance = (
        editor.tensor(item) for item in (weight, argument(node, "running_mean"), argument(node, "running_var"))
    )
    bias, shift, factor = (
        (item, editor.tensor(item))
        for item in (argument(convolution, "bias"), argument(node, "bias"), argument(node, "weight"))
    )
    if kernel is None or mean is None or variance is None or kernel.dtype != variance.dtype:
        return False
    if any(item is not None and found is None for item, found in (bias, shift, factor)):
        return False
    with torch.no_grad():
        step = torch.rsqrt(variance.to(torch.float32) + argument(node, "eps"))
        if factor[1] is not None:
            step = step * factor[1].to(torch.float32)
        wide = kernel.to(torch.float32) * step.reshape([-1, *[1] * (kernel.dim() - 1)])
        before = torch.zeros_like(step) if bias[1] is None else bias[1].to(torch.float32)
        after = (before - mean.to(torch.float32)) * step
        if shift[1] is not None:
            after = after + shift[1].to(torch.float32)
    assert isinstance(weight, fx.Node)
    name = editor.name_of(weight).rpartition(".")[0]
    prefix = f"{name}." if name else ""
    set_operand(convolution, "weight", editor.add_tensor(f"{prefix}folded_weight", wide.to(kernel.dtype)))
    set_operand(convolution, "bias", editor.add_tensor(f"{prefix}folded_bias", after.to(kernel.dtype)))
    node.replace_all_uses_with(convolution)
    editor.graph.erase_node(node)
    return True


def set_operand(node: fx.Node, parameter: str, value: Any) -> None:
    """Gives a call another argument, by the name of the operator's parameter."""
    assert isinstance(node.target, OpOverload)
    names = [declared.name for declared in node.target._schema.arguments]
    index = names.index(parameter)
    if index < len(node.args):
        node.update_arg(index, value)
    else:
        node.update_kwarg(parameter, value)
