"""What layers make of symbolic extents, said outright.

Running a layer's definition on symbols costs milliseconds, and more the longer the expressions are, because PyTorch
asks of each of them whether it is 0, 1, or equal to another one. Most layers leave extents as they are, broadcast them
or put them elsewhere, which needs none of these answers. Every function here returns None where the definition has to
run: for constant extents (which cost nothing), for numbers known to the host, and where symbols leave the answer open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from trt_portable.enums import DataType
from trt_portable.network.tensor import Facts, ITensor

if TYPE_CHECKING:
    from trt_portable.network.inference import Symbols


def are_symbolic(tensors: Sequence[ITensor | None]) -> TypeGuard[Sequence[ITensor]]:
    """Whether all shapes are valid, one of them is symbolic, and the host does not know the numbers of all tensors."""
    return (
        all(tensor is not None and tensor._extents is not None for tensor in tensors)
        and not all(tensor is None or tensor._is_static for tensor in tensors)
        and not all(tensor is None or tensor._host is not None for tensor in tensors)
    )


def broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...] | None:
    """The extents of shapes of one rank, broadcast; None where two that are not 1 are not the same expression."""
    found = []
    for column in zip(*shapes, strict=True):
        others = [extent for extent in column if type(extent) is not int or extent != 1]
        if any(extent != others[0] for extent in others[1:]):
            return None
        found.append(others[0] if others else 1)
    return tuple(found)


def pointwise(tensors: Sequence[ITensor | None], dtype: DataType) -> tuple[Facts, ...] | None:
    """The output of a layer that broadcasts its inputs."""
    if not are_symbolic(tensors):
        return None
    extents = broadcast([tensor._extents or () for tensor in tensors])
    return None if extents is None else (Facts(extents, dtype, None),)


def like_first(tensors: Sequence[ITensor | None]) -> tuple[Facts, ...] | None:
    """The output of a layer that is as large as its first input, and of its type, whatever the others are."""
    return (Facts(tensors[0]._extents or (), tensors[0]._dtype, None),) if are_symbolic(tensors) else None


def reduced(tensor: ITensor, axes: Sequence[int], keep: bool) -> tuple[Facts, ...] | None:
    """The output of a layer that reduces axes, dropped or kept with extent 1."""
    if not are_symbolic([tensor]):
        return None
    extents = tuple(
        1 if axis in axes else extent for axis, extent in enumerate(tensor._extents or ()) if keep or axis not in axes
    )
    return (Facts(extents, tensor._dtype, None),)


def gathered(data: ITensor, indices: ITensor, axis: int) -> tuple[Facts, ...] | None:
    """The output of a layer that replaces an axis by the axes of indices."""
    if not are_symbolic([data, indices]):
        return None
    around = data._extents or ()
    return (Facts((*around[:axis], *(indices._extents or ()), *around[axis + 1 :]), data._dtype, None),)


def joined(tensors: Sequence[ITensor | None], axis: int, symbols: Symbols) -> tuple[Facts, ...] | None:
    """The output of a layer that joins tensors; of one axis PyTorch lets empty ones pass beside others."""
    if not are_symbolic(tensors) or tensors[0]._rank < 2:
        return None
    shapes = [tensor._extents or () for tensor in tensors]
    first = shapes[0]
    if any(shape[i] != first[i] for shape in shapes[1:] for i in range(len(first)) if i != axis):
        return None
    total: Any = sum(symbols.integer(shape[axis]) for shape in shapes)
    return (Facts((*first[:axis], symbols.expression(total), *first[axis + 1 :]), tensors[0]._dtype, None),)


def multiplied(
    left: ITensor, right: ITensor, leading: int, rows: int | None, columns: int | None
) -> tuple[Facts, ...] | None:
    """The output of a product of matrices.

    Args:
        left: The first operand.
        right: The second one.
        leading: How many axes of both are broadcast.
        rows: The axis of the first operand that stays, -2 or -1; None for a vector.
        columns: The axis of the second operand that stays; None for a vector.
    """
    if not are_symbolic([left, right]):
        return None
    ours, theirs = left._extents or (), right._extents or ()
    batch = broadcast([ours[:leading], theirs[:leading]])
    if batch is None or ours[-2 if rows == -1 else -1] != theirs[-1 if columns == -2 else -len(theirs[leading:])]:
        return None
    kept = (*(() if rows is None else (ours[rows],)), *(() if columns is None else (theirs[columns],)))
    return (Facts((*batch, *kept), left._dtype, None),)
