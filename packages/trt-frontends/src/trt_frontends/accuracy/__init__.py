"""How near a compiled model is to eager PyTorch, and which operators are to blame where it is not."""

from __future__ import annotations

from trt_frontends.accuracy.bisect import BisectReport, Culprit, EngineError, Stage, TensorStatistics, bisect
from trt_frontends.accuracy.verify import AccuracyReport, DepthError, OutputAccuracy, verify
from trt_frontends.comparison.output_error import OutputError, measure_error

__all__ = [
    "AccuracyReport",
    "BisectReport",
    "Culprit",
    "DepthError",
    "EngineError",
    "OutputAccuracy",
    "OutputError",
    "Stage",
    "TensorStatistics",
    "bisect",
    "measure_error",
    "verify",
]
