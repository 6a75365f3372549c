"""Test kit for converter authors: one operator call, eager beside engine.

`check_conversion` makes a graph of one operator call, asks for the verdict, builds the block, runs the engine through
TensorRT's API and compares with eager PyTorch: number of outputs, types, shapes, values and NaN positions. See
`trt_converters.testing.comparison` for the tolerances.
"""

from __future__ import annotations

from trt_converters.testing.comparison import TOLERANCES, compare, rounding_bounds
from trt_converters.testing.conversion import (
    ConversionResult,
    DynamicAxes,
    ExtentOf,
    OperatorCall,
    OperatorSample,
    check_conversion,
    emitted_layers,
    record_call,
    run_engine,
    samples_from_opinfo,
)

__all__ = [
    "TOLERANCES",
    "ConversionResult",
    "DynamicAxes",
    "ExtentOf",
    "OperatorCall",
    "OperatorSample",
    "check_conversion",
    "compare",
    "emitted_layers",
    "record_call",
    "rounding_bounds",
    "run_engine",
    "samples_from_opinfo",
]
