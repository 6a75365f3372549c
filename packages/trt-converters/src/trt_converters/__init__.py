"""Converters from PyTorch operators to TensorRT layers, the registry they live in, and the block-to-engine builder."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from trt_converters.aten import load_converters, plugin_status
from trt_converters.build import BuiltEngine, build_block
from trt_converters.call import Call
from trt_converters.context import ConversionContext
from trt_converters.converter import Converter
from trt_converters.interpreter import BlockInterpreter
from trt_converters.registry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
    converter,
    plugin_from_operator,
    require_registry,
)
from trt_converters.support import ConverterSupport, preserve_predicate

try:
    __version__ = version("trt-converters")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+source"

__all__ = [
    "DYNAMO_CONVERTERS",
    "BlockInterpreter",
    "BuiltEngine",
    "Call",
    "ConversionContext",
    "Converter",
    "ConverterRegistry",
    "ConverterSupport",
    "build_block",
    "converter",
    "load_converters",
    "plugin_from_operator",
    "plugin_status",
    "preserve_predicate",
    "require_registry",
]
