"""Data types of PyTorch beside those of TensorRT."""

from __future__ import annotations

from typing import Any, Final

import torch

from trt_core import trt
from trt_core.errors import InputError
from trt_core.wording import did_you_mean

TRT_NAMES: Final[dict[torch.dtype, str]] = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int8: "INT8",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.float8_e4m3fn: "FP8",
}
"""PyTorch type to the name of TensorRT's `DataType` member. Names are stable over versions; values are not promised."""

_TORCH_TYPES: Final[dict[str, torch.dtype]] = {name: dtype for dtype, name in TRT_NAMES.items()}

FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Floating-point types that TensorRT computes in."""

INTEGERS: Final = frozenset({torch.int32, torch.int64})
"""Integer types that TensorRT computes in."""

_SPELLINGS: Final[dict[str, torch.dtype]] = {
    "float": torch.float32,
    "fp32": torch.float32,
    "f32": torch.float32,
    "half": torch.float16,
    "fp16": torch.float16,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "double": torch.float64,
    "int": torch.int32,
    "i32": torch.int32,
    "long": torch.int64,
    "i64": torch.int64,
}
_NAMES: Final = (*_SPELLINGS, *(str(dtype).removeprefix("torch.") for dtype in TRT_NAMES))


def to_trt(dtype: torch.dtype) -> Any:
    """Returns the provider's `DataType` for a PyTorch type.

    Raises:
        InputError: TensorRT has no such type.
    """
    name = TRT_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None:
        raise InputError(
            f"TensorRT has no data type for {dtype}",
            why=f"it has {', '.join(str(known) for known in TRT_NAMES)}",
            hint="cast the tensor; `truncate_long_and_double=True` narrows float64 to float32",
        )
    return getattr(trt.DataType, name)


def from_trt(dtype: Any) -> torch.dtype:
    """Returns the PyTorch type of a provider's `DataType`.

    Raises:
        InputError: PyTorch has no such type (4-bit types and E8M0 live only inside networks).
    """
    name = getattr(dtype, "name", None)
    known = _TORCH_TYPES.get(name) if isinstance(name, str) else None
    if known is None:
        raise InputError(f"PyTorch has no data type for TensorRT's {name or repr(dtype)}")
    return known


def parse_dtype(spec: Any) -> torch.dtype:
    """Reads a data type: a `torch.dtype`, a provider's `DataType`, one of NumPy's, or a name (`"float16"`, `"half"`).

    Raises:
        InputError: The argument names no data type.
    """
    if isinstance(spec, torch.dtype):
        return spec
    if isinstance(spec, str):
        name = spec.removeprefix("torch.").lower()
        found = _SPELLINGS.get(name) or getattr(torch, name, None)
        if isinstance(found, torch.dtype):
            return found
    elif getattr(spec, "name", None) in _TORCH_TYPES:
        return from_trt(spec)
    elif type(spec).__module__.partition(".")[0] == "numpy" or getattr(spec, "__module__", "") == "numpy":
        found = getattr(torch, getattr(spec, "__name__", "") or getattr(spec, "name", ""), None)
        if isinstance(found, torch.dtype):
            return found
    near = did_you_mean(spec.removeprefix("torch.").lower(), _NAMES) if isinstance(spec, str) else ""
    raise InputError(
        f"{spec!r} is not a data type", hint=near or "give a torch.dtype such as torch.float16, or its name"
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the short name, `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_of_weights(model: torch.nn.Module) -> torch.dtype | None:
    """Returns the type of a model's first floating-point parameter; None where it has none."""
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), None)
