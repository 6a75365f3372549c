"""Runs a model in float64 without converting it: every operator gets wide operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trt_core.internals import TorchDispatchMode, pytree


class WideMode(TorchDispatchMode):
    """Computes everything that is floating-point in float64, and complex numbers in complex128.

    Operands are widened one operator at a time, so weights need no second copy. An operator that writes to a narrow
    tensor computes in that tensor's own type.
    """

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator on widened operands."""
        kwargs = kwargs or {}
        if _writes_to_narrow(function, args, kwargs):
            narrow = next(_written(function, args, kwargs)).dtype
            args, kwargs = pytree.tree_map_only(torch.Tensor, lambda item: _narrowed(item, narrow), (args, kwargs))
            return function(*args, **kwargs)
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return function(*args, **kwargs)


def run_wide(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function in float64.

    Raises:
        Exception: What an operator without a kernel for float64 raises, whatever that is.
    """
    mode: TorchDispatchMode = WideMode()  # type: ignore[no-untyped-call]  # its base has no annotations
    with torch.no_grad(), mode:
        return function(*args, **kwargs)


_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, torch.Tensor) and value.dtype in _WIDE:
        return value.to(_WIDE[value.dtype])
    return value


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.dtype in (torch.float64, torch.complex128) else tensor


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                yield value


def _writes_to_narrow(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(tensor.dtype in _WIDE for tensor in _written(function, args, kwargs))
