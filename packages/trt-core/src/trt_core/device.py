"""The device that engines are built for and run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from trt_core.errors import InputError


@dataclass(frozen=True)
class Device:
    """A device for engines: a CUDA GPU, or the CPU (portable provider only).

    Args:
        spec: `"cuda"`, `"cuda:1"`, `"cpu"`, a `torch.device`, or another `Device`. Without it, `gpu_id` decides.
        gpu_id: Index of the GPU.

    Raises:
        InputError: The device is of a kind that engines cannot use.

    Example:
        >>> Device("cuda:1").torch_device
        device(type='cuda', index=1)
        >>> Device("cpu").is_cpu
        True
    """

    kind: str
    index: int

    def __init__(self, spec: Any = None, *, gpu_id: int | None = None) -> None:
        kind, index = _parse(spec, gpu_id)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "index", index)

    @classmethod
    def current(cls) -> Device:
        """Returns the current CUDA device where there is one, else the CPU."""
        if torch.cuda.is_available():
            return cls(gpu_id=torch.cuda.current_device())
        return cls("cpu")

    @property
    def gpu_id(self) -> int:
        """Index of the GPU, -1 for the CPU."""
        return -1 if self.is_cpu else self.index

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU."""
        return self.kind == "cpu"

    @property
    def torch_device(self) -> torch.device:
        """The same device as PyTorch names it."""
        return torch.device("cpu") if self.is_cpu else torch.device("cuda", self.index)

    def __str__(self) -> str:
        return str(self.torch_device)


def _parse(spec: Any, gpu_id: int | None) -> tuple[str, int]:
    if isinstance(spec, Device):
        return spec.kind, spec.index
    if spec is None:
        return "cuda", 0 if gpu_id is None else gpu_id
    try:
        device = torch.device(spec)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{spec!r} is not a device", why=str(error).splitlines()[0]) from error
    if device.type == "cpu":
        return "cpu", 0
    if device.type != "cuda":
        raise InputError(f"engines cannot run on {device}", hint="use a CUDA device, or the CPU")
    if gpu_id is not None and device.index not in (None, gpu_id):
        raise InputError(f"Device({spec!r}, gpu_id={gpu_id}) names two GPUs")
    return "cuda", gpu_id if gpu_id is not None else device.index or 0
