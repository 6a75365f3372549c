"""The least time that a device could take: bytes over bandwidth, or operations over peak, whichever is more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Device:
    """What the data sheet of a device says.

    Attributes:
        bytes_per_second: Bandwidth of its memory.
        operations_per_second: Peak of dense products by type, a multiplication and an addition being two.
    """

    bytes_per_second: float
    operations_per_second: Mapping[str, float]


_HOPPER: Final = {"float16": 989e12, "bfloat16": 989e12, "float32": 67e12}
_AMPERE: Final = {"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12}
DEVICES: Final[dict[str, Device]] = {
    "NVIDIA H200": Device(4.8e12, _HOPPER),
    "NVIDIA H100 80GB HBM3": Device(3.35e12, _HOPPER),
    "NVIDIA H100 PCIe": Device(2.0e12, {"float16": 756e12, "bfloat16": 756e12, "float32": 51e12}),
    "NVIDIA A100-SXM4-80GB": Device(2.04e12, _AMPERE),
    "NVIDIA A100-SXM4-40GB": Device(1.56e12, _AMPERE),
    "NVIDIA L4": Device(0.3e12, {"float16": 121e12, "bfloat16": 121e12, "float32": 30e12}),
    "NVIDIA L40S": Device(0.864e12, {"float16": 362e12, "bfloat16": 362e12, "float32": 91e12}),
}
"""By the name that the driver gives; NVIDIA's data sheets, without sparsity."""


def work(model: nn.Module, tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """What a call has to do at least.

    Returns:
        ``bytes``: weights, inputs and outputs, each moved once. ``operations``: those of products and
        convolutions, a multiplication and an addition being two.
    """
    given = list(tensors)
    with FlopCounterMode(display=False) as counter:
        result = model(*given)
    moved = [*model.parameters(), *model.buffers(), *given, *_tensors(result)]
    return {
        "bytes": sum(tensor.nbytes for tensor in moved),
        "operations": int(counter.get_total_flops()),
    }


def floor_milliseconds(found: Mapping[str, int], device: str, dtype: str) -> float | None:
    """The least time for `work` on a device; None where its data sheet is not in the table."""
    known = DEVICES.get(device)
    if known is None or dtype not in known.operations_per_second:
        return None
    moving = found["bytes"] / known.bytes_per_second
    computing = found["operations"] / known.operations_per_second[dtype]
    return max(moving, computing) * 1e3


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [tensor for part in result.values() for tensor in _tensors(part)]
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in _tensors(part)]
    return []
