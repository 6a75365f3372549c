"""Einstein summation: einsum layers over two operands at a time."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from trt_converters.aten.slicing import diagonal
from trt_converters.call import Call
from trt_converters.context import ConversionContext, Operand, rank_of
from trt_converters.layers import dimension, permute, reduce
from trt_converters.registry import converter
from trt_core import Reason, Verdict
from trt_core.dtypes import FLOATS, dtype_name

aten = torch.ops.aten


def read_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the labels of every operand and of the result, each a lower-case letter.

    Spaces are dropped, an ellipsis becomes letters (aligned to the right, as broadcasting is), and an absent result is
    made explicit: the broadcast axes, then the labels that occur once, in alphabetical order.

    Args:
        equation: In PyTorch's notation.
        ranks: Rank of every operand.

    Raises:
        ValueError: The equation does not fit the operands, or needs more than 26 labels.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{len(terms)} terms for {len(ranks)} operands")
    hidden = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    broadcast = [f"...{position}" for position in reversed(range(max(hidden)))]
    labels = [_labels(term, broadcast[len(broadcast) - count :]) for term, count in zip(terms, hidden, strict=True)]
    if arrow:
        result = _labels(right, broadcast)
    else:
        counts = Counter(label for term in labels for label in term)
        result = broadcast + sorted(label for label, count in counts.items() if count == 1 and len(label) == 1)
    names: dict[str, str] = {}
    for label in (label for term in labels for label in term):
        if label not in names:
            names[label] = string.ascii_lowercase[len(names)] if len(names) < 26 else ""
    if "" in names.values():
        raise ValueError("more than 26 labels")
    return ["".join(names[label] for label in term) for term in labels], "".join(names[label] for label in result)


def _labels(term: str, broadcast: Sequence[str]) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *(broadcast if dots else ()), *after]


def expressible(call: Call) -> Verdict | None:
    """Refuses types and equations that einsum layers do not take."""
    tensors = call["tensors"]
    for tensor in tensors:
        if tensor.dtype not in FLOATS:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"no einsum layer of {dtype_name(tensor.dtype)}")
    try:
        read_equation(call["equation"], [tensor.dim() for tensor in tensors])
    except (ValueError, KeyError) as error:
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"equation {call['equation']!r}: {error}")
    return None


@converter(aten.einsum.default, checks=expressible)
def aten_einsum(ctx: ConversionContext, equation: str, tensors: Sequence[Operand], path: Sequence[int] | None) -> Any:
    """einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"""
    terms, result = read_equation(equation, [rank_of(tensor) for tensor in tensors])
    operands = [_without_repeats(ctx, tensor, term) for tensor, term in zip(tensors, terms, strict=True)]
    value, term = operands[0]
    for position, (other, other_term) in enumerate(operands[1:], start=1):
        needed = set(result).union(*(later for _, later in operands[position + 1 :]))
        last = position == len(operands) - 1
        joined = result if last else "".join(dict.fromkeys(label for label in term + other_term if label in needed))
        layer = ctx.network.add_einsum([ctx.tensor(value), ctx.tensor(other)], f"{term},{other_term}->{joined}")
        value, term = ctx.output(layer, "einsum"), joined
    summed = [axis for axis, label in enumerate(term) if label not in result]
    value = reduce(ctx, "SUM", value, summed, False)
    kept = [label for label in term if label in result]
    return permute(ctx, value, [kept.index(label) for label in result])


def _without_repeats(ctx: ConversionContext, value: Operand, term: str) -> tuple[Operand, str]:
    """Takes the diagonal of axes that share a label; the layer wants every label once per operand."""
    repeated = next((label for label in term if term.count(label) > 1), None)
    while repeated is not None:
        first = term.index(repeated)
        second = term.index(repeated, first + 1)
        value = diagonal(ctx, value, 0, first, second, dimension(ctx, value, first))
        term = "".join(label for axis, label in enumerate(term) if axis not in (first, second)) + repeated
        repeated = next((label for label in term if term.count(label) > 1), None)
    return value, term
