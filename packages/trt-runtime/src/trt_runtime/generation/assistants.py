"""Guesses tokens that one call of a step then checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import torch

LOOKED_UP: Final = 3
"""Most tokens that are looked for earlier in a text."""


class Assistant(Protocol):
    """Guesses tokens."""

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        """Is told what `generate` was asked.

        Raises:
            InputError: It cannot be of help with that.
        """

    def guess(self, text: torch.Tensor) -> list[int]:
        """Returns what may follow a text, (1, length) int64; nothing where it has no idea."""


class Lookup:
    """Guesses what followed the last tokens where they stand earlier in the text."""

    def __init__(self, most: int) -> None:
        self._most = most

    def expect(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any, source: Mapping[str, Any]) -> None:
        """Needs nothing but the text."""

    def guess(self, text: torch.Tensor) -> list[int]:
        """Returns what followed the longest end of the text that stands in it twice."""
        tokens: list[int] = text[0].tolist()
        for size in range(min(LOOKED_UP, len(tokens) - 1), 0, -1):
            pattern = tokens[-size:]
            for at in range(len(tokens) - size - 1, -1, -1):
                if tokens[at : at + size] == pattern:
                    return tokens[at + size : at + size + self._most]
        return []
