"""Branches and loops: `torch.cond`, `while_loop`, `scan` and `map`, with everything that they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trt_converters.call import Call
from trt_converters.checks import COMPUTABLE
from trt_converters.context import ConversionContext, Operand, dimension, shape_of
from trt_converters.layers import cast, squeeze
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt
from trt_core.dtypes import dtype_name
from trt_core.nesting import tensors_in

higher_order = torch.ops.higher_order


def holds_tensors(call: Call) -> Verdict | None:
    """Refuses what a branch or loop carries that is no tensor, or of a type that networks do not compute with."""
    for name, value in call.arguments.items():
        for item in value if isinstance(value, (list, tuple)) else ():
            if not isinstance(item, torch.Tensor) and not (
                name == "operands" and isinstance(item, (int, torch.SymInt))
            ):
                return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{name} holds a {type(item).__name__}")
    for tensor in tensors_in([*call.arguments.values(), call.result]):
        if tensor.dtype not in COMPUTABLE:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"a branch or loop holds {dtype_name(tensor.dtype)}")
    return None


def decided_by_tensor(call: Call) -> Verdict | None:
    """Refuses conditions that are no tensor: sizes decide while the model is captured."""
    if isinstance(call["pred"], torch.Tensor):
        return None
    return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"the condition is a {type(call['pred']).__name__}")


@converter(higher_order.cond, checks=(decided_by_tensor, holds_tensors))
def cond(
    ctx: ConversionContext,
    pred: Operand,
    true_fn: fx.GraphModule,
    false_fn: fx.GraphModule,
    operands: Sequence[Operand],
) -> list[Operand]:
    """higher_order::cond(Tensor pred, graph true_fn, graph false_fn, Tensor[] operands) -> Tensor[]."""
    if isinstance(pred, torch.Tensor):
        return ctx.inline(true_fn if bool(pred) else false_fn, operands)
    conditional = ctx.network.add_if_conditional()
    conditional.name = _name(ctx)
    ctx.own(conditional.set_condition(_scalar(ctx, cast(ctx, pred, torch.bool))), "condition")
    given = [
        ctx.output(conditional.add_input(value), "given") if isinstance(value, trt.ITensor) else value
        for value in operands
    ]
    pairs = zip(ctx.inline(true_fn, given), ctx.inline(false_fn, given), strict=True)
    return [ctx.output(conditional.add_output(ctx.tensor(left), ctx.tensor(right)), "result") for left, right in pairs]


@converter(higher_order.while_loop, checks=holds_tensors)
def while_loop(
    ctx: ConversionContext,
    cond_fn: fx.GraphModule,
    body_fn: fx.GraphModule,
    carried_inputs: Sequence[Operand],
    additional_inputs: Sequence[Operand],
) -> list[Operand]:
    """higher_order::while_loop(graph cond_fn, graph body_fn, Tensor[] carried_inputs, Tensor[] additional_inputs)."""
    loop = _add_loop(ctx)
    carried = _carry(ctx, loop, carried_inputs)
    values = [*(layer.get_output(0) for layer in carried), *additional_inputs]
    (goes_on,) = ctx.inline(cond_fn, values)
    ctx.own(loop.add_trip_limit(_scalar(ctx, ctx.tensor(goes_on)), trt.TripLimit.WHILE), "goes_on")
    _go_on(ctx, carried, ctx.inline(body_fn, values))
    return _last(ctx, loop, carried)


@converter(higher_order.scan, checks=holds_tensors)
def scan(
    ctx: ConversionContext,
    combine_fn: fx.GraphModule,
    init: Sequence[Operand],
    xs: Sequence[Operand],
    additional_inputs: Sequence[Operand],
) -> list[Operand]:
    """higher_order::scan(graph combine_fn, Tensor[] init, Tensor[] xs, Tensor[] additional_inputs) -> Tensor[]."""
    loop = _add_loop(ctx)
    count = _count(ctx, loop, xs)
    carried = _carry(ctx, loop, init)
    elements = [ctx.output(loop.add_iterator(ctx.tensor(value), 0), "element") for value in xs]
    results = ctx.inline(combine_fn, [*(layer.get_output(0) for layer in carried), *elements, *additional_inputs])
    _go_on(ctx, carried, results[: len(carried)])
    return [*_last(ctx, loop, carried), *_collected(ctx, loop, results[len(carried) :], count)]


@converter(higher_order.map_impl, checks=holds_tensors)
def map_impl(
    ctx: ConversionContext, f: fx.GraphModule, xs: Sequence[Operand], pos_args: Sequence[Operand]
) -> list[Operand]:
    """higher_order::map_impl(graph f, Tensor[] xs, Tensor[] pos_args) -> Tensor[]."""
    loop = _add_loop(ctx)
    count = _count(ctx, loop, xs)
    elements = [ctx.output(loop.add_iterator(ctx.tensor(value), 0), "element") for value in xs]
    return _collected(ctx, loop, ctx.inline(f, [*elements, *pos_args]), count)


def _name(ctx: ConversionContext) -> str:
    return "" if ctx.node is None else str(ctx.node.name)


def _add_loop(ctx: ConversionContext) -> Any:
    loop = ctx.network.add_loop()
    loop.name = _name(ctx)
    return loop


def _scalar(ctx: ConversionContext, value: Any) -> Any:
    """Returns a tensor of one element without axes, as conditions and counts are."""
    rank = len(shape_of(value))
    return squeeze(ctx, value, tuple(range(rank))) if rank else value


def _count(ctx: ConversionContext, loop: Any, xs: Sequence[Operand]) -> Any:
    """Makes a loop run once for each element of the first axis; returns how many there are, a tensor without axes."""
    extent = dimension(ctx, xs[0], 0)
    count = ctx.tensor(torch.tensor(extent)) if isinstance(extent, int) else _scalar(ctx, extent)
    ctx.own(loop.add_trip_limit(count, trt.TripLimit.COUNT), "trips")
    return count


def _carry(ctx: ConversionContext, loop: Any, values: Sequence[Operand]) -> list[Any]:
    return [ctx.own(loop.add_recurrence(ctx.tensor(value)), "carried") for value in values]


def _go_on(ctx: ConversionContext, carried: Sequence[Any], following: Sequence[Operand]) -> None:
    for layer, value in zip(carried, following, strict=True):
        layer.set_input(1, ctx.tensor(value))


def _last(ctx: ConversionContext, loop: Any, carried: Sequence[Any]) -> list[Any]:
    kind = trt.LoopOutput.LAST_VALUE
    return [ctx.output(loop.add_loop_output(layer.get_output(0), kind, 0), "last") for layer in carried]


def _collected(ctx: ConversionContext, loop: Any, values: Sequence[Operand], count: Any) -> list[Any]:
    found = []
    for value in values:
        layer = ctx.own(loop.add_loop_output(ctx.tensor(value), trt.LoopOutput.CONCATENATE, 0), "collected")
        layer.set_input(1, count)
        found.append(layer.get_output(0))
    return found
