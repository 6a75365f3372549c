"""Inputs of the zoo's models. Batch and length vary in dynamic cases."""

from __future__ import annotations

import torch

from trt_core import Input

VOCABULARY = 99
"""Size of every small vocabulary."""

BATCH = (1, 2, 4)
LENGTH = (3, 8, 16)
"""(min, opt, max) extents."""

Extent = int | tuple[int, int, int]


def tensor(*shape: Extent, dtype: torch.dtype = torch.float32, domain: tuple[float, float] = (-1, 1)) -> Input:
    """Returns an input.

    Args:
        shape: Extents; (min, opt, max) where one varies.
        dtype: Element type.
        domain: Half-open interval that values are drawn from.
    """
    low, best, high = (tuple(e if isinstance(e, int) else e[which] for e in shape) for which in range(3))
    return Input(min_shape=low, opt_shape=best, max_shape=high, dtype=dtype, tensor_domain=domain)


def fixed(spec: Input) -> Input:
    """Returns the static input at the optimum of a range."""
    return Input(spec.opt_shape, dtype=spec.dtype, format=spec.format, tensor_domain=spec.tensor_domain)


def typed(spec: Input, dtype: torch.dtype) -> Input:
    """Returns the input of another element type."""
    return Input(
        min_shape=spec.min_shape,
        opt_shape=spec.opt_shape,
        max_shape=spec.max_shape,
        dtype=dtype,
        format=spec.format,
        tensor_domain=spec.tensor_domain,
    )


def image(size: int, channels: int = 3) -> Input:
    """Returns pictures (N, C, size, size)."""
    return tensor(BATCH, channels, size, size)


def integers(*shape: Extent, high: int = VOCABULARY, low: int = 0) -> Input:
    """Returns int64 numbers in [low, high)."""
    return tensor(*shape, dtype=torch.int64, domain=(low, high))


def token_ids(length: Extent = LENGTH, high: int = VOCABULARY) -> Input:
    """Returns token ids (N, L); none of them is one of the first, which models use for padding."""
    return integers(BATCH, length, high=high, low=3)


def text(length: Extent = LENGTH) -> dict[str, Input]:
    """Returns what encoders take: token ids, and a mask that lets every token take part."""
    return {"input_ids": token_ids(length), "attention_mask": integers(BATCH, length, low=1, high=2)}


def two_texts(length: Extent = LENGTH) -> dict[str, Input]:
    """Returns what encoder-decoders take."""
    return {"input_ids": token_ids(length), "decoder_input_ids": token_ids(length)}
