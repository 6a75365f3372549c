"""From a float model and representative inputs to a program with Q/DQ, with a report of what was quantized or why not.

Sensitivity is how much the output of a model changes when a single layer of it is quantized.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx, nn

from trt_core import InputError
from trt_core.held_arguments import held_to_signature
from trt_core.internals import pytree
from trt_core.nesting import tensors_in
from trt_core.operators import argument
from trt_core.quantization import dequantize, is_dequantization
from trt_core.quantization import quantize as quantize_operator
from trt_core.reports import DataReport
from trt_frontends.capture import device_of
from trt_frontends.comparison.output_error import OutputError, measure_error, worst_of
from trt_frontends.entry_point import entry_point
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.pipeline import export_model
from trt_frontends.quantization.calibration import (
    Step,
    calibrate,
    compute,
    correct_biases,
    flat_inputs,
    quantized_operands,
    read_samples,
    run_program,
    watch_activations,
)
from trt_frontends.quantization.layers import (
    Choice,
    Layer,
    ProgramEditor,
    choose_layers,
    fold_normalization,
    set_operand,
    weight_scale,
)
from trt_frontends.quantization.quantization_config import Kind, QuantizationConfig, read_config
from trt_lowering.passes.open_wrapped_tensors import is_wrapper

REPORT: Final = "quantization_report"
"""Key of the report in `program.graph_module.meta`."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A product of the model.

    Attributes:
        location: Module path and node name.
        operator: Name of the operator.
        quantized: Whether it is quantized.
        scales: Scales of its activations, in the order of the operator's parameters.
        code: Reason code, where it is not quantized.
        why: The reason in words, where it is not.
    """

    location: str
    operator: str
    quantized: bool
    scales: tuple[float, ...] = ()
    code: str = ""
    why: str = ""


@dataclass(frozen=True, repr=False)
class QuantizationReport(DataReport):
    """What `quantize` did.

    Attributes:
        dtype: Type that was asked for.
        observer: How ranges were chosen.
        samples: How many inputs ranges were measured on.
        layers: Every product of the model, in the order of the graph.
        float_bytes: Bytes of the program's tensors before.
        quantized_bytes: Bytes of them now; integers of 4 bits count half a byte.
    """

    dtype: str
    observer: str
    samples: int
    layers: tuple[QuantizedLayer, ...]
    float_bytes: int
    quantized_bytes: int

    @property
    def quantized(self) -> tuple[QuantizedLayer, ...]:
        """The layers that are quantized."""
        return tuple(layer for layer in self.layers if layer.quantized)

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [
            f"{len(self.quantized)} of {len(self.layers)} products quantized to {self.dtype} "
            f"({self.observer}, {self.samples} inputs)",
            f"weights {self.float_bytes} bytes before, {self.quantized_bytes} now",
        ]
        for layer in self.layers:
            if layer.quantized:
                shown = f"scales {', '.join(f'{scale:.4g}' for scale in layer.scales)}" if layer.scales else "weights"
            else:
                shown = f"stays as it is, {layer.code}: {layer.why}"
            lines.append(f"  {layer.location} ({layer.operator}): {shown}")
        return "\n".join(lines) + "\n"


def make_report(
    choices: Sequence[Choice],
    operands: dict[str, tuple[float, ...]],
    config: QuantizationConfig,
    samples: int,
    before: torch.export.ExportedProgram,
    after: torch.export.ExportedProgram,
) -> QuantizationReport:
    """Returns the report of a quantization.

    Args:
        choices: What was decided about each product.
        operands: Scales of activations, by location of the layer.
        config: What was asked for.
        samples: How many inputs ranges were measured on.
        before, after: The program before and after.
    """
    layers = tuple(
        QuantizedLayer(
            location=choice.location,
            operator=choice.operator,
            quantized=choice.layer is not None,
            scales=operands.get(choice.location, ()),
            code=choice.verdict.code,
            why=choice.verdict.message,
        )
        for choice in choices
    )
    scheme = config.scheme
    small = sum(value.nbytes for name, value in after.state_dict.items() if "_quantized" in name)
    total = _bytes(after) - (small // 2 if scheme.bits == 4 else 0)
    observer = config.observer.value if not isinstance(config.observer, str) else config.observer
    return QuantizationReport(scheme.value, observer, samples, layers, _bytes(before), total)


def _bytes(program: torch.export.ExportedProgram) -> int:
    return sum(value.nbytes for value in tensors_in([program.state_dict, program.constants]))


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


@dataclass(frozen=True)
class LayerSensitivity:
    """What quantizing one layer, and nothing else, does to the model's outputs.

    Attributes:
        location: Module path and node name; `exclude` takes the module path.
        operator: Name of the operator.
        scaled: Worst error of any output, relative to its largest magnitude.
        snr_db: Worst ratio of signal to noise of any output, in decibels.
        cosine: Worst cosine between an output and its float value.
    """

    location: str
    operator: str
    scaled: float
    snr_db: float
    cosine: float


@dataclass(frozen=True, repr=False)
class SensitivityReport(DataReport):
    """Every layer that can be quantized, the most sensitive one first.

    Attributes:
        dtype: Type that was asked for.
        samples: How many inputs were compared.
        layers: The layers.
    """

    dtype: str
    samples: int
    layers: tuple[LayerSensitivity, ...]

    def to_text(self) -> str:
        """Returns the report as text, ending in a newline."""
        lines = [f"error of the output when one layer alone is quantized to {self.dtype} ({self.samples} inputs)"]
        for layer in self.layers:
            lines.append(
                f"  {layer.scaled:.3e} of the largest magnitude, signal to noise {layer.snr_db:5.1f} dB, "
                f"cosine {layer.cosine:.6f}: {layer.location} ({layer.operator})"
            )
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values; an infinite ratio, of a layer without error, is null."""
        data = super().to_dict()
        for layer in data["layers"]:
            if layer["snr_db"] == "inf":
                layer["snr_db"] = None
        return data


@entry_point
def sensitivity(
    model: Model,
    calibration: Iterable[Any],
    config: QuantizationConfig | Mapping[str, Any] | str | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    compare: int = 8,
) -> SensitivityReport:
    """Measures what quantizing each layer by itself does to the outputs of a model.

    The model runs once for each layer and each input that is compared, in PyTorch.

    Args:
        model, calibration, config, arg_inputs, kwarg_inputs: See `quantize`.
        compare: How many of the calibration inputs are compared, the first ones.

    Raises:
        ExportError: The module cannot be exported.
        InputError: Calibration data is missing, does not fit, or holds NaN; or the model is quantized already.
        SettingsError: The configuration cannot be read.
    """
    if compare < 1:
        raise InputError(f"compare={compare}", hint="compare at least one input")
    chosen = read_config(config)
    samples = read_samples(calibration)
    program = prepare(capture_float(model, samples, arg_inputs, kwarg_inputs), samples, chosen)
    editor = ProgramEditor(program)
    layers = [choice.layer for choice in choose_layers(editor, chosen) if choice.layer is not None]
    scales = calibrate(program, layers, samples, chosen) if chosen.scheme.quantizes_activations else {}
    errors: list[list[OutputError]] = [[] for _ in layers]
    compared = samples[:compare]
    for inputs in flat_inputs(program, compared):
        expected = run_program(program, _copied(inputs), {})
        for index, layer in enumerate(layers):
            step = {layer.node.name: _quantized(editor, layer, scales, chosen)}
            found = run_program(program, _copied(inputs), step)
            errors[index] += [measure_error(left, right) for left, right in zip(found, expected, strict=True)]
    entries = [_entry(layer, worst_of(found)) for layer, found in zip(layers, errors, strict=True) if found]
    ordered = sorted(entries, key=lambda entry: (-entry.scaled, entry.location))
    return SensitivityReport(chosen.scheme.value, len(compared), tuple(ordered))


def _quantized(editor: ProgramEditor, layer: Layer, scales: Mapping[str, float], config: QuantizationConfig) -> Step:
    replace = quantized_operands(editor, layer, scales, config)
    return lambda node, value: compute(node, value, replace(node, value))


def _entry(layer: Layer, error: OutputError) -> LayerSensitivity:
    operator = str(layer.node.target)
    return LayerSensitivity(layer.location, f"torch.ops.{operator}", error.scaled, error.snr_db, error.cosine)


def _copied(inputs: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
