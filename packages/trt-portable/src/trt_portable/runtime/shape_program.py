"""The layers of an engine on tensors without data: what tells extents that a plan does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from trt_portable.plan.engine_info import EngineInfo
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.runtime.image import load_image
from trt_portable.runtime.program import Program

META: Final = torch.device("meta")


def load_shape_program(
    structure: Mapping[str, Any], info: EngineInfo, tensors: Sequence[torch.Tensor | None]
) -> Program:
    """Rebuilds layers that know the numbers of shapes, and no other weights.

    Args:
        structure: The network part of a plan.
        info: The engine part of the same plan.
        tensors: A flat tensor per use of weights.
    """
    image, layers = load_image(structure, info, META)
    slots = info.weight_slots
    numbers = [tensor if is_host_constant(slot) else None for slot, tensor in zip(slots, tensors, strict=True)]
    WeightStore(slots, layers, numbers)
    program = Program(image.calls, image.inputs, image.outputs)
    program.load_constants()
    return program
