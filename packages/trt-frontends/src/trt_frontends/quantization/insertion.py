"""Inserts quantization into a program: Q/DQ around activations, quantized weights with DQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from trt_core.quantization import dequantize, quantize
from trt_frontends.quantization.config import QuantizationConfig
from trt_frontends.quantization.editing import ProgramEditor
from trt_frontends.quantization.layers import Layer
from trt_frontends.quantization.normalization import set_operand
from trt_frontends.quantization.weights import weight_scale


def insert_quantization(
    editor: ProgramEditor, layers: Sequence[Layer], scales: Mapping[str, float], config: QuantizationConfig
) -> None:
    """Quantizes the operands of layers.

    Args:
        editor: The program.
        layers: Layers of its graph.
        scales: Scales of activations, by the name of the node.
        config: The type, and how weights are scaled.
    """
    stored: dict[fx.Node, tuple[fx.Node, fx.Node, int]] = {}
    kept: dict[fx.Node, fx.Node] = {}
    for layer in layers:
        if config.scheme.quantizes_activations:
            for operand in dict.fromkeys(layer.operands()):
                if operand not in kept:
                    kept[operand] = _keep(editor, operand, layer.node, scales[operand.name], config)
                layer.node.replace_input_with(operand, kept[operand])
        if layer.weight is not None:
            if layer.weight.node not in stored:
                stored[layer.weight.node] = _store(editor, layer, config)
            value, scale, axis = stored[layer.weight.node]
            dtype = layer.weight.node.meta["val"].dtype
            args = (value, scale, dtype, config.scheme.bits, axis)
            read_weight(editor, layer, editor.call(dequantize, args, before=layer.node, origin=layer.node))


def _keep(
    editor: ProgramEditor, operand: fx.Node, reader: fx.Node, scale: float, config: QuantizationConfig
) -> fx.Node:
    device = operand.meta["val"].device
    held = editor.add_tensor(f"{operand.name}_scale", torch.tensor(scale, dtype=torch.float32, device=device))
    steps = editor.call(quantize, (operand, held, config.scheme.dtype), before=reader, origin=reader)
    return editor.call(dequantize, (steps, held, operand.meta["val"].dtype), before=reader, origin=reader)


def _store(editor: ProgramEditor, layer: Layer, config: QuantizationConfig) -> tuple[fx.Node, fx.Node, int]:
    assert layer.weight is not None
    value = editor.tensor(layer.weight.node)
    assert value is not None
    scale, axis = weight_scale(value, layer.weight, config)
    with torch.no_grad():
        steps = quantize(value.detach(), scale, config.scheme.dtype, config.scheme.bits, axis)
    name = editor.name_of(layer.weight.node)
    return editor.add_tensor(f"{name}_quantized", steps), editor.add_tensor(f"{name}_scale", scale), axis


def read_weight(editor: ProgramEditor, layer: Layer, value: fx.Node) -> None:
    """Lets a layer read another weight, of the stored shape, through the same transpositions."""
    assert layer.weight is not None
    for view in layer.weight.views:
        value = editor.call(view.target, (value, *view.args[1:]), before=layer.node, origin=view)
    set_operand(layer.node, layer.weight_parameter, value)
