"""Constant folding: layers whose operands are all known are computed while the engine is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from trt_portable.dtypes import PACKED, pack
from trt_portable.enums import LayerType
from trt_portable.errors import Refusal
from trt_portable.plan.nodes import Node, PlanGraph, PlanPass, constant_node
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

_ALWAYS_FOLDED_BYTES: Final = 1 << 20
_VIEWS: Final = (LayerType.CONSTANT, LayerType.SHUFFLE)
"""Layers that compute nothing, and are the same wherever weights lie."""


class FoldConstants(PlanPass):
    """Computes what depends on constants alone, on the CPU.

    A result that is larger than its operands and larger than 1 MiB is left to run time, as is anything
    random, anything that depends on weights which a refit may replace, and what a dequantization makes.

    Args:
        keep: Ids of tensors whose producers must stay, such as debug tensors.
        step: Called once per layer.
    """

    name = "fold_constants"

    def __init__(self, keep: frozenset[int], step: Callable[[], None]) -> None:
        self._keep = keep
        self._step = step

    def call(self, graph: PlanGraph) -> int:
        """Puts a constant in place of each output of a folded layer.

        Raises:
            Refusal: An assertion about constants does not hold.
        """
        known: dict[int | None, Value] = {}
        result: list[Node] = []
        nodes, folded = graph.nodes, 0
        for node in nodes:
            self._step()
            values = self._computed(node, known, graph) if self._is_candidate(node, known, graph) else None
            if values is None:
                result.append(node)
                continue
            known.update(zip(node.outputs, values, strict=True))
            if node.kind is LayerType.CONSTANT:
                result.append(node)
                continue
            folded += 1
            for index, (tensor, value) in enumerate(zip(node.outputs, values, strict=True)):
                key, dtype, made = f"{node.name}:{folded}.{index}", graph.dtype(tensor), _as_tensor(value)
                graph.weights[key] = pack(made.reshape(-1), dtype) if dtype in PACKED else made
                name = node.name if index == 0 else f"{node.name}:{index}"
                constant = constant_node(name, tensor, key, dtype, made.shape)
                result.append(replace(constant, metadata=node.metadata))
        if folded:
            graph.nodes = result
        return folded

    def _is_candidate(self, node: Node, known: Mapping[int | None, Value], graph: PlanGraph) -> bool:
        """Whether all that a layer depends on is known; what a dequantization makes is a weight, and stays one."""
        if node.kind is LayerType.DEQUANTIZE or "body" in node.nested or not self._keep.isdisjoint(node.outputs):
            return False
        return graph.is_fixed(node) and all(tensor in known for tensor in node.inputs)

    @staticmethod
    def _computed(node: Node, known: Mapping[int | None, Value], graph: PlanGraph) -> Sequence[Value] | None:
        layer = graph.layer(node, in_place=True)
        if layer._is_random:
            return None
        operands = [known[tensor] for tensor in node.inputs]
        if node.kind not in _VIEWS:
            operands = [_on_host(operand) for operand in operands]
            layer._bound = {role: tensor.cpu() for role, tensor in layer._bound.items()}
        return _compute(layer, node, operands)


def _compute(layer: ILayer, node: Node, operands: Sequence[Value]) -> Sequence[Value] | None:
    """The layer's outputs, or None when they are better computed at run time."""
    try:
        values = layer._compute(operands)
    except Exception as error:
        if not node.outputs:  # an assertion that can never hold
            raise Refusal(f"layer {layer.name!r}: {error}") from error
        return None  # fails at run time, with the same message
    if layer.type is LayerType.CONSTANT:
        return values
    limit = max(_ALWAYS_FOLDED_BYTES, sum(_bytes(operand) for operand in operands))
    foldable = all(_is_constant(value) and _bytes(value) <= limit for value in values)
    return values if foldable else None


def _on_host(value: Value) -> Value:
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _is_constant(value: Value) -> bool:
    """Whether a constant layer can stand for a value without changing where it is known."""
    if isinstance(value, HostValues):
        return value.dtype in (torch.int32, torch.int64, torch.bool)
    return True


def _bytes(value: Value) -> int:
    if isinstance(value, HostValues):
        return value.numel() * value.dtype.itemsize
    return value.nbytes


def _as_tensor(value: Value) -> torch.Tensor:
    return value.tensor() if isinstance(value, HostValues) else value
