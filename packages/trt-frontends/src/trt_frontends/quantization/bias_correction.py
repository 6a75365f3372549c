"""Bias correction: takes the mean error that quantization makes in each channel out of a convolution's bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from trt_core.quantization import dequantize, fake_quantize, quantize
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.quantization.calibration import ProgramRunner, Step, compute, flat_inputs
from trt_frontends.quantization.config import Kind, QuantizationConfig
from trt_frontends.quantization.editing import ProgramEditor, set_operand
from trt_frontends.quantization.layers import Layer, weight_scale
from trt_lowering.operator_traits import argument


def correct_biases(
    editor: ProgramEditor,
    program: torch.export.ExportedProgram,
    layers: Sequence[Layer],
    samples: Sequence[ExampleInputs],
    scales: Mapping[str, float],
    config: QuantizationConfig,
) -> None:
    """Changes the biases of convolutions, before their operands are quantized.

    Args:
        editor: The program that is changed.
        program: The same program, which runs.
        layers: Layers of the editor's graph.
        samples: Calibration data.
        scales: Scales of activations, by the name of the node.
        config: The type, and how weights are scaled.
    """
    errors: dict[str, _MeanError] = {}
    steps: dict[str, Step] = {}
    chosen = [layer for layer in layers if layer.kind is Kind.CONVOLUTION and layer.weight is not None]
    for layer in chosen:
        errors[layer.node.name] = _MeanError(quantized_operands(editor, layer, scales, config))
        steps[layer.node.name] = errors[layer.node.name].step
    runner = ProgramRunner(program)
    for inputs in flat_inputs(program, samples):
        runner.run(inputs, steps)
    for layer in chosen:
        _add_to_bias(editor, layer, errors[layer.node.name].mean)


class _MeanError:
    """Mean of what a layer's result loses by quantization, by channel."""

    def __init__(self, replace: Callable[[fx.Node, Callable[[Any], Any]], dict[fx.Node, torch.Tensor]]) -> None:
        self._replace = replace
        self._sum: torch.Tensor | None = None
        self._count = 0

    @property
    def mean(self) -> torch.Tensor:
        assert self._sum is not None
        return self._sum / max(self._count, 1)

    def step(self, node: fx.Node, value: Callable[[Any], Any]) -> Any:
        result = compute(node, value)
        lost = (result - compute(node, value, self._replace(node, value))).to(torch.float32)
        spatial = node.args[1].meta["val"].dim() - 2  # type: ignore[union-attr]
        by_channel = lost.movedim(-1 - spatial, 0).flatten(1)
        total = by_channel.sum(1)
        self._sum = total if self._sum is None else self._sum + total
        self._count += by_channel.shape[1]
        return result


def quantized_operands(
    editor: ProgramEditor, layer: Layer, scales: Mapping[str, float], config: QuantizationConfig
) -> Callable[[fx.Node, Callable[[Any], Any]], dict[fx.Node, torch.Tensor]]:
    """Returns what gives, for a layer's call, its operands as they are after quantization.

    Args:
        editor: The program that the layer is of.
        layer: The layer.
        scales: Scales of activations, by the name of the node.
        config: The type, and how weights are scaled.
    """
    scheme = config.scheme
    kept: torch.Tensor | None = None
    if layer.weight is not None:
        value = editor.tensor(layer.weight.node)
        assert value is not None
        scale, axis = weight_scale(value, layer.weight, config)
        stored = quantize(value.detach(), scale, scheme.dtype, scheme.bits, axis)
        kept = dequantize(stored, scale, value.dtype, scheme.bits, axis)
        for view in layer.weight.views:
            kept = view.target(kept, *view.args[1:])  # type: ignore[operator]
    activations = {node.name for node in layer.operands()} if scheme.quantizes_activations else set()

    def replace(node: fx.Node, value: Callable[[Any], Any]) -> dict[fx.Node, torch.Tensor]:
        replaced: dict[fx.Node, torch.Tensor] = {}
        for operand in node.all_input_nodes:
            if operand.name in activations:
                actual = value(operand)
                step = torch.tensor(scales[operand.name], device=actual.device)
                replaced[operand] = fake_quantize(actual, step, -1, scheme.dtype)
        if kept is not None:
            operand = argument(node, layer.weight_parameter)
            assert isinstance(operand, fx.Node)
            replaced[operand] = kept
        return replaced

    return replace


def _add_to_bias(editor: ProgramEditor, layer: Layer, correction: torch.Tensor) -> None:
    assert layer.weight is not None
    bias = argument(layer.node, "bias")
    dtype = layer.node.meta["val"].dtype
    known = editor.tensor(bias)
    if bias is not None and known is None:
        return  # the graph computes it
    start = torch.zeros_like(correction) if known is None else known.detach().to(torch.float32)
    name = f"{editor.name_of(layer.weight.node)}_corrected_bias"
    set_operand(layer.node, "bias", editor.add_tensor(name, (start + correction).to(dtype)))
