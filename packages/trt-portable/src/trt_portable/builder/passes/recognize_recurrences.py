"""Recognition of loops that run a recurrent layer, LSTM, GRU or a plain one; the plan says so of them.

The values of a loop's body are numbered, equal ones alike, and so is what a step of each kind of layer computes. A loop
is such a layer if its next states have the layer's numbers, nothing else happens in it, and nothing else leaves it.
Order of operands does not matter, everything else does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from trt_core.files import records
from trt_portable.enums import ActivationType, ElementWiseOperation, LayerType, LoopOutput, MatrixOperation
from trt_portable.errors import present
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import ISliceLayer, narrowed_axis
from trt_portable.network.control_flow import ILoopOutputLayer, IRecurrenceLayer, LoopRegion
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.recurrence import CellKind, Matrix, Recurrence, Result, shape_at
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, pattern


@pattern(LayerType.LOOP_OUTPUT)
def recognize_recurrences(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Marks loops that run a recurrent layer; those inside others run as they are.

    Comes last: the mark counts inputs of the loop.
    """
    loop = graph.layer(operation)
    found = recognize_recurrence(loop) if isinstance(loop, LoopRegion) else None
    if found is None:
        return None
    marked = replace(operation, nested={**operation.nested, "recurrence": records.write(found)})
    return NodeFusion([marked], [operation], operation)


def recognize_recurrence(loop: LoopRegion) -> Recurrence | None:
    """The recurrent layer that a loop runs; None where it runs none, or computes anything besides."""
    if loop._count is None or loop._while is not None or len(loop._iterators) != 1:
        return None
    body = _Body(loop)
    if not body.is_understood:
        return None
    if not loop._recurrences:
        return None
    found = (_with_states(loop, body, states) for states in permutations(loop._recurrences))
    return next((recurrence for recurrence in found if recurrence is not None), None)


def _with_states(loop: LoopRegion, body: _Body, states: Sequence[IRecurrenceLayer]) -> Recurrence | None:
    """The same, if these are the hidden state and, of an LSTM, the cell state."""
    (iterator,) = loop._iterators
    before, after = states[0]._outputs[0], states[0]._inputs[1]
    results = [_result(layer, states, loop._count, is_reverse=iterator.reverse) for layer in loop._results]
    product = body.product_of(before)
    assert after is not None and loop._count is not None
    if product is None or iterator.axis != 0:
        return None
    bias = body.bias_of(product)
    projection = body.projection_to(after)
    for kind in CellKind:
        found = Recurrence(
            kind=kind,
            elements=body.place(iterator._inputs[0]),
            count=body.place(loop._count),
            states=tuple(body.place(layer._inputs[0]) for layer in states),
            weights=body.matrix_of(product),
            bias=None if bias is None else body.place(bias),
            projection=projection,
            is_reverse=iterator.reverse,
            results=tuple(result for result in results if result is not None),
        )
        if len(found.results) == len(results) and found.fits(loop._inputs):
            recurrent = body.number(product._outputs[0])
            if _computes(found, body, states, recurrent, bias):
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


def _computes(
    found: Recurrence, body: _Body, states: Sequence[IRecurrenceLayer], recurrent: int, bias: ITensor | None
) -> bool:
    """Whether a step of the loop computes what a step of the layer computes: equal values have equal numbers.

    Args:
        found: The layer.
        body: The step of the loop.
        states: The hidden state and, of an LSTM, the cell state.
        recurrent: The number of the product with the hidden state.
        bias: What is added to it, if anything is.
    """
    element = body.element
    before = [body.number(layer._outputs[0]) for layer in states]
    wanted = [body.number(tensor) for layer in states if (tensor := layer._inputs[1]) is not None]
    if bias is not None:
        recurrent = body.sum(recurrent, body.number(bias))
    width = shape_at(body.inputs, found.elements)[-1] // found.kind.num_gates
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
        inputs: Those of the loop.
        is_understood: Whether nothing happens in it but what can be in a recurrent layer.
        element: The number of the sequence's element.
    """

    def __init__(self, loop: LoopRegion) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, int] = {}  # of a tensor of the body, by its identity
        self.inputs = loop._inputs
        self._places = {id(tensor): place for place, tensor in enumerate(loop._inputs)}
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
        return self.product(operands[0], self.matrix_of(layer)) if is_product else None

    def _is_plain(self, layer: ILayer) -> bool:
        """Whether a product is one with a matrix from outside."""
        assert isinstance(layer, IMatrixMultiplyLayer)
        left, right = map(present, layer._inputs)
        ranks = (len(left.shape), len(right.shape))
        plain, transposed = MatrixOperation.NONE, MatrixOperation.TRANSPOSE
        return ranks == (2, 2) and layer.op0 is plain and layer.op1 in (plain, transposed) and id(right) in self._places

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
        return self._numbered("product", value, self._number_at(matrix.place), matrix.is_transposed)

    # --- what a step must have -------------------------------------------------------------------

    def product_of(self, state: ITensor) -> ILayer | None:
        """The one product of a state and a matrix; None where there are none, or several."""
        products = [layer for layer in self._readers[id(state)] if isinstance(layer, IMatrixMultiplyLayer)]
        return products[0] if len(products) == 1 else None

    def bias_of(self, product: ILayer) -> ITensor | None:
        """What is from outside and added to a product, if anything is."""
        for layer in self._readers[id(product._outputs[0])]:
            for tensor in layer._inputs:
                if isinstance(layer, IElementWiseLayer) and id(tensor) in self._places:
                    return tensor
        return None

    def projection_to(self, state: ITensor) -> Matrix | None:
        """The matrix whose product with a value is the state, if there is one."""
        layer = self._makers.get(id(state))
        return self.matrix_of(layer) if isinstance(layer, IMatrixMultiplyLayer) else None

    def matrix_of(self, product: ILayer) -> Matrix:
        """The right operand of a product."""
        assert isinstance(product, IMatrixMultiplyLayer)
        return Matrix(self.place(product._inputs[1]), product.op1 is MatrixOperation.TRANSPOSE)

    def place(self, tensor: ITensor | None) -> int:
        """Where a tensor from outside is among the inputs of the loop."""
        return self._places[id(tensor)]

    def _number_at(self, place: int) -> int:
        tensor = present(self.inputs[place])
        return self.number(tensor)
