"""Recurrent layers with all their options compute on the CPU what eager PyTorch computes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trt_frontends
from trt_converters.testing import TOLERANCES
from trt_core import Input

pytestmark = pytest.mark.sampled(4)

LAYERS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
DEPTH = 3
PACKED_WIDTH = 70
"""From there on weights are enough to be packed."""


@dataclass(frozen=True)
class Case:
    """A layer and what it is called with.

    Attributes:
        has_states: Whether first states are given.
        varies: Whether length and batch do.
    """

    kind: str
    width: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    option: Any
    length: int
    batch: int
    has_states: bool
    varies: bool
    dtype: torch.dtype

    @property
    def options(self) -> dict[str, Any]:
        """What only one kind of layer has."""
        if self.kind == "RNN":
            return {"nonlinearity": "relu" if self.option else "tanh"}
        is_projected = self.kind == "LSTM" and self.option and self.width > 1
        return {"proj_size": (self.width + 1) // 2} if is_projected else {}

    def model(self) -> Recurrent:
        """The layer, with weights that leave no state at its limits."""
        dropout = 0.5 if self.num_layers > 1 else 0.0
        names = ("num_layers", "bias", "batch_first", "bidirectional")
        same = {name: getattr(self, name) for name in names}
        made = LAYERS[self.kind](DEPTH, self.width, dropout=dropout, **same, **self.options)
        return Recurrent(made.to(self.dtype)).eval()

    def inputs(self, length: int, batch: int) -> tuple[torch.Tensor, ...]:
        """The sequence, and first states where they are given."""
        sizes = (batch, length) if self.batch_first else (length, batch)
        states = (self.num_layers * (1 + self.bidirectional), batch)
        widths = [self.options.get("proj_size", self.width), self.width][: 1 + (self.kind == "LSTM")]
        given = [torch.randn(*states, width, dtype=self.dtype) for width in widths if self.has_states]
        return (torch.randn(*sizes, DEPTH, dtype=self.dtype), *given)

    def described(self) -> tuple[Input, ...]:
        """The same for sizes that vary."""
        low, best, high = (self.inputs(*sizes) for sizes in ((1, 1), (self.length, self.batch), (40, 12)))
        return tuple(
            Input(min_shape=tuple(a.shape), opt_shape=tuple(b.shape), max_shape=tuple(c.shape), dtype=self.dtype)
            for a, b, c in zip(low, best, high, strict=True)
        )


class Recurrent(nn.Module):
    """A recurrent layer, called with states or without."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> Any:
        """Runs the layer."""
        given = states if len(states) > 1 else states[0] if states else None
        return self.layer(x, given)


CASES = st.builds(
    Case,
    kind=st.sampled_from(sorted(LAYERS)),
    width=st.sampled_from([1, 2, 5, PACKED_WIDTH]),
    num_layers=st.integers(1, 2),
    bias=st.booleans(),
    batch_first=st.booleans(),
    bidirectional=st.booleans(),
    option=st.booleans(),
    length=st.sampled_from([2, 3, 19]),
    batch=st.integers(2, 3),
    has_states=st.booleans(),
    varies=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
)


@settings(max_examples=60 if "TRT_STRESS" in os.environ else 7)
@given(case=CASES)
def test_every_option(case: Case) -> None:
    torch.manual_seed(0)
    model = case.model()
    example = case.described() if case.varies else case.inputs(case.length, case.batch)
    compiled = trt_frontends.compile(model, arg_inputs=example, min_block_size=1, device="cpu")
    report = compiled.meta["partition_report"]
    assert (len(report.engines), report.coverage) == (1, 1.0)
    sizes = [(case.length, case.batch), *([(1, 1), (33, 1), (1, 9)] if case.varies else [])]
    rtol, atol = TOLERANCES[case.dtype]
    for length, batch in sizes:
        given = case.inputs(length, batch)
        with torch.no_grad():
            wanted, found = model(*given), compiled(*given)
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_single_step(kind: str, batch_first: bool) -> None:
    case = Case(kind, 4, 1, True, batch_first, False, False, 1, 1, False, False, torch.float32)
    model, given = case.model(), case.inputs(1, 1)
    compiled = trt_frontends.compile(model, arg_inputs=given, min_block_size=1, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), model(*given))


CELLS = {"LSTMCell": nn.LSTMCell, "GRUCell": nn.GRUCell, "RNNCell": nn.RNNCell}


class Steps(nn.Module):
    """Calls a cell three times, without a state at first."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> Any:
        """Takes (N, 3, DEPTH), or (3, DEPTH) where there is no batch."""
        state: Any = None
        for step in range(3):
            state = self.cell(x[..., step, :], state)
        return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_in_one_engine(kind: str, bias: bool, dtype: torch.dtype) -> None:
    model = Steps(CELLS[kind](DEPTH, 5, bias=bias)).to(dtype).eval()
    described = Input(min_shape=(1, 3, DEPTH), opt_shape=(2, 3, DEPTH), max_shape=(9, 3, DEPTH), dtype=dtype)
    compiled = trt_frontends.compile(model, arg_inputs=[described], require_full_compilation=True, device="cpu")
    rtol, atol = TOLERANCES[dtype]
    for batch in (1, 2, 9):
        x = torch.randn(batch, 3, DEPTH, dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=rtol, atol=atol)


@pytest.mark.parametrize("kind", CELLS)
def test_cells_without_a_batch_are_in_one_engine(kind: str) -> None:
    model, x = Steps(CELLS[kind](DEPTH, 5)).eval(), torch.randn(3, DEPTH)
    compiled = trt_frontends.compile(model, arg_inputs=[x], require_full_compilation=True, device="cpu")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
