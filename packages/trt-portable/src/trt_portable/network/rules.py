"""The checks that layers share: each refuses with one sentence that says which rule was broken."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from trt_portable.dims import MAX_VOLUME
from trt_portable.enums import DataType, ErrorCodeTRT
from trt_portable.errors import Refusal, is_strict

if TYPE_CHECKING:
    from trt_portable.network.layer import Extent, ITensor


def require(condition: bool, rule: str, code: ErrorCodeTRT = ErrorCodeTRT.INVALID_ARGUMENT) -> None:
    """Refuses unless the condition holds.

    Raises:
        Refusal: The condition is false.
    """
    if not condition:
        raise Refusal(rule, code)


def require_documented(condition: bool, rule: str) -> None:
    """Refuses, in strict mode alone, what the documentation forbids and working clients rely on.

    Raises:
        Refusal: The condition is false, and strict mode is on.
    """
    if is_strict():
        require(condition, rule)


def require_type(tensor: ITensor, allowed: Collection[DataType], what: str) -> None:
    """Refuses a tensor of a type that is not among the allowed ones.

    Raises:
        Refusal: Another type.
    """
    if tensor._dtype not in allowed:
        names = ", ".join(sorted(dtype.name for dtype in allowed))
        raise Refusal(f"{what} has type {tensor._dtype.name}, which is not one of {names}")


def require_volume(extents: Sequence[Extent], what: str) -> None:
    """Refuses a result of known extents that is too large for any device; extents that vary may be 0.

    Raises:
        Refusal: It has more than `MAX_VOLUME` elements.
    """
    if all(isinstance(extent, int) for extent in extents) and (volume := math.prod(extents)) > MAX_VOLUME:
        raise Refusal(f"{what} has {volume} elements; {MAX_VOLUME} are the most")


def require_equal_types(tensors: Sequence[ITensor], what: str) -> None:
    """Refuses tensors of different types: networks are strongly typed and nothing is promoted.

    Raises:
        Refusal: Two types differ.
    """
    types = [tensor._dtype for tensor in tensors]
    if len(set(types)) > 1:
        names = ", ".join(dtype.name for dtype in types)
        raise Refusal(f"{what} must have the same type, but have {names}; insert a cast")


def require_equal_ranks(tensors: Sequence[ITensor], what: str) -> None:
    """Refuses tensors of different ranks: nothing is padded on the left.

    Raises:
        Refusal: Two ranks differ.
    """
    ranks = [tensor._rank for tensor in tensors]
    if len(set(ranks)) > 1:
        raise Refusal(f"{what} must have the same rank, but have ranks {ranks}; reshape first")


def require_rank(tensor: ITensor, allowed: Collection[int], what: str) -> None:
    """Refuses a tensor of another rank.

    Raises:
        Refusal: The rank is not allowed.
    """
    if tensor._rank not in allowed:
        names = " or ".join(str(rank) for rank in sorted(allowed))
        raise Refusal(f"{what} must have rank {names}, not {tensor._rank}")


def require_minimum_rank(tensor: ITensor, minimum: int, what: str) -> None:
    """Refuses a tensor of too small a rank.

    Raises:
        Refusal: The rank is below the minimum.
    """
    if tensor._rank < minimum:
        raise Refusal(f"{what} must have rank {minimum} or more, not {tensor._rank}")


def require_tensor(
    tensor: ITensor | None,
    what: str,
    types: Collection[DataType],
    *,
    ranks: Collection[int] | None = None,
    least_rank: int = 0,
) -> None:
    """Refuses a tensor of another type or rank; None, for an optional input that is not there, passes.

    Raises:
        Refusal: The type is not among the allowed ones, or the rank is not, or is too small.
    """
    if tensor is not None:
        require_type(tensor, types, what)
        if ranks is not None:
            require_rank(tensor, ranks, what)
        require_minimum_rank(tensor, least_rank, what)


def require_broadcast(tensors: Sequence[ITensor], what: str) -> None:
    """Refuses extents that neither agree nor are 1; extents known only at run time pass.

    Raises:
        Refusal: Ranks differ or static extents clash.
    """
    require_equal_ranks(tensors, what)
    for axis, column in enumerate(zip(*(tensor._extents or () for tensor in tensors), strict=True)):
        fixed = {extent for extent in column if type(extent) is int and extent != 1}
        if len(fixed) > 1:
            raise Refusal(f"{what} cannot be broadcast on axis {axis}: extents {list(column)}")


def require_broadcast_to(tensor: ITensor, target: ITensor, what: str) -> None:
    """Refuses a tensor that does not broadcast to the shape of another one.

    Raises:
        Refusal: Ranks differ, or a static extent is neither 1 nor the target's.
    """
    require_equal_ranks((tensor, target), what)
    for axis, (extent, wanted) in enumerate(zip(tensor._extents or (), target._extents or (), strict=True)):
        if type(extent) is int and extent != 1 and type(wanted) is int and extent != wanted:
            raise Refusal(f"{what} cannot be broadcast on axis {axis}: {extent} to {wanted}")


def require_axis(axis: int, rank: int, what: str = "axis") -> None:
    """Refuses an axis outside [0, rank).

    Raises:
        Refusal: Negative or too large.
    """
    if not 0 <= axis < rank:
        raise Refusal(f"{what} {axis} is outside [0, {rank})")


def axes_of_mask(mask: int, rank: int) -> tuple[int, ...]:
    """The axes whose bits are set.

    Raises:
        Refusal: No bit is set, or one beyond the rank.
    """
    if mask <= 0:
        raise Refusal(f"the mask of axes is {mask}: at least one bit must be set")
    if mask >> rank:
        raise Refusal(f"the mask of axes {mask:#b} has bits beyond rank {rank}")
    return tuple(axis for axis in range(rank) if mask >> axis & 1)
