"""Convolutions and products with constant matrices, with the activation or sum behind them, as packed kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LayerType, PaddingMode
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer, is_usual_hard_sigmoid
from trt_portable.runtime.fusion import linear_form
from trt_portable.runtime.prepacked_kernels import Epilogue, PrepackedConvolution, PrepackedLinear, PrepackedProduct
from trt_portable.runtime.program import Compute, LayerCall
from trt_portable.values import Value

_UNARY: Final = {
    ActivationType.RELU: Epilogue(unary="relu"),
    ActivationType.SIGMOID: Epilogue(unary="sigmoid"),
    ActivationType.TANH: Epilogue(unary="tanh"),
    ActivationType.GELU_ERF: Epilogue(unary="gelu", algorithm="none"),
    ActivationType.GELU_TANH: Epilogue(unary="gelu", algorithm="tanh"),
    ActivationType.HARD_SIGMOID: Epilogue(unary="hardsigmoid"),
}
_GATED: Final = {"sigmoid": "swish", "hardsigmoid": "hardswish"}
"""``x * activation(x)`` by the activation."""


def prepack_products(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall] | None:
    """Replaces float32 products with constant weights by packed ones, each with what only its result goes through.

    Args:
        calls: Layers in executable order, linear maps fused.
        visible: Ids of tensors that something besides the layers reads.

    Returns:
        The calls; None where there is nothing to pack.
    """
    matcher = _Matcher(calls, visible)
    packed: dict[int, LayerCall] = {}
    for index, call in enumerate(calls):
        if index not in matcher.taken:
            found = matcher.match(index, call)
            if found is not None:
                packed[found.chain[-1]] = _packed_call(calls, found)
    if not packed:
        return None
    return [
        packed.get(index, call) for index, call in enumerate(calls) if index in packed or index not in matcher.taken
    ]


@dataclass(frozen=True)
class _Match:
    """A product, what follows it, and the tensor that is added to it.

    Attributes:
        chain: Indices of the calls, the product first.
        epilogue: What those behind the first do.
        other: The tensor that is added.
    """

    chain: tuple[int, ...]
    epilogue: Epilogue
    other: int | None = None


class _Matcher:
    """Finds chains of calls that one kernel computes; no call is in two of them."""

    def __init__(self, calls: Sequence[LayerCall], visible: Collection[int]) -> None:
        self._calls = calls
        self._visible = visible
        self._readers: dict[int | None, list[int]] = defaultdict(list)
        for index, call in enumerate(calls):
            for tensor in dict.fromkeys(call.inputs):
                self._readers[tensor].append(index)
        self._types: dict[int | None, DataType] = {
            call.outputs[0]: _constant_type(call) for call in calls if call.layer.type is LayerType.CONSTANT
        }
        self.taken: set[int] = set()

    def match(self, index: int, call: LayerCall) -> _Match | None:
        """The chain that begins with a call, if it is a product."""
        if not (_is_plain_convolution(call) or self._is_linear(call)):
            return None
        found = self._with_activation(self._with_sum(_Match((index,), Epilogue())))
        self.taken.update(found.chain)
        return found

    def _is_linear(self, call: LayerCall) -> bool:
        return linear_form(call) is not None and all(
            self._types.get(tensor) is DataType.FLOAT for tensor in call.inputs[1:]
        )

    def _next(self, found: _Match) -> tuple[int, list[int]]:
        """The tensor that a chain makes, and its readers, which are none where others see it."""
        (tensor,) = self._calls[found.chain[-1]].outputs
        readers = self._readers[tensor]
        is_free = tensor not in self._visible and self.taken.isdisjoint(readers)
        return tensor, readers if is_free else []

    def _with_sum(self, found: _Match) -> _Match:
        tensor, readers = self._next(found)
        if len(readers) != 1:
            return found
        call = self._calls[readers[0]]
        if _operation(call) is not ElementWiseOperation.SUM or call.inputs[0] == call.inputs[1]:
            return found
        other = call.inputs[1 if call.inputs[0] == tensor else 0]
        assert other is not None
        if other in self._types:
            return found  # a constant, which broadcasts as a rule
        return _Match((*found.chain, readers[0]), replace(found.epilogue, adds=True), other)

    def _with_activation(self, found: _Match) -> _Match:
        tensor, readers = self._next(found)
        if not readers:
            return found
        epilogue = _activation(self._calls[readers[0]])
        if epilogue is None:
            return found
        if found.epilogue.adds:
            is_linear = linear_form(self._calls[found.chain[0]]) is not None
            if len(readers) == 1 and epilogue.unary == "relu" and not is_linear:
                return replace(found, chain=(*found.chain, *readers), epilogue=replace(epilogue, adds=True))
            return found
        if len(readers) == 1:
            return replace(found, chain=(*found.chain, *readers), epilogue=epilogue)
        return self._gated(found, tensor, readers)

    def _gated(self, found: _Match, tensor: int, readers: list[int]) -> _Match:
        """With ``x * activation(x)``, if that is what becomes of the product ``x``."""
        if len(readers) != 2:
            return found
        activation, product = (self._calls[reader] for reader in readers)
        epilogue = _activation(activation)
        if epilogue is None or _operation(product) is not ElementWiseOperation.PROD:
            return found
        gate = activation.outputs[0]
        if epilogue.unary not in _GATED or set(product.inputs) != {tensor, gate}:
            return found
        if gate in self._visible or self._readers[gate] != [readers[1]]:
            return found
        return replace(found, chain=(*found.chain, *readers), epilogue=Epilogue(unary=_GATED[epilogue.unary]))


def _packed_call(calls: Sequence[LayerCall], found: _Match) -> LayerCall:
    """One call in place of a chain; it stands where the last of the chain stood, when all inputs are there."""
    chain = [calls[index] for index in found.chain]
    first, last = chain[0], chain[-1]
    inputs = first.inputs if found.other is None else (*first.inputs, found.other)
    return replace(
        first,
        inputs=inputs,
        outputs=last.outputs,
        output_names=last.output_names,
        compute=_packed(first, found.epilogue, _one_by_one(chain, inputs)),
        name=" + ".join(call.name for call in chain),
    )


def _packed(product: LayerCall, epilogue: Epilogue, plain: Compute) -> PrepackedProduct:
    layer = product.layer
    if isinstance(layer, IConvolutionLayer):
        return PrepackedConvolution(layer, epilogue, plain)
    form = linear_form(product)
    assert form is not None
    return PrepackedLinear(is_transposed=form.is_transposed, has_bias=form.has_bias, epilogue=epilogue, plain=plain)


def _one_by_one(chain: Sequence[LayerCall], inputs: Sequence[int | None]) -> Compute:
    """Computes a chain layer by layer, from values of its inputs."""

    def run(values: Sequence[Value | None]) -> Sequence[Value]:
        known: dict[int | None, Value | None] = dict(zip(inputs, values, strict=True))
        results: Sequence[Value] = ()
        for call in chain:
            results = call.compute([known[tensor] for tensor in call.inputs])
            known.update(zip(call.outputs, results, strict=True))
        return results

    return run


def _is_plain_convolution(call: LayerCall) -> bool:
    """Whether a call is a convolution in float32 with weights of its own and the same padding on both sides."""
    layer = call.layer
    if not isinstance(layer, IConvolutionLayer) or len(call.inputs) != 1 or not layer._has_weights("KERNEL"):
        return False
    return (
        layer._weight_spec("KERNEL")[0] is DataType.FLOAT
        and layer.padding_mode is PaddingMode.EXPLICIT_ROUND_DOWN
        and tuple(layer.pre_padding) == tuple(layer.post_padding)
    )


def _constant_type(call: LayerCall) -> DataType:
    return call.layer._weight_spec("CONSTANT")[0]


def _operation(call: LayerCall) -> ElementWiseOperation | None:
    layer = call.layer
    return layer.op if isinstance(layer, IElementWiseLayer) else None


def _activation(call: LayerCall) -> Epilogue | None:
    """What an activation is to a packed kernel; None for other layers, and where there is no such kernel."""
    layer = call.layer
    if not isinstance(layer, IActivationLayer):
        return None
    if layer.type is ActivationType.HARD_SIGMOID and not is_usual_hard_sigmoid(layer.alpha, layer.beta):
        return None
    if layer.type is ActivationType.LEAKY_RELU:
        return Epilogue(unary="leaky_relu", scalars=(layer.alpha,))
    return _UNARY.get(layer.type)
