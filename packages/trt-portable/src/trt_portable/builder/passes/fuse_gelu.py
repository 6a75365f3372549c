"""The tanh form of GELU, written out in elementwise layers, as one activation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch

from trt_portable.enums import ActivationType, ElementWiseOperation, LayerType
from trt_portable.layers.pointwise import IActivationLayer, IElementWiseLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPattern

_TOLERANCE: Final = 1e-6  # of coefficients as they are written down; their type rounds them once more


class FuseGelu(PlanPattern):
    """Turns ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`` into one layer, which rounds once.

    It stands in place of the last product of the chain; the rest dies where nothing else reads it.
    """

    name = "fuse_gelu"
    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """The activation."""
        x = _Chain(graph).gelu(operation)
        if x is None:
            return None
        values = {IActivationLayer.type: ActivationType.GELU_TANH}
        gelu = replace(operation, layer=IActivationLayer, inputs=(x,), values=values)
        return NodeFusion([gelu], [operation], operation)


class _Chain:
    """Reads chains of elementwise layers upwards."""

    def __init__(self, graph: PlanGraph) -> None:
        self._graph = graph

    def gelu(self, node: Node) -> int | None:
        """The tensor of which a product is the GELU, if it is one."""
        for half, rest in _operands(node, ElementWiseOperation.PROD):
            for x in self._scaled(half, 0.5):
                for tanh in self._shifted(rest, 1.0):
                    if self._is_gate(tanh, x):
                        return x
        return None

    def _is_gate(self, tanh: int, x: int) -> bool:
        node = self._graph.maker(tanh)
        if node is None or not node.is_a(IActivationLayer) or node[IActivationLayer.type] is not ActivationType.TANH:
            return False
        for inner in self._scaled(node.inputs[0], math.sqrt(2 / math.pi)):
            for first, second in self._made_by(inner, ElementWiseOperation.SUM):
                if first == x and any(self._is_cube(cube, x) for cube in self._scaled(second, 0.044715)):
                    return True
        return False

    def _is_cube(self, tensor: int, x: int) -> bool:
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if first == x and (x, x) in list(self._made_by(second, ElementWiseOperation.PROD)):
                return True
        powers = list(self._made_by(tensor, ElementWiseOperation.POW))
        return bool(powers) and powers[0][0] == x and self._is_number(powers[0][1], 3.0)

    def _made_by(self, tensor: int | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
        return _operands(self._graph.maker(tensor), operation)

    def _scaled(self, tensor: int | None, factor: float) -> Iterator[int]:
        """What a tensor is a multiple of."""
        for first, second in self._made_by(tensor, ElementWiseOperation.PROD):
            if self._is_number(second, factor):
                yield first

    def _shifted(self, tensor: int, shift: float) -> Iterator[int]:
        for first, second in self._made_by(tensor, ElementWiseOperation.SUM):
            if self._is_number(second, shift):
                yield first

    def _is_number(self, tensor: int, value: float) -> bool:
        constant = self._graph.constant(tensor)
        if constant is None or constant.numel() != 1 or not constant.dtype.is_floating_point:
            return False
        tolerance = _TOLERANCE + torch.finfo(constant.dtype).eps / 2
        return math.isclose(float(constant.reshape(())), value, rel_tol=tolerance)


def _operands(node: Node | None, operation: ElementWiseOperation) -> Iterator[tuple[int, int]]:
    """The operands of an elementwise operation, both ways round where the order does not matter."""
    if node is None or not node.is_a(IElementWiseLayer) or node[IElementWiseLayer.op] is not operation:
        return
    first, second = node.inputs
    assert first is not None and second is not None
    yield first, second
    if operation is not ElementWiseOperation.POW:
        yield second, first
