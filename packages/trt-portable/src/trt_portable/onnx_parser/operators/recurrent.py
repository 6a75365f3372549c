"""Recurrent layers as loops, in the form in which engines recognize them and run them whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, ErrorCode, LoopOutput, TripLimit
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer
from trt_portable.onnx_parser.operators.sources import filled_like
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_SUM: Final = ElementWiseOperation.SUM
_SUB: Final = ElementWiseOperation.SUB
_PROD: Final = ElementWiseOperation.PROD

Activation = Callable[[NetworkWriter, ITensor], ITensor]
Step = Callable[[ITensor, Sequence[ITensor]], Sequence[ITensor]]
"""Takes the projected element and the states; returns the states after it."""

_ACTIVATIONS: Final = {
    "Relu": (ActivationType.RELU, 0.0, 0.0),
    "Tanh": (ActivationType.TANH, 0.0, 0.0),
    "Sigmoid": (ActivationType.SIGMOID, 0.0, 0.0),
    "Softsign": (ActivationType.SOFTSIGN, 0.0, 0.0),
    "Softplus": (ActivationType.SOFTPLUS, 1.0, 1.0),
    "LeakyRelu": (ActivationType.LEAKY_RELU, 0.01, 0.0),
    "ThresholdedRelu": (ActivationType.THRESHOLDED_RELU, 1.0, 0.0),
    "ScaledTanh": (ActivationType.SCALED_TANH, 1.0, 1.0),
    "HardSigmoid": (ActivationType.HARD_SIGMOID, 0.2, 0.5),
    "Elu": (ActivationType.ELU, 1.0, 0.0),
}


class _Direction:
    """What one direction of a recurrent layer needs.

    Args:
        net: The writer.
        index: 0 or 1: its place on the first axis of the weights.
        functions: The names of its activations.
        alphas: Their coefficients; those that are not given have the default.
        betas: The second coefficients.
        clip: The bound of what goes into activations; 0 for none.
    """

    def __init__(
        self,
        net: NetworkWriter,
        index: int,
        functions: Sequence[str],
        alphas: Sequence[float],
        betas: Sequence[float],
        clip: float,
    ) -> None:
        self.net = net
        self.index = index
        self.activations = [self._activation(name, place, alphas, betas, clip) for place, name in enumerate(functions)]

    def _activation(
        self, name: str, place: int, alphas: Sequence[float], betas: Sequence[float], clip: float
    ) -> Activation:
        found = next((known for known in _ACTIVATIONS if known.lower() == name.lower()), None)
        if found is None:
            raise Unsupported(f"the activation {name!r}", ErrorCode.UNSUPPORTED_NODE_ATTR)
        kind, alpha, beta = _ACTIVATIONS[found]
        alpha = alphas[place] if place < len(alphas) else alpha
        beta = betas[place] if place < len(betas) else beta

        def apply(net: NetworkWriter, x: ITensor) -> ITensor:
            bounded = net.activation(x, ActivationType.CLIP, -clip, clip) if clip > 0 else x
            return net.activation(bounded, kind, alpha, beta)

        return apply

    def part(self, operand: Operand, order: Sequence[int], count: int) -> ITensor:
        """This direction's share of weights, their gates in another order; a constant stays one.

        Args:
            operand: (directions, gates * H, ...).
            order: The place of each gate in ONNX's order.
            count: The number of gates that it has.
        """
        net = self.net
        if isinstance(operand, Initializer):
            own = operand.array[self.index]
            pieces = np.split(own, count)
            joined = np.ascontiguousarray(np.concatenate([pieces[place] for place in order]))
            return net.tensor(Initializer("", joined.shape, operand.elem_type, joined))
        own_tensor = net.squeeze(net.narrow(operand, 0, self.index, 1), [0])
        width = own_tensor.shape[0] // count
        if list(order) == list(range(count)):
            return own_tensor
        return net.concat([net.narrow(own_tensor, 0, place * width, width) for place in order], 0)


def _gates(net: NetworkWriter, x: ITensor, count: int) -> list[ITensor]:
    axis = net.rank(x) - 1
    width = x.shape[axis] // count
    return [net.narrow(x, axis, place * width, width) for place in range(count)]


class _Layer:
    """A recurrent layer with all of its directions.

    Args:
        net: The writer.
        x: (L, N, F), or (N, L, F) with layout 1.
        w: (directions, gates * H, F).
        r: (directions, gates * H, H).
        b: (directions, 2 * gates * H): of the input, then of the recurrence.
        sequence_lens: (N,) int32; None where all sequences have the extent's length.
        hidden_size: H; 0 to take it from the weights.
        direction: forward, reverse or bidirectional.
        layout: Whether the batch comes first.
        order: The place of each gate in ONNX's order.
    """

    def __init__(
        self,
        net: NetworkWriter,
        x: ITensor,
        w: Operand,
        r: Operand,
        b: Operand | None,
        sequence_lens: ITensor | None,
        hidden_size: int,
        direction: str,
        layout: int,
        order: Sequence[int],
    ) -> None:
        if direction not in ("forward", "reverse", "bidirectional") or net.rank(x) != 3:
            raise Unsupported(f"direction {direction!r} of rank {net.rank(x)}", ErrorCode.INVALID_NODE)
        net.require_float(x)
        self.net = net
        self.x = net.transpose(x, (1, 0, 2)) if layout else x
        self.w, self.r, self.b = w, r, b
        self.order = order
        self.width = hidden_size or r.shape[2]
        self.layout = layout
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.lengths = None if sequence_lens is None else self._needed(sequence_lens)
        if tuple(r.shape[1:]) != (len(order) * self.width, self.width) or r.shape[0] != len(self.backwards):
            raise Unsupported(f"recurrent weights of shape {tuple(r.shape)}", ErrorCode.INVALID_NODE)
        length = net.extents(self.x)[0]
        self.count = net.constant(np.int64(length), DataType.INT64) if isinstance(length, int) else net.scalar(length)

    def _needed(self, lengths: ITensor) -> ITensor | None:
        known, whole = self.net.numbers(lengths), self.x.shape[0]
        return None if known is not None and all(number == whole for number in known) else lengths

    def state(self, initial: Operand | None, index: int) -> ITensor:
        """(N, H): the state of a direction before the first element."""
        net = self.net
        if initial is not None:
            whole = net.tensor(initial)
            if self.layout:
                whole = net.transpose(whole, (1, 0, 2))
            return net.squeeze(net.narrow(whole, 0, index, 1), [0])
        batch = net.extents(self.x)[1]
        zero = net.constant(np.zeros((1, 1)), self.x.dtype)
        if isinstance(batch, int):
            return net.constant(np.zeros((batch, self.width)), self.x.dtype)
        return filled_like(net, zero, net.vector([batch, self.width]))

    def biases(self, direction: _Direction) -> tuple[ITensor | None, ITensor | None]:
        """Those of the input and of the recurrence, (gates * H,)."""
        if self.b is None:
            return None, None
        gates = len(self.order)
        both = [*self.order, *(gates + place for place in self.order)]
        whole = direction.part(self.b, both, 2 * gates)
        width = gates * self.width
        return self.net.narrow(whole, 0, 0, width), self.net.narrow(whole, 0, width, width)

    def run(self, direction: _Direction, states: Sequence[ITensor], make: Callable[..., Step]) -> list[ITensor]:
        """The results of all elements, (L, N, H), and the states after the last one."""
        net, reverse = self.net, self.backwards[direction.index]
        weights, recurrent = (direction.part(part, self.order, len(self.order)) for part in (self.w, self.r))
        of_input, of_state = self.biases(direction)
        projected = net.matmul(self.x, weights, (False, True))
        if of_input is not None:
            projected = net.binary(projected, of_input, _SUM)

        def product(hidden: ITensor) -> ITensor:
            made = net.matmul(hidden, recurrent, (False, True))
            return made if of_state is None else net.binary(made, of_state, _SUM)

        step = make(direction, product)
        loop = net.network.add_loop()
        loop.name = f"{net.node.name}_{direction.index}"
        net.layer(loop.add_trip_limit(self.count, TripLimit.COUNT))
        element = net.output(loop.add_iterator(projected, 0, reverse))
        carried = [net.layer(loop.add_recurrence(state)) for state in states]
        before = [net.output_of(layer) for layer in carried]
        after = list(step(element, before))
        result = after[0]
        if self.lengths is not None:
            place = net.output(loop.add_iterator(self._places(), 0, reverse))
            valid = net.binary(place, net.cast(self.lengths, DataType.INT64), ElementWiseOperation.LESS)
            valid = net.unsqueeze(valid, [1])
            after = [net.select(valid, new, old) for new, old in zip(after, before, strict=True)]
            result = net.select(valid, result, net.scalar_like(0, result))
        for layer, value in zip(carried, after, strict=True):
            layer.set_input(1, value)
        kind = LoopOutput.REVERSE if reverse else LoopOutput.CONCATENATE
        collected = net.layer(loop.add_loop_output(result, kind, 0))
        collected.set_input(1, self.count)
        last = [net.output(loop.add_loop_output(value, LoopOutput.LAST_VALUE, 0)) for value in before]
        return [net.output_of(collected), *last]

    def _places(self) -> ITensor:
        """(L, 1): the index of each element."""
        from trt_portable.onnx_parser.operators.sources import ramp

        return self.net.unsqueeze(ramp(self.net, self.net.extents(self.x)[0]), [1])

    def joined(self, results: Sequence[Sequence[ITensor]]) -> list[ITensor]:
        """The results of all directions: Y (L, directions, N, H) and the last states (directions, N, H)."""
        net = self.net
        y = net.concat([net.unsqueeze(parts[0], [1]) for parts in results], 1)
        states = [
            net.concat([net.unsqueeze(parts[place], [0]) for parts in results], 0)
            for place in range(1, len(results[0]))
        ]
        if self.layout:
            return [net.transpose(y, (2, 0, 1, 3)), *(net.transpose(state, (1, 0, 2)) for state in states)]
        return [y, *states]


def _functions(given: list[str] | None, default: Sequence[str], directions: int) -> list[Sequence[str]]:
    names = list(given) if given else list(default) * directions
    width = len(default)
    if len(names) != width * directions:
        raise Unsupported(f"{len(names)} activations for {directions} directions", ErrorCode.INVALID_NODE)
    return [names[place * width : (place + 1) * width] for place in range(directions)]


def _directions(
    layer: _Layer,
    default: Sequence[str],
    activations: list[str] | None,
    alphas: list[float] | None,
    betas: list[float] | None,
    clip: float,
) -> list[_Direction]:
    names = _functions(activations, default, len(layer.backwards))
    width = len(default)
    return [
        _Direction(
            layer.net,
            index,
            functions,
            (alphas or [])[index * width : (index + 1) * width],
            (betas or [])[index * width : (index + 1) * width],
            clip,
        )
        for index, functions in enumerate(names)
    ]


@operator("RNN", since=7)
def rnn(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: ITensor | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    layout: int = 0,
) -> list[ITensor]:
    """RNN(X, W, R, B, sequence_lens, initial_h; ...) -> (Y, Y_h)"""
    layer = _Layer(net, x, w, r, b, sequence_lens, hidden_size, direction, layout, [0])

    def make(direction: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        (activate,) = direction.activations
        return lambda element, states: [activate(net, net.binary(element, product(states[0]), _SUM))]

    sides = _directions(layer, ["Tanh"], activations, activation_alpha, activation_beta, clip)
    return layer.joined([layer.run(side, [layer.state(initial_h, side.index)], make) for side in sides])


@operator("GRU", since=7)
def gru(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: ITensor | None = None,
    initial_h: Operand | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> list[ITensor]:
    """GRU(X, W, R, B, sequence_lens, initial_h; ..., linear_before_reset) -> (Y, Y_h)"""
    layer = _Layer(net, x, w, r, b, sequence_lens, hidden_size, direction, layout, [1, 0, 2])  # z, r, h in ONNX

    def make(side: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        gate, candidate = side.activations

        def step(element: ITensor, states: Sequence[ITensor]) -> Sequence[ITensor]:
            (hidden,) = states
            entries = _gates(net, element, 3)
            recurrent = _gates(net, product(hidden), 3)
            reset, update = (
                gate(net, net.binary(*pair, _SUM)) for pair in zip(entries[:2], recurrent[:2], strict=True)
            )
            if linear_before_reset:
                share = net.binary(reset, recurrent[2], _PROD)
            else:
                share = _gates(net, product(net.binary(reset, hidden, _PROD)), 3)[2]
            new = candidate(net, net.binary(entries[2], share, _SUM))
            kept = net.binary(net.binary(hidden, new, _SUB), update, _PROD)
            return [net.binary(kept, new, _SUM)]

        return step

    sides = _directions(layer, ["Sigmoid", "Tanh"], activations, activation_alpha, activation_beta, clip)
    return layer.joined([layer.run(side, [layer.state(initial_h, side.index)], make) for side in sides])


@operator("LSTM", since=7)
def lstm(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: ITensor | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    p: Operand | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    input_forget: int = 0,
    layout: int = 0,
) -> list[ITensor]:
    """LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P; ..., input_forget) -> (Y, Y_h, Y_c)"""
    layer = _Layer(net, x, w, r, b, sequence_lens, hidden_size, direction, layout, [0, 2, 3, 1])  # i, o, f, c in ONNX

    def make(side: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        gate, candidate, exit_ = side.activations
        peepholes = None if p is None else _gates(net, side.part(p, [0, 2, 1], 3), 3)

        def seen(value: ITensor, cell: ITensor, place: int) -> ITensor:
            return value if peepholes is None else net.binary(value, net.binary(cell, peepholes[place], _PROD), _SUM)

        def step(element: ITensor, states: Sequence[ITensor]) -> Sequence[ITensor]:
            hidden, cell = states
            entry, forget, change, leave = _gates(net, net.binary(element, product(hidden), _SUM), 4)
            opened = gate(net, seen(entry, cell, 0))
            if input_forget:
                closed = net.binary(net.scalar_like(1, opened), opened, _SUB)
            else:
                closed = gate(net, seen(forget, cell, 1))
            kept = net.binary(closed, cell, _PROD)
            added = net.binary(opened, candidate(net, change), _PROD)
            cell = net.binary(kept, added, _SUM)
            shown = gate(net, seen(leave, cell, 2))
            return [net.binary(shown, exit_(net, cell), _PROD), cell]

        return step

    sides = _directions(layer, ["Sigmoid", "Tanh", "Tanh"], activations, activation_alpha, activation_beta, clip)
    return layer.joined(
        [
            layer.run(side, [layer.state(initial, side.index) for initial in (initial_h, initial_c)], make)
            for side in sides
        ]
    )
