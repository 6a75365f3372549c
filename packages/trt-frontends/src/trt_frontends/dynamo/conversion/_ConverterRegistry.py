"""The converter registry under the module name that debugging guides use."""

from __future__ import annotations

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, ConverterSupport, load_converters
from trt_frontends.dynamo.conversion.registration import ConverterPriority, dynamo_tensorrt_converter

load_converters()  # whoever asks `operator in DYNAMO_CONVERTERS` means the built-in converters too

__all__ = [
    "DYNAMO_CONVERTERS",
    "ConverterPriority",
    "ConverterRegistry",
    "ConverterSupport",
    "dynamo_tensorrt_converter",
]
