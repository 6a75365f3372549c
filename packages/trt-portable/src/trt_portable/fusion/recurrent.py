"""Loops that run a recurrent layer, each with the product before it, as one call of a kernel for the whole layer.

In a network a recurrent layer is a product of the whole sequence with its input weights, and a loop over the rest.
Interpreted, every step is a dozen of PyTorch's kernels; PyTorch has kernels for all steps at once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import permutations
from operator import is_
from typing import Any, Final

import torch

from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LoopOutput, MatrixOperation
from trt_portable.execution.paging import page_out
from trt_portable.execution.program import Compute, LayerCall, PackingCompute
from trt_portable.fusion.epilogues import OneByOne
from trt_portable.fusion.neighbours import Linear, Shape, constant_shapes, linear_form, narrowed_axis
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.loop import ILoopOutputLayer, IRecurrenceLayer, LoopRegion
from trt_portable.shape_tensors import Value, as_tensor, host_numbers


class CellKind(Enum):
    """What a step of a recurrent layer computes; the values are PyTorch's names of the layers."""

    LSTM = "lstm"
    GRU = "gru"
    TANH = "rnn_tanh"
    RELU = "rnn_relu"

    @property
    def num_gates(self) -> int:
        """How many parts the products have."""
        return {CellKind.LSTM: 4, CellKind.GRU: 3}.get(self, 1)

    @property
    def num_states(self) -> int:
        """How many values one step hands on to the next."""
        return 2 if self is CellKind.LSTM else 1


class Result(Enum):
    """What leaves the loop of a recurrent layer; the values are places among the results of PyTorch's layers."""

    SEQUENCE = 0
    """The hidden state after every step, each in the place of its element."""
    HIDDEN = 1
    """The hidden state after the last step."""
    CELL = 2
    """The cell state of an LSTM after the last step."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of weights.

    Attributes:
        tensor: (N, K) or (K, N), from outside of the loop.
        is_transposed: Whether it is (N, K).
    """

    tensor: ITensor
    is_transposed: bool

    @property
    def extents(self) -> tuple[int, ...]:
        """(N, K), however it lies."""
        shape = tuple(self.tensor.shape)
        return shape if self.is_transposed else shape[::-1]


@dataclass(frozen=True)
class Recurrence:
    """A loop that runs a recurrent layer along a sequence, in one direction. All tensors are from outside of it.

    Attributes:
        kind: What a step computes.
        elements: (L, N, gates * H): products of the sequence's elements, with their bias.
        count: How many steps there are; a shape tensor.
        states: (N, P), and of an LSTM (N, H): hidden and cell state before the first step.
        weights: (gates * H, P): what the hidden state is multiplied by.
        bias: gates * H numbers that are added to that product; None where nothing is.
        projection: (P, H): what makes the hidden state smaller; None where nothing does, and P is H.
        is_reverse: Whether the last element comes first.
        results: What each output of the loop is.
    """

    kind: CellKind
    elements: ITensor
    count: ITensor
    states: tuple[ITensor, ...]
    weights: Matrix
    bias: ITensor | None
    projection: Matrix | None
    is_reverse: bool
    results: tuple[Result, ...]


def recognize_recurrence(loop: LoopRegion) -> Recurrence | None:
    """The recurrent layer that a loop runs; None where it runs none, or computes anything besides."""
    if loop._count is None or loop._while is not None or len(loop._iterators) != 1:
        return None
    body = _Body(loop)
    if not body.is_understood:
        return None
    found = (_with_states(loop, body, states) for states in permutations(loop._recurrences))
    return next((recurrence for recurrence in found if recurrence is not None), None)


def _with_states(loop: LoopRegion, body: _Body, states: Sequence[IRecurrenceLayer]) -> Recurrence | None:
    """The same, if these are the hidden state and, of an LSTM, the cell state."""
    (iterator,) = loop._iterators
    elements, before, after = iterator._inputs[0], states[0]._outputs[0], states[0]._inputs[1]
    results = [_result(layer, states, loop._count, is_reverse=iterator.reverse) for layer in loop._results]
    product = body.product_of(before)
    assert elements is not None and after is not None and loop._count is not None
    if product is None or iterator.axis != 0 or len(elements.shape) != 3:
        return None
    bias = body.bias_of(product)
    recurrent = body.number(product._outputs[0])
    projection = body.projection_to(after)
    first = tuple(tensor for layer in states if (tensor := layer._inputs[0]) is not None)
    for kind in CellKind:
        width = elements.shape[-1] // kind.num_gates
        if kind.num_states != len(states) or width < 1:
            continue
        found = Recurrence(
            kind=kind,
            elements=elements,
            count=loop._count,
            states=first,
            weights=_matrix_of(product),
            bias=bias,
            projection=projection,
            is_reverse=iterator.reverse,
            results=tuple(result for result in results if result is not None),
        )
        if len(found.results) == len(results) and _fits(found, width) and _computes(found, body, states, recurrent):
            return found
    return None


def _result(
    layer: ILoopOutputLayer, states: Sequence[IRecurrenceLayer], count: ITensor | None, *, is_reverse: bool
) -> Result | None:
    """What an output of a loop is to the layer; None for what it does not have."""
    value = layer._inputs[0]
    if layer.kind is LoopOutput.LAST_VALUE:
        pairs = zip((Result.HIDDEN, Result.CELL), states, strict=False)
        return next((result for result, state in pairs if value is state._outputs[0]), None)
    kind = LoopOutput.REVERSE if is_reverse else LoopOutput.CONCATENATE
    is_whole = layer.kind is kind and layer.axis == 0 and layer._inputs[1] is count
    return Result.SEQUENCE if is_whole and value is states[0]._inputs[1] else None


def _fits(found: Recurrence, width: int) -> bool:
    """Whether extents are those of a layer of some width."""
    rows = found.kind.num_gates * width
    narrow = width if found.projection is None else found.projection.extents[0]
    bias = (rows,) if found.bias is None else tuple(found.bias.shape)
    return (
        found.elements.shape[-1] == rows
        and found.weights.extents == (rows, narrow)
        and (found.projection is None or found.projection.extents == (narrow, width))
        and bias[-1:] == (rows,)
        and all(extent == 1 for extent in bias[:-1])
        and [tuple(state.shape)[1:] for state in found.states] == [(narrow,), (width,)][: len(found.states)]
    )


def _computes(found: Recurrence, body: _Body, states: Sequence[IRecurrenceLayer], recurrent: int) -> bool:
    """Whether a step of the loop computes what a step of the layer computes: equal values have equal numbers.

    Args:
        found: The layer.
        body: The step of the loop.
        states: The hidden state and, of an LSTM, the cell state.
        recurrent: The number of the product with the hidden state.
    """
    element = body.element
    before = [body.number(layer._outputs[0]) for layer in states]
    wanted = [body.number(tensor) for layer in states if (tensor := layer._inputs[1]) is not None]
    if found.bias is not None:
        recurrent = body.sum(recurrent, body.number(found.bias))
    width = found.elements.shape[-1] // found.kind.num_gates
    if found.kind is CellKind.LSTM:
        hidden, *cell = _lstm_step(body, body.sum(element, recurrent), before[1], width)
    elif found.kind is CellKind.GRU:
        hidden, *cell = _gru_step(body, element, recurrent, before[0], width)
    else:
        activation = ActivationType.TANH if found.kind is CellKind.TANH else ActivationType.RELU
        hidden, *cell = (body.activation(activation, body.sum(element, recurrent)),)
    if found.projection is not None:
        hidden = body.product(hidden, found.projection)
    return [hidden, *cell] == wanted


def _lstm_step(body: _Body, gates: int, cell: int, width: int) -> tuple[int, int]:
    entry, forget, candidate, exit_ = (body.part(gates, place * width, width) for place in range(4))
    kept = body.times(body.sigmoid(forget), cell)
    cell = body.sum(kept, body.times(body.sigmoid(entry), body.tanh(candidate)))
    return body.times(body.sigmoid(exit_), body.tanh(cell)), cell


def _gru_step(body: _Body, element: int, recurrent: int, hidden: int, width: int) -> tuple[int]:
    pairs = [(body.part(element, at, width), body.part(recurrent, at, width)) for at in (0, width, 2 * width)]
    reset, update = (body.sigmoid(body.sum(*pair)) for pair in pairs[:2])
    new = body.tanh(body.sum(pairs[2][0], body.times(reset, pairs[2][1])))
    return (body.sum(body.times(body.minus(hidden, new), update), new),)


class _Body:
    """The values of a step by number: two have the same number only if they are computed alike.

    Args:
        loop: Its body is read.

    Attributes:
        is_understood: Whether nothing happens in it but what can be in a recurrent layer.
        element: The number of the sequence's element.
    """

    def __init__(self, loop: LoopRegion) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, int] = {}  # of a tensor of the body, by its identity
        self._outside = {id(tensor) for tensor in loop._inputs}
        self._makers = {id(tensor): layer for layer in loop._body for tensor in layer._outputs}
        self._readers: dict[int, list[ILayer]] = defaultdict(list)
        self.element = self.number(loop._iterators[0]._outputs[0])
        self.is_understood = True
        for layer in loop._body:
            for tensor in layer._inputs:
                self._readers[id(tensor)].append(layer)
            found = self._number_of(layer)
            if found is None:
                self.is_understood = False
                return
            self._known[id(layer._outputs[0])] = found

    def number(self, tensor: ITensor) -> int:
        """The number of a tensor; what is no layer's of the body has one of its own."""
        found = self._known.get(id(tensor))
        return self._numbered("tensor", id(tensor)) if found is None else found

    def _numbered(self, *form: object) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _number_of(self, layer: ILayer) -> int | None:
        """The number of what a layer computes; None for layers that recurrent layers do not have."""
        operands = [self.number(tensor) for tensor in layer._inputs if tensor is not None]
        if isinstance(layer, IElementWiseLayer):
            first, second = operands
            forms = {
                ElementWiseOperation.SUM: self.sum,
                ElementWiseOperation.PROD: self.times,
                ElementWiseOperation.SUB: self.minus,
            }
            form = forms.get(layer.op)
            return None if form is None else form(first, second)
        if isinstance(layer, IActivationLayer):
            is_plain = layer.type in (ActivationType.SIGMOID, ActivationType.TANH, ActivationType.RELU)
            return self.activation(layer.type, operands[0]) if is_plain else None
        if isinstance(layer, ISliceLayer):
            narrowed = narrowed_axis(layer)
            if narrowed is None or narrowed[0] != len(layer._outputs[0].shape) - 1:
                return None
            return self.part(operands[0], narrowed[1], narrowed[2])
        is_product = isinstance(layer, IMatrixMultiplyLayer) and self._is_plain(layer)
        return self.product(operands[0], _matrix_of(layer)) if is_product else None

    def _is_plain(self, layer: ILayer) -> bool:
        """Whether a product is one with a matrix from outside."""
        assert isinstance(layer, IMatrixMultiplyLayer)
        left, right = layer._inputs
        assert left is not None and right is not None
        ranks = (len(left.shape), len(right.shape))
        plain, transposed = MatrixOperation.NONE, MatrixOperation.TRANSPOSE
        return (
            ranks == (2, 2) and layer.op0 is plain and layer.op1 in (plain, transposed) and id(right) in self._outside
        )

    # --- what a step may compute -----------------------------------------------------------------

    def sum(self, left: int, right: int) -> int:
        """``left + right``, either way round."""
        return self._numbered(ElementWiseOperation.SUM, *sorted((left, right)))

    def times(self, left: int, right: int) -> int:
        """``left * right``, either way round."""
        return self._numbered(ElementWiseOperation.PROD, *sorted((left, right)))

    def minus(self, left: int, right: int) -> int:
        """``left - right``."""
        return self._numbered(ElementWiseOperation.SUB, left, right)

    def activation(self, kind: ActivationType, value: int) -> int:
        """An activation of a value."""
        return self._numbered(kind, value)

    def sigmoid(self, value: int) -> int:
        """The sigmoid of a value."""
        return self.activation(ActivationType.SIGMOID, value)

    def tanh(self, value: int) -> int:
        """The hyperbolic tangent of a value."""
        return self.activation(ActivationType.TANH, value)

    def part(self, value: int, start: int, size: int) -> int:
        """Columns of a value."""
        return self._numbered("part", value, start, size)

    def product(self, value: int, matrix: Matrix) -> int:
        """The product of a value and a matrix from outside."""
        return self._numbered("product", value, self.number(matrix.tensor), matrix.is_transposed)

    # --- what a step must have -------------------------------------------------------------------

    def product_of(self, state: ITensor) -> ILayer | None:
        """The one product of a state and a matrix; None where there are none, or several."""
        products = [layer for layer in self._readers[id(state)] if isinstance(layer, IMatrixMultiplyLayer)]
        return products[0] if len(products) == 1 else None

    def bias_of(self, product: ILayer) -> ITensor | None:
        """What is from outside and added to a product, if anything is."""
        for layer in self._readers[id(product._outputs[0])]:
            for tensor in layer._inputs:
                if isinstance(layer, IElementWiseLayer) and id(tensor) in self._outside:
                    return tensor
        return None

    def projection_to(self, state: ITensor) -> Matrix | None:
        """The matrix whose product with a value is the state, if there is one."""
        layer = self._makers.get(id(state))
        return _matrix_of(layer) if isinstance(layer, IMatrixMultiplyLayer) else None


def _matrix_of(product: ILayer) -> Matrix:
    """The right operand of a product."""
    assert isinstance(product, IMatrixMultiplyLayer)
    tensor = product._inputs[1]
    assert tensor is not None
    return Matrix(tensor, product.op1 is MatrixOperation.TRANSPOSE)


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


_LSTM_MODE: Final = 2
"""oneDNN's kernel in PyTorch takes the kind of layer as cuDNN numbers it, and knows this one."""


def recurrent_kernel(form: RecurrentForm, loop: LayerCall, plain: OneByOne, *, most_packed: float) -> RecurrentKernel:
    """The kernel for a layer.

    Args:
        form: The layer.
        loop: Its loop.
        plain: Computes the same layer by layer.
        most_packed: Up to how many weights may be in memory once more, packed.
    """
    is_small = sum(map(math.prod, form.extents)) <= most_packed
    kind = PackedLstm if is_small and _packs_lstm(form, loop) else RecurrentKernel
    return kind(form, plain)


def _packs_lstm(form: RecurrentForm, loop: LayerCall) -> bool:
    """Whether there is a kernel with packed weights: for an LSTM of float32 without a projection."""
    is_there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_mkldnn_rnn_layer_weight")
    is_float = loop.layer._outputs[0].dtype is DataType.FLOAT
    return is_there and is_float and form.kind is CellKind.LSTM and not form.is_projected


class RecurrentKernel(PackingCompute):
    """A recurrent layer in one direction, by the kernel that eager PyTorch has for it.

    Weights are brought into order at the first run, and again when a refit replaced them.

    Args:
        form: The layer.
        plain: Computes the same from the same inputs, layer by layer.
    """

    def __init__(self, form: RecurrentForm, plain: OneByOne) -> None:
        self._form = form
        self._plain = plain
        self._places = (*(at for at, _ in form.matrices), *form.biases)
        self._ordered: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None  # weights, and the same in order
        self._layer = getattr(torch, form.kind.value)

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The results; layer by layer where the loop is another one for the extents at hand."""
        x, *states = (_tensor(inputs[at]) for at in (0, *self._form.states))
        length, batch = x.shape[:2]
        count = inputs[self._form.count]
        assert count is not None
        if not x.numel() or host_numbers(count)[0] != length or any(state.shape[0] != batch for state in states):
            return self._plain(inputs)
        results = self._run(x, states, self._weights(inputs, x))
        return [results[result.value] for result in self._form.results]

    def forget(self) -> int:
        """Gives up weights in order, and returns how many bytes they were; the next run makes them again."""
        ordered, self._ordered = self._ordered, None
        return 0 if ordered is None else sum(self._held_bytes(ordered[0]))

    def _held_bytes(self, weights: Sequence[torch.Tensor]) -> Sequence[int]:
        return ()  # views

    def _weights(self, inputs: Sequence[Value | None], x: torch.Tensor) -> list[torch.Tensor]:
        found = [_tensor(inputs[at]) for at in self._places]
        ordered = self._ordered
        if ordered is None or not all(map(is_, ordered[0], found)):
            self._ordered = ordered = (found, self._order(found, x))
        return ordered[1]

    def _order(self, weights: Sequence[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        """Both matrices, the biases and the projection, as PyTorch's layers take them."""
        pairs = zip(weights, self._form.matrices, strict=False)
        matrices = [
            flat if is_transposed else flat.mT
            for matrix, (_, is_transposed) in pairs
            for flat in (matrix.reshape(matrix.shape[-2:]),)
        ]
        biases = [bias.reshape(-1) for bias in weights[len(matrices) :]]
        return [*matrices[:2], *biases, *matrices[2:]]

    def _run(self, x: torch.Tensor, states: Sequence[torch.Tensor], weights: list[torch.Tensor]) -> Sequence[Any]:
        """What the layer leaves: the hidden state after each step, and the states after the last."""
        is_reverse, has_biases = self._form.is_reverse, bool(self._form.biases)
        first: Any = [state.unsqueeze(0) for state in states]
        first = first if len(first) > 1 else first[0]
        given = x.flip(0) if is_reverse else x
        sequence, *last = self._layer(given, first, weights, has_biases, 1, 0.0, False, False, False)
        return (sequence.flip(0) if is_reverse else sequence, *(state.squeeze(0) for state in last))


class PackedLstm(RecurrentKernel):
    """An LSTM of float32 by oneDNN, with packed weights; eager PyTorch packs them in each run.

    Args:
        form: The layer.
        plain: Computes the same from the same inputs, layer by layer.
    """

    def __init__(self, form: RecurrentForm, plain: OneByOne) -> None:
        super().__init__(form, plain)
        # direction, batch sizes of packed sequences, mode, width, one layer, biases, directions, batch first, training
        self._settings: tuple[Any, ...] = (
            *(form.is_reverse, [], _LSTM_MODE, form.width),
            *(1, bool(form.biases), False, False, False),
        )

    def _held_bytes(self, weights: Sequence[torch.Tensor]) -> Sequence[int]:
        return [matrix.nbytes for matrix in weights[:2]]

    def _order(self, weights: Sequence[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        """Both matrices, packed, and two biases."""
        form = self._form
        first, second, *biases = super()._order(weights, x)
        packed = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight(
            first.contiguous(),
            second.contiguous(),
            form.width,
            form.is_reverse,
            bool(biases),
            False,  # steps come first, not the batch
            list(x.shape),
        )
        for matrix in weights[:2]:
            page_out(matrix)
        return [*packed, *(biases or [x.new_zeros(form.extents[0][0])] * 2)]

    def _run(self, x: torch.Tensor, states: Sequence[torch.Tensor], weights: list[torch.Tensor]) -> Sequence[Any]:
        hidden, cell = states
        results: Sequence[Any] = torch.ops.aten.mkldnn_rnn_layer.default(
            x.contiguous(), *weights, hidden.contiguous(), cell.contiguous(), *self._settings
        )
        return results


def _tensor(value: Value | None) -> torch.Tensor:
    assert value is not None
    return as_tensor(value)
