"""TensorRT's Python API on PyTorch: define, build, run, refit and inspect networks without TensorRT.

Use it as ``import trt_portable as trt``. A process that only runs an engine needs a tenth of the
package, so names are imported when they are first used: `__init__.pyi` says where each one lives, to type checkers and
to this module alike.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from trt_portable.api_version import IS_TENSORRT_10


def read_stub(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Reads which names a stub makes public.

    Args:
        path: A stub that holds imports of modules by their full names, and constants that are attributes of one of
            the imported names.

    Returns:
        The module of each imported name, and the expression, `DataType.FLOAT`, behind each constant.
    """
    homes: dict[str, str] = {}
    constants: dict[str, str] = {}
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.ImportFrom) and statement.module != "typing":
            homes.update((alias.asname or alias.name, str(statement.module)) for alias in statement.names)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert statement.value is not None
            constants[statement.target.id] = ast.unparse(statement.value)
    return homes, constants


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


if IS_TENSORRT_10:
    globals().update(import_module("trt_portable.tensorrt_10").install())
