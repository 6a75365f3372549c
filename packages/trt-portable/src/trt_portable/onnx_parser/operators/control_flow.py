"""If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trt_portable.enums import DataType, ElementWiseOperation, ErrorCode, LoopOutput, TripLimit
from trt_portable.network.layer import ITensor
from trt_portable.network.loop import ILoop, IRecurrenceLayer
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

if TYPE_CHECKING:
    from onnx import GraphProto

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
        return net.output(conditional.add_input(tensor))  # type: ignore[no-any-return]

    branches = [[net.tensor(value) for value in net.body(graph, [], enter)] for graph in (then_branch, else_branch)]
    if len(branches[0]) != len(branches[1]):
        raise Unsupported("the branches have different numbers of outputs", ErrorCode.INVALID_GRAPH)
    pairs = [_of_equal_rank(net, *pair) for pair in zip(*branches, strict=True)]
    return [net.output(conditional.add_output(*pair)) for pair in pairs]


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
    following = [net.tensor(value) for value in outputs]
    step.set_input(1, net.binary(net.output_of(step), net.constant(1, DataType.INT64), ElementWiseOperation.SUM))
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


def _recurrence(net: NetworkWriter, outer: ILoop, initial: ITensor) -> IRecurrenceLayer:
    return net.layer(outer.add_recurrence(initial))


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
        results.append(net.output(outer.add_loop_output(net.output_of(layer), LoopOutput.LAST_VALUE)))
    return results


def _collected(
    net: NetworkWriter, outer: ILoop, value: ITensor, count: ITensor, trips: ITensor | None, axis: int = 0,
    reverse: bool = False,
) -> ITensor:  # fmt: skip
    """The values of all iterations along a new axis, cut to the trips that there were."""
    kind = LoopOutput.REVERSE if reverse else LoopOutput.CONCATENATE
    layer = net.layer(outer.add_loop_output(value, kind, axis))
    layer.set_input(1, count)
    whole = net.output_of(layer)
    return whole if trips is None else net.narrow(whole, axis, 0, trips)


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
    axes = [
        net.axis(axis, net.rank(x)) for axis, x in zip(scan_input_axes or [0] * len(sequences), sequences, strict=True)
    ]
    backwards = scan_input_directions or [0] * len(sequences)
    length = net.extents(sequences[0])[axes[0]]
    count = net.constant(np.int64(length), DataType.INT64) if isinstance(length, int) else net.scalar(length)
    outer = net.network.add_loop()
    outer.name = net.node.name
    net.layer(outer.add_trip_limit(count, TripLimit.COUNT))
    carried = [_recurrence(net, outer, state) for state in states]
    elements = [
        net.output(outer.add_iterator(x, axis, bool(reverse)))
        for x, axis, reverse in zip(sequences, axes, backwards, strict=True)
    ]
    following = [net.tensor(v) for v in net.body(body, [*(net.output_of(layer) for layer in carried), *elements])]
    last = _close(net, outer, carried, following[:num_states])
    scans = following[num_states:]
    out_axes = scan_output_axes or [0] * len(scans)
    directions = scan_output_directions or [0] * len(scans)
    return [
        *last,
        *(
            _collected(net, outer, value, count, None, net.axis(axis, net.rank(value) + 1), bool(reverse))
            for value, axis, reverse in zip(scans, out_axes, directions, strict=True)
        ),
    ]
