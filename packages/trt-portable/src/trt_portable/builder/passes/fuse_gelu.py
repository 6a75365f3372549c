"""The tanh form of GELU, written out in elementwise layers, as one activation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import ActivationType, ElementWiseOperation, LayerType

_TOLERANCE: Final = 1e-6  # of coefficients as they are written down; their type rounds them once more


class FuseGelu(PlanPass):
    """Turns ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` into one layer, which rounds once."""

    name = "fuse_gelu"

    def call(self, graph: PlanGraph) -> int:
        """Replaces the last product of each such chain; the rest dies where nothing else reads it."""
        match = _Matcher(graph)
        changes = 0
        for index, entry in enumerate(graph.layers):
            x = match.gelu(entry)
            if x is None:
                continue
            graph.layers[index] = {
                **entry,
                "type": LayerType.ACTIVATION.name,
                "inputs": [x],
                "attributes": {"type": ActivationType.GELU_TANH.name, "alpha": 0.0, "beta": 0.0},
            }
            changes += 1
        return changes


class _Matcher:
    """Reads chains of elementwise layers upwards."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph
        self._producers: Mapping[int, Entry] = graph.producers()

    def gelu(self, entry: Entry) -> int | None:
        """The tensor of which a product is the GELU, if it is one."""
        for half, rest in _operands(entry, ElementWiseOperation.PROD):
            for x in self._scaled(half, 0.5):
                for tanh in self._shifted(rest, 1.0):
                    if self._is_gate(tanh, x):
                        return x
        return None

    def _is_gate(self, tanh: int, x: int) -> bool:
        entry = self._producers.get(tanh)
        if entry is None or entry["type"] != LayerType.ACTIVATION.name or entry["attributes"]["type"] != "TANH":
            return False
        for inner in self._scaled(entry["inputs"][0], math.sqrt(2 / math.pi)):
            for first, second in _operands(self._producers.get(inner), ElementWiseOperation.SUM):
                if first == x and any(self._is_cube(cube, x) for cube in self._scaled(second, 0.044715)):
                    return True
        return False

    def _is_cube(self, tensor: int, x: int) -> bool:
        entry = self._producers.get(tensor)
        for first, second in _operands(entry, ElementWiseOperation.PROD):
            squared = _operands(self._producers.get(second), ElementWiseOperation.PROD)
            if first == x and (x, x) in list(squared):
                return True
        powers = list(_operands(entry, ElementWiseOperation.POW))
        return bool(powers) and powers[0][0] == x and self._is_number(powers[0][1], 3.0)

    def _scaled(self, tensor: int, factor: float) -> Iterator[int]:
        """What a tensor is a multiple of."""
        for first, second in _operands(self._producers.get(tensor), ElementWiseOperation.PROD):
            if self._is_number(second, factor):
                yield first

    def _shifted(self, tensor: int, shift: float) -> Iterator[int]:
        for first, second in _operands(self._producers.get(tensor), ElementWiseOperation.SUM):
            if self._is_number(second, shift):
                yield first

    def _is_number(self, tensor: int, value: float) -> bool:
        constant = self._graph.constant(self._producers.get(tensor))
        if constant is None or constant.numel() != 1 or not constant.dtype.is_floating_point:
            return False
        tolerance = _TOLERANCE + torch.finfo(constant.dtype).eps / 2
        return math.isclose(float(constant.reshape(())), value, rel_tol=tolerance)


def _operands(entry: Entry | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
    """The operands of an elementwise operation, both ways round where the order does not matter."""
    if entry is None or entry["type"] != LayerType.ELEMENTWISE.name or entry["attributes"]["op"] != operation.name:
        return
    first, second = entry["inputs"]
    yield first, second
    if operation is not ElementWiseOperation.POW:
        yield second, first
