"""What stands before every call of a compiled model, whether it was built here or loaded: inputs are read and refused.

`trt_frontends` returns a graph of engines and PyTorch blocks, `load` a program of steps. Both are called alike, check
alike, and stay on the device and in the types that they were compiled for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from trt_core.errors import InputError
from trt_runtime.module import TRTModule
from trt_runtime.program.input_memory import HeldTensor
from trt_runtime.program.input_reader import InputReader


class Door:
    """Reads the inputs of calls, and refuses those that do not fit.

    Args:
        reader: Knows what fits.
        held: The tensors that the model holds.
        has_engines: Whether engines are part of it, which compute no gradients.
    """

    def __init__(self, reader: InputReader, held: Iterable[HeldTensor], *, has_engines: bool) -> None:
        self.reader = reader
        self._has_engines = has_engines
        self._memory = reader.memory_of(held)
        self._engine_checks = reader.is_in_engine

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Checks the inputs of a call and returns them flat.

        Raises:
            InputError: One does not fit, requires gradients, or shares memory that is written to.
        """
        flat = self.reader.read(args, kwargs)
        if self._has_engines and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.reader.refuse_gradients(flat)
        if self._memory is not None:
            self._memory.require_apart(flat)
        return flat

    def call_engine(self, engine: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Calls the engine that is the whole model with tensors as they come.

        Args:
            engine: Runs it.
            args: The inputs, all by position.

        Raises:
            InputError: One does not fit; told in terms of the model's own inputs.
            ExecutionError: The engine failed.
        """
        if not self._engine_checks:
            self.reader.read(args, {})
        try:
            return engine(*args)
        except InputError:
            self.read(args, {})  # says the same of the model's own inputs
            raise


def refuse_moves(
    module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], what: str, device: torch.device | None = None
) -> None:
    """Refuses to move or cast a model whose operators and engines were compiled for a device and for types.

    Args:
        module: The model.
        change: What `nn.Module.to`, `half` and their kin do to each tensor.
        what: How messages call it, with its article.
        device: Where its engines run; by default the present one of their kind.

    Raises:
        InputError: A tensor of the model, or what its engines take, would become another one.
    """
    engines = [child for child in module.modules() if isinstance(child, TRTModule)]
    plans = {engine.plan for engine in engines}
    held = {
        (tensor.dtype, tensor.device) for tensor in (*module.parameters(), *module.buffers()) if tensor not in plans
    }
    for engine in engines:
        place = device or torch.empty(0, device=engine.header.device).device
        held.update((binding.dtype, place) for binding in engine.header.inputs)
    for dtype, at in sorted(held, key=str):
        moved = change(torch.empty(0, dtype=dtype, device=at))
        if (moved.dtype, moved.device) != (dtype, at):
            raise InputError(
                f"{what} stays what it was compiled for: {dtype} on {at} cannot become {moved.dtype} on {moved.device}",
                hint="compile the model for that device and type",
            )
