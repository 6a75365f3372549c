"""The provider of TensorRT's API: the real `tensorrt` package, or `trt_portable`.

The choice is made at first use, from `TRT_PROVIDER` or `set_provider`, and kept for the process.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import torch

from trt_core.errors import ProviderError
from trt_core.forked_lock import ForkedLock
from trt_core.wording import nearest_or_all

_VARIABLE = "TRT_PROVIDER"

OLDEST_TENSORRT: Final = (10, 16)
"""First (major, minor) of TensorRT whose API has every layer that converters add."""


class Provider(enum.Enum):
    """Who implements TensorRT's API."""

    TENSORRT = "tensorrt"
    PORTABLE = "portable"


_MODULES = {Provider.TENSORRT: "tensorrt", Provider.PORTABLE: "trt_portable"}
_lock: Final = ForkedLock()
_requested: str | None = None
_chosen: tuple[Provider, ModuleType] | None = None


def set_provider(choice: str | Provider) -> None:
    """Chooses the provider for this process; it is loaded at first use.

    Args:
        choice: `"tensorrt"`, `"portable"`, or `"auto"`: TensorRT when it imports and a CUDA device is present,
            else portable.

    Raises:
        ProviderError: The name is none of these.
    """
    global _requested, _chosen
    name = choice.value if isinstance(choice, Provider) else choice
    _validate(name, "set_provider")
    with _lock:
        _requested, _chosen = name, None


def current_provider() -> Provider:
    """Returns the provider in use, choosing it when that has not happened yet.

    Raises:
        ProviderError: The provider that was asked for cannot be imported.
    """
    return _resolve()[0]


def provider_module() -> ModuleType:
    """Returns the module that implements TensorRT's API.

    Raises:
        ProviderError: The provider that was asked for cannot be imported.
    """
    return _resolve()[1]


def provider_version() -> tuple[int, int]:
    """Returns (major, minor) of the API in use; the portable provider answers with the API version it follows."""
    return _api_version(provider_module())


def provider_identity() -> str:
    """Returns the provider's name and exact version, such as `tensorrt 10.16.1.11`, as plans record it."""
    provider, module = _resolve()
    return f"{provider.value} {module.__version__}"


@contextlib.contextmanager
def device_scope(device: torch.device) -> Iterator[None]:
    """Makes `device` current for building, loading and running engines inside the block.

    TensorRT works on the current CUDA device; the portable provider works on CPU devices as well.

    Raises:
        ProviderError: TensorRT was chosen and the device is not a CUDA device.
    """
    provider, module = _resolve()
    if provider is Provider.PORTABLE:
        with module.device(device):
            yield
        return
    if device.type != "cuda":
        raise ProviderError(
            f"TensorRT cannot run on {device}",
            hint="move the model and its inputs to a CUDA device, or choose the portable provider",
        )
    with torch.cuda.device(device):
        yield


def _validate(name: str, where: str) -> None:
    known = ["auto", *(provider.value for provider in Provider)]
    if name not in known:
        raise ProviderError(f"unknown provider {name!r}", where=where, hint=nearest_or_all(name, known))


def _resolve() -> tuple[Provider, ModuleType]:
    global _chosen
    chosen = _chosen
    if chosen is None:
        with _lock:
            chosen = _chosen
            if chosen is None:
                chosen = _chosen = _load()
    return chosen


def _load() -> tuple[Provider, ModuleType]:
    name = _requested
    if name is None:
        name = os.environ.get(_VARIABLE, "auto").strip().lower() or "auto"
        _validate(name, f"environment variable {_VARIABLE}")
    if name != "auto":
        provider = Provider(name)
        return provider, _import(provider)
    if importlib.util.find_spec("tensorrt") is not None and torch.cuda.is_available():
        with contextlib.suppress(ProviderError):
            return Provider.TENSORRT, _import(Provider.TENSORRT)
    return Provider.PORTABLE, _import(Provider.PORTABLE)


def _import(provider: Provider) -> ModuleType:
    name = _MODULES[provider]
    try:
        module = importlib.import_module(name)
    except (ImportError, OSError) as error:  # a TensorRT without its shared libraries raises OSError
        extra = "pip install 'trt-runtime[tensorrt]'" if provider is Provider.TENSORRT else "pip install trt-portable"
        raise ProviderError(
            f"the provider {provider.value!r} cannot be used",
            where=f"import {name}",
            why=str(error),
            hint=f"install it with {extra}, or choose another one with {_VARIABLE} or trt_core.set_provider",
        ) from error
    if provider is Provider.TENSORRT and _api_version(module) < OLDEST_TENSORRT:
        oldest = ".".join(map(str, OLDEST_TENSORRT))
        raise ProviderError(
            f"TensorRT {module.__version__} is too old",
            where=f"import {name}",
            hint=f"install TensorRT {oldest} or newer, or choose the portable provider with {_VARIABLE}",
        )
    return module


def _api_version(module: ModuleType) -> tuple[int, int]:
    major, minor, *_ = str(module.__version__).split(".")
    return int(major), int(minor)
