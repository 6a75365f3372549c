"""Conversion: the converter registry, with the built-in converters in it."""

from __future__ import annotations

from trt_converters import ConverterSupport, converter
from trt_frontends.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS, ConverterRegistry

__all__ = ["DYNAMO_CONVERTERS", "ConverterRegistry", "ConverterSupport", "converter"]
