"""Smoothing: moves the range of single channels of activations into weights (SmoothQuant, arXiv:2211.10438)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.quantization.calibration import watch_activations
from trt_frontends.quantization.config import Kind, QuantizationConfig
from trt_frontends.quantization.editing import ProgramEditor
from trt_frontends.quantization.insertion import read_weight
from trt_frontends.quantization.layers import Layer, choose_layers
from trt_frontends.quantization.normalization import set_operand
from trt_lowering.operator_traits import argument

aten = torch.ops.aten

_LEAST = 1e-5
"""Magnitude below which a channel counts as this large, so that factors stay finite."""


def smooth(
    program: torch.export.ExportedProgram, samples: Sequence[ExampleInputs], config: QuantizationConfig, share: float
) -> torch.export.ExportedProgram:
    """Returns a program that computes the same, whose linear layers take activations of more even range.

    Channel j of an activation is divided by `max|x_j|**share / max|w_j|**(1 - share)`, and the weights that multiply it
    are multiplied by that. A layer normalization in front takes the division into its own weights where nobody else
    reads it; elsewhere it is one more product.

    Args:
        program: The program.
        samples: Calibration data.
        config: Which layers are quantized.
        share: How much of the range moves, 0 to 1.
    """
    editor = ProgramEditor(program)
    layers = [choice.layer for choice in choose_layers(editor, config) if choice.layer is not None]
    linear = [layer for layer in layers if layer.kind is Kind.LINEAR and layer.weight is not None]
    ranges = _channel_ranges(program, linear, samples)
    groups: dict[fx.Node, list[Layer]] = {}
    for layer in linear:
        groups.setdefault(next(layer.operands()), []).append(layer)
    for activation, members in groups.items():
        if activation.name in ranges:
            _smooth_group(editor, activation, members, ranges[activation.name], share)
    return editor.finish()


def _channel_ranges(
    program: torch.export.ExportedProgram, layers: Sequence[Layer], samples: Sequence[ExampleInputs]
) -> dict[str, torch.Tensor]:
    """Largest magnitude of each channel, the last axis, of each activation by name."""
    ranges: dict[str, torch.Tensor] = {}

    def watch(node: fx.Node, value: torch.Tensor) -> None:
        seen = value.detach().abs().to(torch.float32).reshape(-1, value.shape[-1]).amax(0)
        ranges[node.name] = torch.maximum(ranges[node.name], seen) if node.name in ranges else seen

    watch_activations(program, layers, samples, watch)
    return ranges


def _smooth_group(
    editor: ProgramEditor, activation: fx.Node, members: Sequence[Layer], largest: torch.Tensor, share: float
) -> None:
    weights = []
    for layer in members:
        assert layer.weight is not None
        value = editor.tensor(layer.weight.node)
        assert value is not None
        weights.append(value)
    heights = torch.stack(
        [
            value.detach().abs().to(torch.float32).amax(1 - layer.weight.input_axis)
            for value, layer in zip(weights, members, strict=True)
            if layer.weight is not None
        ]
    ).amax(0)
    factor = largest.clamp(min=_LEAST).pow(share) / heights.clamp(min=_LEAST).pow(1 - share)
    factor = factor.clamp(min=_LEAST)
    for layer, value in zip(members, weights, strict=True):
        assert layer.weight is not None
        shape = [1, 1]
        shape[layer.weight.input_axis] = -1
        scaled = (value.detach().to(torch.float32) * factor.reshape(shape)).to(value.dtype)
        stored = editor.add_tensor(f"{editor.name_of(layer.weight.node)}_smoothed", scaled)
        read_weight(editor, layer, stored)
    if _divide_in_normalization(editor, activation, members, factor):
        return
    dtype = activation.meta["val"].dtype
    first = next(node for node in editor.graph.nodes if any(node is layer.node for layer in members))
    inverse = editor.add_tensor(f"{activation.name}_smoothing", factor.reciprocal().to(dtype))
    even = editor.call(aten.mul.Tensor, (activation, inverse), before=first, origin=first)
    for layer in members:
        layer.node.replace_input_with(activation, even)


def _divide_in_normalization(
    editor: ProgramEditor, activation: fx.Node, members: Sequence[Layer], factor: torch.Tensor
) -> bool:
    if activation.target is not aten.layer_norm.default or len(argument(activation, "normalized_shape")) != 1:
        return False
    if set(activation.users) != {layer.node for layer in members}:
        return False
    operands = {name: argument(activation, name) for name in ("weight", "bias")}
    values = {name: editor.tensor(node) for name, node in operands.items()}
    if values["weight"] is None or (operands["bias"] is not None and values["bias"] is None):
        return False
    for name, value in values.items():
        if value is not None:
            divided = (value.detach().to(torch.float32) / factor).to(value.dtype)
            node = operands[name]
            assert isinstance(node, fx.Node)
            set_operand(activation, name, editor.add_tensor(f"{editor.name_of(node)}_smoothed", divided))
    return True
