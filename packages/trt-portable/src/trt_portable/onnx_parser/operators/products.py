"""Products of matrices."""

from __future__ import annotations

import string
from typing import Final

from trt_portable.dtypes import FLOATS
from trt_portable.enums import DataType, ElementWiseOperation, ErrorCode, MatrixOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter

_SUM: Final = ElementWiseOperation.SUM
_PROD: Final = ElementWiseOperation.PROD


@operator("MatMul")
def matmul(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """MatMul(A, B) -> Y, as numpy.matmul"""
    kind = a.dtype
    if kind not in FLOATS:
        a, b = net.cast(a, DataType.FLOAT), net.cast(b, DataType.FLOAT)
    return net.cast(_matmul(net, a, b), kind)


def _matmul(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    ranks = net.rank(a), net.rank(b)
    if 0 in ranks:
        raise Unsupported("MatMul of a scalar", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    if 1 not in ranks:
        return net.matmul(a, b)
    ops = [MatrixOperation.VECTOR if rank == 1 else MatrixOperation.NONE for rank in ranks]
    leading = max(max(rank - 2, 0) for rank in ranks)  # of matrices; vectors get as many
    vectors = [net.unsqueeze(x, range(leading)) if rank == 1 else x for x, rank in zip((a, b), ranks, strict=True)]
    return net.output(net.network.add_matrix_multiply(vectors[0], ops[0], vectors[1], ops[1]))


@operator("Gemm", since=7)
def gemm(
    net: NetworkWriter,
    a: ITensor,
    b: ITensor,
    c: ITensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ITensor:
    """Gemm(A, B, C; alpha, beta, transA, transB) -> Y: alpha * A' * B' + beta * C"""
    kind = a.dtype
    computed = kind if kind in FLOATS else DataType.FLOAT
    product = net.matmul(net.cast(a, computed), net.cast(b, computed), (bool(transA), bool(transB)))
    if alpha != 1.0:
        product = net.with_number(product, alpha, _PROD)
    if c is not None and beta != 0.0:
        bias = net.cast(c, computed)
        product = net.binary(product, bias if beta == 1.0 else net.with_number(bias, beta, _PROD), _SUM)
    return net.cast(product, kind)


@operator("Einsum", since=12)
def einsum(net: NetworkWriter, *inputs: ITensor, equation: str) -> ITensor:
    """Einsum(Inputs; equation) -> Output"""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != len(inputs):
        raise Unsupported(f"equation {equation!r} for {len(inputs)} inputs", ErrorCode.INVALID_NODE)
    operands, result = _without_ellipsis(net, operands, inputs, result if arrow else None)
    letters = dict(zip(dict.fromkeys(c for term in operands for c in term), string.ascii_lowercase, strict=False))
    tensors = list(inputs)
    for place, term in enumerate(operands):
        if len(set(term)) != len(term):
            tensors[place], operands[place] = _diagonal(net, tensors[place], term)
    labels = ["".join(letters[c] for c in term) for term in operands]
    joined = ",".join(labels) + "->" + "".join(letters[c] for c in result)
    return net.output(net.network.add_einsum(tensors, joined))


def _without_ellipsis(
    net: NetworkWriter, operands: list[str], inputs: tuple[ITensor, ...], result: str | None
) -> tuple[list[str], str]:
    """The terms with letters in place of "...", and the result's, which is in alphabetical order by default."""
    widths = [net.rank(x) - len(term.replace("...", "")) for term, x in zip(operands, inputs, strict=True)]
    most = max(widths) if any("..." in term for term in operands) else 0
    used = set("".join(operands)) | set(result or "")
    free = [c for c in string.ascii_letters if c not in used][:most]
    if len(free) < most or any(width < 0 for width in widths):
        raise Unsupported("the equation does not fit the ranks of the inputs", ErrorCode.INVALID_NODE)
    spelled = [
        term.replace("...", "".join(free[most - width :] if width else []))
        for term, width in zip(operands, widths, strict=True)
    ]
    if result is None:
        letters = "".join(term.replace("...", "") for term in operands)
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        return spelled, "".join(free) + "".join(once)
    return spelled, result.replace("...", "".join(free))


def _diagonal(net: NetworkWriter, x: ITensor, term: str) -> tuple[ITensor, str]:
    """A tensor whose axes of the same letter have become one."""
    from trt_portable.onnx_parser.operators.sources import ramp_along

    while len(set(term)) != len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first, second = term.index(letter), term.rindex(letter)
        same = net.binary(ramp_along(net, x, first), ramp_along(net, x, second), ElementWiseOperation.EQUAL)
        from trt_portable.enums import ReduceOperation

        x = net.reduce(net.select(same, x, net.scalar_like(0, x)), ReduceOperation.SUM, [second], False)
        term = term[:second] + term[second + 1 :]
    return x, term


@operator("MatMulInteger", since=10)
def matmul_integer(
    net: NetworkWriter,
    a: ITensor,
    b: ITensor,
    a_zero_point: ITensor | None = None,
    b_zero_point: ITensor | None = None,
) -> ITensor:
    """MatMulInteger(A, B, a_zero_point, b_zero_point) -> Y, int32"""
    left, right = net.cast(a, DataType.FLOAT), net.cast(b, DataType.FLOAT)
    if a_zero_point is not None:
        zero = net.cast(a_zero_point, DataType.FLOAT)
        if net.rank(zero) == 1 and net.rank(left) > 1 and zero.shape[0] != 1:
            zero = net.unsqueeze(zero, [1])
        left = net.binary(left, zero, ElementWiseOperation.SUB)
    if b_zero_point is not None:
        right = net.binary(right, net.cast(b_zero_point, DataType.FLOAT), ElementWiseOperation.SUB)
    return net.cast(_matmul(net, left, right), DataType.INT32)
