"""What is wrong with the tensors that a caller provides for an engine's outputs, in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.wording import kind_of
from trt_runtime.call_shapes import CallShapes
from trt_runtime.header import PlanHeader


def check_outputs(
    header: PlanHeader,
    outputs: Sequence[Any],
    shapes: CallShapes,
    inputs: Sequence[torch.Tensor],
    device: torch.device,
    *,
    host_outputs: Collection[int] = (),
    alignment: int = 1,
) -> None:
    """Checks that an engine can write its outputs to the tensors given.

    Args:
        header: Header of the engine.
        outputs: What the caller provides.
        shapes: What the engine computes for these inputs.
        inputs: What the engine reads.
        device: The device that the engine runs on.
        host_outputs: Indices of outputs that are written on the host.
        alignment: Alignment that addresses need, in bytes.

    Raises:
        InputError: The message names the output, what it is, and what it should be.
    """
    if len(outputs) != len(header.outputs):
        raise InputError(
            f"{header.title} has {len(header.outputs)} outputs, {len(outputs)} tensors were given for them",
            hint=f"give {', '.join(map(str, header.outputs))}",
        )
    for index, value in enumerate(outputs):
        place = f"the tensor for output {index} ({header.outputs[index].name!r}) of {header.title}"
        strided = shapes.outputs[index]
        if strided is None or (index in host_outputs and device.type != "cpu"):
            raise InputError(
                f"output {index} ({header.outputs[index].name!r}) of {header.title} cannot be written in place",
                why="its shape depends on data" if strided is None else "the provider writes it on the host",
                hint="call the module, and take the output that it returns",
            )
        _check_output(place, value, header.outputs[index].dtype, strided[0], device)
        if value.data_ptr() % alignment:
            raise InputError(
                f"{place} does not begin at a multiple of {alignment} bytes",
                hint="give a tensor of its own, not a view into another one",
            )
        others = [*inputs, *outputs[:index]]
        if any(_overlap(value, other) for other in others):
            raise InputError(
                f"{place} shares memory with another tensor of the call",
                hint="give each output memory of its own",
            )


def _check_output(place: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    wanted = f"{dtype_name(dtype)} {shape} on {device}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise InputError(f"{place} is {kind_of(value)}, not a plain tensor", hint=f"give {wanted}")
    found = f"{dtype_name(value.dtype)} {tuple(value.shape)} on {value.device}"
    if found != wanted:
        raise InputError(f"{place} is {found}", hint=f"give {wanted}")
    if value.layout is not torch.strided or not value.is_contiguous() or value.is_neg():
        raise InputError(f"{place} is not contiguous", hint=f"make it with torch.empty({shape}, dtype={dtype})")
    if value.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{place} requires gradients, and engines compute none", hint="call under torch.no_grad()")


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    begin, other = left.data_ptr(), right.data_ptr()
    return begin < other + right.nbytes and other < begin + left.nbytes
