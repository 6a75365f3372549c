"""What is known of a Triton kernel of our own that was started: enough to start it again without Triton."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from trt_portable.kernels.device_kernels import POINTER


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel that was started.

    Attributes:
        compiled: Triton's compiled kernel.
        grid: Three extents, in blocks.
        arguments: A tensor or a number for each parameter that the kernel's source names.
    """

    compiled: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]

    @property
    def types(self) -> str:
        """A letter per parameter of the machine code, which may have more than the source: scratch memory."""
        named = "".join(POINTER if isinstance(argument, torch.Tensor) else "i" for argument in self.arguments)
        found = re.search(r"\.entry\s+\w+\s*\((.*?)\)", self.compiled.asm["ptx"], re.DOTALL)
        if found is None:
            raise RuntimeError("a kernel without an entry")
        return named + POINTER * (found[1].count(".param") - len(named))
