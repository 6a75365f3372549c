"""Activation functions."""

from __future__ import annotations

from typing import Final

from trt_portable.enums import ActivationType, ElementWiseOperation, UnaryOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter

_PROD: Final = ElementWiseOperation.PROD
_SUM: Final = ElementWiseOperation.SUM

_PLAIN: Final = {
    "Relu": ActivationType.RELU,
    "Sigmoid": ActivationType.SIGMOID,
    "Tanh": ActivationType.TANH,
    "Softsign": ActivationType.SOFTSIGN,
}


@operator(*_PLAIN)
def plain(net: NetworkWriter, x: ITensor) -> ITensor:
    """Relu(X) -> Y"""
    return net.activation(x, _PLAIN[net.node.operator])


@operator("LeakyRelu")
def leaky_relu(net: NetworkWriter, x: ITensor, *, alpha: float = 0.01) -> ITensor:
    """LeakyRelu(X; alpha) -> Y"""
    return net.activation(x, ActivationType.LEAKY_RELU, alpha)


@operator("ThresholdedRelu", since=10)
def thresholded_relu(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """ThresholdedRelu(X; alpha) -> Y"""
    return net.activation(x, ActivationType.THRESHOLDED_RELU, alpha)


@operator("Elu")
def elu(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """Elu(X; alpha) -> Y"""
    return net.activation(x, ActivationType.ELU, alpha)


@operator("Celu", since=12)
def celu(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """Celu(X; alpha) -> Y: max(0, x) + min(0, alpha * (exp(x / alpha) - 1))"""
    return net.with_number(net.activation(net.with_number(x, 1 / alpha, _PROD), ActivationType.ELU, 1.0), alpha, _PROD)


@operator("Selu")
def selu(
    net: NetworkWriter,
    x: ITensor,
    *,
    alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875,
) -> ITensor:
    """Selu(X; alpha, gamma) -> Y"""
    return net.activation(x, ActivationType.SELU, alpha, gamma)


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


@operator("HardSigmoid")
def hard_sigmoid(net: NetworkWriter, x: ITensor, *, alpha: float = 0.2, beta: float = 0.5) -> ITensor:
    """HardSigmoid(X; alpha, beta) -> Y"""
    return net.activation(x, ActivationType.HARD_SIGMOID, alpha, beta)


@operator("HardSwish", since=14)
def hard_swish(net: NetworkWriter, x: ITensor) -> ITensor:
    """HardSwish(X) -> Y: x * hard_sigmoid(x) with alpha = 1 / 6"""
    return net.binary(x, net.activation(x, ActivationType.HARD_SIGMOID, 1 / 6, 0.5), _PROD)


@operator("Mish", since=18)
def mish(net: NetworkWriter, x: ITensor) -> ITensor:
    """Mish(X) -> Y: x * tanh(softplus(x))"""
    softened = net.activation(x, ActivationType.SOFTPLUS, 1.0, 1.0)
    return net.binary(x, net.activation(softened, ActivationType.TANH), _PROD)


@operator("Swish", since=24)
def swish(net: NetworkWriter, x: ITensor, *, alpha: float = 1.0) -> ITensor:
    """Swish(X; alpha) -> Y: x * sigmoid(alpha * x)"""
    scaled = x if alpha == 1.0 else net.with_number(x, alpha, _PROD)
    return net.binary(x, net.activation(scaled, ActivationType.SIGMOID), _PROD)


@operator("Gelu", since=20)
def gelu(net: NetworkWriter, x: ITensor, *, approximate: str = "none") -> ITensor:
    """Gelu(X; approximate) -> Y"""
    return net.activation(x, ActivationType.GELU_TANH if approximate == "tanh" else ActivationType.GELU_ERF)


@operator("PRelu", since=7)
def prelu(net: NetworkWriter, x: ITensor, slope: ITensor) -> ITensor:
    """PRelu(X, slope) -> Y"""
    x, slope = net.broadcast(x, slope)
    if x.dtype.name.startswith("INT"):
        scaled = net.binary(slope, x, _PROD)
        return net.select(net.with_number(x, 0, ElementWiseOperation.LESS), scaled, x)
    return net.output(net.network.add_parametric_relu(x, slope))


@operator("Shrink", since=9)
def shrink(net: NetworkWriter, x: ITensor, *, bias: float = 0.0, lambd: float = 0.5) -> ITensor:
    """Shrink(input; bias, lambd) -> output: x + bias below -lambd, x - bias above lambd, else 0"""
    below = net.with_number(x, -lambd, ElementWiseOperation.LESS)
    above = net.with_number(x, lambd, ElementWiseOperation.GREATER)
    zero = net.scalar_like(0, x)
    inner = net.select(above, net.with_number(x, -bias, _SUM), zero)
    return net.select(below, net.with_number(x, bias, _SUM), inner)


@operator("ImageScaler")
def image_scaler(net: NetworkWriter, x: ITensor, *, bias: list[float], scale: float = 1.0) -> ITensor:
    """ImageScaler(input; bias, scale) -> output: x * scale + bias of the channel"""
    shift = net.constant([[[[number]] for number in bias]], x.dtype)
    return net.binary(net.with_number(x, scale, _PROD), shift, _SUM)


@operator("LogSoftmax", since=13)
def log_softmax(net: NetworkWriter, x: ITensor, *, axis: int = -1) -> ITensor:
    """LogSoftmax(input; axis) -> output"""
    return net.unary(softmax(net, x, axis=axis), UnaryOperation.LOG)


@operator("Softmax", since=13)
def softmax(net: NetworkWriter, x: ITensor, *, axis: int = -1) -> ITensor:
    """Softmax(input; axis) -> output"""
    return net.softmax(x, net.axis(axis, net.rank(x)))


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

    return net.cast(net.binary(ramp_along(net, x, chosen), place, ElementWiseOperation.EQUAL), x.dtype)
