"""The name `torch_tensorrt` for this package, for scripts that are written with it."""

from __future__ import annotations

import importlib
import importlib.util
import sys

_ALIAS = "torch_tensorrt"
_SUBMODULES = {
    "dynamo": "dynamo",
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
