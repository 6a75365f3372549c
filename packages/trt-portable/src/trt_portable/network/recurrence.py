"""Loops that run a recurrent layer, LSTM, GRU or a plain one: what each of their inputs and outputs is to it.

The builder finds them (`trt_portable.builder.passes.recognize_recurrences`) and marks the loop of the plan; whoever
loads it looks the mark up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trt_core.files import records
from trt_core.files.records import Row
from trt_portable.errors import present
from trt_portable.network.layer import ITensor


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
class Matrix(Row):
    """A matrix of weights.

    Attributes:
        place: Among the inputs of the loop; (N, K) or (K, N).
        is_transposed: Whether it is (N, K).
    """

    place: int
    is_transposed: bool

    def extents(self, inputs: Sequence[ITensor | None]) -> tuple[int, ...]:
        """(N, K), however it lies."""
        shape = shape_at(inputs, self.place)
        return shape if self.is_transposed else shape[::-1]


@dataclass(frozen=True)
class Recurrence:
    """A loop that runs a recurrent layer along a sequence, in one direction. Tensors are places among its inputs.

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
    elements: int
    count: int
    states: tuple[int, ...]
    weights: Matrix
    bias: int | None
    projection: Matrix | None
    is_reverse: bool
    results: tuple[Result, ...]

    @staticmethod
    def read(mark: Any, inputs: Sequence[ITensor | None], num_outputs: int) -> Recurrence:
        """Reads the mark of a loop in a plan.

        Args:
            mark: Parsed JSON.
            inputs: Those of the loop.
            num_outputs: How many the loop has.

        Raises:
            BadField, ValueError: It is no mark, or the inputs have not the extents of such a layer.
        """
        what = "the recurrent layer of a loop"
        found = records.read(Recurrence, mark, what)
        matrices = [matrix.place for matrix in (found.weights, found.projection) if matrix is not None]
        for place in (found.elements, found.count, *found.states, *matrices, found.bias):
            if place is not None and (place >= len(inputs) or inputs[place] is None):
                raise ValueError(f"{what} reads input {place}, which is not there")
        has_cell = Result.CELL not in found.results or found.kind is CellKind.LSTM
        if not found.fits(inputs) or len(found.results) != num_outputs or not has_cell:
            raise ValueError(f"{what} does not fit its inputs and outputs")
        return found

    def fits(self, inputs: Sequence[ITensor | None]) -> bool:
        """Whether inputs of a loop have the extents of this layer."""
        elements = shape_at(inputs, self.elements)
        if len(elements) != 3 or len(self.states) != self.kind.num_states:
            return False
        rows = elements[-1]
        width = rows // self.kind.num_gates
        narrow = width if self.projection is None else self.projection.extents(inputs)[0]
        bias = (rows,) if self.bias is None else shape_at(inputs, self.bias)
        return (
            width >= 1
            and rows == width * self.kind.num_gates
            and self.weights.extents(inputs) == (rows, narrow)
            and (self.projection is None or self.projection.extents(inputs) == (narrow, width))
            and bias[-1:] == (rows,)
            and all(extent == 1 for extent in bias[:-1])
            and [shape_at(inputs, at)[1:] for at in self.states] == [(narrow,), (width,)][: len(self.states)]
        )


def shape_at(inputs: Sequence[ITensor | None], place: int) -> tuple[int, ...]:
    """The extents of an input, -1 where they are open."""
    tensor = present(inputs[place])
    return tuple(tensor.shape)
