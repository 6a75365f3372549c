"""The name `torch_tensorrt` for this package, for scripts that are written with it, and types by the names they use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

import torch


class dtype:
    """Types of PyTorch, which all settings take."""

    float: Final = torch.float32
    float32: Final = torch.float32
    f32: Final = torch.float32
    single: Final = torch.float32
    half: Final = torch.float16
    float16: Final = torch.float16
    f16: Final = torch.float16
    fp16: Final = torch.float16
    bf16: Final = torch.bfloat16
    bfloat16: Final = torch.bfloat16
    double: Final = torch.float64
    float64: Final = torch.float64
    f64: Final = torch.float64
    f8: Final = torch.float8_e4m3fn
    float8: Final = torch.float8_e4m3fn
    int8: Final = torch.int8
    i8: Final = torch.int8
    uint8: Final = torch.uint8
    u8: Final = torch.uint8
    int32: Final = torch.int32
    i32: Final = torch.int32
    int: Final = torch.int32
    int64: Final = torch.int64
    i64: Final = torch.int64
    long: Final = torch.int64
    bool: Final = torch.bool
    b: Final = torch.bool


class memory_format:
    """Memory formats of PyTorch."""

    contiguous: Final = torch.contiguous_format
    linear: Final = torch.contiguous_format
    channels_last: Final = torch.channels_last
    cdhw4: Final = torch.channels_last_3d


_ALIAS = "torch_tensorrt"
_SUBMODULES = {
    "dynamo": "dynamo",
    "dynamo._SourceIR": "dynamo",
    "dynamo._compiler": "dynamo",
    "dynamo._settings": "dynamo",
    "dynamo._engine_cache": "dynamo._engine_cache",
    "dynamo.debugger": "dynamo.debugger",
    "dynamo._defaults": "dynamo._defaults",
    "dynamo.conversion": "dynamo.conversion",
    "dynamo.conversion._ConverterRegistry": "dynamo.conversion._ConverterRegistry",
    "dynamo.conversion.plugins": "dynamo.conversion.plugins",
    **{
        f"dynamo.conversion.impl{name}": f"dynamo.conversion.impl{name}"
        for name in ("", ".activation", ".condition", ".elementwise", ".reduce", ".shuffle", ".unary")
    },
    "dynamo.partitioning": "dynamo.partitioning",
    "dynamo.partitioning._hierarchical_partitioner": "dynamo.partitioning",
    "dynamo.runtime": "dynamo.runtime",
    "dynamo.utils": "dynamo.comparing",
    "logging": "logging",
    "runtime": "runtime",
}
"""What scripts import, and the module of this package that stands for it."""


def install_alias() -> None:
    """Makes `import torch_tensorrt` mean `trt_frontends` in this process.

    Raises:
        ImportError: A distribution of that name is installed, or already imported.
    """
    from trt_frontends import __name__ as own_name

    package = sys.modules[own_name]
    known = sys.modules.get(_ALIAS)
    if known is package:
        return
    if known is not None or importlib.util.find_spec(_ALIAS) is not None:
        raise ImportError(f"a package called {_ALIAS} is installed; the alias would hide it")
    sys.modules[_ALIAS] = package
    for name, own in _SUBMODULES.items():
        sys.modules[f"{_ALIAS}.{name}"] = importlib.import_module(f"{own_name}.{own}")
