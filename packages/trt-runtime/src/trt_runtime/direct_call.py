"""Which calls may go straight to their engine, past PyTorch's dispatcher.

The dispatcher costs as much as the rest of a call. It is needed where somebody watches or rewrites operators: while a
graph is captured, under modes and function transforms, for subclasses of tensors and under the profiler; and where
gradients are asked for, to refuse them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.autograd import forward_ad, profiler

from trt_core.errors import InputError
from trt_core.internals import dispatch_modes
from trt_runtime.header import PlanHeader
from trt_runtime.internals import (
    FrameAction,
    FrameExecStrategy,
    function_modes,
    is_batchedtensor,
    peek_interpreter_stack,
    set_code_exec_strategy,
    tracing_state,
)

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def goes_direct(inputs: Sequence[Any]) -> bool:
    """Whether a call with these inputs means the same without the dispatcher."""
    if (
        torch.compiler.is_compiling()
        or function_modes()
        or dispatch_modes()
        or peek_interpreter_stack() is not None
        or tracing_state() is not None
        or profiler._is_profiler_enabled
        or forward_ad._current_level >= 0
    ):
        return False
    needs_gradients = torch.is_grad_enabled()
    for value in inputs:  # noqa: SIM110 - a generator costs as much as all of the above
        if type(value) not in _PLAIN or (needs_gradients and value.requires_grad):
            return False
    return True


def leave_to_python(function: Callable[..., Any]) -> None:
    """Has Dynamo leave a function alone, and all that it calls, where it meets its frame.

    That is so behind a call that it could not capture as a whole: what runs engines looks at memory, which no capture
    has. It costs a call nothing, as `torch.compiler.disable` would.
    """
    set_code_exec_strategy(function.__code__, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))


def named_range(name: str) -> contextlib.AbstractContextManager[Any]:
    """Shows what runs inside under a name, where PyTorch's profiler is on; NVTX ranges come from it."""
    if not profiler._is_profiler_enabled or torch.compiler.is_compiling() or tracing_state() is not None:
        return contextlib.nullcontext()
    return profiler.record_function(name)


def is_foreign(value: torch.Tensor) -> bool:
    """Whether a tensor is of a kind that answers operators itself, and of which an engine would see no memory.

    Fake and functional tensors are PyTorch's own, for tracing; masked, nested and distributed ones are foreign.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value.is_nested
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return False
    return kind.__name__ not in ("FakeTensor", "FunctionalTensor")


def refuse_gradients(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> None:
    """Refuses eager inputs that require gradients: a result without any would be silently wrong.

    Tensors of a graph that is being captured pass, since whoever captures decides about gradients.

    Raises:
        InputError: The message names the input, and what to do.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling() or dispatch_modes():
        return
    for index, value in enumerate(inputs):
        if type(value) in _PLAIN and value.requires_grad:
            raise InputError(
                f"input {index} ({header.inputs[index].name!r}) of {header.title} requires gradients, and engines "
                "compute none",
                hint="call the model under torch.no_grad() or torch.inference_mode(), or detach the input",
            )


def refuse_transforms(header: PlanHeader, inputs: Sequence[torch.Tensor]) -> None:
    """Refuses inputs of function transforms that engines have no rule for: a tangent would come out as zero.

    Raises:
        InputError: The message names the input, and what to do.
    """
    differentiates, transforms = forward_ad._current_level >= 0, peek_interpreter_stack() is not None
    if not (differentiates or transforms) or torch.compiler.is_compiling():
        return
    for index, value in enumerate(inputs):
        place = f"input {index} ({header.inputs[index].name!r}) of {header.title}"
        if transforms and is_batchedtensor(value):
            raise InputError(
                f"{place} is mapped over by torch.vmap, and engines cannot be",
                hint="compile the model with the mapped dimension as a batch, or map the model itself",
            )
        if differentiates and forward_ad.unpack_dual(value).tangent is not None:
            raise InputError(
                f"{place} carries a forward-mode derivative, and engines compute none",
                hint="differentiate the model itself, in PyTorch",
            )
