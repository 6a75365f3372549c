"""What is wrong with the tensors given to an engine or a program, in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.sizes.expressions import evaluate_extent, format_extent
from trt_core.sizes.profiles import VaryingSize, require_profile
from trt_core.wording import kind_of, with_article
from trt_runtime.bindings import extent_in_call, symbol_values
from trt_runtime.direct_call import is_foreign
from trt_runtime.header import PlanHeader

_ENDLESS: Final = 1 << 48
"""A dimension of which the bound is as large takes every size."""


def require_tensor(
    place: str, value: Any, dtype: torch.dtype, bounds: Sequence[tuple[int, int]], meant_for: str
) -> None:
    """Checks what a tensor is, apart from where it lies.

    Symbolic extents pass: they are those of whoever traces.

    Args:
        place: How messages call it.
        value: What was given.
        dtype: Its type.
        bounds: Smallest and largest size of each dimension.
        meant_for: Who takes it, for messages: "the engine was built for".

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, torch.Tensor):
        wanted = f"{with_article(dtype_name(dtype))} tensor of shape ({', '.join(map(_range, bounds))})"
        raise InputError(f"{place} is {kind_of(value)}, not a tensor", hint=f"give {wanted}")
    if value.is_nested and type(value) is torch.Tensor:
        raise InputError(
            f"{place} is a nested tensor, {meant_for} dense tensors",
            hint="give one tensor after the other, or pad them with torch.nested.to_padded_tensor",
        )
    if is_foreign(value):
        raise InputError(
            f"{place} is {kind_of(value)}, which computes in its own way",
            hint="engines take plain tensors: give the tensor that it is made of",
        )
    if value.layout is not torch.strided:
        raise InputError(
            f"{place} has the layout {value.layout}, {meant_for} dense tensors", hint="give it as .to_dense()"
        )
    if value.dtype is not dtype:
        name = dtype_name(dtype)
        raise InputError(
            f"{place} has type {dtype_name(value.dtype)}, {meant_for} {name}",
            hint=f"cast it with .to(torch.{name}), or compile the model for that type",
        )
    if value.dim() != len(bounds):
        raise InputError(
            f"{place} has rank {value.dim()}, {meant_for} rank {len(bounds)}",
            why=f"its shape is {tuple(value.shape)}",
            hint=f"give a tensor of shape ({', '.join(map(_range, bounds))})",
        )
    for axis, (extent, (low, high)) in enumerate(zip(value.shape, bounds, strict=True)):
        if isinstance(extent, int) and not low <= extent <= high:
            raise InputError(
                f"dimension {axis} of {place} is {extent}, {meant_for} {_range((low, high))}",
                why=f"its shape is {tuple(value.shape)}",
                hint="give a tensor inside the range, or compile the model with an Input of a wider range",
            )


def _range(bounds: tuple[int, int]) -> str:
    low, high = bounds
    if low == high:
        return str(low)
    return f"at least {low}" if high >= _ENDLESS else f"{low} to {high}"


def check_inputs(
    header: PlanHeader, inputs: Sequence[Any], device: torch.device, host_inputs: Collection[int] = ()
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
    bounds = header.bounds
    for index, value in enumerate(inputs):
        require_tensor(
            _name(header, index), value, header.inputs[index].dtype, bounds[index], "the engine was built for"
        )
        on_host = index in host_inputs and value.device.type == "cpu"
        if device.type != "meta" and value.device != device and not on_host:
            raise InputError(
                f"{_name(header, index)} lies on {value.device}, {header.title} runs on {device}",
                hint=f"move it with .to('{device}')",
            )
    if header.profiles:
        _check_profiles(header, inputs)
    _check_relations(header, list(inputs))


def check_places(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> None:
    """Checks that what a call writes to caches lies inside of them, before anything is written.

    Args:
        header: Header of an engine for the CPU.
        inputs: What it is called with; they fit otherwise.

    Raises:
        InputError: A row would go to a place that a cache does not have.
    """
    symbols = symbol_values(header.symbols, list(inputs))
    numbers: dict[tuple[int, bool], list[int]] = {}
    seen = set()  # layers of a model write to the same places of their caches
    for place in header.places:
        rows = place.rows if isinstance(place.rows, int) else evaluate_extent(place.rows, symbols)
        length = inputs[place.cache].shape[place.axis]
        key, source = (place.source, place.by_batch), inputs[place.source].reshape(-1)
        what = *key, place.offset, place.wraps, rows, length
        if what in seen or not rows or not source.numel():
            continue
        seen.add(what)
        if key not in numbers:
            numbers[key] = (source if place.by_batch else source[:1]).tolist()
        for row, number in enumerate(numbers[key]):
            given = number + place.offset
            first = given + length if place.wraps and given < 0 else given
            if not 0 <= first <= length - rows:
                last = f" to {given + rows - 1}" if rows > 1 else ""
                whose = f" in row {row} of the batch" if len(numbers[key]) > 1 else ""
                name = _name(header, place.cache)
                raise InputError(
                    f"{name} is a cache of {length} places, and a call writes to {given}{last}{whose}",
                    why=f"{_name(header, place.source)} says where it begins",
                    hint="begin anew, or compile the model with a larger cache",
                )


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
