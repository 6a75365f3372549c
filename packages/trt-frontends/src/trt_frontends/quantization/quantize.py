"""From a float model and representative inputs to a program with Q/DQ around activations and quantized weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from trt_core import InputError
from trt_core.held_arguments import held_to_signature
from trt_core.internals import pytree
from trt_core.quantization import dequantize, is_dequantization
from trt_core.quantization import quantize as quantize_operator
from trt_frontends.capture import device_of
from trt_frontends.entry_point import entry_point
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.pipeline import export_model
from trt_frontends.quantization.bias_correction import correct_biases
from trt_frontends.quantization.calibration import calibrate, read_samples, watch_activations
from trt_frontends.quantization.config import Kind, QuantizationConfig, read_config
from trt_frontends.quantization.editing import ProgramEditor, fold_normalization, set_operand
from trt_frontends.quantization.layers import Layer, choose_layers, weight_scale
from trt_frontends.quantization.report import REPORT, QuantizationReport, make_report
from trt_lowering.operator_traits import argument
from trt_lowering.passes.open_wrapped_tensors import is_wrapper

Model = nn.Module | torch.export.ExportedProgram


@entry_point
def quantize(
    model: Model,
    calibration: Iterable[Any] | None = None,
    config: QuantizationConfig | Mapping[str, Any] | str | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
) -> torch.export.ExportedProgram:
    """Quantizes a float model after training, from ranges that are measured on representative inputs.

    Args:
        model: A module in evaluation mode, or an exported program; it is not changed.
        calibration: Inputs of the model: tensors, tuples of positional inputs, dicts of keyword inputs, or pairs of
            both. All of it is kept in memory while the model is quantized. Weights alone need none, unless they are
            smoothed.
        config: What is quantized and how: a `QuantizationConfig`, a dict of its fields, or the name of a type.
        arg_inputs, kwarg_inputs: What a module is captured with, as for `compile`; by default the first sample. An
            `Input` with a range keeps a dimension dynamic.

    Returns:
        A program for `compile`, which runs in PyTorch too, where it computes what the engine will.
        `quantization_report(program)` says what is quantized.

    Raises:
        ExportError: The module cannot be exported.
        InputError: Calibration data is missing, does not fit, or holds NaN; or the model is quantized already.
        SettingsError: The configuration cannot be read.

    Warns:
        UserWarning: The module is in training mode.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        >>> program = quantize(model, [torch.randn(3, 4) for _ in range(4)], "int8")
        >>> from trt_frontends.quantization import quantization_report
        >>> len(quantization_report(program).quantized)
        2
    """
    chosen = read_config(config)
    needs_data = chosen.scheme.quantizes_activations or chosen.smoothing is not None
    samples = read_samples(calibration) if needs_data or calibration is not None else []
    original = capture_float(model, samples, arg_inputs, kwarg_inputs)
    program = prepare(original, samples, chosen)
    editor = ProgramEditor(program)
    choices = choose_layers(editor, chosen)
    layers = [choice.layer for choice in choices if choice.layer is not None]
    scales = calibrate(program, layers, samples, chosen) if chosen.scheme.quantizes_activations else {}
    operands = _scales_by_layer(layers, scales)
    if chosen.bias_correction:
        correct_biases(editor, program, layers, samples or read_samples(calibration), scales, chosen)
    insert_quantization(editor, layers, scales, chosen)
    quantized = editor.finish()
    report = make_report(choices, operands, chosen, len(samples), original, quantized)
    quantized.graph_module.meta[REPORT] = report
    return quantized


@held_to_signature
def quantization_report(program: torch.export.ExportedProgram) -> QuantizationReport:
    """Returns what `quantize` did to the program that it returned.

    Raises:
        InputError: The program comes from elsewhere, or from a file: reports are not saved with programs.
    """
    found = program.graph_module.meta.get(REPORT)
    if not isinstance(found, QuantizationReport):
        raise InputError("the program has no report of quantization", hint="give what trt_frontends.quantize returned")
    return found


def capture_float(
    model: Model,
    samples: Sequence[ExampleInputs],
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
) -> torch.export.ExportedProgram:
    """Captures the model that is to be quantized, by default with the first sample, on the model's device.

    Raises:
        ExportError: The module cannot be exported.
        InputError: There is nothing to capture it with, it has no weights, or is quantized already.

    Warns:
        UserWarning: The module is in training mode.
    """
    examples = ExampleInputs.read(None, arg_inputs, kwarg_inputs)
    if examples is None and samples:
        device = device_of(model, samples[0]).torch_device
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda leaf: leaf.to(device), (samples[0].args, samples[0].kwargs)
        )
        examples = ExampleInputs(args, kwargs)
    program = export_model(model, examples, {}, needs_weights=True, settle_sizes=False).program
    require_float(program)
    return program


def prepare(
    program: torch.export.ExportedProgram, samples: Sequence[ExampleInputs], config: QuantizationConfig
) -> torch.export.ExportedProgram:
    """Returns a program that computes the same, folded and smoothed, ready for its layers to be quantized."""
    if config.fold_normalization:
        editor = ProgramEditor(program)
        if fold_normalization(editor):
            program = editor.finish()
    if config.smoothing is not None:
        program = smooth(program, samples, config, config.smoothing)
    return program


def require_float(program: torch.export.ExportedProgram) -> None:
    """Refuses a program that is quantized already.

    Raises:
        InputError: It is.
    """
    quantized = next(
        (node for node in program.graph.nodes if node.target is quantize_operator or is_dequantization(node.target)),
        None,
    )
    wrapped = next((name for name, value in program.state_dict.items() if is_wrapper(value)), None)
    if quantized is not None or wrapped is not None:
        raise InputError(
            "the model is quantized already",
            where=quantized.name if quantized is not None else wrapped or "",
            hint="compile it as it is, or quantize the float model",
        )


def _scales_by_layer(layers: Sequence[Layer], scales: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    if not scales:
        return {}
    return {layer.location: tuple(scales[node.name] for node in layer.operands()) for layer in layers}


# Smoothing -----------------------------------------------------------------------------------------------------------


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
    steps = editor.call(quantize_operator, (operand, held, config.scheme.dtype), before=reader, origin=reader)
    return editor.call(dequantize, (steps, held, operand.meta["val"].dtype), before=reader, origin=reader)


def _store(editor: ProgramEditor, layer: Layer, config: QuantizationConfig) -> tuple[fx.Node, fx.Node, int]:
    assert layer.weight is not None
    value = editor.tensor(layer.weight.node)
    assert value is not None
    scale, axis = weight_scale(value, layer.weight, config)
    with torch.no_grad():
        steps = quantize_operator(value.detach(), scale, config.scheme.dtype, config.scheme.bits, axis)
    name = editor.name_of(layer.weight.node)
    return editor.add_tensor(f"{name}_quantized", steps), editor.add_tensor(f"{name}_scale", scale), axis


def read_weight(editor: ProgramEditor, layer: Layer, value: fx.Node) -> None:
    """Lets a layer read another weight, of the stored shape, through the same transpositions."""
    assert layer.weight is not None
    for view in layer.weight.views:
        value = editor.call(view.target, (value, *view.args[1:]), before=layer.node, origin=view)
    set_operand(layer.node, layer.weight_parameter, value)
