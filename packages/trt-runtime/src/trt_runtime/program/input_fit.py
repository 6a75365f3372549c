"""What is wrong with one input of a call, in a sentence that names it as the model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trt_core.errors import InputError
from trt_core.sizes.conditions import Homes, write_extent
from trt_core.sizes.expressions import evaluate_extent, format_multiple, solve_extent
from trt_core.wording import kind_of, with_article
from trt_runtime.input_check import require_tensor
from trt_runtime.program.graph import FixedInput, Leaf, NumberInput, TensorInput

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
        bounds = [(dimension.low, dimension.high) for dimension in leaf.shape]
        require_tensor(f"input {place}", value, leaf.dtype, bounds, "the model was compiled for")
        _require_multiples(place, value, leaf)
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


def _require_multiples(place: str, value: torch.Tensor, leaf: TensorInput) -> None:
    """Checks each size by itself; symbolic ones are those of whoever traces."""
    for axis, (extent, dimension) in enumerate(zip(value.shape, leaf.shape, strict=True)):
        if not isinstance(extent, int):
            continue
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


def require_fixed(place: str, value: Any, known: Any) -> None:
    """Checks an input whose value is part of the compiled model.

    Args:
        place: Which input it is.
        value: What was given.
        known: What the model was captured with: a number, a string, None, ...

    Raises:
        InputError: Another value was given, or one of another type.
    """
    if type(value) is type(known) and (value == known or (value != value and known != known)):
        return
    raise InputError(
        f"input {place} is {value!r:.60}, the model was compiled for {known!r:.60}",
        why="capturing the model has fixed the values of inputs that are not tensors",
        hint="give that value, compile once for each value, or make it a tensor",
    )


def misfit(place: str, value: Any, wanted: str) -> InputError:
    """Returns the error for an input that is nested otherwise.

    Args:
        place: Which input it is.
        value: What was given.
        wanted: What it should be, such as `"a tuple of 2"`.
    """
    given = kind_of(value)
    if isinstance(value, Mapping):
        given += f" of {', '.join(map(repr, value))}"
    elif isinstance(value, (tuple, list)):
        given += f" of {len(value)}"
    return InputError(
        f"input {place} is {given}, the model was compiled for {wanted}",
        hint="nest the inputs as they were when the model was captured",
    )
