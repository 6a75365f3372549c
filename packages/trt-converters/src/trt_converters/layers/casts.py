"""Types: casts, and PyTorch's promotion rules made explicit, since networks never promote."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from trt_converters.byte_tensor import ByteTensor, as_bytes
from trt_converters.context import ConversionContext, Operand, dtype_of, is_size_number, rank_of
from trt_core import to_trt

F = TypeVar("F", bound=Callable[..., Any])


def cast(ctx: ConversionContext, value: Operand, dtype: torch.dtype) -> Any:
    """Converts a value to another type as PyTorch does: float to int truncates, any nonzero is True.

    Args:
        ctx: The context.
        value: A tensor of any shape, or a number, which may vary with the sizes of tensors.
        dtype: Target type.

    Returns:
        The value itself when it has the type already.
    """
    if is_size_number(value):
        return cast(ctx, ctx.number(value), dtype)
    if isinstance(value, int) and not dtype.is_floating_point:
        return torch.tensor(value).to(dtype)  # it wraps around where the type has no room for it
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=dtype)
    source = dtype_of(value)
    if source is dtype:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    if source is torch.uint8 and dtype is torch.int8:  # integers wrap around, where floats stop at the ends
        return cast(ctx, cast(ctx, value, torch.int32), dtype)
    if isinstance(value, ByteTensor):
        return cast(ctx, value.carrier, dtype)
    if dtype is torch.uint8:
        whole = cast(ctx, value, torch.int32) if source.is_floating_point else value
        return ByteTensor(cast(ctx, whole, torch.float32))
    if source is torch.uint8 and dtype is not torch.float32:  # it converts to floats only
        return cast(ctx, cast(ctx, value, torch.float32), dtype)
    return ctx.output(ctx.network.add_cast(value, to_trt(dtype)), "cast")


def moves_bytes(function: F) -> F:
    """Lets a function that moves a value's elements, and does not compute with them, take uint8 as well."""

    @functools.wraps(function)
    def moved(ctx: ConversionContext, value: Operand, *arguments: Any, **options: Any) -> Any:
        if dtype_of(value) is not torch.uint8:
            return function(ctx, value, *arguments, **options)
        return as_bytes(function(ctx, cast(ctx, value, torch.float32), *arguments, **options))

    return typing.cast("F", moved)


def result_type(*values: Operand) -> torch.dtype:
    """Returns the type that PyTorch promotes operands to; numbers and 0-d tensors are weak."""
    promoted: torch.dtype | None = None
    stand_ins = [_stand_in(value) for value in values]
    dimensioned = [item for item in stand_ins if isinstance(item, torch.Tensor) and item.dim()]
    scalars = [item for item in stand_ins if isinstance(item, torch.Tensor) and not item.dim()]
    numbers = [item for item in stand_ins if not isinstance(item, torch.Tensor)]
    for group in (dimensioned, scalars, numbers):
        for item in group:
            if promoted is None:
                promoted = item.dtype if isinstance(item, torch.Tensor) else torch.result_type(item, item)
                rank = item.dim() if isinstance(item, torch.Tensor) else -1
            else:
                left = torch.empty((1,) if rank > 0 else (), dtype=promoted, device="meta")
                if rank < 0:
                    promoted = torch.promote_types(promoted, torch.result_type(item, item))
                else:
                    promoted = torch.result_type(left, item)
    assert promoted is not None, "result_type needs an operand"
    return promoted


def _stand_in(value: Operand) -> torch.Tensor | int | float | bool:
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, torch.SymInt):
        return 1
    if isinstance(value, torch.SymFloat):
        return 1.0
    shape = (1,) if rank_of(value) else ()
    return torch.empty(shape, dtype=dtype_of(value), device="meta")
