"""If, Loop and Scan; recurrent layers as loops, in the form in which engines recognize them and run them whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trt_portable.enums import ActivationType, DataType, ErrorCode, LoopOutput, TripLimit
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.control_flow import ILoop, IRecurrenceLayer
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import Initializer
from trt_portable.onnx_parser.operators.pointwise import ACTIVATIONS
from trt_portable.onnx_parser.operators.sources import filled_like, ramp
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


_MOST_TRIPS: Final = 1 << 31
"""Trip counts from here on mean "until the condition fails"."""


@operator("If")
def if_(net: Any, cond: Operand, *, then_branch: GraphProto, else_branch: GraphProto) -> list[Operand]:
    """If(cond; then_branch, else_branch) -> outputs"""
    known = net.numbers(cond)
    if known is not None:
        return list(net.body(then_branch if known[0] else else_branch, []))
    name = net.node.name
    conditional = net.network.add_if_conditional()
    conditional.name = name
    net.layer(conditional.set_condition(net.scalar(net.tensor(cond))))

    def enter(tensor: ITensor) -> ITensor:
        return net.byte_like(net.output(conditional.add_input(net.tensor(tensor))), tensor)  # type: ignore[no-any-return]

    branches = [[net.tensor(value) for value in net.body(graph, [], enter)] for graph in (then_branch, else_branch)]
    if len(branches[0]) != len(branches[1]):
        raise Unsupported("the branches have different numbers of outputs", ErrorCode.INVALID_GRAPH)
    return [
        net.byte_like(net.output(conditional.add_output(*_of_equal_rank(net, *pair))), *pair)
        for pair in zip(*branches, strict=True)
    ]


def _of_equal_rank(net: NetworkWriter, first: ITensor, second: ITensor) -> tuple[ITensor, ITensor]:
    """Two results, those of one element with as many axes as the other has."""
    for_rank = max(net.rank(first), net.rank(second))
    made = [
        net.reshape(x, (1,) * for_rank) if net.rank(x) < for_rank and all(e == 1 for e in x.shape) else x
        for x in (first, second)
    ]
    return made[0], made[1]


@operator("Loop")
def loop(net: Any, M: Operand | None, cond: Operand | None, *v_initial: Operand, body: GraphProto) -> list[Operand]:
    """Loop(M, cond, v_initial; body) -> v_final_and_scan_outputs"""
    grown = _growing(body, len(v_initial))
    if grown:
        return _loop_that_grows(net, M, cond, v_initial, body, grown)
    counts, starts = net.numbers(M), net.numbers(cond)
    if (starts is not None and not starts[0]) or (counts is not None and counts[0] < 0):
        counts, M, cond = [0], net.constant(0, DataType.INT64), None
    is_counted = M is not None and (counts is None or counts[0] < _MOST_TRIPS)
    outer = net.network.add_loop()
    outer.name = net.node.name
    count = net.scalar(net.cast(net.tensor(M), DataType.INT64)) if M is not None and is_counted else None
    if count is not None:
        net.layer(outer.add_trip_limit(count, TripLimit.COUNT))
    carried = [_recurrence(net, outer, net.tensor(value)) for value in v_initial]
    step = _recurrence(net, outer, net.constant(0, DataType.INT64))
    entry = net.scalar(net.tensor(cond)) if cond is not None else net.constant(True, DataType.BOOL)
    going = _recurrence(net, outer, entry)
    inside = [net.output_of(layer) for layer in (step, going, *carried)]
    inside[0] = net.output(net.network.add_identity(inside[0]))
    outputs = net.body(body, inside)
    if len(outputs) <= len(carried):
        raise Unsupported(
            "the body does not give its condition and all values that it carries", ErrorCode.INVALID_GRAPH
        )
    following = [net.tensor(value) for value in outputs]
    step.set_input(1, net.binary(net.output_of(step), net.constant(1, DataType.INT64), Op.SUM))
    is_endless = _is_always_true(net, outputs[0], inside[1]) and (starts is not None or cond is None)
    going.set_input(1, following[0])
    if not is_endless:
        net.layer(outer.add_trip_limit(net.output_of(going), TripLimit.WHILE))
    elif count is None:
        raise Unsupported("a Loop without an end", ErrorCode.INVALID_NODE)
    last = _close(net, outer, carried, following[1 : 1 + len(carried)])
    scans = following[1 + len(carried) :]
    if not scans:
        return last
    if count is None:
        raise Unsupported(
            "outputs of all iterations of a Loop whose number has no bound", ErrorCode.UNSUPPORTED_NODE_DYNAMIC
        )
    trips = None
    if not is_endless:
        trips = net.reshape(net.output(outer.add_loop_output(net.output_of(step), LoopOutput.LAST_VALUE)), (1,))
    return [*last, *(_collected(net, outer, value, count, trips) for value in scans)]


def _growing(body: GraphProto, carried: int) -> dict[int, int]:
    """The carried values to which a body does nothing but append, and the axis of each; an engine's have one shape."""
    makers = {name: node for node in body.node for name in node.output}
    readers = Counter(name for node in _all_nodes(body) for name in node.input)
    readers.update(value.name for value in body.output)
    found = {}
    for place in range(min(carried, len(body.input) - 2, len(body.output) - 1)):
        given, end = body.input[2 + place], body.output[1 + place].name
        node = makers.get(end)
        axis = [attribute.i for attribute in node.attribute if attribute.name == "axis"] if node else []
        if node is None or node.op_type != "Concat" or len(node.input) < 2 or not axis or readers[end] != 1:
            continue
        name = node.input[0]
        while readers[name] == 1 and name in makers and _is_same(makers[name], given.type.tensor_type.elem_type):
            name = makers.pop(name).input[0]  # nothing else reads it, so no chain comes here again
        if name == given.name and readers[name] == 1:
            found[place] = axis[0]
    return found


def _is_same(node: NodeProto, elem_type: int) -> bool:
    """Whether a node gives what it takes, of a type."""
    to = [attribute.i for attribute in node.attribute]
    return len(node.input) == 1 and (node.op_type == "Identity" or (node.op_type == "Cast" and to == [elem_type]))


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _all_nodes(inner)


def _loop_that_grows(
    net: Any, M: Operand | None, cond: Operand | None, initial: Sequence[Operand], body: GraphProto,
    grown: Mapping[int, int]
) -> list[Operand]:  # fmt: skip
    """A Loop whose values that grow are outputs of all trips, joined to what they were before."""
    rest = type(body)()
    rest.CopyFrom(body)
    makers = {name: node for node in rest.node for name in node.output}
    for place in grown:
        del makers[rest.output[1 + place].name].input[0]
    _drop(rest, [rest.input[2 + place].name for place in grown])
    _set(rest.input, [value for place, value in enumerate(rest.input) if place - 2 not in grown])
    others = [end for place, end in enumerate(rest.output) if place - 1 not in grown]
    _set(rest.output, [*others, *(rest.output[1 + place] for place in sorted(grown))])
    kept = [place for place in range(len(initial)) if place not in grown]
    made = loop(net, M, cond, *(initial[place] for place in kept), body=rest)
    scans = made[len(kept) :]
    results = dict(zip(kept, made, strict=False))
    for place, value in zip(sorted(grown), scans[len(scans) - len(grown) :], strict=False):
        first, whole = net.tensor(initial[place]), net.tensor(value)
        axis = net.axis(grown[place], net.rank(first))
        order = list(range(1, net.rank(whole)))
        moved = net.transpose(whole, [*order[:axis], 0, *order[axis:]])
        extents = net.extents(moved)
        extents[axis : axis + 2] = [net.product(extents[axis : axis + 2])]
        results[place] = net.byte_like(net.concat([first, net.reshape(moved, extents)], axis), first, whole)
    return [*(results[place] for place in range(len(initial))), *scans[: len(scans) - len(grown)]]


def _drop(graph: GraphProto, names: Iterable[str]) -> None:
    """Removes the casts and identities that nothing but the ends of chains from values read."""
    nodes = list(graph.node)
    readers = {name: at for at, node in enumerate(nodes) for name in node.input}
    gone = set()
    for name in names:
        end = name
        while end in readers:
            at = readers.pop(end)
            gone.add(at)
            end = nodes[at].output[0]
    _set(graph.node, [node for at, node in enumerate(nodes) if at not in gone])


def _set(field: Any, values: Iterable[Any]) -> None:
    """Gives a repeated field of a message other values; taking them away one by one moves all others each time."""
    kept = [type(value).FromString(value.SerializeToString()) for value in values]
    del field[:]
    field.extend(kept)


def _recurrence(net: NetworkWriter, outer: ILoop, initial: ITensor) -> IRecurrenceLayer:
    layer = net.layer(outer.add_recurrence(initial))
    net.byte_like(net.output_of(layer), initial)
    return layer


def _is_always_true(net: NetworkWriter, condition: Operand, given: ITensor) -> bool:
    """Whether the condition of a body is constant, or the one that it was given."""
    if condition is given:
        return True
    producer = condition._producer if isinstance(condition, ITensor) else None
    if producer is not None and type(producer).__name__ == "IIdentityLayer" and producer.get_input(0) is given:
        return True
    known = net.numbers(condition)
    return known is not None and all(known)


def _close(
    net: NetworkWriter, outer: ILoop, carried: Sequence[IRecurrenceLayer], following: Sequence[ITensor]
) -> list[Operand]:
    """Ties the carried values to what follows them, and takes the last of each out of the loop."""
    if len(carried) != len(following):
        raise Unsupported("the body does not give all values that it carries", ErrorCode.INVALID_GRAPH)
    results: list[Operand] = []
    for layer, value in zip(carried, following, strict=True):
        layer.set_input(1, value)
    for layer in carried:
        inside = net.output_of(layer)
        results.append(net.byte_like(net.output(outer.add_loop_output(inside, LoopOutput.LAST_VALUE)), inside))
    return results


def _collected(
    net: NetworkWriter,
    outer: ILoop,
    value: ITensor,
    count: ITensor,
    trips: ITensor | None,
    axis: int = 0,
    reverse: bool = False,
) -> ITensor:
    """The values of all iterations along a new axis, cut to the trips that there were."""
    kind = LoopOutput.REVERSE if reverse else LoopOutput.CONCATENATE
    layer = net.layer(outer.add_loop_output(value, kind, axis))
    layer.set_input(1, count)
    whole = net.output_of(layer)
    return net.byte_like(whole if trips is None else net.narrow(whole, axis, 0, trips), value)


@operator("Scan", since=9)
def scan(
    net: Any,
    *initial_state_and_scan_inputs: Operand,
    body: GraphProto,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
) -> list[Operand]:
    """Scan(initial_state_and_scan_inputs; body, num_scan_inputs, ...) -> final_state_and_scan_outputs"""
    tensors = [net.tensor(value) for value in initial_state_and_scan_inputs]
    num_states = len(tensors) - num_scan_inputs
    if num_scan_inputs < 1 or num_states < 0:
        raise Unsupported(f"Scan along {num_scan_inputs} of {len(tensors)} inputs", ErrorCode.INVALID_NODE)
    states, sequences = tensors[:num_states], tensors[num_states:]
    of_inputs = _of_each("scan_input_axes", scan_input_axes, len(sequences))
    axes = [net.axis(axis, net.rank(x)) for axis, x in zip(of_inputs, sequences, strict=True)]
    backwards = _directions("scan_input_directions", scan_input_directions, len(sequences))
    length = net.extents(sequences[0])[axes[0]]
    count = net.constant(np.int64(length), DataType.INT64) if isinstance(length, int) else net.scalar(length)
    outer = net.network.add_loop()
    outer.name = net.node.name
    net.layer(outer.add_trip_limit(count, TripLimit.COUNT))
    carried = [_recurrence(net, outer, state) for state in states]
    elements = [
        net.byte_like(net.output(outer.add_iterator(x, axis, reverse)), x)
        for x, axis, reverse in zip(sequences, axes, backwards, strict=True)
    ]
    following = [net.tensor(v) for v in net.body(body, [*(net.output_of(layer) for layer in carried), *elements])]
    last = _close(net, outer, carried, following[:num_states])
    scans = following[num_states:]
    out_axes = _of_each("scan_output_axes", scan_output_axes, len(scans))
    directions = _directions("scan_output_directions", scan_output_directions, len(scans))
    return [
        *last,
        *(
            _collected(net, outer, value, count, None, net.axis(axis, net.rank(value) + 1), reverse)
            for value, axis, reverse in zip(scans, out_axes, directions, strict=True)
        ),
    ]


def _of_each(name: str, numbers: Sequence[int] | None, count: int) -> Sequence[int]:
    """An attribute with a number for each sequence; zeros where a model does not give it.

    Raises:
        Unsupported: There are fewer numbers, or more.
    """
    if numbers and len(numbers) != count:
        raise Unsupported(f"{name} has {len(numbers)} numbers for {count} sequences", ErrorCode.INVALID_NODE)
    return numbers or [0] * count


def _directions(name: str, numbers: Sequence[int] | None, count: int) -> list[bool]:
    """Of each sequence whether it goes backwards.

    Raises:
        Unsupported: A number is neither 0 nor 1, or there is not one for each.
    """
    found = _of_each(name, numbers, count)
    strange = next((number for number in found if number not in (0, 1)), None)
    if strange is not None:
        raise Unsupported(f"{name} has {strange}: 0 is forward, 1 is backward", ErrorCode.INVALID_NODE)
    return [bool(number) for number in found]


Activation = Callable[[NetworkWriter, ITensor], ITensor]
Step = Callable[[ITensor, Sequence[ITensor]], Sequence[ITensor]]
"""Takes the projected element and the states; returns the states after it."""

_ACTIVATIONS: Final = {
    **{name: found for name, found in ACTIVATIONS.items() if name != "Selu"},
    "Softplus": (ActivationType.SOFTPLUS, {"alpha": 1.0, "beta": 1.0}),
    "ScaledTanh": (ActivationType.SCALED_TANH, {"alpha": 1.0, "beta": 1.0}),
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
        kind, defaults = _ACTIVATIONS[found]
        alpha, beta = (*defaults.values(), 0.0, 0.0)[:2]
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


_RECURRENT: Final = (
    *("activation_alpha", "activation_beta", "activations"),
    *("clip", "direction", "hidden_size", "layout"),
)
"""The attributes that all recurrent operators have."""


class _Layer:
    """A recurrent layer with all of its directions.

    Args:
        net: The writer.
        x: (L, N, F), or (N, L, F) with layout 1.
        w: (directions, gates * H, F).
        r: (directions, gates * H, H).
        b: (directions, 2 * gates * H): of the input, then of the recurrence.
        sequence_lens: (N,) int32; None where all sequences have the extent's length.
        order: The place of each gate in ONNX's order.
        default: The activations of a direction where none are named.
        activation_alpha: Coefficients of the activations of all directions; those that are missing have the default.
        activation_beta: The second coefficients.
        activations: The names of these activations.
        clip: The bound of what goes into activations; 0 for none.
        direction: forward, reverse or bidirectional.
        hidden_size: H; 0 to take it from the weights.
        layout: Whether the batch comes first.
    """

    def __init__(
        self,
        net: NetworkWriter,
        x: ITensor,
        w: Operand,
        r: Operand,
        b: Operand | None,
        sequence_lens: ITensor | None,
        order: Sequence[int],
        default: Sequence[str],
        *,
        activation_alpha: Sequence[float] = (),
        activation_beta: Sequence[float] = (),
        activations: Sequence[str] = (),
        clip: float = 0.0,
        direction: str = "forward",
        hidden_size: int = 0,
        layout: int = 0,
    ) -> None:
        if direction not in ("forward", "reverse", "bidirectional") or net.rank(x) != 3:
            raise Unsupported(f"direction {direction!r} of rank {net.rank(x)}", ErrorCode.INVALID_NODE)
        net.require_float(x)
        net.require_rank(w, 3, "W")
        net.require_rank(r, 3, "R")
        if b is not None:
            net.require_rank(b, 2, "B")
        self.net = net
        self.x = net.transpose(x, (1, 0, 2)) if layout else x
        self.w, self.r, self.b = w, r, b
        self.order = order
        self.width = hidden_size or r.shape[2]
        self.layout = layout
        self.backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.lengths = None if sequence_lens is None else self._needed(sequence_lens)
        count = len(self.backwards)
        if tuple(r.shape[1:]) != (len(order) * self.width, self.width) or r.shape[0] != count:
            raise Unsupported(f"recurrent weights of shape {tuple(r.shape)}", ErrorCode.INVALID_NODE)
        gates = len(order) * self.width
        for name, part, rows in (("W", w, gates), ("B", b, 2 * gates)):
            if part is not None and tuple(part.shape[:2]) != (count, rows):
                raise Unsupported(f"{name} of shape {tuple(part.shape)}", ErrorCode.INVALID_NODE)
        length = net.extents(self.x)[0]
        self.count = net.constant(np.int64(length), DataType.INT64) if isinstance(length, int) else net.scalar(length)
        names = activations or [*default] * count
        if len(names) != len(default) * count:
            raise Unsupported(f"{len(names)} activations for {count} directions", ErrorCode.INVALID_NODE)
        spans = (slice(place * len(default), (place + 1) * len(default)) for place in range(count))
        self.directions = [
            _Direction(net, index, names[span], activation_alpha[span], activation_beta[span], clip)
            for index, span in enumerate(spans)
        ]

    def _needed(self, lengths: ITensor) -> ITensor | None:
        known, whole = self.net.numbers(lengths), self.x.shape[0]
        return None if known is not None and all(number == whole for number in known) else lengths

    def state(self, initial: Operand | None, index: int) -> ITensor:
        """(N, H): the state of a direction before the first element."""
        net = self.net
        if initial is not None:
            whole = net.tensor(initial)
            net.require_rank(whole, 3, "an initial state")
            if self.layout:
                whole = net.transpose(whole, (1, 0, 2))
            return net.squeeze(net.narrow(whole, 0, index, 1), [0])
        batch = net.extents(self.x)[1]
        zero = net.constant(np.zeros((1, 1)), self.x.dtype)
        if isinstance(batch, int) and net.has_room(batch * self.width):
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

    def run(self, make: Callable[..., Step], *initial: Operand | None) -> list[ITensor]:
        """The results of all directions: Y (L, directions, N, H) and the last states (directions, N, H).

        Args:
            make: Makes the step of a direction, of this and the product with its recurrent weights.
            initial: The states before the first element, (directions, N, H); None for zeros.
        """
        return self._joined(
            [self._run(side, [self.state(whole, side.index) for whole in initial], make) for side in self.directions]
        )

    def _run(self, direction: _Direction, states: Sequence[ITensor], make: Callable[..., Step]) -> list[ITensor]:
        """The results of all elements, (L, N, H), and the states after the last one."""
        net, reverse = self.net, self.backwards[direction.index]
        weights, recurrent = (direction.part(part, self.order, len(self.order)) for part in (self.w, self.r))
        of_input, of_state = self.biases(direction)
        projected = net.matmul(self.x, weights, (False, True))
        if of_input is not None:
            projected = net.binary(projected, of_input, Op.SUM)

        def product(hidden: ITensor) -> ITensor:
            made = net.matmul(hidden, recurrent, (False, True))
            return made if of_state is None else net.binary(made, of_state, Op.SUM)

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
            valid = net.binary(place, net.cast(self.lengths, DataType.INT64), Op.LESS)
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
        return self.net.unsqueeze(ramp(self.net, self.net.extents(self.x)[0]), [1])

    def _joined(self, results: Sequence[Sequence[ITensor]]) -> list[ITensor]:
        net = self.net
        y = net.concat([net.unsqueeze(parts[0], [1]) for parts in results], 1)
        states = [
            net.concat([net.unsqueeze(parts[place], [0]) for parts in results], 0)
            for place in range(1, len(results[0]))
        ]
        if self.layout:
            return [net.transpose(y, (2, 0, 1, 3)), *(net.transpose(state, (1, 0, 2)) for state in states)]
        return [y, *states]


@operator("RNN", since=7, attributes=_RECURRENT)
def rnn(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: ITensor | None = None,
    initial_h: Operand | None = None,
    **given: Any,
) -> list[ITensor]:
    """RNN(X, W, R, B, sequence_lens, initial_h; ...) -> (Y, Y_h)"""
    layer = _Layer(net, x, w, r, b, sequence_lens, [0], ["Tanh"], **given)

    def make(direction: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        (activate,) = direction.activations
        return lambda element, states: [activate(net, net.binary(element, product(states[0]), Op.SUM))]

    return layer.run(make, initial_h)


@operator("GRU", since=7, attributes=_RECURRENT)
def gru(
    net: NetworkWriter,
    x: ITensor,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    sequence_lens: ITensor | None = None,
    initial_h: Operand | None = None,
    *,
    linear_before_reset: int = 0,
    **given: Any,
) -> list[ITensor]:
    """GRU(X, W, R, B, sequence_lens, initial_h; ..., linear_before_reset) -> (Y, Y_h)"""
    order = [1, 0, 2]  # z, r, h in ONNX
    layer = _Layer(net, x, w, r, b, sequence_lens, order, ["Sigmoid", "Tanh"], **given)

    def make(side: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        gate, candidate = side.activations

        def step(element: ITensor, states: Sequence[ITensor]) -> Sequence[ITensor]:
            (hidden,) = states
            entries = _gates(net, element, 3)
            recurrent = _gates(net, product(hidden), 3)
            reset, update = (
                gate(net, net.binary(*pair, Op.SUM)) for pair in zip(entries[:2], recurrent[:2], strict=True)
            )
            if linear_before_reset:
                share = net.binary(reset, recurrent[2], Op.PROD)
            else:
                share = _gates(net, product(net.binary(reset, hidden, Op.PROD)), 3)[2]
            new = candidate(net, net.binary(entries[2], share, Op.SUM))
            kept = net.binary(net.binary(hidden, new, Op.SUB), update, Op.PROD)
            return [net.binary(kept, new, Op.SUM)]

        return step

    return layer.run(make, initial_h)


@operator("LSTM", since=7, attributes=_RECURRENT)
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
    input_forget: int = 0,
    **given: Any,
) -> list[ITensor]:
    """LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P; ..., input_forget) -> (Y, Y_h, Y_c)"""
    order = [0, 2, 3, 1]  # i, o, f, c in ONNX
    layer = _Layer(net, x, w, r, b, sequence_lens, order, ["Sigmoid", "Tanh", "Tanh"], **given)

    def make(side: _Direction, product: Callable[[ITensor], ITensor]) -> Step:
        gate, candidate, exit_ = side.activations
        peepholes = None if p is None else _gates(net, side.part(p, [0, 2, 1], 3), 3)

        def seen(value: ITensor, cell: ITensor, place: int) -> ITensor:
            if peepholes is None:
                return value
            return net.binary(value, net.binary(cell, peepholes[place], Op.PROD), Op.SUM)

        def step(element: ITensor, states: Sequence[ITensor]) -> Sequence[ITensor]:
            hidden, cell = states
            entry, forget, change, leave = _gates(net, net.binary(element, product(hidden), Op.SUM), 4)
            opened = gate(net, seen(entry, cell, 0))
            if input_forget:
                closed = net.binary(net.scalar_like(1, opened), opened, Op.SUB)
            else:
                closed = gate(net, seen(forget, cell, 1))
            kept = net.binary(closed, cell, Op.PROD)
            added = net.binary(opened, candidate(net, change), Op.PROD)
            cell = net.binary(kept, added, Op.SUM)
            shown = gate(net, seen(leave, cell, 2))
            return [net.binary(shown, exit_(net, cell), Op.PROD), cell]

        return step

    return layer.run(make, initial_h, initial_c)
