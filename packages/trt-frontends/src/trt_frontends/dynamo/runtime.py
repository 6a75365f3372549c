"""Engines as modules, by the names that scripts of this field write."""

from __future__ import annotations

from torch import nn

from trt_frontends.runtime import PythonTorchTensorRTModule, TorchTensorRTModule
from trt_runtime.context_pool import MOST_IDLE
from trt_runtime.module import engines_of

__all__ = ["PythonTorchTensorRTModule", "ResourceAllocationStrategy", "TorchTensorRTModule"]


class ResourceAllocationStrategy:
    """Has engines give the memory that they compute in back after each call, inside a block or for good.

    Otherwise they keep it for the next call. Giving it back makes calls slower: each makes a new execution context, and
    waits for the device. Engines of one plan are one engine, also in other modules.

    Args:
        compiled_module: A compiled model or a loaded program.
        dynamically_allocate_resources: Whether memory is given back; False keeps it.
    """

    def __init__(self, compiled_module: nn.Module, dynamically_allocate_resources: bool = True) -> None:
        self.compiled_module = compiled_module
        self._engines = engines_of(compiled_module)
        for engine in self._engines:
            engine.keep_contexts(0 if dynamically_allocate_resources else MOST_IDLE)

    def __enter__(self) -> ResourceAllocationStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            engine.keep_contexts(MOST_IDLE)
