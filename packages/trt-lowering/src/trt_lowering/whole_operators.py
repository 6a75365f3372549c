"""Keeps composite operators whole while AOTAutograd traces, so that converters see what the model called.

Below autograd PyTorch's dispatcher runs a composite operator (`linear`, `scaled_dot_product_attention`) as the
operators that it is made of. `torch.export` keeps such operators by swapping their composite kernel for one that
declines, for the time of a trace; AOTAutograd obeys the same swap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from trt_core.internals import OpOverload
from trt_lowering.decomposition_table import is_composite
from trt_lowering.operator_traits import SILENT_ALIASES, mutated_arguments


@contextlib.contextmanager
def keep_whole(operators: Iterable[OpOverload]) -> Iterator[None]:
    """Lets a trace below autograd record composite operators as they are called.

    Operators that are not composite are recorded anyway, and ignored here; so are those that write to an argument or
    return a view by their schema, which PyTorch must take apart to make a graph functional.

    The swap is seen by every thread that traces. Dynamo traces under its own lock, so backends need no other.

    Args:
        operators: What to keep.
    """
    from trt_lowering.internals import composites_replaced  # costly to import

    kept = {operator: _answer(operator) for operator in operators if _is_keepable(operator)}
    with composites_replaced(kept):
        yield


def _is_keepable(operator: Any) -> bool:
    if not isinstance(operator, OpOverload) or not is_composite(operator) or mutated_arguments(operator):
        return False
    return not any(argument.alias_info is not None for argument in operator._schema.arguments)


def _answer(operator: OpOverload) -> Callable[..., Any]:
    """Returns the composite kernel for the time of the trace: it declines unless this call must be taken apart."""
    name = operator._schema.name
    if name in SILENT_ALIASES:
        return _composite_unless(operator, lambda *args: name == "aten::einsum" and len(args[1]) > 1)
    if name in ("aten::batch_norm", "aten::native_batch_norm"):  # training writes to statistics without declaring it
        return _composite_unless(operator, lambda *args: not args[5])
    if name == "aten::instance_norm":
        return _composite_unless(operator, lambda *args: args[3] is None)
    return _composite_unless(operator, lambda *args: True)


def _composite_unless(operator: OpOverload, is_kept: Callable[..., bool]) -> Callable[..., Any]:
    from trt_lowering.internals import composite_kernel

    composite: Callable[..., Any] = composite_kernel(operator)  # looked up now, before the swap

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if is_kept(*args) and not any(map(is_distributed, (*args, *kwargs.values()))):
            return NotImplemented
        return composite(*args, **kwargs)

    return kernel


def is_distributed(value: Any) -> bool:
    """Whether a value is a `DTensor`, which knows how to shard the parts of a composite operator, and not the whole."""
    return isinstance(value, torch.Tensor) and type(value).__module__.startswith("torch.distributed")
