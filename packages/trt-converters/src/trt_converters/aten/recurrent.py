"""Recurrent layers: LSTM, GRU and plain ones; several layers, both directions, projections."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from trt_converters.aten.products import matrix_multiply
from trt_converters.call import Call
from trt_converters.checks import dtypes, rank
from trt_converters.context import ConversionContext, Operand, dimension, shape_of
from trt_converters.layers import activation, binary, concatenate, permute, slice_axis, squeeze, unsqueeze
from trt_converters.registry import converter
from trt_core import Device, Reason, Verdict, trt
from trt_core.dtypes import FLOATS

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


aten = torch.ops.aten

Weights = Sequence[Operand]
"""Of one layer and direction: `w_ih`, `w_hh`, then `b_ih`, `b_hh` with biases, then `w_hr` with a projection."""

MakeStep = Callable[[ConversionContext, Weights, bool], Step]
"""Takes the weights of a layer, and whether biases are among them; returns the step over its projected inputs."""


def draws_nothing(call: Call) -> Verdict | None:
    """Refuses dropout between layers while training."""
    if call["train"] and call["dropout"]:
        return Verdict.refuse(Reason.SIDE_EFFECT, "dropout between the layers draws random numbers")
    return None


def static_weights(call: Call) -> Verdict | None:
    """Refuses weights whose extents are not known while building."""
    for weight in call["params"]:
        if not all(isinstance(extent, int) for extent in weight.shape):
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"a weight has shape {tuple(weight.shape)}")
    return None


def states_as_read(call: Call) -> Verdict | None:
    """Refuses states that are read with another shape than they have: PyTorch 2.11 captures them with an axis more."""
    for user in call.node.users:
        if user.target is operator.getitem and user.args[1] != 0 and user.users and user.meta["val"].ndim != 3:
            shape = tuple(user.meta["val"].shape)
            return Verdict.refuse(
                Reason.UNSUPPORTED_RANK, f"PyTorch captured the states with shape {shape}, an axis too many"
            )
    return None


CHECKS = (dtypes("input", FLOATS), rank("input", 3, 3), draws_nothing, static_weights, states_as_read)


def _linear(ctx: ConversionContext, value: Operand, weight: Operand, bias: Operand | None) -> Any:
    product = matrix_multiply(ctx, value, weight, transpose_right=True)
    return product if bias is None else binary(ctx, "SUM", product, bias, "bias")


def _gates(ctx: ConversionContext, value: Operand, count: int) -> list[Any]:
    """Cuts the last axis into equal parts."""
    axis = len(shape_of(value)) - 1
    width = shape_of(value)[axis] // count
    return [slice_axis(ctx, value, axis, index * width, width) for index in range(count)]


def _sigmoid(ctx: ConversionContext, value: Operand) -> Any:
    return activation(ctx, "SIGMOID", value)


def _tanh(ctx: ConversionContext, value: Operand) -> Any:
    return activation(ctx, "TANH", value)


def _lstm_step(ctx: ConversionContext, weights: Weights, has_biases: bool) -> Step:
    projection = weights[-1] if len(weights) % 2 else None

    def step(element: Any, states: Sequence[Any]) -> Sequence[Any]:
        hidden, cell = states
        recurrent = _linear(ctx, hidden, weights[1], weights[3] if has_biases else None)
        entry, forget, candidate, exit_ = _gates(ctx, binary(ctx, "SUM", element, recurrent, "gates"), 4)
        kept = binary(ctx, "PROD", _sigmoid(ctx, forget), cell, "kept")
        added = binary(ctx, "PROD", _sigmoid(ctx, entry), _tanh(ctx, candidate), "added")
        cell = binary(ctx, "SUM", kept, added, "cell")
        hidden = binary(ctx, "PROD", _sigmoid(ctx, exit_), _tanh(ctx, cell), "hidden")
        if projection is not None:
            hidden = _linear(ctx, hidden, projection, None)
        return hidden, cell

    return step


def _gru_step(ctx: ConversionContext, weights: Weights, has_biases: bool) -> Step:
    def step(element: Any, states: Sequence[Any]) -> Sequence[Any]:
        (hidden,) = states
        recurrent = _linear(ctx, hidden, weights[1], weights[3] if has_biases else None)
        pairs = zip(_gates(ctx, element, 3), _gates(ctx, recurrent, 3), strict=True)
        (reset_x, reset_h), (update_x, update_h), (new_x, new_h) = pairs
        reset = _sigmoid(ctx, binary(ctx, "SUM", reset_x, reset_h, "reset"))
        update = _sigmoid(ctx, binary(ctx, "SUM", update_x, update_h, "update"))
        new = _tanh(ctx, binary(ctx, "SUM", new_x, binary(ctx, "PROD", reset, new_h, "new"), "new"))
        kept = binary(ctx, "PROD", binary(ctx, "SUB", hidden, new, "change"), update, "kept")
        return (binary(ctx, "SUM", kept, new, "hidden"),)

    return step


def _plain_step(kind: str) -> MakeStep:
    def make(ctx: ConversionContext, weights: Weights, has_biases: bool) -> Step:
        def step(element: Any, states: Sequence[Any]) -> Sequence[Any]:
            recurrent = _linear(ctx, states[0], weights[1], weights[3] if has_biases else None)
            return (activation(ctx, kind, binary(ctx, "SUM", element, recurrent, "sum")),)

        return step

    return make


def _run_layers(
    ctx: ConversionContext,
    make_step: MakeStep,
    input: Operand,
    states: Sequence[Operand],
    params: Weights,
    has_biases: bool,
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """Runs the layers one after the other, each in one direction or both.

    Args:
        ctx: The context.
        make_step: Makes the step of a layer.
        input: (L, N, F), or (N, L, F) with `batch_first`.
        states: Each (layers * directions, N, H): the states before the first element.
        params: The weights of all layers and directions, one after the other.
        has_biases, num_layers, bidirectional, batch_first: As the operators have them.

    Returns:
        The last layer's results, shaped as the input is, and the states after the last element.
    """
    directions = 2 if bidirectional else 1
    count = len(params) // (num_layers * directions)
    length = dimension(ctx, input, 1 if batch_first else 0)
    steps = length if isinstance(length, int) else squeeze(ctx, length, (0,))
    value = permute(ctx, input, [1, 0, 2]) if batch_first else input
    last: list[list[Any]] = []
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * count : (index + 1) * count]
            # what does not wait for the step before is one product for the whole sequence
            elements = _linear(ctx, value, weights[0], weights[2] if has_biases else None)
            first = list(_states_of(ctx, states, index))
            result, after = recur(ctx, elements, steps, first, make_step(ctx, weights, has_biases), direction == 1)
            results.append(result)
            last.append([unsqueeze(ctx, state, (0,)) for state in after])
        value = concatenate(ctx, results, 2)
    outputs = permute(ctx, value, [1, 0, 2]) if batch_first else value
    return (outputs, *(concatenate(ctx, list(parts), 0) for parts in zip(*last, strict=True)))


def _states_of(ctx: ConversionContext, states: Sequence[Operand], index: int) -> Iterator[Any]:
    for state in states:
        yield squeeze(ctx, slice_axis(ctx, state, 0, index, 1), (0,))


_STEPS: Final[dict[Any, MakeStep]] = {
    aten.gru.input: _gru_step,
    aten.lstm.input: _lstm_step,
    aten.rnn_tanh.input: _plain_step("TANH"),
    aten.rnn_relu.input: _plain_step("RELU"),
}


@converter(*_STEPS, checks=CHECKS, random=True)
def aten_gru(
    ctx: ConversionContext,
    input: Operand,
    hx: Operand | Sequence[Operand],
    params: Weights,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)"""  # noqa: E501 - the schema
    assert ctx.node is not None  # it is being converted
    step, states = _STEPS[ctx.node.target], hx if isinstance(hx, (list, tuple)) else [hx]
    return _run_layers(ctx, step, input, states, params, has_biases, num_layers, bidirectional, batch_first)
