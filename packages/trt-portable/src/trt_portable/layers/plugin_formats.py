"""The memory formats in which a plugin wants its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_portable.enums import ErrorCodeTRT, TensorFormat
from trt_portable.errors import Refusal
from trt_portable.formats import LAYOUTS
from trt_portable.plugins.shape import DynamicPluginTensorDesc

_DEFAULT_LIMIT: Final = 100


def choose_formats(build: Any, tensors: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> tuple[TensorFormat, ...]:
    """The first combination of formats that a plugin supports, LINEAR where it can be.

    Args:
        build: The build face of the plugin.
        tensors: Inputs, then outputs; their formats are set on the way.
        num_inputs: How many are inputs.

    Raises:
        Refusal: The plugin supports none of the combinations that were tried.
    """
    budget = int(getattr(build, "format_combination_limit", _DEFAULT_LIMIT)) * max(len(tensors), 1)
    furthest = 0

    def search(position: int) -> bool:
        nonlocal budget, furthest
        if position == len(tensors):
            return True
        furthest = max(furthest, position)
        for kind in _candidates(tensors[position]):
            if budget == 0:
                return False
            budget -= 1
            tensors[position].desc.format = kind
            if build.supports_format_combination(position, tensors, num_inputs) and search(position + 1):
                return True
        return False

    if search(0):
        return tuple(tensor.desc.format for tensor in tensors)
    which = f"input {furthest}" if furthest < num_inputs else f"output {furthest - num_inputs}"
    found = tensors[furthest].desc
    raise Refusal(
        f"the plugin supports no format for {which}, {found.type.name} of extents {tuple(found.dims)}",
        ErrorCodeTRT.UNSUPPORTED_STATE,
    )


def _candidates(tensor: DynamicPluginTensorDesc) -> list[TensorFormat]:
    rank = len(tensor.desc.dims)
    fitting = [kind for kind, layout in LAYOUTS.items() if tensor.desc.type in layout.dtypes and rank >= layout.channel]
    return [TensorFormat.LINEAR, *fitting]


def memory_for(tensor: torch.Tensor, kind: TensorFormat, *, fill: bool) -> torch.Tensor:
    """Memory of a tensor in a format, filled with its values or not; the tensor itself where it is LINEAR."""
    layout = LAYOUTS.get(kind)
    if layout is None:
        return tensor.contiguous() if fill else tensor
    memory = tensor.new_empty(layout.memory_shape(tensor.shape))
    if fill:
        layout.pack(tensor, memory)
    return memory


def take_from(memory: torch.Tensor, kind: TensorFormat, tensor: torch.Tensor) -> None:
    """Reads a tensor from its memory in a format; nothing to do where they are the same."""
    layout = LAYOUTS.get(kind)
    if layout is not None:
        layout.unpack(memory, tensor)
