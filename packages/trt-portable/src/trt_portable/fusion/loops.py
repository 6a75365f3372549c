"""Loops: those of a recurrent layer as one call of a kernel for all steps, others with iterations that run as programs.

In a network a recurrent layer is a product of the whole sequence with its input weights, and a loop over the rest.
Interpreted, every step is a dozen of PyTorch's kernels; PyTorch has kernels for all steps at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Final

import torch

from trt_portable.enums import DataType, LayerType
from trt_portable.execution.launcher import is_capturing
from trt_portable.execution.paging import page_out
from trt_portable.execution.program import Compute, LayerCall, PackingCompute, Program, forget_packed
from trt_portable.fusion.call_graph import CallFusion, CallGraph, CallPattern, Shape, Shapes
from trt_portable.fusion.epilogues import OneByOne, linear_form
from trt_portable.internals import flatten_recurrent_weights
from trt_portable.kernels.operands import require_operands
from trt_portable.layers.fused import Linear
from trt_portable.network.control_flow import LoopRegion
from trt_portable.network.layer import ILayer
from trt_portable.network.recurrence import CellKind, Recurrence, Result
from trt_portable.network.region import Values
from trt_portable.shape_tensors import Value, as_tensor, host_numbers, operand


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


class RecurrentLayer(CallPattern):
    """A loop that the plan marks as a recurrent layer, and the linear map that it alone reads, are one call.

    Args:
        make: Makes what computes the layer.
    """

    kinds = frozenset({LayerType.LOOP_OUTPUT})

    def __init__(self, make: MakeRecurrent) -> None:
        self._make = make

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The layer, where its loop stood."""
        found = call.layer._recurrence if isinstance(call.layer, LoopRegion) else None
        product = None if found is None else graph.private_maker(call.inputs[found.elements])
        if found is None or product is None or linear_form(product) is None:
            return None
        form = _form(found, product, call, graph.constants)
        if form is None:
            return None
        layer = replace(
            call,
            inputs=recurrent_inputs(product, call),
            compute=self._make(form, product, call),
            name=f"{product.name} + {call.name}",
        )
        return CallFusion([layer], [product, call], call)


def _form(found: Recurrence, product: LayerCall, loop: LayerCall, constants: Shapes) -> RecurrentForm | None:
    """How a kernel finds its operands; None where it cannot take them: weights vary, or one bias of two is there."""
    linear = product.compute
    assert isinstance(linear, Linear)
    inner = [matrix for matrix in (found.weights, found.projection) if matrix is not None]
    matrices = [product.inputs[1], *(loop.inputs[matrix.place] for matrix in inner)]
    biases = [*product.inputs[2:], *([] if found.bias is None else [loop.inputs[found.bias]])]
    if len(biases) == 1 or not constants.keys() >= {*matrices, *biases}:
        return None
    at = {tensor: place for place, tensor in enumerate(recurrent_inputs(product, loop))}
    outer = linear.shapes[1] if linear.is_transposed else linear.shapes[1][::-1]
    transposed = [linear.is_transposed, *(matrix.is_transposed for matrix in inner)]
    return RecurrentForm(
        kind=found.kind,
        is_reverse=found.is_reverse,
        extents=(outer, *(matrix.extents(loop.layer._inputs) for matrix in inner)),
        matrices=tuple((at[tensor], is_transposed) for tensor, is_transposed in zip(matrices, transposed, strict=True)),
        biases=tuple(at[tensor] for tensor in biases),
        count=at[loop.inputs[found.count]],
        states=tuple(at[loop.inputs[state]] for state in found.states),
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
        x, *states = (as_tensor(inputs[at]) for at in (0, *self._form.states))
        count = operand(inputs[self._form.count])
        if not (x.numel() and x.dim() == 3 and self._fits(x, states)) or host_numbers(count)[0] != len(x):
            return self._plain(inputs)
        results = self._run(x, states, self._weights(inputs, x))
        return [results[result.value] for result in self._form.results]

    def _fits(self, x: torch.Tensor, states: Sequence[torch.Tensor]) -> bool:
        """Whether a sequence and the states before it are the layer's; its kernels do not compare them."""
        form, batch = self._form, x.shape[1]
        widths = (form.extents[2][0] if form.is_projected else form.width, form.width)
        return x.shape[2] == form.extents[0][1] and all(
            state.shape == (batch, width) and state.dtype is x.dtype
            for state, width in zip(states, widths, strict=False)
        )

    def forget(self) -> int:
        """Gives up weights in order, and returns how many bytes they were; the next run makes them again."""
        ordered, self._ordered = self._ordered, None
        return 0 if ordered is None else sum(self._held_bytes(ordered[0]))

    def _held_bytes(self, weights: Sequence[torch.Tensor]) -> Sequence[int]:
        return ()  # views

    def _weights(self, inputs: Sequence[Value | None], x: torch.Tensor) -> list[torch.Tensor]:
        found = [as_tensor(inputs[at]) for at in self._places]
        ordered = self._ordered
        if ordered is None or not all(map(is_, ordered[0], found)):
            form = self._form
            sizes = [math.prod(extents) for extents in form.extents] + [form.extents[0][0]] * len(form.biases)
            fit = all(w.numel() == size and w.dtype is x.dtype for w, size in zip(found, sizes, strict=True))
            require_operands(fit, "a recurrent layer", x, *found)
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
        first: Any = [state.unsqueeze(0).contiguous() for state in states]  # cuDNN refuses what is expanded
        first = first if len(first) > 1 else first[0]
        given = x.flip(0) if is_reverse else x
        sequence, *last = self._layer(given, first, weights, has_biases, 1, 0.0, False, False, False)
        ends = (state.reshape(state.shape[-2:]) for state in last)  # cuDNN's LSTM has another leading extent of 1
        return (sequence.flip(0) if is_reverse else sequence, *ends)


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


class CudnnLayer(RecurrentKernel):
    """A recurrent layer by cuDNN, with its weights in one piece of memory; without it, as `RecurrentKernel`."""

    def _held_bytes(self, weights: Sequence[torch.Tensor]) -> Sequence[int]:
        return [matrix.nbytes for matrix in weights]

    def _order(self, weights: Sequence[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        ordered, form = super()._order(weights, x), self._form
        # what a recording of somebody else's makes is filled when that runs
        if not x.is_cuda or not torch.backends.cudnn.is_acceptable(x) or is_capturing(x.device):
            return ordered
        flat = [weight.clone(memory_format=torch.contiguous_format) for weight in ordered]
        projected = form.extents[2][0] if form.is_projected else 0
        kind = _CUDNN_KINDS[form.kind]
        # moves the weights: elements, kind, width, projection, one layer, batch first, both directions
        flatten_recurrent_weights(flat, len(flat), form.extents[0][1], kind, form.width, projected, 1, False, False)
        return flat


_CUDNN_KINDS: Final = {CellKind.RELU: 0, CellKind.TANH: 1, CellKind.LSTM: 2, CellKind.GRU: 3}


Fuse = Callable[[Sequence[LayerCall], Collection[int]], list[LayerCall]]
"""Fuses neighbours among calls, of which some tensors are visible elsewhere."""


def with_programs(calls: Sequence[LayerCall], fuse: Fuse) -> list[LayerCall]:
    """Calls, of which loops run every iteration as a program.

    Args:
        calls: In executable order.
        fuse: Makes of the calls of a body what runs in every iteration.
    """
    return [
        replace(call, compute=FusedLoop(call.layer, fuse)) if isinstance(call.layer, LoopRegion) else call
        for call in calls
    ]


class FusedLoop(PackingCompute):
    """A loop: computes its outputs from its inputs.

    Args:
        loop: What is computed; the constants of its body are taken anew when a refit replaced them.
        fuse: Fuses neighbours in its body.
    """

    def __init__(self, loop: LoopRegion, fuse: Fuse) -> None:
        self._loop = loop
        self._bound: object = None  # the weights that the programs hold
        test = loop._test
        body = [layer for layer in loop._body if not any(layer is other for other in test)]
        ends = [layer._inputs[1] for layer in loop._recurrences] + [layer._inputs[0] for layer in loop._results]
        wanted = {id(tensor) for tensor in (*ends, loop._while)}
        read = {id(tensor) for layer in body for tensor in layer._inputs}
        self._test = _Part(test, wanted | read, fuse)
        self._body = _Part(body, wanted, fuse)

    def __call__(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        """Runs the loop."""
        bound = self._loop._bound
        if bound is not self._bound:
            self._test.program.load_constants()
            self._body.program.load_constants()
            self._bound = bound
        return self._loop._iterate(inputs, self._test.run, self._body.run)

    def forget(self) -> int:
        """Gives up what the layers of the body packed, and returns how many bytes it was."""
        calls = (*self._test.program.calls, *self._body.program.calls)
        return forget_packed(call.compute for call in calls)


class _Part:
    """Layers of an iteration as a program.

    Args:
        layers: In executable order.
        wanted: Identities of tensors that something else reads.
        fuse: Fuses neighbours.
    """

    def __init__(self, layers: Sequence[ILayer], wanted: Iterable[int], fuse: Fuse) -> None:
        calls = [
            LayerCall(
                layer=layer,
                inputs=tuple(None if tensor is None else id(tensor) for tensor in layer._inputs),
                outputs=tuple(id(tensor) for tensor in layer._outputs),
                compute=layer._engine_compute(),
                output_names=tuple(tensor.name for tensor in layer._outputs),
                name=layer.name,
            )
            for layer in layers
        ]
        made = {tensor for call in calls for tensor in call.outputs}
        self._inputs = sorted({tensor for call in calls for tensor in call.inputs if tensor is not None} - made)
        self._outputs = sorted(made.intersection(wanted))
        self.program = Program(fuse(calls, frozenset(self._outputs)), self._inputs, self._outputs)

    def run(self, values: Values) -> None:
        """Adds what is wanted to the values of an iteration."""
        results = self.program.run([values[tensor] for tensor in self._inputs])
        values.update(zip(self._outputs, results, strict=True))
