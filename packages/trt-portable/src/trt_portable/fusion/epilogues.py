"""Convolutions and products with constant matrices, and what only their results go through: chains for one kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LayerType, PaddingMode
from trt_portable.execution.program import Compute, LayerCall, PackingCompute, forget_packed
from trt_portable.fusion.call_graph import CallFusion, CallGraph, CallPattern
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.fused import ClampLayer, GateLayer, Linear
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer, is_usual_hard_sigmoid, representable
from trt_portable.shape_tensors import Value

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer


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
_GATES: Final = {
    ActivationType.SIGMOID: Epilogue(unary="swish"),
    ActivationType.HARD_SIGMOID: Epilogue(unary="hardswish"),
}
"""``x * activation(x)`` by the activation."""


@dataclass(frozen=True)
class LinearForm:
    """How a linear map reads its matrix, the second input, and whether a third is its bias."""

    is_transposed: bool
    has_bias: bool


def linear_form(call: LayerCall) -> LinearForm | None:
    """How a linear map that runs as it is reads its operands; None for other calls."""
    compute = call.compute
    return LinearForm(compute.is_transposed, len(call.inputs) > 2) if isinstance(compute, Linear) else None


@dataclass(frozen=True)
class _Chain:
    """A product, what follows it, and the tensor that is added to it.

    Attributes:
        calls: The product first.
        epilogue: What those behind the first do.
        other: The tensor that is added.
    """

    calls: tuple[LayerCall, ...]
    epilogue: Epilogue
    other: int | None = None


class ProductWithEpilogue(CallPattern):
    """The longest chain that begins with a product, and for which there is a kernel, is one call.

    Args:
        kernels: What there is.
    """

    kinds = frozenset({LayerType.CONVOLUTION, LayerType.DECONVOLUTION, LayerType.MATRIX_MULTIPLY})

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The kernel, where the last of the chain stood, when all inputs are there."""
        if not self._kernels.takes(call):
            return None
        product = _Chain((call,), Epilogue())
        summed = _with_sum(product, graph)
        for chain in (_with_activation(summed, graph), summed, _with_activation(product, graph), product):
            if self._kernels.fuses(call, chain.epilogue):
                return CallFusion([self._fused(chain)], chain.calls, chain.calls[-1])
        return None

    def _fused(self, chain: _Chain) -> LayerCall:
        first, last = chain.calls[0], chain.calls[-1]
        inputs = first.inputs if chain.other is None else (*first.inputs, chain.other)
        return replace(
            first,
            inputs=inputs,
            outputs=last.outputs,
            output_names=last.output_names,
            compute=self._kernels.make(first, chain.epilogue, OneByOne(chain.calls, inputs)),
            name=" + ".join(call.name for call in chain.calls),
        )


def operation_of(call: LayerCall) -> ElementWiseOperation | None:
    """The operation of an elementwise layer that runs as it is; None for other layers, and where it was fused."""
    layer = call.layer
    return layer.op if isinstance(layer, IElementWiseLayer) and call.compute == layer._compute else None


def _with_sum(chain: _Chain, graph: CallGraph) -> _Chain:
    (tensor,) = chain.calls[-1].outputs
    readers = graph.readers(tensor)
    if len(readers) != 1:
        return chain
    (call,) = readers
    if operation_of(call) is not ElementWiseOperation.SUM or call.inputs[0] == call.inputs[1]:
        return chain
    other = call.inputs[1 if call.inputs[0] == tensor else 0]
    if other in graph.constants:
        return chain  # a constant, which broadcasts as a rule
    return _Chain((*chain.calls, call), replace(chain.epilogue, adds=True), other)


def _with_activation(chain: _Chain, graph: CallGraph) -> _Chain:
    (tensor,) = chain.calls[-1].outputs
    readers = graph.readers(tensor)
    epilogue = _activation(readers[0]) if len(readers) == 1 else None
    if epilogue is None:
        return chain
    return replace(chain, calls=(*chain.calls, *readers), epilogue=replace(epilogue, adds=chain.epilogue.adds))


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


def _activation(call: LayerCall) -> Epilogue | None:
    """What an activation is to a packed kernel; None for other layers, and where there is no such kernel."""
    layer = call.layer
    if isinstance(layer, ClampLayer):
        return Epilogue(unary=CLAMP, scalars=(layer.low, layer.high))
    if isinstance(layer, GateLayer):
        return _GATES[layer.activation]
    if not isinstance(layer, IActivationLayer):
        return None
    if layer.type is ActivationType.HARD_SIGMOID and not is_usual_hard_sigmoid(layer.alpha, layer.beta):
        return None
    if layer.type is ActivationType.LEAKY_RELU:
        return Epilogue(unary="leaky_relu", scalars=(layer.alpha,))
    if layer.type is ActivationType.CLIP and layer.alpha <= layer.beta:
        dtype = layer._carrier(layer._outputs[0].dtype)
        limits = (representable(layer.alpha, dtype), representable(layer.beta, dtype))
        return Epilogue(unary="hardtanh", scalars=limits)
    return _UNARY.get(layer.type)


ONEDNN: Final = "onednn"
MKL: Final = "mkl"
LAYERS: Final = "layers"
RECURRENT: Final = "recurrent"
"""One kernel for all steps of a recurrent layer."""
NAMES: Final = (ONEDNN, MKL, LAYERS, RECURRENT)

Ways: TypeAlias = Mapping[str, Compute]
"""What computes the same product, by name; the first one serves where nothing is known."""


@dataclass(frozen=True)
class ProductCase:
    """A product apart from its numbers; equal cases of as many rows take the same time.

    Attributes:
        columns: Of the result.
        form: How the matrix is read, and whether there is a bias; None for a convolution of one place.
        epilogue: What follows the product.
    """

    columns: int
    form: LinearForm | None
    epilogue: Epilogue


class ProductChoice(Protocol):
    """Chooses a way for a product."""

    def __call__(self, layer: ILayer, case: Hashable, ways: Ways) -> Compute:
        """What computes a product.

        Args:
            layer: The layer that has a kernel of its own.
            case: What it is apart from its numbers: equal ones, of a first operand of the same extents, take equally
                long.
            ways: What computes it.
        """


def planned(layer: ILayer, case: Hashable, ways: Ways) -> Compute:
    """The way that a plan names; one that this machine lacks gives way to the first."""
    return ways.get(layer._implementation) or next(iter(ways.values()))
