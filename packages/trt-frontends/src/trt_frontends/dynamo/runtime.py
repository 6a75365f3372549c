"""Engines as modules, by the names that scripts of this field write."""

from __future__ import annotations

import warnings

from torch import nn

from trt_core.settings_reader import level_of_caller
from trt_runtime import TRTModule

__all__ = ["PythonTorchTensorRTModule", "ResourceAllocationStrategy", "TorchTensorRTModule"]

TorchTensorRTModule = PythonTorchTensorRTModule = TRTModule


class ResourceAllocationStrategy:
    """Has no effect: memory of an engine is allocated by PyTorch, which reuses it.

    Args:
        compiled_module: A compiled model or a loaded program.
        dynamically_allocate_resources: Whether engines are to give their memory back between calls.

    Warns:
        UserWarning: That is asked for.
    """

    def __init__(self, compiled_module: nn.Module, dynamically_allocate_resources: bool = True) -> None:
        self.compiled_module = compiled_module
        if dynamically_allocate_resources:
            warnings.warn(
                "ResourceAllocationStrategy has no effect: PyTorch allocates the memory of engines, and reuses it",
                UserWarning,
                stacklevel=level_of_caller(),
            )

    def __enter__(self) -> ResourceAllocationStrategy:
        return self

    def __exit__(self, *_: object) -> None:
        pass
