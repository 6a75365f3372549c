"""Engine caches under the module name that guides use."""

from __future__ import annotations

from trt_frontends.custom_engine_cache import BaseEngineCache

__all__ = ["BaseEngineCache"]
