"""What scripts compare outputs with, how they read devices, and what settings are by default.

They import it as `torch_tensorrt.dynamo.utils`, and as `torch_tensorrt.dynamo._defaults`, which has the settings in
capitals: `MIN_BLOCK_SIZE`.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_core import CompilationSettings, Device, Input
from trt_core.internals import pytree
from trt_core.settings import setting_names
from trt_frontends.torch_tensorrt import names_of
from trt_runtime.engine_cache import default_directory

__all__ = ["COSINE_THRESHOLD", "cosine_similarity", "prepare_inputs", "to_torch_device", "to_torch_tensorrt_device"]

COSINE_THRESHOLD: Final = 0.99
"""Cosine of the angle between outputs that scripts take for the same."""

_IN_CACHE: Final = {"ENGINE_CACHE_DIR": ".", "TIMING_CACHE_PATH": "timing.cache"}
"""Where engines and timings are kept unless settings say otherwise, in the user's folder of engines."""


def cosine_similarity(gt_tensor: torch.Tensor, pred_tensor: torch.Tensor) -> float:
    """Returns the cosine of the angle between two tensors as vectors, in float64; 1 where both are zero.

    Args:
        gt_tensor: What is expected.
        pred_tensor: What was found; as many elements, of any type.
    """
    expected, found = (value.detach().double().flatten().cpu() for value in (gt_tensor, pred_tensor))
    if not expected.any() and not found.any():
        return 1.0
    return float(torch.nn.functional.cosine_similarity(expected, found, dim=0))


def prepare_inputs(inputs: Any, disable_memory_format_check: bool = False) -> Any:
    """Returns inputs as settings have them: static `Input`s in the place of tensors, nested as they are.

    Args:
        inputs: Tensors, `Input`s and plain values, in lists, tuples and dictionaries.
        disable_memory_format_check: No effect: the memory format is that of the tensor.
    """
    return pytree.tree_map_only(torch.Tensor, Input.from_tensor, inputs)


def to_torch_tensorrt_device(device: Any) -> Device:
    """Returns a device as settings have it; None for the default.

    Raises:
        SettingsError, InputError: It names no device.
    """
    return Device() if device is None else device if isinstance(device, Device) else Device(device)


def to_torch_device(device: Any) -> torch.device:
    """Returns PyTorch's name for a device; see `to_torch_tensorrt_device`."""
    return to_torch_tensorrt_device(device).torch_device


_find, __dir__ = names_of(__name__)


def __getattr__(name: str) -> Any:
    if name in _IN_CACHE:
        return str(default_directory() / _IN_CACHE[name])
    if name.isupper() and name.lower() in setting_names():
        return getattr(CompilationSettings(), name.lower())
    return _find(name)
