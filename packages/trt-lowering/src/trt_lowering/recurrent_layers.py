"""Captures recurrent layers whole, also where the length of the sequence varies.

PyTorch knows the shapes of an LSTM's results by unrolling it, which fixes the length; before 2.12 its states had an
axis too many on the CPU. Here they are said in one line, for the time of a capture.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.internals import OpOverload
from trt_lowering.internals import decomposition_table, fake_implementations
from trt_lowering.whole_operators import keep_whole

aten = torch.ops.aten


@contextlib.contextmanager
def keep_recurrent_layers() -> Iterator[None]:
    """Lets a capture record LSTM, GRU and plain recurrent layers as they are called, without unrolling them."""
    rules = {operator: functools.partial(_in_mode, shapes) for operator, shapes in _SHAPES.items()}
    # fake tensors take shapes from the first where sizes vary, from the second where they do not
    with _replaced(decomposition_table, _SHAPES), _replaced(fake_implementations, rules), keep_whole(_SHAPES):
        yield


@contextlib.contextmanager
def _replaced(table: dict[Any, Any], entries: Mapping[Any, Any]) -> Iterator[None]:
    known = {operator: table[operator] for operator in entries if operator in table}
    table.update(entries)
    try:
        yield
    finally:
        for operator in entries:
            table.pop(operator, None)
        table.update(known)


def _in_mode(shapes: Callable[..., Any], mode: Any, operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return shapes(*args, **kwargs)


def _lstm(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _sequence(input, hx[0], bidirectional, batch_first), _state(hx[0]), _state(hx[1])


def _one_state(
    input: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _sequence(input, hx, bidirectional, batch_first), _state(hx)


def _sequence(sequence: torch.Tensor, state: torch.Tensor, bidirectional: bool, batch_first: bool) -> torch.Tensor:
    """Steps lie one after the other in memory, whichever dimension counts them."""
    first, second = (1, 0) if batch_first else (0, 1)
    width = state.shape[-1] * (2 if bidirectional else 1)
    made = sequence.new_empty((sequence.shape[first], sequence.shape[second], width))
    return made.transpose(0, 1) if batch_first else made


def _state(state: torch.Tensor) -> torch.Tensor:
    return state.new_empty(state.shape)


_SHAPES: Final[dict[OpOverload, Callable[..., Any]]] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _one_state,
    aten.rnn_tanh.input: _one_state,
    aten.rnn_relu.input: _one_state,
}
