"""A program together with the tensors and plans that it holds: what is saved, and what a loaded module is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trt_runtime.program.graph import Program


@dataclass(frozen=True)
class CapturedProgram:
    """A program together with what fills its sections.

    Attributes:
        program: The graph; layout of tensors and numbers of sections are not filled in.
        tensors: The tensors of the graph, in its order.
        plans: The plan of each engine, (bytes,), uint8.
    """

    program: Program
    tensors: tuple[torch.Tensor, ...]
    plans: tuple[torch.Tensor, ...]
