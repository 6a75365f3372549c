"""TensorRT's Python API on PyTorch: define, build, run, refit and inspect networks without TensorRT.

Use it as ``import trt_portable as trt``. Names are imported when they are first used: `__init__.pyi` lists them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from trt_portable.device import device as device  # else the module of that name takes its place when it is imported
from trt_portable.public_names import read_stub

_HOMES, _CONSTANTS = read_stub(Path(__file__).with_suffix(".pyi"))

__all__ = [*_HOMES, *_CONSTANTS]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _CONSTANTS:
        owner, _, member = _CONSTANTS[name].partition(".")
        value = getattr(__getattr__(owner), member)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
