"""Conversion: the converter registry, with the built-in converters in it."""

from __future__ import annotations

from trt_converters import ConverterSupport, converter
from trt_converters.context import ConversionContext
from trt_core import CompilationSettings
from trt_frontends.dynamo.conversion import impl
from trt_frontends.dynamo.conversion import registration as converter_utils
from trt_frontends.dynamo.conversion import registration as plugins
from trt_frontends.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_frontends.dynamo.conversion.registration import ConverterPriority, SourceIR, dynamo_tensorrt_converter
from trt_frontends.torch_tensorrt import names_of

__all__ = [
    "DYNAMO_CONVERTERS",
    "CompilationSettings",
    "ConversionContext",
    "ConverterPriority",
    "ConverterRegistry",
    "ConverterSupport",
    "SourceIR",
    "converter",
    "converter_utils",
    "dynamo_tensorrt_converter",
    "impl",
    "plugins",
]

__getattr__, __dir__ = names_of(__name__)
