"""One call of a compiled model, whether it was built here or loaded: inputs in, engines and operators run, results out.

`trt_frontends` returns a graph of engines and PyTorch blocks, `load` a program of steps. What computes is theirs; what
stands before and after it is here, so both accept and refuse the same calls, compute under the same conditions, and
stay on the device and in the types that they were compiled for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trt_core.device import is_autocast_on, present_device, without_autocast
from trt_core.errors import InputError
from trt_runtime.direct_call import goes_direct
from trt_runtime.module import TRTModule, engine_modules
from trt_runtime.program.input_memory import HeldTensor
from trt_runtime.program.input_reader import InputReader

Nest = Callable[[Any], Any]
"""Makes of what was computed what the model returns."""


@dataclass(frozen=True)
class SoleEngine:
    """The engine that is a whole model: it takes the inputs as they come.

    Attributes:
        children: Where it is looked up in each call: somebody may put another module there, or hooks on it.
        name: Its name there.
        nest: Makes the model's result of what it returns; None where that is the result.
    """

    children: Mapping[str, nn.Module | None]
    name: str
    nest: Nest | None


class ModelCall:
    """Calls of one model. It does not hold the module, so that a program is freed at once with its last holder.

    Args:
        reader: Knows what fits.
        held: The tensors that the model holds.
        compute: Takes the module and the flat inputs one by one, and returns what `nest` takes.
        nest: Makes the model's result of it; None where it is the result.
        has_engines: Whether engines are part of the model, which compute no gradients.
        has_operators: Whether PyTorch computes parts of it, for which autocast is turned off.
        keeps_gradients: Whether the operators are recorded for gradients.
        sole_engine: The engine that is the whole model.
        graphed: Runs `compute` as CUDA graphs, on a list of flat inputs.
    """

    def __init__(
        self,
        reader: InputReader,
        held: Iterable[HeldTensor],
        compute: Callable[..., Any],
        nest: Nest | None,
        *,
        has_engines: bool,
        has_operators: bool = True,
        keeps_gradients: bool = False,
        sole_engine: SoleEngine | None = None,
        graphed: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self.reader = reader
        self._memory = reader.memory_of(held)
        self._compute, self._nest = compute, nest
        self._has_engines, self._has_operators = has_engines, has_operators
        self._keeps_gradients = keeps_gradients
        self._sole = sole_engine if reader.takes_tensors_as_they_come else None
        self._engine_checks = reader.is_in_engine
        self._graphed = graphed

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the model.

        Args:
            module: The module that is called.
            args, kwargs: What it is called with.

        Raises:
            InputError: An input does not fit, requires gradients, or shares memory that is written to.
            ExecutionError: An engine or an operator failed.
        """
        if self._graphed is not None:
            flat = self.read(args, kwargs)
            if goes_direct([value for value in flat if isinstance(value, torch.Tensor)]):
                with torch.no_grad():
                    made = self._graphed(flat)
                return made if self._nest is None else self._nest(made)
        elif self._sole is not None and not kwargs:
            sole = self._sole
            engine = sole.children[sole.name]
            if type(engine) is TRTModule and not has_own_hooks(engine):
                if not self._engine_checks:
                    self.reader.read(args, {})
                try:
                    made = engine.forward(*args)
                except InputError:
                    self.read(args, {})  # says the same of the model's own inputs
                    raise
                return made if sole.nest is None else sole.nest(made)
        flat = self.read(args, kwargs)
        if self._has_operators and (is_autocast_on() or (torch.is_grad_enabled() and not self._keeps_gradients)):
            made = self._apart(module, flat)
        else:
            made = self._compute(module, *flat)
        return made if self._nest is None else self._nest(made)

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

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the model can be called with inputs; nothing runs."""
        try:
            self.read(args, kwargs)
        except InputError:
            return False
        return True

    def _apart(self, module: nn.Module, flat: Sequence[Any]) -> Any:
        """Computes outside of the caller's autocast, and records nothing; whoever traces decides for itself."""
        if torch.compiler.is_compiling():
            return self._compute(module, *flat)
        with without_autocast("cpu", "cuda") if is_autocast_on() else contextlib.nullcontext():
            if self._keeps_gradients or not torch.is_grad_enabled():
                return self._compute(module, *flat)
            with torch.no_grad():  # weights of PyTorch blocks may require gradients
                return self._compute(module, *flat)


def has_own_hooks(block: nn.Module) -> bool:
    """Whether hooks wait for calls of this very module."""
    return bool(block._forward_hooks or block._forward_pre_hooks)


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
    engines = engine_modules(module)
    plans = {engine.plan for engine in engines}
    held = {
        (tensor.dtype, tensor.device) for tensor in (*module.parameters(), *module.buffers()) if tensor not in plans
    }
    for engine in engines:
        place = device or present_device(engine.header.device)
        held.update((binding.dtype, place) for binding in engine.header.inputs)
    refuse_changes(held, change, what)


def made_of(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor], what: str) -> torch.Tensor:
    """Returns what becomes of a tensor.

    Args:
        tensor: One of a type and device that a model has.
        change, what: See `refuse_moves`.

    Raises:
        InputError: There is no device to move it to.
    """
    try:
        return change(tensor)
    except (AssertionError, RuntimeError) as error:
        raise InputError(
            f"{what} cannot be moved",
            why=str(error).partition("\n")[0],
            hint="compile the model for the device where it is to run",
        ) from error


def refuse_changes(
    held: Iterable[tuple[torch.dtype, torch.device]], change: Callable[[torch.Tensor], torch.Tensor], what: str
) -> None:
    """Refuses what makes other tensors of those that a model holds.

    Args:
        held: Types and devices of its tensors.
        change, what: See `refuse_moves`.

    Raises:
        InputError: One would become another one.
    """
    for dtype, at in sorted(held, key=str):
        moved = made_of(torch.empty(0, dtype=dtype, device=at), change, what)
        if (moved.dtype, moved.device) != (dtype, at):
            raise InputError(
                f"{what} stays what it was compiled for: {dtype} on {at} cannot become {moved.dtype} on {moved.device}",
                hint="compile the model for that device and type",
            )
