"""What stands in many fields of a program: extents, types and devices, by the names that files give them."""

from __future__ import annotations

import keyword
import re
from functools import partial
from typing import Annotated, Any, TypeAlias

import torch

from trt_core.dtypes import dtype_name
from trt_core.errors import PlanError
from trt_core.files import typed
from trt_core.files.records import Form
from trt_runtime.bindings import MAX_RANK

FACTS = "trt.model"
"""Entry of a program's metadata that holds what it says of its model; whoever saves a program cannot set it."""

RANK = "trt.rank"
SAVE = "trt.save"
"""Entries by which the program of a rank says whose it is, and what all programs of one `save_sharded` have in common;
its signature covers them, as it does not cover the manifest. Files of earlier releases have neither."""

OWNER = "trt.owner"
"""Entry by which the program of a model that talks to other ranks says which rank saved it."""

OWN_METADATA = frozenset((FACTS, RANK, SAVE, OWNER))
"""Entries that do not count among those of whoever saves a program."""

MAX_TEXT = 4096
"""Most characters of a name."""

Text: TypeAlias = Annotated[str, Form(partial(typed.text, most=MAX_TEXT))]
"""A name."""

_MOST_OF_PART = 1024

_PART = re.compile(rf"[\w-]{{1,{_MOST_OF_PART}}}")

MAX_EXTENT = 1 << 48
"""No dimension, offset or size is as large; products of a few of them still fit 64 bits where PyTorch computes them."""

UNTOLD = 1 << 26
"""Elements that an operator may make whose result has sizes that depend on data, if the caller says nothing else."""

DTYPES: dict[str, torch.dtype] = {
    dtype_name(dtype): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex32, torch.complex64),
        *(torch.complex128, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16),
        *(torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
        *(torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
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


def is_path_part(name: str) -> bool:
    """Whether a module may call a part of itself so.

    FX prints names of parts into code: `self.layers`, or `getattr(self, "0")` for what is no identifier. So they have
    no quotes, spaces, brackets or line ends, and mean nothing but themselves wherever code shows them.
    """
    return _PART.fullmatch(name) is not None and not name.startswith("__")


def is_input_name(name: str) -> bool:
    """Whether an input may be called so: as Python calls a parameter, since FX prints it as one."""
    is_short = len(name) <= _MOST_OF_PART
    return is_short and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def extent_list(value: Any, place: str) -> tuple[int, ...]:
    """Extents or strides: integers that are not negative."""
    return typed.integers(value, place, 0, MAX_EXTENT, most=MAX_RANK)


def dtype(value: Any, place: str) -> torch.dtype:
    """A data type by name."""
    return typed.choice(DTYPES, value, place, "data type")


def number_kind(value: Any, place: str) -> type:
    """A kind of number by name."""
    return typed.choice(_NUMBER_KINDS, value, place, "kind of number")


def device(value: Any, place: str) -> str:
    """A kind of device."""
    return typed.choice(dict(zip(DEVICES, DEVICES, strict=True)), value, place, "device")


Dtype: TypeAlias = Annotated[torch.dtype, Form(dtype, dtype_name)]
DeviceKind: TypeAlias = Annotated[str, Form(device)]
