"""Several products of one tensor with constant matrices as one: query, key and value; gate and up.

One large product fills a device better than three small ones, and reads the tensor once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.enums import DataType, ElementWiseOperation, LayerType, MatrixOperation, SampleMode
from trt_portable.network.loop import LoopRegion

_LOOP: Final = LoopRegion._plan_type()


@dataclass(frozen=True)
class _Product:
    """A product with a constant matrix, and the constant bias that is added to it, if there is one.

    Attributes:
        entry: The product.
        matrix: (..., K, N) or, transposed, (..., N, K), with leading extents of 1.
        addition: The sum with the bias; None where there is none.
        bias: (..., N), with leading extents of 1.
    """

    entry: Entry
    matrix: torch.Tensor
    addition: Entry | None
    bias: torch.Tensor | None

    @property
    def output(self) -> int:
        """The tensor that stands for product and bias."""
        last = self.entry if self.addition is None else self.addition
        tensor: int = last["outputs"][0]
        return tensor


class MergeProducts(PlanPass):
    """Merges products of the same tensor, each with its bias, into one product and slices of it.

    Kernels for other sizes may add in another order. What a loop reads stays a product of its own, since there may be
    a kernel for both.
    """

    name = "merge_products"

    def call(self, graph: PlanGraph) -> int:
        """Merges where all products of a group have a bias, or none."""
        groups: dict[Any, list[_Product]] = defaultdict(list)
        producers, uses = graph.producers(), graph.uses()
        readers = {tensor: entry for entry in graph.layers for tensor in entry["inputs"] if tensor is not None}
        looped = {tensor for entry in graph.layers if entry["type"] == _LOOP for tensor in entry["inputs"]}
        for entry in graph.layers:
            product = _constant_product(graph, entry, producers)
            if product is None:
                continue
            product = _with_bias(graph, product, producers, uses, readers)
            if product.output in looped:
                continue
            matrix, bias = product.matrix, product.bias
            contracted = matrix.shape[-1 if _is_transposed(entry) else -2]
            kind = (entry["inputs"][0], _is_transposed(entry), contracted, matrix.dtype, matrix.dim())
            groups[(*kind, None if bias is None else bias.dim())].append(product)
        merged = [group for group in groups.values() if len(group) > 1]
        for group in merged:
            _merge(graph, group)
        return len(merged)


def _is_transposed(entry: Entry) -> bool:
    return bool(entry["attributes"]["op1"] == MatrixOperation.TRANSPOSE.name)


def _constant_product(graph: PlanGraph, entry: Entry, producers: dict[int, Entry]) -> _Product | None:
    if entry["type"] != LayerType.MATRIX_MULTIPLY.name or entry["attributes"]["op0"] != MatrixOperation.NONE.name:
        return None
    if entry["attributes"]["op1"] == MatrixOperation.VECTOR.name or entry["outputs"][0] in graph.wanted:
        return None
    matrix = graph.constant(producers.get(entry["inputs"][1]))
    if matrix is None or not matrix.dtype.is_floating_point or any(extent != 1 for extent in matrix.shape[:-2]):
        return None
    return _Product(entry, matrix, None, None)


def _with_bias(
    graph: PlanGraph, product: _Product, producers: dict[int, Entry], uses: Any, readers: dict[int, Entry]
) -> _Product:
    output = product.entry["outputs"][0]
    addition = readers.get(output)
    if addition is None or uses[output] != 1 or addition["type"] != LayerType.ELEMENTWISE.name:
        return product
    if addition["attributes"]["op"] != ElementWiseOperation.SUM.name or addition["outputs"][0] in graph.wanted:
        return product
    other = addition["inputs"][1 - addition["inputs"].index(output)]
    bias = graph.constant(producers.get(other))
    columns = product.matrix.shape[-2 if _is_transposed(product.entry) else -1]
    if bias is None or bias.shape[-1:] != (columns,) or bias.numel() != columns:
        return product
    return _Product(product.entry, product.matrix, addition, bias)


def _merge(graph: PlanGraph, group: list[_Product]) -> None:
    """Puts one product in place of the first of a group, and slices behind it."""
    first = group[0]
    transposed = _is_transposed(first.entry)
    name = " | ".join(product.entry["name"] for product in group)
    dtype = DataType[graph.tensors[first.output]["dtype"]]
    axis = -2 if transposed else -1
    total = sum(product.matrix.shape[axis] for product in group)
    shape = [*graph.tensors[first.entry["outputs"][0]]["shape"][:-1], total]
    constant = graph.new_joined_constant(f"{name} matrix", dtype, [product.matrix for product in group], axis)
    result = graph.new_tensor(name, dtype.name, shape)
    fresh = [
        constant,
        {
            **first.entry,
            "name": name,
            "inputs": [first.entry["inputs"][0], *constant["outputs"]],
            "outputs": [result],
        },
    ]
    if first.addition is not None:
        biases = [product.bias for product in group if product.bias is not None]
        bias = graph.new_joined_constant(f"{name} bias", dtype, biases, -1)
        biased = graph.new_tensor(f"{name} biased", dtype.name, shape)
        added = {
            **first.addition,
            "name": f"{name} bias sum",
            "inputs": [result, *bias["outputs"]],
            "outputs": [biased],
        }
        fresh += [bias, added]
        result = biased
    start = 0
    for product in group:
        columns = product.matrix.shape[axis]
        fresh.append(_slice(f"{product.entry['name']} part", result, product.output, len(shape) - 1, start, columns))
        start += columns
    gone = {id(entry) for product in group for entry in (product.entry, product.addition)}
    at = next(index for index, entry in enumerate(graph.layers) if entry is first.entry)
    graph.layers[at : at + 1] = fresh
    graph.layers[:] = [entry for entry in graph.layers if id(entry) not in gone]


def _slice(name: str, source: int, output: int, axis: int, start: int, size: int) -> Entry:
    return {
        "type": LayerType.SLICE.name,
        "name": name,
        "metadata": "",
        "num_ranks": 1,
        "inputs": [source],
        "outputs": [output],
        "attributes": {
            "start": [start],
            "shape": [size],
            "stride": [1],
            "axes": [axis],
            "mode": SampleMode.STRICT_BOUNDS.name,
        },
        "weights": {},
        "weight_specs": {},
    }
