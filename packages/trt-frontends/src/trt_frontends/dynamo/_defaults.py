"""What settings are by default, in the capitals that scripts of this field write: `MIN_BLOCK_SIZE`."""

from __future__ import annotations

from typing import Any, Final

from trt_core import CompilationSettings
from trt_core.settings import setting_names
from trt_runtime.engine_cache import default_directory

ENGINE_CACHE_DIR: Final = str(default_directory())
TIMING_CACHE_PATH: Final = str(default_directory() / "timing.cache")
"""Where timings are kept beside cached engines, unless `timing_cache_path` says otherwise."""


def __getattr__(name: str) -> Any:
    if not name.isupper() or name.lower() not in setting_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(CompilationSettings(), name.lower())
