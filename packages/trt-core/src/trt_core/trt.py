"""TensorRT's Python API, forwarded to the provider in use.

Write `from trt_core import trt` and use it as the `tensorrt` module: `trt.DataType.FLOAT`, `trt.Builder(logger)`.
The provider is loaded at the first attribute access, never at import.
"""

from __future__ import annotations

from typing import Any

from trt_core.provider import provider_module


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    module = provider_module()
    try:
        return getattr(module, name)
    except AttributeError:
        raise AttributeError(f"{module.__name__} {module.__version__} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return dir(provider_module())
