"""Which version of TensorRT's API this process sees, and the enumerations whose values differ between them.

`TRT_PORTABLE_API=10` chooses that of TensorRT 10.16, for clients that rely on what 11 removed: `tensorrt_10` has those
classes and members. Everything else is the same code.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

VARIABLE: Final = "TRT_PORTABLE_API"
_VERSIONS: Final = {"10": "10.16.1", "11": "11.4.0"}


def _chosen() -> str:
    wanted = os.environ.get(VARIABLE, "") or "11"
    if wanted not in _VERSIONS:
        raise ImportError(
            f"{VARIABLE}={wanted!r} names no API of this package: write {' or '.join(_VERSIONS)}, or unset it"
        )
    return wanted


IS_TENSORRT_10: Final = _chosen() == "10"
API_VERSION: Final = _VERSIONS[_chosen()]
"""The version of TensorRT whose API is implemented; scripts that compare `trt.__version__` see it first."""

ENUMERATIONS_OF_10: Final[dict[str, dict[str, int]]] = {
    "BuilderFlag": {
        "FP16": 0,
        "INT8": 1,
        "DEBUG": 2,
        "GPU_FALLBACK": 3,
        "REFIT": 4,
        "DISABLE_TIMING_CACHE": 5,
        "TF32": 6,
        "SPARSE_WEIGHTS": 7,
        "SAFETY_SCOPE": 8,
        "OBEY_PRECISION_CONSTRAINTS": 9,
        "PREFER_PRECISION_CONSTRAINTS": 10,
        "DIRECT_IO": 11,
        "REJECT_EMPTY_ALGORITHMS": 12,
        "VERSION_COMPATIBLE": 13,
        "EXCLUDE_LEAN_RUNTIME": 14,
        "FP8": 15,
        "ERROR_ON_TIMING_CACHE_MISS": 16,
        "BF16": 17,
        "DISABLE_COMPILATION_CACHE": 18,
        "STRIP_PLAN": 19,
        "WEIGHTLESS": 19,
        "REFIT_IDENTICAL": 20,
        "WEIGHT_STREAMING": 21,
        "INT4": 22,
        "REFIT_INDIVIDUAL": 23,
        "STRICT_NANS": 24,
        "MONITOR_MEMORY": 25,
        "FP4": 26,
        "EDITABLE_TIMING_CACHE": 27,
        "DISTRIBUTIVE_INDEPENDENCE": 28,
    },
    "CalibrationAlgoType": {
        "LEGACY_CALIBRATION": 0,
        "ENTROPY_CALIBRATION": 1,
        "ENTROPY_CALIBRATION_2": 2,
        "MINMAX_CALIBRATION": 3,
    },
    "NetworkDefinitionCreationFlag": {
        "EXPLICIT_BATCH": 0,
        "STRONGLY_TYPED": 1,
        "PREFER_JIT_PYTHON_PLUGINS": 2,
        "PREFER_AOT_PYTHON_PLUGINS": 3,
    },
    "PreviewFeature": {
        "PROFILE_SHARING_0806": 0,
        "ALIASED_PLUGIN_IO_10_03": 1,
        "RUNTIME_ACTIVATION_RESIZE_10_10": 2,
        "MULTIDEVICE_RUNTIME_10_16": 3,
    },
    "QuantizationFlag": {"CALIBRATE_BEFORE_FUSION": 0},
    "TacticSource": {"CUBLAS": 0, "CUBLAS_LT": 1, "CUDNN": 2, "EDGE_MASK_CONVOLUTIONS": 3, "JIT_CONVOLUTIONS": 4},
}
"""Members that 10.16 numbers otherwise than 11.4, or alone has; members that 11 added stay where none of these is."""


PACKAGE = "trt_portable"


def install_as_tensorrt() -> None:
    """Makes ``import tensorrt`` and ``import tensorrt.plugin`` in this process give this package.

    Doing it again changes nothing.

    Raises:
        RuntimeError: TensorRT itself is installed or imported.
    """
    present = sys.modules.get("tensorrt")
    if present is not None and present.__name__ == PACKAGE:
        return
    if present is not None or importlib.util.find_spec("tensorrt") is not None:
        raise RuntimeError(
            "TensorRT itself is installed: trt_portable does not take its name. Use `import trt_portable as tensorrt`, "
            "or uninstall tensorrt on this machine"
        )
    plugin = importlib.import_module(f"{PACKAGE}.plugin")
    sys.modules["tensorrt"] = sys.modules[PACKAGE]
    sys.modules["tensorrt.plugin"] = plugin


try:
    RELEASE: Final[str] = version("trt-portable")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    RELEASE = "0+source"  # type: ignore[misc]

__version__: Final = f"{API_VERSION}+portable.{RELEASE.replace('+', '.')}"
