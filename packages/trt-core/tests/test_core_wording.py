from __future__ import annotations

import pytest
import torch

from trt_core.wording import human_bytes, kind_of, with_article

PHRASES = (
    "an int, a float, an OrderedDict, a uint8, an LSTM, a BERT, an FXGraph, a UNet, an unbound, a union, a Tensor, "
    "an Input, an RNN, an INT8"
)


@pytest.mark.parametrize("phrase", PHRASES.split(", "))
def test_the_article_follows_from_the_sound(phrase: str) -> None:
    assert with_article(phrase.partition(" ")[2]) == phrase


def test_values_are_named_by_their_type() -> None:
    assert kind_of(3) == "an int"
    assert kind_of(torch.zeros(1)) == "a Tensor"
    assert kind_of(None) == "None"
    assert kind_of(torch.nn.Linear) == "the class Linear"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5 GiB"), (3 << 50, "3072 TiB")]
)
def test_bytes_are_readable(size: int, text: str) -> None:
    assert human_bytes(size) == text
