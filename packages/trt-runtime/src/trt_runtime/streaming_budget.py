"""How many bytes of an engine's weights may stay on the GPU where nobody says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from trt_runtime.engine import LoadedEngine

_MOST_TOLD: Final = 2**31
"""TensorRT's bindings cut its answer to 32 bits: for engines with more weights it is worth nothing."""
_SPARED: Final = 0.1
"""The part of free memory that is left alone."""


def automatic_budget(engine: LoadedEngine) -> int:
    """Bytes of streamable weights for which the GPU has memory now.

    Args:
        engine: An engine that was built for weight streaming.
    """
    size = engine.streamable_bytes
    if size < _MOST_TOLD or not engine.is_tensorrt:
        return min(max(int(engine.native.get_weight_streaming_automatic_budget()), 0), size)
    free, _ = torch.cuda.mem_get_info(engine.device)
    return min(max(int(free * (1 - _SPARED)) - int(engine.native.device_memory_size_v2), 0), size)
