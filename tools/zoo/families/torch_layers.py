"""Layers of PyTorch itself that are whole architectures: recurrent networks, transformers, and their kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, LENGTH, tensor

_WIDTH: Final = 16


class Recurrent(nn.Module):
    """A recurrent layer over (N, L, H), with its initial state left out; returns outputs and last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, sequence: torch.Tensor) -> Any:
        """Runs the layer."""
        return self.layer(sequence)


def _recurrent(kind: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: Recurrent(kind(_WIDTH, 24, batch_first=True, **options))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def _pre_norm_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 32, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(_WIDTH), enable_nested_tensor=False)


def _sequence() -> tuple[Any, ...]:
    return (tensor(BATCH, LENGTH, _WIDTH),)


ENTRIES: Final[tuple[Entry, ...]] = (
    Entry("torch/lstm", _recurrent(nn.LSTM), _sequence()),
    Entry("torch/lstm_bidirectional", _recurrent(nn.LSTM, num_layers=2, bidirectional=True), _sequence()),
    Entry("torch/lstm_projected", _recurrent(nn.LSTM, proj_size=8), _sequence()),
    Entry("torch/gru", _recurrent(nn.GRU), _sequence()),
    Entry("torch/gru_bidirectional", _recurrent(nn.GRU, num_layers=2, bidirectional=True), _sequence()),
    Entry("torch/rnn", _recurrent(nn.RNN, num_layers=2), _sequence()),
    Entry("torch/transformer_encoder", _encoder, _sequence()),
    Entry("torch/transformer_encoder_pre_norm", _pre_norm_encoder, _sequence()),
    Entry("torch/transformer", lambda: nn.Transformer(_WIDTH, 4, 2, 2, 32, batch_first=True), _sequence() * 2),
)
