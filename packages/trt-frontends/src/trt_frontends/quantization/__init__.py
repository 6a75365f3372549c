"""Quantization after training: from a float model and representative inputs to a program with Q/DQ."""

from __future__ import annotations

from trt_frontends.quantization.quantization_config import Kind, Observer, QuantizationConfig, Scheme
from trt_frontends.quantization.quantize import (
    LayerSensitivity,
    QuantizationReport,
    QuantizedLayer,
    SensitivityReport,
    quantization_report,
    quantize,
    sensitivity,
)

__all__ = [
    "Kind",
    "LayerSensitivity",
    "Observer",
    "QuantizationConfig",
    "QuantizationReport",
    "QuantizedLayer",
    "Scheme",
    "SensitivityReport",
    "quantization_report",
    "quantize",
    "sensitivity",
]
