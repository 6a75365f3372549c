"""Reads parsed JSON field by field: nothing missing, nothing unknown, nothing of another type or out of bounds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from trt_core.errors import PlanError
from trt_core.extents import Extent, check_extent
from trt_core.wording import kind_of

MAX_RANK = 64
"""Most dimensions of a tensor, as in PyTorch."""

MAX_EXTENT = 1 << 48
"""No dimension, offset or size is as large; products of a few of them still fit 64 bits where PyTorch computes them."""

UNTOLD = 1 << 26
"""Elements that an operator may make whose result has sizes that depend on data, if the caller says nothing else."""

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.complex32,
        torch.complex64,
        torch.complex128,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    )
}
"""Types that tensors of a program may have, by name."""

_NUMBER_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}

DEVICES = ("cpu", "cuda")


def malformed(place: str, why: str) -> PlanError:
    """The error for a graph that breaks the format; `place` says where in the graph."""
    return PlanError(
        "the graph of the saved program is malformed",
        why=f"{place}: {why}",
        hint="trt_runtime.save writes no such thing: the file was changed; save the model again",
    )


def fields_of(value: Any, place: str, names: Collection[str]) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        raise malformed(place, f"an object is needed, not {_show(value)}")
    if value.keys() != set(names):
        wrong = sorted(value.keys() ^ set(names))
        raise malformed(place, f"missing or unknown fields: {', '.join(wrong)[:200]}")
    return value


def list_of(value: Any, place: str, length: int | None = None) -> list[Any]:
    """A list, of a given length."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise malformed(place, f"{wanted} is needed, not {_show(value)}")
    return value


def integer(value: Any, place: str, low: int, high: int) -> int:
    """An integer between two bounds, both included."""
    if type(value) is not int or not low <= value <= high:
        raise malformed(place, f"an integer from {low} to {high} is needed, not {_show(value)}")
    return value


def extent_list(value: Any, place: str) -> tuple[int, ...]:
    """Extents or strides: integers that are not negative."""
    items = list_of(value, place)
    if len(items) > MAX_RANK:
        raise malformed(place, f"{len(items)} dimensions are more than {MAX_RANK}")
    return tuple(integer(item, place, 0, MAX_EXTENT) for item in items)


def text(value: Any, place: str, most: int = 4096) -> str:
    """A string."""
    if not isinstance(value, str) or len(value) > most:
        raise malformed(place, f"a string is needed, not {_show(value)}")
    return value


def flag(value: Any, place: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise malformed(place, f"true or false is needed, not {_show(value)}")
    return value


def dtype(value: Any, place: str) -> torch.dtype:
    """A data type by name."""
    found = DTYPES.get(value) if isinstance(value, str) else None
    if found is None:
        raise malformed(place, f"{_show(value)} is no data type")
    return found


def dtype_text(value: torch.dtype) -> str:
    """The name of a data type."""
    return str(value).removeprefix("torch.")


def number_kind(value: Any, place: str) -> type:
    """A kind of number by name."""
    found = _NUMBER_KINDS.get(value) if isinstance(value, str) else None
    if found is None:
        raise malformed(place, f"{_show(value)} is no kind of number")
    return found


def device(value: Any, place: str) -> str:
    """A kind of device."""
    if value not in DEVICES:
        raise malformed(place, f"{_show(value)} is no device")
    return str(value)


def extent(value: Any, place: str, symbols: Collection[str]) -> Extent:
    """An extent, whose symbols are all known."""
    try:
        check_extent(value, symbols)
    except ValueError as error:
        raise malformed(place, str(error)) from error
    return value  # type: ignore[no-any-return]  # just checked


def _show(value: Any) -> str:
    return f"{value!r:.80}" if isinstance(value, (str, int, float, bool, type(None))) else kind_of(value)
