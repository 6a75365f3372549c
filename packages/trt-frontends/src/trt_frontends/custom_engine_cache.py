"""Engine caches of users' own: anything that keeps bytes under a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from trt_core import InputError, PlanError, logger
from trt_core.wording import kind_of
from trt_frontends.torch_tensorrt import names_of
from trt_runtime import PlanHeader, plan_from_bytes, plan_to_bytes
from trt_runtime.engine_cache import EngineKey

__all__ = ["BaseEngineCache"]

__getattr__, __dir__ = names_of(__name__)


class BaseEngineCache(ABC):
    """Keeps built engines under the digest of all that they depend on; give one as `custom_engine_cache`.

    What is loaded runs as if it had been built here, compiled code too: keep it where others cannot write.
    """

    @abstractmethod
    def save(self, hash: str, blob: bytes, *args: Any, **kwargs: Any) -> None:  # noqa: A002 - the name users know
        """Keeps an engine.

        Args:
            hash: What to find it by.
            blob: The engine.
            args, kwargs: Nothing; room for what others pass.
        """

    @abstractmethod
    def load(self, hash: str, *args: Any, **kwargs: Any) -> bytes | None:  # noqa: A002
        """Returns what was kept under a text; None where nothing was."""


class CustomCache:
    """A user's cache in the place of the engine cache on disk.

    Args:
        cache: The user's.

    Raises:
        InputError: It has no `save` and `load`.
    """

    def __init__(self, cache: Any) -> None:
        if not all(callable(getattr(cache, name, None)) for name in ("save", "load")):
            raise InputError(
                f"custom_engine_cache is {kind_of(cache)}, which does not save and load",
                hint="give an object of a subclass of BaseEngineCache",
            )
        self._cache = cache

    def find(self, key: EngineKey) -> tuple[PlanHeader, torch.Tensor] | None:
        """Returns the engine of a key, if it is there and whole."""
        blob = self._cache.load(key.digest)
        if blob is None:
            return None
        try:
            return plan_from_bytes(bytes(blob))
        except PlanError as error:
            logger.warning("custom_engine_cache returned what is no engine, which is built anew: %s", error)
            return None

    def insert(self, key: EngineKey, header: PlanHeader, plan: torch.Tensor) -> None:
        """Keeps an engine."""
        self._cache.save(key.digest, plan_to_bytes(header, plan))
