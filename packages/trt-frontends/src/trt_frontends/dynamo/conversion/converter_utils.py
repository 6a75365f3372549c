"""What converters of scripts are helped by, under the module name that they import it from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_converters import layers
from trt_core import from_trt, trt
from trt_frontends.dynamo.conversion.registration import SourceIR

__all__ = [
    "SourceIR",
    "broadcastable",
    "cast_trt_tensor",
    "extend_attr_to_tuple",
    "get_axes_for_reduce_op",
    "get_positive_dim",
    "get_trt_tensor",
    "has_dynamic_shape",
    "set_layer_name",
]


def get_trt_tensor(ctx: Any, input_val: Any, name: str = "", dtype: Any = None, min_rank: int = 0) -> Any:
    """Returns a value as a `trt.ITensor`; what is known while building becomes a constant.

    Args:
        ctx: The context.
        input_val: A `trt.ITensor`, a tensor or array of any shape, a number, or numbers in a list.
        name: Not used: layers are named after nodes.
        dtype: Type of the constant, PyTorch's, NumPy's or TensorRT's; that of the value where it is None.
        min_rank: Least number of axes; those that are missing come first, with one element.

    Raises:
        ConversionError: No constant can have the type.
    """
    value = input_val
    if not hasattr(value, "is_shape_tensor"):
        value = torch.as_tensor(value)
        value = value if dtype is None else value.to(_torch_type(dtype))
    value = value if len(value.shape) >= min_rank else layers.with_rank(ctx, value, min_rank)
    return ctx.tensor(value)


def cast_trt_tensor(
    ctx: Any, input_val: Any, dtype: Any, name: str = "", target: Any = None, source_ir: SourceIR | None = None
) -> Any:
    """Returns a value as a `trt.ITensor` of a type, PyTorch's, NumPy's or TensorRT's; see `get_trt_tensor`."""
    return ctx.tensor(layers.cast(ctx, get_trt_tensor(ctx, input_val), _torch_type(dtype)))


def _torch_type(dtype: Any) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if type(dtype).__name__ == "DataType":
        return from_trt(dtype)
    return torch.empty(0, dtype=getattr(torch, str(getattr(dtype, "__name__", dtype)))).dtype


def set_layer_name(layer: Any, target: Any, name: str, source_ir: SourceIR | None = None) -> None:
    """Names a layer after its operator and the node that it comes from."""
    layer.name = f"[{getattr(target, '__name__', target)}]-[{name}]"


def get_positive_dim(dim: int | Sequence[int], dim_size: int) -> int | tuple[int, ...]:
    """Returns axes counted from the front, of a tensor of `dim_size` axes."""
    return dim % dim_size if isinstance(dim, int) else tuple(axis % dim_size for axis in dim)


def get_axes_for_reduce_op(dim: int | Sequence[int]) -> int:
    """Returns axes as the bits that TensorRT's layers take them as."""
    return sum(1 << axis for axis in {*((dim,) if isinstance(dim, int) else dim)})


def has_dynamic_shape(shape: Sequence[int]) -> bool:
    """Whether an extent of a shape is not known while building."""
    return -1 in tuple(shape)


def extend_attr_to_tuple(val: Any, num_elem: int) -> tuple[Any, ...]:
    """Returns a value for each axis: sequences of one value, and values, are repeated."""
    values = tuple(val) if isinstance(val, (list, tuple)) else (val,)
    return values * num_elem if len(values) == 1 else values


def broadcastable(a: Any, b: Any) -> bool:
    """Whether the shapes of two tensors can be combined element by element, with one element repeated."""
    return all(left == right or 1 in (left, right) for left, right in zip(a.shape[::-1], b.shape[::-1], strict=False))


def __getattr__(name: str) -> Any:
    if name == "TRTTensor":  # asks for the provider, which importing this must not
        return trt.ITensor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
