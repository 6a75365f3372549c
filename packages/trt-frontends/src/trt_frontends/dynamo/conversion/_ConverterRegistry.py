"""The converter registry under the module name that debugging guides use."""

from __future__ import annotations

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, load_converters

load_converters()  # whoever asks `operator in DYNAMO_CONVERTERS` means the built-in converters too

__all__ = ["DYNAMO_CONVERTERS", "ConverterRegistry"]
