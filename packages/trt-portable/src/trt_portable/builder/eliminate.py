"""Removal of layers that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def live_layers(layers: Sequence[Mapping[str, Any]], wanted: Iterable[int]) -> list[int]:
    """Indices of the layers that contribute to wanted tensors; layers without outputs stay.

    Args:
        layers: Layer entries of a network structure, in executable order.
        wanted: Ids of the tensors that must be computed.
    """
    needed = set(wanted)
    live = []
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        if not layer["outputs"] or not needed.isdisjoint(layer["outputs"]):
            live.append(index)
            needed.update(tensor for tensor in layer["inputs"] if tensor is not None)
    return live[::-1]
