"""Element by element: arithmetic, roundings, powers, trigonometry, activations, comparisons, logic, choices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import ActivationType, DataType, ErrorCode, UnaryOperation
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_UNLIKE: Final = {UnaryOperation.ISINF: "IsInf", UnaryOperation.ISNAN: "IsNaN", UnaryOperation.RECIP: "Reciprocal"}
UNARY: Final = {_UNLIKE.get(op, op.name.capitalize()): op for op in UnaryOperation}
"""What ONNX calls functions of one operand."""
BINARY: Final = {"Add": Op.SUM, "Mul": Op.PROD} | {
    op.name.capitalize(): op for op in Op if op not in (Op.SUM, Op.PROD, Op.FLOOR_DIV)
}
"""What ONNX calls functions of two operands."""
ACTIVATIONS: Final[Mapping[str, tuple[ActivationType, Mapping[str, float]]]] = {
    "Elu": (ActivationType.ELU, {"alpha": 1.0}),
    "HardSigmoid": (ActivationType.HARD_SIGMOID, {"alpha": 0.2, "beta": 0.5}),
    "LeakyRelu": (ActivationType.LEAKY_RELU, {"alpha": 0.01}),
    "Relu": (ActivationType.RELU, {}),
    "Selu": (ActivationType.SELU, {"alpha": 1.67326319237681884765625, "gamma": 1.05070102214813232421875}),
    "Sigmoid": (ActivationType.SIGMOID, {}),
    "Softsign": (ActivationType.SOFTSIGN, {}),
    "Tanh": (ActivationType.TANH, {}),
    "ThresholdedRelu": (ActivationType.THRESHOLDED_RELU, {"alpha": 1.0}),
}
"""What ONNX calls activations, and their coefficients where none are given, in the order of a layer's."""


@operator(*(UNARY.keys() - {"Ceil", "Floor", "IsInf", "IsNaN", "Neg", "Not", "Round"}))
def unary(net: NetworkWriter, x: ITensor, *, consumed_inputs: Any = None) -> ITensor:
    """Exp(X) -> Y, and its like."""
    return net.unary(x, UNARY[net.node.operator])


@operator("Neg")
def neg(net: NetworkWriter, x: ITensor) -> ITensor:
    """Neg(X) -> Y"""
    if x.dtype in FLOATS:
        return net.unary(x, UnaryOperation.NEG)
    return net.output(net.network.add_elementwise(net.scalar_like(0, x), x, Op.SUB))


@operator("Ceil", "Floor", "Round")
def rounding(net: NetworkWriter, x: ITensor) -> ITensor:
    """Ceil(X) -> Y; integers stay as they are."""
    return net.unary(x, UNARY[net.node.operator]) if x.dtype in FLOATS else x


@operator("Add", "And", "Div", "Mul", "Or", "Sub", "Xor", since=7)
def binary(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Add(A, B) -> C, broadcast."""
    return net.binary(a, b, BINARY[net.node.operator])


@operator("Max", "Min", since=8)
def extreme(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Max(data_0, ...) -> max; NaN wins, as in ONNX."""
    return _folded(net, data, BINARY[net.node.operator])


@operator("Sum", since=8)
def sum_of(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Sum(data_0, ...) -> sum"""
    return _folded(net, data, Op.SUM)


@operator("Mean", since=8)
def mean_of(net: NetworkWriter, *data: ITensor) -> ITensor:
    """Mean(data_0, ...) -> mean"""
    return net.with_number(_folded(net, data, Op.SUM), len(data), Op.DIV)


def _folded(net: NetworkWriter, data: tuple[ITensor, ...], op: Op) -> ITensor:
    if not data:
        raise Unsupported(f"{net.node.operator} has no inputs", ErrorCode.INVALID_NODE)
    total = data[0]
    for term in data[1:]:
        total = net.binary(total, term, op)
    return net.output(net.network.add_identity(total)) if len(data) == 1 else total


@operator("Pow", since=7)
def pow(net: NetworkWriter, x: ITensor, y: ITensor) -> ITensor:
    """Pow(X, Y) -> Z, of the type of X"""
    kind = x.dtype
    computed = next((t.dtype for t in (x, y) if t.dtype in FLOATS), DataType.FLOAT) if kind not in FLOATS else kind
    result = net.binary(net.cast(x, computed), net.cast(y, computed), Op.POW)
    if kind in FLOATS:
        return result
    if y.dtype not in FLOATS:  # whole powers of whole numbers are whole, but for the last bit of a float
        result = net.unary(result, UnaryOperation.ROUND)
    return net.cast(result, kind)


@operator("Mod", since=10)
def mod(net: NetworkWriter, a: ITensor, b: ITensor, *, fmod: int = 0) -> ITensor:
    """Mod(A, B) -> C; with the sign of B, or with fmod of A"""
    if fmod and a.dtype in FLOATS:
        size, step = (net.unary(x, UnaryOperation.ABS) for x in (a, b))
        times = net.unary(net.binary(size, step, Op.DIV), UnaryOperation.FLOOR)
        rest = net.binary(size, net.binary(times, step, Op.PROD), Op.SUB)
        return net.binary(rest, net.unary(a, UnaryOperation.SIGN), Op.PROD)
    quotient = net.binary(a, b, Op.DIV if fmod else Op.FLOOR_DIV)
    return net.binary(a, net.binary(quotient, b, Op.PROD), Op.SUB)


@operator("BitwiseNot", since=18)
def bitwise_not(net: NetworkWriter, x: ITensor) -> ITensor:
    """BitwiseNot(X) -> Y: -1 - X"""
    if x.dtype not in INDICES | {DataType.INT8}:
        raise Unsupported(f"BitwiseNot of {x.dtype.name}", ErrorCode.UNSUPPORTED_NODE_DATATYPE)
    return net.output(net.network.add_elementwise(net.scalar_like(-1, x), x, Op.SUB))


@operator("Clip", since=6, from_attributes=("min", "max"))
@operator("Clip", since=11)
def clip(net: NetworkWriter, x: ITensor, min: Operand | None = None, max: Operand | None = None) -> ITensor:
    """Clip(input, min, max) -> output; `max` where `min` is greater"""
    low, high = (net.numbers(bound) for bound in (min, max))
    known = all(bound is None or value is not None for bound, value in ((min, low), (max, high)))
    if x.dtype in FLOATS and known:
        least = low[0] if low else -math.inf
        most = high[0] if high else math.inf
        if least <= most:
            return net.activation(x, ActivationType.CLIP, _finite(least), _finite(most))
    for bound, op in ((min, Op.MAX), (max, Op.MIN)):
        if bound is not None:
            x = net.binary(x, net.cast(net.tensor(bound), x.dtype), op)
    return net.output(net.network.add_identity(x)) if min is None and max is None else x


_FLT_MAX: Final = 3.4028234663852886e38


def _finite(bound: float) -> float:
    return math.copysign(_FLT_MAX, bound) if math.isinf(bound) else bound


def activation(net: NetworkWriter, x: ITensor, **coefficients: float) -> ITensor:
    """Relu(X) -> Y, and its like, with coefficients as attributes"""
    kind, defaults = ACTIVATIONS[net.node.operator]
    return net.activation(x, kind, *{**defaults, **coefficients}.values())


for _name, (_, _coefficients) in ACTIVATIONS.items():
    operator(_name, since=10 if _name == "ThresholdedRelu" else 1, attributes=_coefficients)(activation)


@operator("Celu", since=12)
def celu(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """Celu(X; alpha) -> Y: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))"""
    shape = net.activation(net.with_number(x, 1 / alpha, Op.PROD), ActivationType.ELU, 1.0)
    return net.with_number(shape, alpha, Op.PROD)


@operator("Softplus")
def softplus(net: NetworkWriter, x: ITensor) -> ITensor:
    """Softplus(X) -> Y"""
    return net.activation(x, ActivationType.SOFTPLUS, 1.0, 1.0)


@operator("ParametricSoftplus")
def parametric_softplus(net: NetworkWriter, x: ITensor, *, alpha: float, beta: float) -> ITensor:
    """ParametricSoftplus(X; alpha, beta) -> Y: alpha * log(exp(beta * x) + 1)"""
    return net.activation(x, ActivationType.SOFTPLUS, alpha, beta)


@operator("ScaledTanh")
def scaled_tanh(net: NetworkWriter, x: ITensor, *, alpha: float, beta: float) -> ITensor:
    """ScaledTanh(X; alpha, beta) -> Y: alpha * tanh(beta * x)"""
    return net.activation(x, ActivationType.SCALED_TANH, alpha, beta)


@operator("HardSwish", since=14)
def hard_swish(net: NetworkWriter, x: ITensor) -> ITensor:
    """HardSwish(X) -> Y: x * hard_sigmoid(x) with alpha = 1 / 6"""
    return net.binary(x, net.activation(x, ActivationType.HARD_SIGMOID, 1 / 6, 0.5), Op.PROD)


@operator("Mish", since=18)
def mish(net: NetworkWriter, x: ITensor) -> ITensor:
    """Mish(X) -> Y: x * tanh(softplus(x))"""
    softened = net.activation(x, ActivationType.SOFTPLUS, 1.0, 1.0)
    return net.binary(x, net.activation(softened, ActivationType.TANH), Op.PROD)


@operator("Swish", since=24)
def swish(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """Swish(X; alpha) -> Y: x * sigmoid(alpha * x)"""
    scaled = x if alpha == 1.0 else net.with_number(x, alpha, Op.PROD)
    return net.binary(x, net.activation(scaled, ActivationType.SIGMOID), Op.PROD)


@operator("Gelu", since=20)
def gelu(net: NetworkWriter, x: ITensor, *, approximate: str = "none") -> ITensor:
    """Gelu(X; approximate) -> Y"""
    return net.activation(x, ActivationType.GELU_TANH if approximate == "tanh" else ActivationType.GELU_ERF)


@operator("PRelu", since=7)
def prelu(net: NetworkWriter, x: ITensor, slope: ITensor) -> ITensor:
    """PRelu(X, slope) -> Y"""
    x, slope = net.broadcast(x, slope)
    if x.dtype.name.startswith("INT"):
        scaled = net.binary(slope, x, Op.PROD)
        return net.select(net.with_number(x, 0, Op.LESS), scaled, x)
    return net.output(net.network.add_parametric_relu(x, slope))


@operator("Shrink", since=9)
def shrink(net: NetworkWriter, x: ITensor, *, bias: float = 0.0, lambd: float = 0.5) -> ITensor:
    """Shrink(input; bias, lambd) -> output: x + bias below -lambd, x - bias above lambd, else 0"""
    below = net.with_number(x, -lambd, Op.LESS)
    above = net.with_number(x, lambd, Op.GREATER)
    zero = net.scalar_like(0, x)
    inner = net.select(above, net.with_number(x, -bias, Op.SUM), zero)
    return net.select(below, net.with_number(x, bias, Op.SUM), inner)


@operator("ImageScaler")
def image_scaler(net: NetworkWriter, x: ITensor, *, bias: list[float], scale: float = 1.0) -> ITensor:
    """ImageScaler(input; bias, scale) -> output: x * scale + bias of the channel"""
    shift = net.constant([[[[number]] for number in bias]], x.dtype)
    return net.binary(net.with_number(x, scale, Op.PROD), shift, Op.SUM)


@operator("LogSoftmax", since=13)
def log_softmax(net: NetworkWriter, x: ITensor, *, axis: int = -1) -> ITensor:
    """LogSoftmax(input; axis) -> output"""
    return net.unary(softmax(net, x, axis=axis), UnaryOperation.LOG)


@operator("Softmax", since=13)
def softmax(net: NetworkWriter, x: ITensor, *, axis: int = -1) -> ITensor:
    """Softmax(input; axis) -> output"""
    return net.output(net.network.add_softmax(x), axes=1 << net.axis(axis, net.rank(x)))


@operator("Softmax", "LogSoftmax", "Hardmax", since=1)
def flat_softmax(net: NetworkWriter, x: ITensor, *, axis: int = 1) -> ITensor:
    """Softmax(input; axis) -> output, over all axes from `axis` on, as opsets before 13 have it"""
    rank = net.rank(x)
    first = axis if axis == rank else net.axis(axis, rank)
    extents = net.extents(x)
    flat = net.reshape(x, [net.product(extents[:first]), net.product(extents[first:])])
    function = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}[net.node.operator]
    return net.reshape(function(net, flat, axis=-1), extents)


@operator("Hardmax", since=13)
def hardmax(net: NetworkWriter, x: ITensor, *, axis: int = -1) -> ITensor:
    """Hardmax(input; axis) -> output: 1 at the first greatest element, else 0"""
    from trt_portable.onnx_parser.operators.reductions import first_place

    rank = net.rank(x)
    chosen = net.axis(axis, rank)
    place = first_place(net, x, chosen, greatest=True)
    from trt_portable.onnx_parser.operators.sources import ramp_along

    return net.cast(net.binary(ramp_along(net, x, chosen), place, Op.EQUAL), x.dtype)


@operator("Not")
def logical_not(net: NetworkWriter, x: ITensor) -> ITensor:
    """Not(X) -> Y"""
    return net.logical_not(x)


@operator("Equal", since=7)
def equal(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Equal(A, B) -> C"""
    if a.dtype is DataType.BOOL:
        return net.logical_not(net.binary(a, b, Op.XOR))
    return _compared(net, a, b, Op.EQUAL)


@operator("Greater", "Less", since=7)
def order(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """Greater(A, B) -> C"""
    return _compared(net, a, b, BINARY[net.node.operator])


@operator("GreaterOrEqual", "LessOrEqual", since=12)
def order_or_equal(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """GreaterOrEqual(A, B) -> C; false for NaN"""
    op = BINARY[net.node.operator.removesuffix("OrEqual")]
    same = _compared(net, a, b, Op.EQUAL)
    return net.binary(_compared(net, a, b, op), same, Op.OR)


def _compared(net: NetworkWriter, a: ITensor, b: ITensor, op: Op) -> ITensor:
    if a.dtype is DataType.INT8:
        a, b = net.cast(a, DataType.INT32), net.cast(b, DataType.INT32)
    return net.binary(a, b, op)


@operator("Where", since=9)
def where(net: NetworkWriter, condition: ITensor, x: ITensor, y: ITensor) -> ITensor:
    """Where(condition, X, Y) -> output"""
    return net.select(condition, x, y)


@operator("IsNaN", since=9)
def is_nan(net: NetworkWriter, x: ITensor) -> ITensor:
    """IsNaN(X) -> Y"""
    return net.unary(x, UnaryOperation.ISNAN)


@operator("IsInf", since=10)
def is_inf(net: NetworkWriter, x: ITensor, *, detect_negative: int = 1, detect_positive: int = 1) -> ITensor:
    """IsInf(X; detect_negative, detect_positive) -> Y"""
    net.require_float(x)
    found = net.unary(x, UnaryOperation.ISINF)
    if detect_negative and detect_positive:
        return found
    if not detect_negative and not detect_positive:
        return net.binary(found, net.logical_not(found), Op.AND)
    op = Op.LESS if detect_negative else Op.GREATER
    return net.binary(found, net.with_number(x, 0, op), Op.AND)
