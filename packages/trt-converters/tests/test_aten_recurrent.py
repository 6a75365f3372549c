"""Recurrent layers against eager PyTorch: unrolled ones and loops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from trt_converters.aten import recurrent
from trt_converters.aten.recurrent import UNROLLED_LENGTH, is_unrolled
from trt_converters.testing import check_conversion, emitted_layers
from trt_core import Device

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
states_captured_right = pytest.mark.xfail(
    torch.__version__ < "2.12", reason="PyTorch 2.11 captures the states of these with an axis too many"
)
WIDTH, HIDDEN, BATCH = 3, 4, 2

LAYERS = {
    "lstm": (aten.lstm.input, nn.LSTM, {}),
    "gru": (aten.gru.input, nn.GRU, {}),
    "tanh": (aten.rnn_tanh.input, nn.RNN, {}),
    "relu": (aten.rnn_relu.input, nn.RNN, {"nonlinearity": "relu"}),
}


def _call(
    name: str,
    length: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    batch_first: bool = False,
    bias: bool = True,
    projection: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Any, tuple[Any, ...]]:
    """Returns an operator, and the arguments that PyTorch's module gives it."""
    target, kind, options = LAYERS[name]
    if projection:
        options = {"proj_size": projection}
    layer = kind(WIDTH, HIDDEN, num_layers, bias=bias, bidirectional=bidirectional, **options).to(dtype)
    weights = [weight.detach() for weight in layer._flat_weights]
    sizes = (BATCH, length, WIDTH) if batch_first else (length, BATCH, WIDTH)
    states = num_layers * (2 if bidirectional else 1)
    hidden: Any = torch.randn(states, BATCH, projection or HIDDEN, dtype=dtype)
    if name == "lstm":
        hidden = [hidden, torch.randn(states, BATCH, HIDDEN, dtype=dtype)]
    sequence = torch.randn(sizes, dtype=dtype)
    return target, (sequence, hidden, weights, bias, num_layers, 0.0, False, bidirectional, batch_first)


@pytest.fixture
def unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets engines for the CPU unroll short sequences, as those for a GPU do."""
    monkeypatch.setattr(recurrent, "is_unrolled", lambda length, device: length <= UNROLLED_LENGTH)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("num_layers", "bidirectional", "batch_first", "bias"),
    [(1, False, False, True), (1, True, True, True), (2, True, False, False), (3, False, True, True)],
)
@pytest.mark.parametrize("length", [1, 5, UNROLLED_LENGTH + 3])
def test_every_form(
    name: str, length: int, num_layers: int, bidirectional: bool, batch_first: bool, bias: bool, unrolled: None
) -> None:
    target, arguments = _call(
        name, length, num_layers=num_layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias
    )
    check_conversion(target, arguments)


@states_captured_right
@pytest.mark.parametrize(
    ("length", "bidirectional", "bias"), [*itertools.product([4, 20], [False, True], [False, True])]
)
def test_projections(length: int, bidirectional: bool, bias: bool) -> None:
    target, arguments = _call("lstm", length, projection=2, bidirectional=bidirectional, num_layers=2, bias=bias)
    check_conversion(target, arguments)


@states_captured_right
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    target, arguments = _call(name, 6, dtype=dtype)
    check_conversion(target, arguments)


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_batch_may_vary(name: str, bidirectional: bool) -> None:
    target, arguments = _call(name, 5, bidirectional=bidirectional, num_layers=2)
    batch = {1: (1, 2, 4)}
    check_conversion(target, arguments, dynamic=dict.fromkeys(range(3 if name == "lstm" else 2), batch))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_length_may_vary(bidirectional: bool) -> None:
    # PyTorch itself fixes the length of the other layers where it computes shapes; see the tests of models
    target, arguments = _call("lstm", 5, bidirectional=bidirectional, num_layers=2)
    batch = (1, 2, 4)
    check_conversion(target, arguments, dynamic={0: {0: (1, 5, 9), 1: batch}, 1: {1: batch}, 2: {1: batch}})


def test_long_sequences_loop_and_short_ones_do_not(unrolled: None) -> None:
    short, long = (emitted_layers(*_call("gru", length)) for length in (UNROLLED_LENGTH, UNROLLED_LENGTH + 1))
    assert "RECURRENCE" not in short
    assert "RECURRENCE" in long
    assert len(long) < len(short)


def test_engines_for_the_cpu_have_no_graph_to_lose() -> None:
    assert is_unrolled(UNROLLED_LENGTH, Device("cuda"))
    assert not is_unrolled(UNROLLED_LENGTH + 1, Device("cuda"))
    assert not is_unrolled(1, Device("cpu"))


def test_dropout_while_training_stays_in_pytorch() -> None:
    target, arguments = _call("lstm", 4, num_layers=2)
    training = (*arguments[:5], 0.5, True, *arguments[7:])
    with pytest.raises(AssertionError, match="draws random numbers"):
        check_conversion(target, training)
