"""Engines on disk, found again by what they were built from."""

from __future__ import annotations

from trt_runtime.engine_cache.store import (
    CacheEntry,
    Difference,
    EngineCache,
    EngineKey,
    default_directory,
    directory_is_configured,
)

__all__ = ["CacheEntry", "Difference", "EngineCache", "EngineKey", "default_directory", "directory_is_configured"]
