"""Scripts that are no part of a package, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def module_at(path: Path) -> ModuleType:
    """Runs a script under the name of its file, and returns it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
