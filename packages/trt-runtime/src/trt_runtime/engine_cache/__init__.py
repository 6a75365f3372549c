"""Engines on disk, found again by what they were built from.

`key` says what an engine depends on, `private_directory` where entries may lie, `store` keeps them.
"""

from __future__ import annotations

from trt_runtime.engine_cache.private_directory import (
    default_directory,
    directory_is_configured,
    open_private_directory,
)
from trt_runtime.engine_cache.store import CacheEntry, Difference, EngineCache, EngineKey

__all__ = [
    "CacheEntry",
    "Difference",
    "EngineCache",
    "EngineKey",
    "default_directory",
    "directory_is_configured",
    "open_private_directory",
]
