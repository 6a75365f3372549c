"""PyTorch's kernels for recurrent layers: all steps at once, with weights brought into order once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import is_
from typing import Any, Final

import torch

from trt_portable.enums import DataType
from trt_portable.runtime.paging import page_out
from trt_portable.runtime.product_chains import OneByOne
from trt_portable.runtime.program import LayerCall, PackingCompute
from trt_portable.runtime.recurrent_cells import CellKind
from trt_portable.runtime.recurrent_layers import RecurrentForm
from trt_portable.values import Value, as_tensor, host_numbers

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
