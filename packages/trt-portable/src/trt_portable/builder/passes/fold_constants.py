"""Constant folding: layers whose operands are all known are computed while the engine is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.dtypes import PACKED, pack
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import Refusal
from trt_portable.network.serialization import layers_from_json
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

_ALWAYS_FOLDED_BYTES: Final = 1 << 20
_CPU: Final = torch.device("cpu")


class FoldConstants(PlanPass):
    """Computes what depends on constants alone, on the CPU.

    A result that is larger than its operands and larger than 1 MiB is left to run time, as is anything
    random, anything that depends on weights which a refit may replace, and what a dequantization makes.

    Args:
        structure: The network part of a plan, from which layers are rebuilt to compute with.
        keep: Ids of tensors whose producers must stay, such as debug tensors.
        step: Called once per layer.
    """

    name = "fold_constants"

    def __init__(self, structure: Mapping[str, Any], keep: frozenset[int], step: Callable[[], None]) -> None:
        self._structure = structure
        self._keep = keep
        self._step = step

    def call(self, graph: PlanGraph) -> int:
        """Puts a constant in place of each output of a folded layer.

        Raises:
            Refusal: An assertion about constants does not hold.
        """
        known: dict[int, Value] = {}
        result: list[Entry] = []
        layers = layers_from_json({**self._structure, "layers": graph.layers}).layers
        dtypes = {tensor: DataType[entry["dtype"]] for tensor, entry in graph.tensors.items()}
        folded = 0
        for layer, entry in zip(layers, graph.layers, strict=True):
            self._step()
            values = None
            is_weight = layer.type is LayerType.DEQUANTIZE
            if not is_weight and _is_candidate(layer, entry, known, graph, self._keep):
                values = _compute(layer, entry, [known[tensor] for tensor in entry["inputs"]], graph.weights)
            if values is None:
                result.append(entry)
                continue
            known.update(zip(entry["outputs"], values, strict=True))
            if layer.type is LayerType.CONSTANT:
                result.append(entry)
                continue
            folded += 1
            for index, (tensor, value) in enumerate(zip(entry["outputs"], values, strict=True)):
                key = f"{entry['name']}:{folded}.{index}"
                made, dtype = _as_tensor(value), dtypes[tensor]
                graph.weights[key] = pack(made.reshape(-1), dtype) if dtype in PACKED else made
                result.append(_constant_entry(entry, index, tensor, dtype, key, made))
        graph.layers[:] = result
        return folded


def _is_candidate(
    layer: ILayer,
    entry: Mapping[str, Any],
    known: Mapping[int, Value],
    graph: PlanGraph,
    keep: frozenset[int],
) -> bool:
    if layer._is_random or layer._children() or not keep.isdisjoint(entry["outputs"]):
        return False
    return all(graph.is_fixed(key, "CONSTANT") for key in entry["weights"].values()) and all(
        tensor in known for tensor in entry["inputs"]
    )


def _compute(
    layer: ILayer,
    entry: Mapping[str, Any],
    operands: Sequence[Value],
    weights: Mapping[str, torch.Tensor],
) -> Sequence[Value] | None:
    """The layer's outputs, or None when they are better computed at run time."""
    layer._device = _CPU
    layer._bound = {role: weights[key] for role, key in entry["weights"].items()}
    try:
        values = layer._compute(operands)
    except Exception as error:
        if not entry["outputs"]:  # an assertion that can never hold
            raise Refusal(f"layer {layer.name!r}: {error}") from error
        return None  # fails at run time, with the same message
    if layer.type is LayerType.CONSTANT:
        return values
    limit = max(_ALWAYS_FOLDED_BYTES, sum(_bytes(operand) for operand in operands))
    foldable = all(_is_constant(value) and _bytes(value) <= limit for value in values)
    return values if foldable else None


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


def _constant_entry(
    folded: Mapping[str, Any], index: int, tensor: int, dtype: DataType, key: str, value: torch.Tensor
) -> dict[str, Any]:
    return {
        "type": LayerType.CONSTANT.name,
        "name": folded["name"] if index == 0 else f"{folded['name']}:{index}",
        "metadata": folded["metadata"],
        "num_ranks": 1,
        "inputs": [],
        "outputs": [tensor],
        "attributes": {"shape": list(value.shape)},
        "weights": {"CONSTANT": key},
        "weight_specs": {"CONSTANT": [dtype.name, value.numel()]},
    }
