"""Convolutions and products with constant matrices, and what only their results go through: chains for one kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LayerType, PaddingMode
from trt_portable.execution.program import Compute, LayerCall, PackingCompute, forget_packed
from trt_portable.fusion.neighbours import Clamp, Linear, clip_limits
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer, is_usual_hard_sigmoid
from trt_portable.shape_tensors import Value

CLAMP: Final = "clamp"
"""A clip that keeps NaN, which oneDNN's does not."""


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does to a product before it writes it.

    Attributes:
        adds: Whether a tensor of the result's shape, which is the last input, is added first.
        unary: oneDNN's name of an activation that comes last, or `CLAMP`; ``none`` where there is none.
        scalars: Coefficients of the activation.
        algorithm: Which form of the activation, where there are several.
    """

    adds: bool = False
    unary: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


class Kernels(ABC):
    """What a device has for products and what follows them."""

    @abstractmethod
    def takes(self, call: LayerCall) -> bool:
        """Whether a call is a product of the kind."""

    @abstractmethod
    def fuses(self, product: LayerCall, epilogue: Epilogue) -> bool:
        """Whether a product that is taken, and an epilogue, are one kernel."""

    @abstractmethod
    def make(self, product: LayerCall, epilogue: Epilogue, plain: OneByOne) -> Compute:
        """The kernel.

        Args:
            product: A product that is taken.
            epilogue: Fuses with it.
            plain: Computes the same from the same inputs, layer by layer.
        """


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


def fuse_products(calls: Sequence[LayerCall], visible: Collection[int], kernels: Kernels) -> list[LayerCall] | None:
    """Puts one call in place of each product and what only its result goes through.

    Args:
        calls: Layers in executable order, linear maps fused.
        visible: Ids of tensors that something besides the layers reads.
        kernels: What there is.

    Returns:
        The calls; None where no kernel serves.
    """
    matcher = _Matcher(calls, visible, kernels)
    fused: dict[int, LayerCall] = {}
    for index, call in enumerate(calls):
        if index not in matcher.taken:
            found = matcher.match(index, call)
            if found is not None:
                fused[found.chain[-1]] = _fused_call(calls, found, kernels)
    if not fused:
        return None
    return [fused.get(index, call) for index, call in enumerate(calls) if index in fused or index not in matcher.taken]


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

    def __init__(self, calls: Sequence[LayerCall], visible: Collection[int], kernels: Kernels) -> None:
        self._calls = calls
        self._kernels = kernels
        self._visible = visible
        self._readers: dict[int | None, list[int]] = defaultdict(list)
        for index, call in enumerate(calls):
            for tensor in dict.fromkeys(call.inputs):
                self._readers[tensor].append(index)
        self._constants = {call.outputs[0] for call in calls if call.layer.type is LayerType.CONSTANT}
        self.taken: set[int] = set()

    def match(self, index: int, call: LayerCall) -> _Match | None:
        """The longest chain for one kernel that begins with a call; None where there is none."""
        if not self._kernels.takes(call):
            return None
        product = _Match((index,), Epilogue())
        summed = self._with_sum(product)
        for found in (self._with_activation(summed), summed, self._with_activation(product), product):
            if self._kernels.fuses(call, found.epilogue):
                self.taken.update(found.chain)
                return found
        return None

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
        if other in self._constants:
            return found  # a constant, which broadcasts as a rule
        return _Match((*found.chain, readers[0]), replace(found.epilogue, adds=True), other)

    def _with_activation(self, found: _Match) -> _Match:
        tensor, readers = self._next(found)
        if not readers:
            return found
        epilogue = _activation(self._calls[readers[0]])
        if epilogue is None:
            return found
        if len(readers) == 1:
            epilogue = replace(epilogue, adds=found.epilogue.adds)
            return replace(found, chain=(*found.chain, *readers), epilogue=epilogue)
        return self._gated(found, tensor, readers)

    def _gated(self, found: _Match, tensor: int, readers: list[int]) -> _Match:
        """With ``x * activation(x)``, if that is what becomes of the product ``x``."""
        if len(readers) != 2 or found.epilogue.adds:
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


def _fused_call(calls: Sequence[LayerCall], found: _Match, kernels: Kernels) -> LayerCall:
    """One call in place of a chain; it stands where the last of the chain stood, when all inputs are there."""
    chain = [calls[index] for index in found.chain]
    first, last = chain[0], chain[-1]
    inputs = first.inputs if found.other is None else (*first.inputs, found.other)
    return replace(
        first,
        inputs=inputs,
        outputs=last.outputs,
        output_names=last.output_names,
        compute=kernels.make(first, found.epilogue, OneByOne(chain, inputs)),
        name=" + ".join(call.name for call in chain),
    )


class OneByOne(PackingCompute):
    """Computes a chain layer by layer.

    Args:
        chain: The product first.
        inputs: Tensors that the chain reads, in the order of their values.
    """

    def __init__(self, chain: Sequence[LayerCall], inputs: Sequence[int | None]) -> None:
        self._chain = tuple(chain)
        self._inputs = tuple(inputs)

    def __call__(self, values: Sequence[Value | None]) -> Sequence[Value]:
        """The result."""
        product = self._chain[0]
        known = dict(zip(self._inputs, values, strict=True))
        return self.finish(product.compute([known[tensor] for tensor in product.inputs]), values)

    def forget(self) -> int:
        """Gives up what the layers packed, and returns how many bytes it was."""
        return forget_packed(call.compute for call in self._chain)

    def finish(self, results: Sequence[Value], values: Sequence[Value | None]) -> Sequence[Value]:
        """The result of the chain, given that of the product."""
        product, *behind = self._chain
        if not behind:
            return results
        known: dict[int | None, Value | None] = dict(zip(self._inputs, values, strict=True))
        known.update(zip(product.outputs, results, strict=True))
        for call in behind:
            results = call.compute([known[tensor] for tensor in call.inputs])
            known.update(zip(call.outputs, results, strict=True))
        return results


def is_plain_convolution(call: LayerCall, dtype: DataType) -> bool:
    """Whether a call is a convolution of a type with weights of its own and the same padding on both sides."""
    layer = call.layer
    if not isinstance(layer, IConvolutionLayer) or len(call.inputs) != 1 or not layer._has_weights("KERNEL"):
        return False
    return (
        layer._weight_spec("KERNEL")[0] is dtype
        and layer.padding_mode is PaddingMode.EXPLICIT_ROUND_DOWN
        and tuple(layer.pre_padding) == tuple(layer.post_padding)
    )


def is_linear(call: LayerCall, dtype: DataType) -> bool:
    """Whether a call is a linear map of a type, to one column or more; its matrix, and its bias, are constant."""
    compute = call.compute
    return isinstance(compute, Linear) and compute.columns > 0 and call.layer._outputs[0].dtype is dtype


def _operation(call: LayerCall) -> ElementWiseOperation | None:
    layer = call.layer
    return layer.op if isinstance(layer, IElementWiseLayer) else None


def _activation(call: LayerCall) -> Epilogue | None:
    """What an activation is to a packed kernel; None for other layers, and where there is no such kernel."""
    layer = call.layer
    if isinstance(call.compute, Clamp):
        return Epilogue(unary=CLAMP, scalars=call.compute.limits)
    if not isinstance(layer, IActivationLayer):
        return None
    if layer.type is ActivationType.HARD_SIGMOID and not is_usual_hard_sigmoid(layer.alpha, layer.beta):
        return None
    if layer.type is ActivationType.LEAKY_RELU:
        return Epilogue(unary="leaky_relu", scalars=(layer.alpha,))
    limits = clip_limits(call)
    if limits is not None:
        return Epilogue(unary="hardtanh", scalars=limits)
    return _UNARY.get(layer.type)
