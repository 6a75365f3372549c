"""Loops that run a recurrent layer, each with the product before it, as one call of a kernel for the whole layer.

In a network a recurrent layer is a product of the whole sequence with its input weights, and a loop over the rest.
Interpreted, every step is a dozen of PyTorch's kernels; PyTorch has kernels for all steps at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trt_portable.network.loop_region import LoopRegion
from trt_portable.runtime.fusion import Linear, Shape, constant_shapes, linear_form
from trt_portable.runtime.product_chains import OneByOne
from trt_portable.runtime.program import Compute, LayerCall
from trt_portable.runtime.recurrent_cells import CellKind, Recurrence, Result, recognize_recurrence


@dataclass(frozen=True)
class RecurrentForm:
    """A recurrent layer in one direction, and where among a call's inputs its tensors are; the sequence is the first.

    Attributes:
        kind: What a step computes.
        is_reverse: Whether the last element comes first.
        extents: (N, K) of each matrix: that of the elements, that of the hidden state, the projection if there is one.
        matrices: The place of each, and whether it lies as (N, K).
        biases: The places of the two biases, or none.
        count: The place of the number of steps.
        states: The places of the hidden state and, of an LSTM, the cell state before the first step.
        results: What leaves the layer.
    """

    kind: CellKind
    is_reverse: bool
    extents: tuple[Shape, ...]
    matrices: tuple[tuple[int, bool], ...]
    biases: tuple[int, ...]
    count: int
    states: tuple[int, ...]
    results: tuple[Result, ...]

    @property
    def width(self) -> int:
        """How wide the state is that the gates make."""
        return self.extents[0][0] // self.kind.num_gates

    @property
    def is_projected(self) -> bool:
        """Whether the hidden state is a projection of that."""
        return len(self.matrices) > 2


MakeRecurrent = Callable[[RecurrentForm, LayerCall, LayerCall], Compute]
"""Takes a layer, and the product and the loop that compute the same; returns what runs on the inputs of both."""


def recurrent_inputs(product: LayerCall, loop: LayerCall) -> tuple[int | None, ...]:
    """What a product and the loop behind it read, the sequence first."""
    read = (tensor for tensor in loop.inputs if tensor not in product.outputs)
    return tuple(dict.fromkeys((*product.inputs, *read)))


def one_by_one(product: LayerCall, loop: LayerCall) -> OneByOne:
    """What computes a product and the loop behind it from the inputs of both."""
    return OneByOne((product, loop), recurrent_inputs(product, loop))


def fuse_recurrent_layers(calls: Sequence[LayerCall], visible: Collection[int], make: MakeRecurrent) -> list[LayerCall]:
    """Puts one call in place of each loop that is a recurrent layer, and of the linear map that it alone reads.

    Args:
        calls: Layers in executable order, linear maps fused.
        visible: Ids of tensors that something besides the layers reads.
        make: Makes what computes the layer.
    """
    uses = Counter(tensor for call in calls for tensor in call.inputs)
    products: dict[int | None, int] = {
        call.outputs[0]: index
        for index, call in enumerate(calls)
        if linear_form(call) is not None and uses[call.outputs[0]] == 1 and call.outputs[0] not in visible
    }
    constants = constant_shapes(calls)
    fused: list[LayerCall | None] = list(calls)
    for index, call in enumerate(calls):
        loop = call.layer
        found = recognize_recurrence(loop) if isinstance(loop, LoopRegion) else None
        if found is None:
            continue
        ids = {id(tensor): at for tensor, at in zip(loop._inputs, call.inputs, strict=True)}
        at = products.get(ids[id(found.elements)])
        form = None if at is None else _form(found, calls[at], call, ids, constants)
        if at is None or form is None:
            continue
        fused[at] = None
        fused[index] = replace(
            call,
            inputs=recurrent_inputs(calls[at], call),
            compute=make(form, calls[at], call),
            name=f"{calls[at].name} + {call.name}",
        )
    return [call for call in fused if call is not None]


def _form(
    found: Recurrence,
    product: LayerCall,
    loop: LayerCall,
    ids: Mapping[int, int | None],
    constants: Mapping[int | None, Shape],
) -> RecurrentForm | None:
    """How a kernel finds its operands; None where it cannot take them: weights vary, or one bias of two is there."""
    linear = product.compute
    assert isinstance(linear, Linear)
    inner = [matrix for matrix in (found.weights, found.projection) if matrix is not None]
    matrices = [product.inputs[1], *(ids[id(matrix.tensor)] for matrix in inner)]
    biases = [*product.inputs[2:], *([] if found.bias is None else [ids[id(found.bias)]])]
    if len(biases) == 1 or not constants.keys() >= {*matrices, *biases}:
        return None
    at = {tensor: place for place, tensor in enumerate(recurrent_inputs(product, loop))}
    outer = linear.shapes[1] if linear.is_transposed else linear.shapes[1][::-1]
    transposed = [linear.is_transposed, *(matrix.is_transposed for matrix in inner)]
    return RecurrentForm(
        kind=found.kind,
        is_reverse=found.is_reverse,
        extents=(outer, *(matrix.extents for matrix in inner)),
        matrices=tuple((at[tensor], is_transposed) for tensor, is_transposed in zip(matrices, transposed, strict=True)),
        biases=tuple(at[tensor] for tensor in biases),
        count=at[ids[id(found.count)]],
        states=tuple(at[ids[id(tensor)]] for tensor in found.states),
        results=found.results,
    )
