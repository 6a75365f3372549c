"""Recurrences along a sequence: unrolled on a GPU when it is short and its length is known, a loop otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from trt_converters.context import ConversionContext, Operand
from trt_converters.layers.movement import concatenate, slice_axis, squeeze, unsqueeze
from trt_core import Device, trt

UNROLLED_LENGTH: Final = 16
"""Longest sequence that is unrolled: a loop costs an engine its CUDA graph, many copies of a step cost build time.

On the CPU there is no graph to lose, and a loop of any length is one kernel there.
"""

Step = Callable[[Any, Sequence[Any]], Sequence[Any]]
"""Takes one element of the sequence and the states before it; returns the states after it, the result first."""


def recur(
    ctx: ConversionContext, sequence: Operand, length: Operand, states: Sequence[Operand], step: Step, reverse: bool
) -> tuple[Any, list[Any]]:
    """Runs a step over a sequence.

    Args:
        ctx: The context.
        sequence: (L, ...): the elements.
        length: L: an int, or a shape tensor of shape ().
        states: The states before the first element; every step keeps their shapes and types.
        step: Adds the layers of one step.
        reverse: Whether the last element comes first. Results stand where their elements do.

    Returns:
        The first state after every element, (L, ...), and all states after the last one.
    """
    if isinstance(length, int) and is_unrolled(length, ctx.settings.device):
        return _unrolled(ctx, sequence, length, states, step, reverse)
    return _loop(ctx, sequence, length, states, step, reverse)


def is_unrolled(length: int, device: Device) -> bool:
    """Whether a sequence of some length is unrolled in an engine for a device."""
    return length <= UNROLLED_LENGTH and not device.is_cpu


def _unrolled(
    ctx: ConversionContext, sequence: Operand, length: int, states: Sequence[Operand], step: Step, reverse: bool
) -> tuple[Any, list[Any]]:
    results: list[Any] = [None] * length
    current = list(states)
    for place in reversed(range(length)) if reverse else range(length):
        current = list(step(squeeze(ctx, slice_axis(ctx, sequence, 0, place, 1), (0,)), current))
        results[place] = unsqueeze(ctx, current[0], (0,))
    return concatenate(ctx, results, 0), current


def _loop(
    ctx: ConversionContext, sequence: Operand, length: Any, states: Sequence[Operand], step: Step, reverse: bool
) -> tuple[Any, list[Any]]:
    count = ctx.tensor(torch.tensor(length) if isinstance(length, int) else length)
    loop = ctx.network.add_loop()
    loop.name = ctx.node.name if ctx.node is not None else "loop"
    ctx.own(loop.add_trip_limit(count, trt.TripLimit.COUNT), "trips")
    element = ctx.output(loop.add_iterator(ctx.tensor(sequence), 0, reverse), "element")
    carried = [ctx.own(loop.add_recurrence(ctx.tensor(state)), "state") for state in states]
    following = [ctx.tensor(state) for state in step(element, [layer.get_output(0) for layer in carried])]
    for layer, value in zip(carried, following, strict=True):
        layer.set_input(1, value)
    kind = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    results = ctx.own(loop.add_loop_output(following[0], kind, 0), "results")
    results.set_input(1, count)
    last = [
        ctx.output(loop.add_loop_output(layer.get_output(0), trt.LoopOutput.LAST_VALUE, 0), "last") for layer in carried
    ]
    return results.get_output(0), last
