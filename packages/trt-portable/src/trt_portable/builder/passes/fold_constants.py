"""Constant folding: layers whose operands are all known are computed while the engine is built.

A convolution followed by ``x * scale + shift`` is one convolution with other weights, be that a scale layer, or a
product or sum with a constant. Products of weights are rounded once more than the layers would round, as in TensorRT.
Factors stay that make weights too large or too small for their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from trt_portable.dtypes import CARRIERS, PACKED, pack
from trt_portable.enums import ElementWiseOperation, LayerType, ScaleMode
from trt_portable.errors import Refusal
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.normalization import IScaleLayer
from trt_portable.layers.pointwise import IElementWiseLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPass, WeightUse, constant_node, pattern
from trt_portable.plan.weight_table import WeightTable
from trt_portable.shape_tensors import HostValues, Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer


_ALWAYS_FOLDED_BYTES: Final = 1 << 20
_LEAST_ROOM: Final = 1 << 28
_FOLDS_OF_A_BYTE: Final = 16
"""Bytes that all results may take, for each byte of the constants that they are made of."""
_VIEWS: Final = (LayerType.CONSTANT, LayerType.SHUFFLE)
"""Layers that compute nothing, and are the same wherever weights lie."""


class FoldConstants(PlanPass):
    """Computes what depends on constants alone, on the CPU.

    A result that is larger than its operands and larger than 1 MiB is left to run time, as are results that together
    take more than 256 MiB and 16 times the constants that are there, anything random, anything that depends on weights
    which a refit may replace, and what a dequantization makes.

    Args:
        keep: Ids of tensors whose producers must stay, such as debug tensors.
        step: Called once per layer.
    """

    name = "fold_constants"

    def __init__(self, keep: frozenset[int], step: Callable[[], None]) -> None:
        self._keep = keep
        self._step = step
        self._room = 0

    def call(self, graph: PlanGraph) -> int:
        """Puts a constant in place of each output of a folded layer.

        Raises:
            Refusal: An assertion about constants does not hold.
        """
        known: dict[int | None, Value] = {}
        result: list[Node] = []
        nodes, folded = graph.nodes, 0
        specs = map(graph.weights.spec, graph.weights)
        held = sum(dtype.itemsize * math.prod(size) for dtype, size in specs)
        self._room = max(_LEAST_ROOM, _FOLDS_OF_A_BYTE * held)
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
            self._room -= sum(map(_bytes, values))
            for index, (tensor, value) in enumerate(zip(node.outputs, values, strict=True)):
                key, dtype, made = f"{node.name}:{folded}.{index}", graph.dtype(tensor), as_tensor(value)
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

    def _computed(self, node: Node, known: Mapping[int | None, Value], graph: PlanGraph) -> Sequence[Value] | None:
        layer = graph.layer(node, in_place=True)
        if layer._is_random or (node.kind is not LayerType.CONSTANT and self._is_too_large(node, known, graph)):
            return None
        operands = [known[tensor] for tensor in node.inputs]
        if node.kind not in _VIEWS:
            operands = [(operand.cpu() if isinstance(operand, torch.Tensor) else operand) for operand in operands]
            layer._bound = {role: tensor.cpu() for role, tensor in layer._bound.items()}
        return _compute(layer, node, operands)

    def _is_too_large(self, node: Node, known: Mapping[int | None, Value], graph: PlanGraph) -> bool:
        """Whether results surely are, by their extents: what is made first, and dropped then, takes memory too."""
        made = sum(math.prod(graph.shape(tensor)) * CARRIERS[graph.dtype(tensor)].itemsize for tensor in node.outputs)
        return made > min(self._room, _most_bytes([known[tensor] for tensor in node.inputs]))


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
    limit = _most_bytes(operands)
    foldable = all(_is_constant(value) and _bytes(value) <= limit for value in values)
    return values if foldable else None


def _most_bytes(operands: Sequence[Value]) -> int:
    """Bytes that a result may take; an operand that is read twice is there once."""
    return max(_ALWAYS_FOLDED_BYTES, sum(map(_bytes, {id(operand): operand for operand in operands}.values())))


def _is_constant(value: Value) -> bool:
    """Whether a constant layer can stand for a value without changing where it is known."""
    if isinstance(value, HostValues):
        return value.dtype in (torch.int32, torch.int64, torch.bool)
    return True


def _bytes(value: Value) -> int:
    if isinstance(value, HostValues):
        return value.numel() * value.dtype.itemsize
    return value.nbytes


_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_ARITHMETIC: Final = (ElementWiseOperation.PROD, ElementWiseOperation.SUM)
_ELEMENTS_AT_ONCE: Final = 1 << 16


@pattern(LayerType.SCALE, LayerType.ELEMENTWISE)
def fold_scales(operation: Node, graph: PlanGraph) -> NodeFusion | None:
    """Merges scales into convolutions whose results nothing else reads, a chain of them one by one."""
    is_layer = operation.is_a(IScaleLayer)
    scale = _scale_layer(graph, operation) if is_layer else _arithmetic(graph, operation)
    convolution = None if scale is None else graph.private_maker(scale.of)
    if scale is None or convolution is None or not _is_plain(graph, convolution):
        return None
    merged = _merged(convolution, operation, scale, graph.weights)
    return None if merged is None else NodeFusion([merged], [convolution, operation], operation)


@dataclass(frozen=True)
class _Scale:
    """``x * factor + shift``.

    Attributes:
        of: The tensor x.
        factor: A coefficient per channel, or one for all, float64.
        shift: As `factor`.
    """

    of: int | None
    factor: torch.Tensor
    shift: torch.Tensor


def _scale_layer(graph: PlanGraph, node: Node) -> _Scale | None:
    """What a scale layer computes, if it has one coefficient per channel, or one for all."""
    if "POWER" in node.weights or not graph.is_fixed(node):
        return None
    if node[IScaleLayer.channel_axis] != 1 or node[IScaleLayer.mode] is ScaleMode.ELEMENTWISE:
        return None
    factor, shift = (_coefficients(graph.weights, node.weights, *role) for role in (("SCALE", 1.0), ("SHIFT", 0.0)))
    return _Scale(node.inputs[0], factor, shift)


def _arithmetic(graph: PlanGraph, node: Node) -> _Scale | None:
    """What a product or sum with a constant computes, if that has one number per channel, or one for all."""
    operation = node[IElementWiseLayer.op]
    if operation not in _ARITHMETIC:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        value = graph.constant(other)
        if value is not None and value.dtype in _FLOATS and value.numel() == math.prod(value.shape[1:2]):
            numbers, none = value.reshape(-1).double(), torch.zeros(1, device="cpu").double()
            is_product = operation is ElementWiseOperation.PROD
            return _Scale(x, numbers, none) if is_product else _Scale(x, none + 1, numbers)
    return None


def _is_plain(graph: PlanGraph, node: Node) -> bool:
    """Whether a node is a convolution whose kernel and bias are its own weights, which never change."""
    kernel = node.weights.get("KERNEL")
    return (
        node.is_a(IConvolutionLayer)
        and len(node.inputs) == 1
        and kernel is not None
        and kernel.key in graph.weights
        and graph.weights.spec(kernel.key)[0] in _FLOATS
        and graph.is_fixed(node)
    )


def _coefficients(table: WeightTable, uses: Mapping[str, WeightUse], role: str, default: float) -> torch.Tensor:
    use = uses.get(role)
    return torch.tensor([default], device="cpu").double() if use is None else table[use.key].double()


def _merged(convolution: Node, node: Node, scale: _Scale, weights: WeightTable) -> Node | None:
    """A convolution that does what a convolution and the scale after it do; its kernel is computed in the plan.

    Returns:
        None where the coefficients are not those of channels, or weights of that type cannot hold what they make.
    """
    use = convolution.weights["KERNEL"]
    kernel, maps = use.key, convolution[IConvolutionLayer.num_output_maps]
    kind, shape = weights.spec(kernel)
    if not {scale.factor.numel(), scale.shift.numel()} <= {1, maps}:
        return None
    factor = scale.factor.expand(maps)
    bias = _coefficients(weights, convolution.weights, "BIAS", 0.0).expand(maps) * factor + scale.shift.expand(maps)
    if not _can_hold(weights[kernel], factor, bias):
        return None
    name = f"{convolution.name} + {node.name}"
    keys = (f"{name}:kernel:{len(weights)}", f"{name}:bias:{len(weights)}")
    weights.defer(keys[0], kind, math.prod(shape), lambda target: _scale(weights[kernel], factor, target))
    weights[keys[1]] = bias.to(kind)
    return replace(
        convolution,
        name=name,
        metadata=" ".join(text for text in (convolution.metadata, node.metadata) if text),
        outputs=node.outputs,
        weights={"KERNEL": replace(use, key=keys[0]), "BIAS": WeightUse(keys[1], use.dtype, maps)},
    )


def _can_hold(kernel: torch.Tensor, factor: torch.Tensor, bias: torch.Tensor) -> bool:
    """Whether the type of a kernel holds its products with a factor for each map, and a bias.

    The largest of a map's products must be normal numbers, for others are rounded to fewer bits. Infinite factors
    would make NaN of zeros.
    """
    limits = torch.finfo(kernel.dtype)
    sizes = kernel.reshape(len(factor), -1).abs().amax(1).double() * factor.abs()
    is_normal = (sizes == 0) | ((sizes >= limits.smallest_normal) & (sizes <= limits.max))
    return bool(is_normal.all() and (bias.abs() <= limits.max).all())


def _scale(kernel: torch.Tensor, factor: torch.Tensor, target: torch.Tensor) -> None:
    """Writes a kernel times a factor for each of its output maps, rounded once; a few maps at a time."""
    maps = factor.shape[0]
    source, result = kernel.reshape(maps, -1), target.view(maps, -1)
    step = max(1, _ELEMENTS_AT_ONCE // max(1, source.shape[1]))
    for start in range(0, maps, step):
        part = slice(start, start + step)
        result[part] = source[part].double() * factor[part].unsqueeze(1)
