"""Runs a program through eager execution, `backend="aot_eager"` and our backend, and compares all that can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from trt_frontends.backend import torch_tensorrt_backend

CALLS = 3


@dataclass(frozen=True)
class Seen:
    """What one call shows.

    Attributes:
        facts: The type of the result, and how it is nested. By leaf: class, shape, strides, offset, type, whether it
            requires a gradient, which inputs and earlier results it shares memory with, which input it is; the value
            of what is no tensor.
        values: Values of the results, of the inputs after the call, and of the model's state.
    """

    facts: tuple[Any, ...]
    values: tuple[torch.Tensor, ...]


def watch(
    make: Callable[[], Any],
    inputs: Callable[[int], Sequence[Any]],
    backend: Any,
    *,
    grad: bool = False,
    dynamic: bool | None = None,
    between: Callable[[Any, int], None] | None = None,
    options: dict[str, Any] | None = None,
) -> list[Seen]:
    """Calls a program several times.

    Args:
        make: Makes the program, a function or a module, after the random generator was seeded.
        inputs: Makes the inputs of a call, given its number.
        backend: None for eager execution.
        grad: Whether gradients are recorded.
        dynamic: As `torch.compile` takes it.
        between: Called with the program and the number of the call that was just made.
        options: Compilation settings of our backend.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    program = make()
    run = program
    if backend is not None:
        given = {"options": {"min_block_size": 1, **(options or {})}} if backend is torch_tensorrt_backend else {}
        run = torch.compile(program, backend=backend, dynamic=dynamic, **given)
    seen = []
    for call in range(CALLS):
        torch.manual_seed(call)
        given_inputs = inputs(call)
        torch.manual_seed(call)
        with torch.set_grad_enabled(grad):
            result = run(*given_inputs)
        seen.append(_look(program, given_inputs, result))
        if between is not None:
            between(program, call)
    return seen


def agree(
    make: Callable[[], Any],
    inputs: Callable[[int], Sequence[Any]],
    *,
    with_strides: bool = True,
    tolerance: float = 1e-4,
    **how: Any,
) -> None:
    """Asserts that our backend shows what `aot_eager` shows, and that both compute what eager execution computes.

    Args:
        make, inputs, how: See `watch`.
        with_strides: Whether eager execution must agree in strides, too; decompositions of `aot_eager` may differ.
        tolerance: How far values may lie apart, relative to them.
    """
    eager, reference, ours = (
        watch(make, inputs, backend, **how) for backend in (None, "aot_eager", torch_tensorrt_backend)
    )
    for call, (one, other, mine) in enumerate(zip(eager, reference, ours, strict=True)):
        assert mine.facts == other.facts, f"call {call}: {mine.facts} instead of {other.facts}"
        if with_strides:
            assert mine.facts == one.facts, f"call {call}: eager execution shows {one.facts}"
        for wanted in (other, one):
            for value, expected in zip(mine.values, wanted.values, strict=True):
                torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


def _look(program: Any, inputs: Sequence[Any], result: Any) -> Seen:
    given = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    leaves, nesting = pytree.tree_flatten(vars(result) if dataclasses.is_dataclass(result) else result)
    facts: list[Any] = [type(result), nesting]
    earlier: list[torch.Tensor] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            facts.append(leaf)
            continue
        shared = [at for at, other in enumerate(given) if _memory(other) == _memory(leaf)]
        with_earlier = [at for at, other in enumerate(earlier) if _memory(other) == _memory(leaf)]
        same = [at for at, other in enumerate(given) if other is leaf]
        strides = leaf.stride() if leaf.numel() else "nothing lies in memory"
        layout = (type(leaf), tuple(leaf.shape), strides, leaf.storage_offset(), leaf.dtype, leaf.requires_grad)
        facts.append((*layout, shared, with_earlier, same))
        earlier.append(leaf)
    state = list(program.state_dict().values()) if isinstance(program, nn.Module) else []
    values = [value.detach().clone() for value in (*earlier, *given, *state)]
    return Seen(tuple(facts), tuple(values))


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr() if value.layout is torch.strided else id(value)
