"""Sensitivity: how much the output of a model changes when a single layer of it is quantized."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from trt_core import InputError
from trt_core.wording import ShownReport
from trt_frontends.comparison.output_error import OutputError, measure_error, worst_of
from trt_frontends.entry_point import entry_point
from trt_frontends.quantization.bias_correction import quantized_operands
from trt_frontends.quantization.calibration import ProgramRunner, Step, calibrate, compute, flat_inputs, read_samples
from trt_frontends.quantization.config import QuantizationConfig, read_config
from trt_frontends.quantization.editing import ProgramEditor
from trt_frontends.quantization.layers import Layer, choose_layers
from trt_frontends.quantization.quantize import Model, capture_float, prepare


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
class SensitivityReport(ShownReport):
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
        data = {"format": 1, **asdict(self)}
        for layer in data["layers"]:
            if layer["snr_db"] == float("inf"):
                layer["snr_db"] = None
        return data

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


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
    runner = ProgramRunner(program)
    compared = samples[:compare]
    for inputs in flat_inputs(program, compared):
        expected = runner.run(_copied(inputs), {})
        for index, layer in enumerate(layers):
            step = {layer.node.name: _quantized(editor, layer, scales, chosen)}
            found = runner.run(_copied(inputs), step)
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
