"""Products of matrices and vectors, cross products, traces of products, distances between rows, einsum."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from trt_converters.aten.views import diagonal
from trt_converters.call import Call
from trt_converters.checks import computable, dtypes, refuses, static_axis
from trt_converters.context import ConversionContext, Operand, dtype_of, is_exactly, normalize_axis, rank_of, shape_of
from trt_converters.converter import Check
from trt_converters.layers import (
    binary,
    cast,
    dimension,
    expand,
    gather,
    permute,
    reduce,
    reshape,
    squeeze,
    unary,
    unsqueeze,
    with_rank,
)
from trt_converters.layers.pointwise import logical_not
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt
from trt_core.dtypes import FLOATS, INTEGERS, dtype_name

aten = torch.ops.aten
NUMBERS = FLOATS | INTEGERS


INTEGER_LIMIT: Final = 1 << 24
"""Most products that a matrix product of integers may need, all of which exist at once."""


def multiplies(left: str, right: str) -> Check:
    """Refuses operands that cannot be multiplied: other types, and integers beyond `INTEGER_LIMIT`."""

    @refuses(f"integers in more than {INTEGER_LIMIT} products, and types that no layer multiplies")
    def check(call: Call) -> Verdict | None:
        first, second = call.tensor(left), call.tensor(right)
        if first.dtype in FLOATS:
            return None
        if first.dtype not in INTEGERS:
            return Verdict.refuse(
                Reason.UNSUPPORTED_DTYPE, f"no layer multiplies matrices of {dtype_name(first.dtype)}"
            )
        if max(first.dim(), second.dim()) > 7:
            return Verdict.refuse(Reason.UNSUPPORTED_RANK, "products of integers need one more dimension")
        columns = second.shape[-1] if second.dim() > 1 else 1
        products = first.numel() * columns
        if isinstance(products, int) and products > INTEGER_LIMIT:
            return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{products} products of integers, at most {INTEGER_LIMIT}")
        return None

    return check


def matrix_multiply(
    ctx: ConversionContext, left: Operand, right: Operand, transpose_right: bool = False, suffix: str = "matmul"
) -> Any:
    """Multiplies operands of rank >= 2 and one type.

    Matrix multiply layers take floats only: integers, which must lose no bits, are multiplied one by one and summed.

    Args:
        ctx: The context.
        left: (..., M, K).
        right: (..., K, N), or (..., N, K) when transposed.
        transpose_right: Whether `right` is given transposed.
        suffix: What the layer is for, in its name.
    """
    rank = max(rank_of(left), rank_of(right))
    left, right = with_rank(ctx, left, rank), with_rank(ctx, right, rank)
    if not dtype_of(left).is_floating_point:
        if not transpose_right:
            right = permute(ctx, right, [*range(rank - 2), rank - 1, rank - 2])
        products = binary(ctx, "PROD", unsqueeze(ctx, left, (rank - 1,)), unsqueeze(ctx, right, (rank - 2,)), suffix)
        return reduce(ctx, "SUM", products, (rank,), False)
    operations = (
        trt.MatrixOperation.NONE,
        trt.MatrixOperation.TRANSPOSE if transpose_right else trt.MatrixOperation.NONE,
    )
    layer = ctx.network.add_matrix_multiply(ctx.tensor(left), operations[0], ctx.tensor(right), operations[1])
    return ctx.output(layer, suffix)


def multiply_axis(ctx: ConversionContext, value: Operand, axis: int, matrix: Operand) -> Any:
    """Replaces an axis by its product with a matrix: (elements, samples)."""
    order = list(range(rank_of(value)))
    order[axis], order[-1] = order[-1], order[axis]
    return permute(ctx, matrix_multiply(ctx, permute(ctx, value, order), matrix), order)


@converter(aten.linear.default, checks=multiplies("input", "weight"))
def aten_linear(ctx: ConversionContext, input: Operand, weight: Operand, bias: Operand | None) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    rank = rank_of(input)
    rows = unsqueeze(ctx, input, (0,)) if rank == 1 else input
    product = matrix_multiply(ctx, rows, weight, transpose_right=True)
    if bias is not None:
        product = binary(ctx, "SUM", product, bias, "bias")
    return squeeze(ctx, product, (0,)) if rank == 1 else product


@converter(aten.bilinear.default, checks=dtypes("input1", FLOATS))
def aten_bilinear(
    ctx: ConversionContext, input1: Operand, input2: Operand, weight: Operand, bias: Operand | None
) -> Any:
    """bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor"""
    made, first, second = shape_of(weight)
    matrix = reshape(ctx, permute(ctx, weight, (0, 2, 1)), [made * second, first])
    mixed = matrix_multiply(ctx, reshape(ctx, input1, [-1, first]), matrix, transpose_right=True)
    pairs = reshape(ctx, mixed, [-1, made, second]), reshape(ctx, input2, [-1, second, 1])
    product = reshape(ctx, matrix_multiply(ctx, *pairs), ctx.result_shape)
    return product if bias is None else binary(ctx, "SUM", product, bias, "bias")


@converter(aten.mm.default, aten.bmm.default, checks=multiplies("self", "mat2"))
def aten_mm(ctx: ConversionContext, self: Operand, mat2: Operand) -> Any:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return matrix_multiply(ctx, self, mat2)


@converter(aten.matmul.default, aten.linalg_matmul.default, checks=multiplies("self", "other"))
def aten_matmul(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """matmul(Tensor self, Tensor other) -> Tensor"""
    left_vector, right_vector = rank_of(self) == 1, rank_of(other) == 1
    left = unsqueeze(ctx, self, (0,)) if left_vector else self
    right = unsqueeze(ctx, other, (1,)) if right_vector else other
    product = matrix_multiply(ctx, left, right)
    rank = rank_of(product)
    removed = [axis for axis, gone in ((rank - 2, left_vector), (rank - 1, right_vector)) if gone]
    return squeeze(ctx, product, removed)


def _scaled(ctx: ConversionContext, value: Operand, factor: float, suffix: str) -> Any:
    return value if is_exactly(factor, 1) else binary(ctx, "PROD", value, factor, suffix)


def _added(
    ctx: ConversionContext,
    self: Operand,
    multiply: Callable[[ConversionContext, Operand, Operand], Any],
    left: Operand,
    right: Operand,
    beta: float,
    alpha: float,
) -> Any:
    """Returns `beta * self + alpha * multiply(left, right)`; with beta 0 `self` does not matter, whatever it holds.

    PyTorch's kernels apply `alpha` before they round to half, so that what it makes small may be larger than any half
    in between, as scores of attention are. Powers of two of it go to the operands, where they cost no bits.
    """
    if dtype_of(left) == torch.float16 and isinstance(alpha, float) and 0 < abs(alpha) < 1:
        halvings = -math.frexp(alpha)[1] + 1
        for_left = min(halvings, _HALVINGS)
        for_right = min(halvings - for_left, _HALVINGS)
        left = _scaled(ctx, left, 2.0**-for_left, "alpha_left")
        right = _scaled(ctx, right, 2.0**-for_right, "alpha_right")
        alpha *= 2.0 ** (for_left + for_right)
    product = _scaled(ctx, multiply(ctx, left, right), alpha, "alpha")
    if is_exactly(beta, 0):
        return expand(ctx, product, ctx.result_shape)
    return binary(ctx, "SUM", _scaled(ctx, self, beta, "beta"), product, "add")


_HALVINGS: Final = 12
"""How often an operand in half may be halved: numbers of 1/4 and more keep all bits, smaller ones those to 2^-24."""


@converter(aten.addmm.default, checks=(dtypes("self", NUMBERS), multiplies("mat1", "mat2")))
def aten_addmm(ctx: ConversionContext, self: Operand, mat1: Operand, mat2: Operand, beta: float, alpha: float) -> Any:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_multiply, mat1, mat2, beta, alpha)


@converter(aten.baddbmm.default, checks=(dtypes("self", NUMBERS), multiplies("batch1", "batch2")))
def aten_baddbmm(
    ctx: ConversionContext, self: Operand, batch1: Operand, batch2: Operand, beta: float, alpha: float
) -> Any:
    """baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_multiply, batch1, batch2, beta, alpha)


@converter(aten.addbmm.default, checks=(dtypes("self", NUMBERS), multiplies("batch1", "batch2")))
def aten_addbmm(
    ctx: ConversionContext, self: Operand, batch1: Operand, batch2: Operand, beta: float, alpha: float
) -> Any:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, _summed_products, batch1, batch2, beta, alpha)


def _summed_products(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    return reduce(ctx, "SUM", matrix_multiply(ctx, left, right), (0,), False)


def matrix_vector(ctx: ConversionContext, matrix: Operand, vector: Operand) -> Any:
    """Multiplies (M, K) by (K,)."""
    return squeeze(ctx, matrix_multiply(ctx, matrix, unsqueeze(ctx, vector, (1,))), (1,))


@converter(aten.mv.default, checks=(dtypes("self", NUMBERS), multiplies("self", "vec")))
def aten_mv(ctx: ConversionContext, self: Operand, vec: Operand) -> Any:
    """mv(Tensor self, Tensor vec) -> Tensor"""
    return matrix_vector(ctx, self, vec)


@converter(aten.addmv.default, checks=(dtypes("self", NUMBERS), multiplies("mat", "vec")))
def aten_addmv(ctx: ConversionContext, self: Operand, mat: Operand, vec: Operand, beta: float, alpha: float) -> Any:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _added(ctx, self, matrix_vector, mat, vec, beta, alpha)


@converter(aten.addr.default, checks=dtypes("self", NUMBERS))
def aten_addr(ctx: ConversionContext, self: Operand, vec1: Operand, vec2: Operand, beta: float, alpha: float) -> Any:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = ctx.result_dtype
    self, vec1, vec2 = (cast(ctx, part, dtype) for part in (self, vec1, vec2))
    return _added(ctx, self, _outer, vec1, vec2, beta, alpha)


def _outer(ctx: ConversionContext, left: Operand, right: Operand) -> Any:
    return binary(ctx, "PROD", unsqueeze(ctx, left, (1,)), unsqueeze(ctx, right, (0,)), "outer")


@converter(aten.dot.default, checks=(dtypes("self", NUMBERS), multiplies("self", "tensor")))
def aten_dot(ctx: ConversionContext, self: Operand, tensor: Operand) -> Any:
    """dot(Tensor self, Tensor tensor) -> Tensor"""
    product = matrix_multiply(ctx, unsqueeze(ctx, self, (0,)), unsqueeze(ctx, tensor, (1,)))
    return squeeze(ctx, product, (0, 1))


@converter(aten.vdot.default, checks=(dtypes("self", NUMBERS), multiplies("self", "other")))
def aten_vdot(ctx: ConversionContext, self: Operand, other: Operand) -> Any:
    """vdot(Tensor self, Tensor other) -> Tensor"""
    return aten_dot(ctx, self, other)


@converter(aten.outer.default, aten.ger.default, checks=computable)
def aten_outer(ctx: ConversionContext, self: Operand, vec2: Operand) -> Any:
    """outer(Tensor self, Tensor vec2) -> Tensor"""
    dtype = ctx.result_dtype
    work = torch.int32 if dtype is torch.bool else dtype
    left, right = cast(ctx, self, work), cast(ctx, vec2, work)
    return cast(ctx, binary(ctx, "PROD", unsqueeze(ctx, left, (1,)), unsqueeze(ctx, right, (0,))), dtype)


@converter(aten.linalg_cross.default, checks=dtypes("self", NUMBERS))
def aten_linalg_cross(ctx: ConversionContext, self: Operand, other: Operand, dim: int) -> Any:
    """linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor"""
    axis = normalize_axis(dim, len(ctx.result_shape))
    self = expand(ctx, self, ctx.result_shape, ctx.symbolic_shape("self"))
    other = expand(ctx, other, ctx.result_shape, ctx.symbolic_shape("other"))
    next_one, next_two = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    plus = binary(ctx, "PROD", gather(ctx, self, next_one, axis), gather(ctx, other, next_two, axis))
    minus = binary(ctx, "PROD", gather(ctx, self, next_two, axis), gather(ctx, other, next_one, axis))
    return binary(ctx, "SUB", plus, minus, "cross")


# Distances between rows ---------------------------------------------------------------------------------------------


LIMIT: Final = 1 << 26
"""Most differences that one call may compute, all of which exist at once."""


def affordable(call: Call) -> Verdict | None:
    """Refuses more differences than `LIMIT`, and ranks that leave no room for one more axis."""
    first, second = call.tensor("x1"), call.tensor("x2")
    if max(first.dim(), second.dim()) > 7:
        return Verdict.refuse(Reason.UNSUPPORTED_RANK, "the differences need one more dimension")
    elements = first.numel() * second.shape[-2]
    if isinstance(elements, int) and elements > LIMIT:
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{elements} differences, at most {LIMIT}")
    return None


def minkowski(ctx: ConversionContext, difference: Operand, axis: int, p: float) -> Any:
    """Returns the p-norm of differences over an axis, which is removed; float32 inside."""
    dtype = dtype_of(difference)
    size = unary(ctx, "ABS", cast(ctx, difference, torch.float32))
    if p == 0:
        size = cast(ctx, logical_not(ctx, binary(ctx, "EQUAL", size, torch.zeros(()))), torch.float32)
    if math.isinf(p):
        return cast(ctx, reduce(ctx, "MAX", size, (axis,), False), dtype)
    if p in (0, 1):
        return cast(ctx, reduce(ctx, "SUM", size, (axis,), False), dtype)
    if p == 2:
        total = reduce(ctx, "SUM", binary(ctx, "PROD", size, size, "square"), (axis,), False)
        return cast(ctx, unary(ctx, "SQRT", total), dtype)
    total = reduce(ctx, "SUM", binary(ctx, "POW", size, torch.tensor(float(p))), (axis,), False)
    return cast(ctx, binary(ctx, "POW", total, torch.tensor(1.0 / p)), dtype)


@converter(aten._cdist_forward.default, aten.cdist.default, checks=(dtypes("x1", FLOATS), affordable))
def aten__cdist_forward(ctx: ConversionContext, x1: Operand, x2: Operand, p: float, compute_mode: int | None) -> Any:
    """_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"""
    left = unsqueeze(ctx, x1, (rank_of(x1) - 1,))
    right = unsqueeze(ctx, x2, (rank_of(x2) - 2,))
    difference = binary(ctx, "SUB", left, right, "difference")
    return minkowski(ctx, difference, rank_of(difference) - 1, p)


@converter(aten._pdist_forward.default, aten.pdist.default, checks=(dtypes("self", FLOATS), static_axis("self", 0)))
def aten__pdist_forward(ctx: ConversionContext, self: Operand, p: float) -> Any:
    """_pdist_forward(Tensor self, float p=2.0) -> Tensor"""
    rows = int(ctx.symbolic_shape("self")[0])
    first, second = torch.triu_indices(rows, rows, 1)
    difference = binary(ctx, "SUB", gather(ctx, self, first, 0), gather(ctx, self, second, 0), "difference")
    return minkowski(ctx, difference, 1, p)


# Einstein summation -------------------------------------------------------------------------------------------------


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
