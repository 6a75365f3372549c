"""What is wrong with the tensors given to an engine, in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.sizes.profiles import VaryingSize, require_profile
from trt_core.wording import kind_of
from trt_runtime.bindings import extent_in_call, format_extent, format_shape, symbol_values
from trt_runtime.header import PlanHeader


def check_inputs(
    header: PlanHeader,
    inputs: Sequence[Any],
    device: torch.device,
    host_inputs: Collection[int] = (),
) -> None:
    """Checks number, types, ranks, devices and extents of the tensors given to an engine.

    Symbolic extents pass: they are checked when the engine runs.

    Args:
        header: Header of the engine.
        inputs: What the engine is called with.
        device: The device that the engine runs on; `meta` skips the check of devices.
        host_inputs: Indices of inputs that are read on the host, which may lie on the CPU as well.

    Raises:
        InputError: The message names the binding, what it is, and what it should be.
    """
    if len(inputs) != len(header.inputs):
        names = ", ".join(str(binding) for binding in header.inputs)
        raise InputError(
            f"{header.title} takes {len(header.inputs)} inputs, {len(inputs)} were given",
            hint=f"give {names}" if names else "give none",
        )
    for index, value in enumerate(inputs):
        _check_signature(header, index, value)
        on_host = index in host_inputs and value.device.type == "cpu"
        if device.type != "meta" and value.device != device and not on_host:
            raise InputError(
                f"{_name(header, index)} lies on {value.device}, {header.title} runs on {device}",
                hint=f"move it with .to('{device}')",
            )
    _check_ranges(header, inputs)
    if header.profiles:
        _check_profiles(header, inputs)
    _check_relations(header, list(inputs))


def device_of(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> torch.device:
    """Returns the device that an engine runs on when it is called with these tensors.

    Raises:
        InputError: The tensors lie on a kind of device that the engine was not built for.
    """
    for value in inputs:
        if value.device.type != "cpu":
            found = value.device
            break
    else:
        if inputs or header.device == "cpu":
            found = torch.device("cpu")
        else:
            found = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    if found.type in (header.device, "meta"):
        return found
    raise InputError(
        f"{header.title} was built for {header.device}, its inputs lie on {found}",
        hint=f"move the inputs to {header.device}, or compile the model for {found.type}; "
        "moving a compiled model does not change what its engines were built for",
    )


def _name(header: PlanHeader, index: int) -> str:
    return f"input {index} ({header.inputs[index].name!r}) of {header.title}"


def _check_signature(header: PlanHeader, index: int, value: Any) -> None:
    binding = header.inputs[index]
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"{_name(header, index)} is {kind_of(value)}, not a tensor",
            hint=f"give a tensor: {binding}",
        )
    if value.dtype is not binding.dtype:
        raise InputError(
            f"{_name(header, index)} has type {dtype_name(value.dtype)}, not {dtype_name(binding.dtype)}",
            hint=f"cast it with .to(torch.{dtype_name(binding.dtype)}), or compile for that type",
        )
    if value.is_nested:
        raise InputError(
            f"{_name(header, index)} is a nested tensor, engines take dense tensors",
            hint="give one tensor after the other, or pad them with torch.nested.to_padded_tensor",
        )
    if value.layout is not torch.strided:
        raise InputError(
            f"{_name(header, index)} has the layout {value.layout}, engines take dense tensors",
            hint="give it as .to_dense()",
        )
    if value.dim() != binding.rank:
        raise InputError(
            f"{_name(header, index)} has rank {value.dim()}, not {binding.rank}",
            why=f"its shape is {tuple(value.shape)}, the engine takes {format_shape(binding.shape)}",
        )


def _check_ranges(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> None:
    for index, (value, shape) in enumerate(zip(inputs, header.ranges, strict=True)):
        for axis, (extent, (low, _, high)) in enumerate(zip(value.shape, shape, strict=True)):
            if not isinstance(extent, int) or low <= extent <= high:
                continue
            wanted = f"exactly {low}" if low == high else f"{low} to {high}"
            raise InputError(
                f"dimension {axis} of {_name(header, index)} is {extent}, the engine was built for {wanted}",
                why=f"the shape is {tuple(value.shape)}",
                hint="give a tensor inside the range, or compile the model with an Input of a wider range",
            )


def _check_profiles(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> None:
    """All sizes together fit one profile."""
    sizes = [
        VaryingSize(
            f"dimension {axis} of {_name(header, index)}",
            extent,
            tuple((ranges[index][axis][0], ranges[index][axis][2]) for ranges in header.profiles),
        )
        for index, value in enumerate(inputs)
        for axis, extent in enumerate(value.shape)
        if isinstance(extent, int)
    ]
    if sizes:
        require_profile(sizes)


def _check_relations(header: PlanHeader, inputs: list[torch.Tensor]) -> None:
    """Dimensions that share a symbol agree."""
    if not header.symbols:
        return
    values = symbol_values(header.symbols, inputs)
    for index, (value, binding) in enumerate(zip(inputs, header.inputs, strict=True)):
        for axis, (extent, wanted) in enumerate(zip(value.shape, binding.shape, strict=True)):
            if not isinstance(wanted, (str, list)) or not isinstance(extent, int):
                continue
            expected = extent_in_call(binding, axis, values, header.title)
            if isinstance(expected, int) and extent != expected:
                known = ", ".join(f"{name} = {number}" for name, number in values.items())
                raise InputError(
                    f"dimension {axis} of {_name(header, index)} is {extent}, not {expected}",
                    why=f"the engine takes {format_extent(wanted)} there, and {known}",
                    hint="give inputs whose shared dimensions agree",
                )
