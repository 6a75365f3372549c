"""What stands in front of kernels that do not look at their operands: raw addresses, packed weights, codes.

PyTorch's ordinary operators compare extents themselves. Those that it has for its own compilers trust whoever calls
them, and some end the process on numbers that cannot be divided. A plan may come from anyone, so each such kernel is
called behind `require_operands`, on the extents of the tensors at hand.
"""

from __future__ import annotations

from typing import Final

import torch

from trt_portable.enums import ErrorCodeTRT
from trt_portable.errors import Refusal


def require_operands(are_right: bool, kernel: str, *operands: torch.Tensor | None) -> None:
    """Refuses operands that a kernel would read or write beyond.

    Args:
        are_right: Whether the kernel stays inside of them.
        kernel: How messages call it.
        operands: What messages show.

    Raises:
        Refusal: They are wrong.
    """
    if not are_right:
        shown = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in operands if x is not None)
        raise Refusal(f"{kernel} cannot take operands of {shown}", ErrorCodeTRT.FAILED_EXECUTION)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    factor: float,
) -> torch.Tensor:
    """Attention (..., H, S, D) by PyTorch's kernel, which reads as many values as there are keys, whatever there is.

    Raises:
        Refusal: Extents or types do not fit each other.
    """
    if type(query) is torch.Tensor:  # while a run is traced the compiler's own operators are asked
        _require_attention(query, key, value, mask)
        if not (query.numel() and key.shape[-2] and value.shape[-1]):  # which kernels divide by
            return query.new_zeros((*query.shape[:-1], value.shape[-1]))
    query, key, value = map(_along_rows, (query, key, value))
    mask = None if mask is None else _along_rows(mask)
    if mask is not None and isinstance(mask.shape[-1], torch.SymInt):
        mask = _with_room(mask, query.dtype)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, 0.0, is_causal, scale=factor, enable_gqa=query.shape[-3] != key.shape[-3]
    )


def _along_rows(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose rows lie densely: PyTorch has fused kernels of attention for no others, and multiplies apart."""
    step: int | torch.SymInt = x.stride(-1)
    is_dense = isinstance(step, int) and (step == 1 or x.shape[-1] == 1)
    return x if is_dense else x.clone(memory_format=torch.contiguous_format)


def _with_room(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores, whose rows begin at multiples of 16 bytes whatever their length is.

    PyTorch asks whether they do, and whether what was traced holds for other lengths hangs on the answer. It asks, too,
    whether rows lie densely, so they never do.
    """
    if mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).to(dtype)
    length = mask.shape[-1]
    room = (length // BIAS_MULTIPLE + 1) * BIAS_MULTIPLE
    return torch.nn.functional.pad(mask, (0, room - length))[..., :length]


BIAS_MULTIPLE: Final = 8
"""Elements at multiples of which rows of what is added to scores begin for fused kernels: 16 bytes."""


def _require_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> None:
    *batch, heads, rows, depth = query.shape
    *others, groups, columns, width = key.shape
    fits = (
        others == batch
        and list(value.shape[:-1]) == [*batch, groups, columns]
        and width == depth
        and groups > 0
        and heads % groups == 0
        and key.dtype is query.dtype is value.dtype
        and (mask is None or _broadcasts(mask.shape, (*batch, heads, rows, columns)))
    )
    require_operands(fits, "attention", query, key, value, mask)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    missing = len(target) - len(shape)
    return missing >= 0 and all(have in (1, want) for have, want in zip(shape, target[missing:], strict=True))


def divide(left: torch.Tensor, right: torch.Tensor, rounding_mode: str) -> torch.Tensor:
    """The quotient of integers, rounded towards zero (``trunc``) or down (``floor``).

    The least integer by -1 has no quotient in its type, and processors end the process there; it is the least integer,
    as two's complement has it and GPUs compute it.
    """
    if right.device.type != "cpu" or type(right) is not torch.Tensor or type(left) is not torch.Tensor:
        return torch.div(left, right, rounding_mode=rounding_mode)
    is_minus_one = right == -1
    if not is_minus_one.any():
        return torch.div(left, right, rounding_mode=rounding_mode)
    quotient = torch.div(left, right.masked_fill(is_minus_one, 1), rounding_mode=rounding_mode)
    return torch.where(is_minus_one, quotient.neg(), quotient)
