"""What is wrong with one input of a call, in a sentence that names it as the model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import InputError
from trt_core.misfits import require_fixed
from trt_core.sizes.conditions import Homes, write_extent
from trt_core.sizes.expressions import evaluate_extent, format_multiple, solve_extent
from trt_core.wording import kind_of, with_article
from trt_runtime.direct_call import is_foreign
from trt_runtime.program.fields import MAX_EXTENT
from trt_runtime.program.graph import Dimension, FixedInput, Leaf, NumberInput, TensorInput

_SYMBOLIC = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


def require_leaf(place: str, value: Any, leaf: Leaf, device: torch.device | None) -> None:
    """Checks one input by itself.

    Args:
        place: How messages call it.
        value: What was given.
        leaf: What it must be.
        device: Where tensors must lie that the leaf says are not on the CPU; None for any device of that kind.

    Raises:
        InputError: It is something else.
    """
    if isinstance(leaf, TensorInput):
        _require_tensor(place, value, leaf)
        _require_sizes(place, value, leaf)
        _require_device(place, value, leaf, device)
    elif isinstance(leaf, FixedInput):
        require_fixed(place, value, leaf.value)
    elif not _is_number(value, leaf):
        raise InputError(
            f"input {place} is {kind_of(value)}, the model was compiled for {with_article(leaf.kind.__name__)}",
            hint=f"give {with_article(leaf.kind.__name__)}, of any value",
        )


def require_relations(
    place: str, value: torch.Tensor, leaf: TensorInput, symbols: Mapping[str, int], homes: Homes
) -> None:
    """Checks sizes that follow from those of other dimensions.

    Args:
        place: How messages call the input.
        value: A tensor that fits by itself.
        leaf: What it must be.
        symbols: The sizes of the call.
        homes: Where the call shows them.

    Raises:
        InputError: A size does not follow.
    """
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if dimension.extent is None or isinstance(dimension.extent, int):
            continue
        try:
            wanted = evaluate_extent(dimension.extent, symbols)
        except (ValueError, ArithmeticError) as error:
            raise InputError(
                f"dimension {axis} of input {place} cannot be checked",
                why=str(error),
                hint="give inputs whose sizes agree, as they did when the model was captured",
            ) from error
        if isinstance(extent, int) and isinstance(wanted, int) and wanted != extent:
            rule = write_extent(dimension.extent, homes)
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {wanted}",
                why=f"the model ties it to a dimension of another input: {place}.shape[{axis}] == {rule}",
                hint="give inputs whose sizes agree, as they did when the model was captured",
            )


def describe(leaf: TensorInput) -> str:
    """What a tensor must be, in words: `a float32 tensor of shape (1 to 8, 3)`."""
    return f"{with_article(dtype_name(leaf.dtype))} tensor of shape ({', '.join(map(_range, leaf.shape))})"


def _require_tensor(place: str, value: Any, leaf: TensorInput) -> None:
    """Checks what a tensor is, apart from its sizes and where it lies."""
    if not isinstance(value, torch.Tensor):
        raise InputError(f"input {place} is {kind_of(value)}, not a tensor", hint=f"give {describe(leaf)}")
    if value.is_nested and type(value) is torch.Tensor:
        raise InputError(
            f"input {place} is a nested tensor, the model was compiled for dense tensors",
            hint="give one tensor after the other, or pad them with torch.nested.to_padded_tensor",
        )
    if is_foreign(value):
        raise InputError(
            f"input {place} is {kind_of(value)}, which computes in its own way",
            hint="engines take plain tensors: give the tensor that it is made of",
        )
    if value.layout is not torch.strided:
        raise InputError(
            f"input {place} has the layout {value.layout}, the model was compiled for dense tensors",
            hint="give it as .to_dense()",
        )
    if value.dtype is not leaf.dtype:
        name = dtype_name(leaf.dtype)
        raise InputError(
            f"input {place} has type {dtype_name(value.dtype)}, the model was compiled for {name}",
            hint=f"cast it with .to(torch.{name}), or compile the model for that type",
        )
    if value.dim() != len(leaf.shape):
        raise InputError(
            f"input {place} has rank {value.dim()}, the model was compiled for rank {len(leaf.shape)}",
            why=f"its shape is {tuple(value.shape)}",
            hint=f"give {describe(leaf)}",
        )


def _require_sizes(place: str, value: torch.Tensor, leaf: TensorInput) -> None:
    """Checks each size by itself; symbolic ones are those of whoever traces."""
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if not isinstance(extent, int):
            continue
        if not dimension.low <= extent <= dimension.high:
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, the model was compiled for {_range(dimension)}",
                why=f"its shape is {tuple(value.shape)}",
                hint="give a tensor inside the range, or compile the model with an Input of a wider range",
            )
        solved = None if dimension.low == dimension.high else solve_extent(dimension.extent, extent)
        if solved is not None and solved[1] is None:
            raise InputError(
                f"dimension {axis} of input {place} is {extent}, and must be {format_multiple(dimension.extent)}",
                why="the model was captured for such sizes",
                hint="pad the input to such a size, or capture the model with a dimension that takes every size",
            )


def _require_device(place: str, value: torch.Tensor, leaf: TensorInput, device: torch.device | None) -> None:
    if device is None or leaf.device != device.type:
        wanted, fits = torch.device(leaf.device), value.device.type == leaf.device
    else:
        wanted, fits = device, value.device == device
    if fits:
        return
    if value.device.type == "meta":
        raise InputError(
            f"input {place} is on the meta device, which holds no data to compute with",
            hint=f"give a tensor on {wanted}; shapes alone are inferred under torch's FakeTensorMode",
        )
    raise InputError(
        f"input {place} lies on {value.device}, the model was compiled for {wanted}",
        hint=f"move it with .to('{wanted}'), or compile the model for {value.device.type}",
    )


def _is_number(value: Any, leaf: NumberInput) -> bool:
    return type(value) is leaf.kind or isinstance(value, _SYMBOLIC[leaf.kind])


def _range(dimension: Dimension) -> str:
    if dimension.low == dimension.high:
        return str(dimension.low)
    return f"at least {dimension.low}" if dimension.high >= MAX_EXTENT else f"{dimension.low} to {dimension.high}"
