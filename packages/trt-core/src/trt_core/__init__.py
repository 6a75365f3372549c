"""What every part of the stack shares: settings, inputs, devices, types, errors, verdicts and the TensorRT facade."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import torch

from trt_core import modelopt_operators, quantization, trt
from trt_core.device import Device
from trt_core.dtypes import from_trt, parse_dtype, to_trt
from trt_core.errors import (
    BuildError,
    CacheError,
    ConversionError,
    ExecutionError,
    ExportError,
    FileError,
    IncompleteCompilationError,
    InputError,
    InternalError,
    LoweringError,
    PartitionError,
    PlanError,
    ProviderError,
    RefitError,
    SettingsError,
    TrtError,
)
from trt_core.internals import warn_of_untested_torch
from trt_core.lazy_names import lazy_names
from trt_core.log import logger
from trt_core.provider import (
    Provider,
    current_provider,
    device_scope,
    provider_identity,
    provider_module,
    provider_version,
    set_provider,
)

if TYPE_CHECKING:
    from trt_core.input import Input
    from trt_core.operators import canonical_operator, operator_name
    from trt_core.settings import CompilationSettings
    from trt_core.settings_reader import read_settings
    from trt_core.verdicts import SUPPORTED, OperatorSupport, Reason, Verdict, total_verdict

warn_of_untested_torch(torch.__version__)

try:
    __version__ = version("trt-core")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    __version__ = "0+source"

__all__ = [
    "SUPPORTED",
    "BuildError",
    "CacheError",
    "CompilationSettings",
    "ConversionError",
    "Device",
    "ExecutionError",
    "ExportError",
    "FileError",
    "IncompleteCompilationError",
    "Input",
    "InputError",
    "InternalError",
    "LoweringError",
    "OperatorSupport",
    "PartitionError",
    "PlanError",
    "Provider",
    "ProviderError",
    "Reason",
    "RefitError",
    "SettingsError",
    "TrtError",
    "Verdict",
    "canonical_operator",
    "current_provider",
    "device_scope",
    "from_trt",
    "logger",
    "modelopt_operators",
    "operator_name",
    "parse_dtype",
    "provider_identity",
    "provider_module",
    "provider_version",
    "quantization",
    "read_settings",
    "set_provider",
    "to_trt",
    "total_verdict",
    "trt",
]

_LATE: Final = {
    "trt_core.input": "Input",
    "trt_core.operators": "canonical_operator, operator_name",
    "trt_core.settings_reader": "CompilationSettings, read_settings",  # with names of other generations
    "trt_core.verdicts": "OperatorSupport, Reason, SUPPORTED, Verdict, total_verdict",
}
"""Names that are imported when they are first used: running engines needs none of them."""

__getattr__, __dir__ = lazy_names(__name__, _LATE)
