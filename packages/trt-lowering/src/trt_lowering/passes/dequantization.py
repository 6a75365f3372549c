"""Recognizes dequantization that a model spells in arithmetic, and merges what stands between weights and products."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import read_attribute
from trt_core.dtypes import FLOATS
from trt_core.internals import FakeTensor
from trt_core.operators import argument
from trt_core.quantization import QUANTIZED, dequantize, limits
from trt_lowering.contract import OperatorPass
from trt_lowering.node_metadata import CASTS, cast_value, insert_call
from trt_lowering.operator_traits import axis_order, tensor_value
from trt_lowering.passes.normalize_quantization import is_known

aten = torch.ops.aten

_PRODUCTS: Final = {aten.mm.default: False, aten.matmul.default: False, aten.linear.default: True}
"""Operators that multiply by a matrix, their second argument, and whether they take it transposed."""


class RecognizeDequantization(OperatorPass):
    """Writes a scale that multiplies a quantized weight as `trt::dequantize` of that weight.

    Three forms, as libraries of quantization leave them in graphs:

    - `cast(weight) * scale`, with one scale or one for each slice of an axis;
    - `(x @ cast(weight)) * scale`, with one scale or one for each column: the scale moves to the weight, which rounds
      otherwise than the product did, within the accuracy of the type;
    - `_int_mm(uint8(x + 128), w) - 128 * sum(w)`, a detour of PyTorch's kernel for CPUs, which is `_int_mm(x, w)`.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.
    """

    name = "recognize_dequantization"

    def call(self, gm: fx.GraphModule) -> int:
        """Looks at every product and difference once."""
        changes = 0
        for node in list(gm.graph.nodes):
            if node.op != "call_function" or self.stays(node.target):
                continue
            if node.target is aten.mul.Tensor:
                keeps_bits = self._settings.refit  # other weights might need all eight
                changes += _scaled_weight(gm, node, keeps_bits) or _scaled_product(gm, node, keeps_bits)
            elif node.target is aten.sub.Tensor:
                changes += _shifted_product(node)
        return changes


def _scaled_weight(gm: fx.GraphModule, node: fx.Node, keeps_bits: bool) -> int:
    for cast, scale in _operands(node):
        weight = _source_of_cast(cast)
        if weight is None or not is_known(weight) or cast.meta["val"].shape != node.meta["val"].shape:
            continue
        axis = _axis_of(scale, node.meta["val"])
        if axis is None:
            continue
        replacement = _insert_dequantization(gm, node, weight, scale, axis, node.meta["val"].dtype, keeps_bits)
        node.replace_all_uses_with(replacement)
        gm.graph.erase_node(node)
        return 1
    return 0


def _scaled_product(gm: fx.GraphModule, node: fx.Node, keeps_bits: bool) -> int:
    for product, scale in _operands(node):
        if product.target not in _PRODUCTS or len(product.users) != 1 or len(product.args) != 2:
            continue
        value, matrix = node.meta["val"], product.args[1]
        same = product.meta["val"].shape == value.shape and product.meta["val"].dtype == value.dtype
        if not same or not isinstance(matrix, fx.Node) or matrix.meta["val"].dim() != 2:
            continue
        axis = _axis_of(scale, value)
        if axis is None or axis not in (-1, value.dim() - 1):
            continue
        columns = 0 if _PRODUCTS[product.target] else 1
        cast, flipped = matrix, False
        while cast.target is aten.t.default and isinstance(cast.args[0], fx.Node):
            cast, flipped = cast.args[0], not flipped
        weight = _source_of_cast(cast)
        if weight is None or not is_known(weight):
            continue
        place = -1 if axis < 0 else (1 - columns if flipped else columns)
        replacement = _insert_dequantization(gm, product, weight, scale, place, cast.meta["val"].dtype, keeps_bits)
        with gm.graph.inserting_before(product):
            if flipped:
                replacement = insert_call(
                    gm.graph, aten.t.default, (replacement,), value=matrix.meta["val"], origin=product
                )
        product.replace_input_with(matrix, replacement)
        node.replace_all_uses_with(product)
        gm.graph.erase_node(node)
        return 1
    return 0


def _shifted_product(node: fx.Node) -> int:
    product, correction = node.args[:2]
    if not isinstance(product, fx.Node) or product.target is not aten._int_mm.default or len(product.users) != 1:
        return 0
    shifted, matrix = product.args
    quantized = _before(_before(shifted, CASTS, torch.uint8), {aten.add.Tensor})
    shift = quantized.args[1] if quantized is not None else None
    source = None if quantized is None else _source_of_cast(quantized.args[0], integer=True)
    total = _before(correction, {aten.mul.Tensor})
    if source is None or shift != 128 or total is None or total.args[1] != shift:
        return 0
    summed = _before(total.args[0], {aten.sum.dim_IntList})
    if summed is None or summed.args[0] is not matrix or argument(summed, "dim") != [0]:
        return 0
    if source.meta["val"].dtype is not torch.int8:
        return 0
    assert isinstance(shifted, fx.Node)
    product.replace_input_with(shifted, source)
    node.replace_all_uses_with(product)
    return 1


def _before(node: Any, targets: Any, dtype: torch.dtype | None = None) -> fx.Node | None:
    """Returns a call of one of the operators; for casts to `dtype`, what is cast."""
    if not isinstance(node, fx.Node) or node.target not in targets:
        return None
    if dtype is None:
        return node
    source = node.args[0]
    return source if isinstance(source, fx.Node) and node.meta["val"].dtype is dtype else None


def _operands(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """Returns (other, scale) for each operand that may be a scale: a known tensor of floats."""
    left, right = node.args[:2]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
        return []
    pairs = [(left, right), (right, left)]
    return [(other, scale) for other, scale in pairs if is_known(scale) and _is_float(scale) and other is not scale]


def _is_float(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.dtype in FLOATS


def _source_of_cast(node: Any, *, integer: bool = False) -> fx.Node | None:
    """Returns the quantized value that a node casts to a float type, or to int32."""
    if not isinstance(node, fx.Node) or node.target not in CASTS or not isinstance(node.args[0], fx.Node):
        return None
    source, value = tensor_value(node.args[0]), tensor_value(node)
    if source is None or value is None or source.dtype not in QUANTIZED:
        return None
    fits = value.dtype is torch.int32 if integer else value.dtype in FLOATS
    return node.args[0] if fits and source.device == value.device else None


def _axis_of(scale: fx.Node, value: torch.Tensor) -> int | None:
    """Returns the axis along which a scale that broadcasts to a value varies, -1 for none; None for several."""
    shape = tuple(scale.meta["val"].shape)
    if not all(isinstance(extent, int) for extent in shape):
        return None
    wide = [index for index, extent in enumerate(shape) if extent != 1]
    if not wide:
        return -1
    return wide[0] + value.dim() - len(shape) if len(wide) == 1 else None


def _insert_dequantization(
    gm: fx.GraphModule,
    before: fx.Node,
    weight: fx.Node,
    scale: fx.Node,
    axis: int,
    dtype: torch.dtype,
    keeps_bits: bool,
) -> fx.Node:
    _move_before(before, scale)
    bits = 4 if not keeps_bits and _is_of_four_bits(gm, weight) else 8
    value, wanted = scale.meta["val"], [-1] if axis >= 0 else []
    assert isinstance(value, FakeTensor)
    with gm.graph.inserting_before(before):
        with value.fake_mode, torch.no_grad():
            flat_value = value.reshape(wanted)
        flat = insert_call(gm.graph, aten.reshape.default, (scale, wanted), value=flat_value, origin=before)
        if value.dtype is not torch.float32:
            wide_value = cast_value(flat_value, torch.float32)
            options = {"dtype": torch.float32}
            flat = insert_call(gm.graph, aten._to_copy.default, (flat,), options, value=wide_value, origin=before)
        result = cast_value(weight.meta["val"], dtype)
        return insert_call(gm.graph, dequantize, (weight, flat, dtype, bits, axis), value=result, origin=before)


def _is_of_four_bits(gm: fx.GraphModule, weight: fx.Node) -> bool:
    """Whether a weight, moved from an attribute, holds integers that four bits hold."""
    while weight.op == "call_function":
        source = weight.args[0]
        assert isinstance(source, fx.Node)
        weight = source
    value = read_attribute(gm, str(weight.target))
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.is_meta or not value.numel():
        return False
    low, high = limits(torch.int8, 4)
    return value.dtype is torch.int8 and bool(low <= int(value.min()) and int(value.max()) <= high)


def _move_before(place: fx.Node, known: fx.Node) -> None:
    """Moves what follows from an attribute in front of a node that comes earlier in the graph."""
    chain = [known]
    while chain[-1].op == "call_function":
        source = chain[-1].args[0]
        assert isinstance(source, fx.Node)
        chain.append(source)
    for node in reversed(chain):
        if place < node:
            place.prepend(node)


_ATTENTION: Final = aten.scaled_dot_product_attention.default
_TRANSPOSITIONS: Final = frozenset({aten.t.default, aten.transpose.int, aten.permute.default, aten.numpy_T.default})


class MergeDequantization(OperatorPass):
    """Lets a product read what `trt::dequantize` makes: a float type of its own, and a weight as it is stored.

    A cast of the result becomes the type of the result; a transposition of a dequantized weight becomes one of the
    weight, which is computed ahead. Values are rounded once where they were rounded twice. Every reader of a weight
    gets a dequantization of its own: readers may be in different blocks, and what passes between them would be floats.
    The query of an attention is dequantized to what the scores are made of, so that nothing scales it in between.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.
    """

    name = "merge_dequantization"

    def call(self, gm: fx.GraphModule) -> int:
        """Looks at every node that reads a dequantized value once, in the order of the graph."""
        changes = 0
        for node in list(gm.graph.nodes):
            source = node.args[0] if node.args else None
            if not isinstance(source, fx.Node) or source.target is not dequantize:
                continue
            if self.stays(node.target):
                continue
            merged = self._merged(gm.graph, node, source)
            if merged is not None:
                node.replace_all_uses_with(merged)
                gm.graph.erase_node(node)
                if not source.users:
                    gm.graph.erase_node(source)
                changes += 1
        for node in gm.graph.find_nodes(op="call_function", target=_ATTENTION):
            changes += not self.stays(node.target) and _scale_query(gm.graph, node)
        return changes + sum(
            _part(gm.graph, node) for node in gm.graph.find_nodes(op="call_function", target=dequantize)
        )

    def _merged(self, graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node | None:
        value = tensor_value(node)
        if value is None:
            return None
        input, scale = source.args[0], source.args[1]
        assert isinstance(input, fx.Node)
        bits, axis, outer = (argument(source, name) for name in ("bits", "axis", "outer"))
        if node.target in CASTS:
            if value.dtype not in FLOATS or value.device != source.meta["val"].device:
                return None
            with graph.inserting_before(node):
                return _insert(graph, (input, scale, value.dtype, bits, axis, outer), value, node)
        if node.target not in _TRANSPOSITIONS or not is_known(input):
            return None
        order = axis_order(node)
        per_block = scale.meta["val"].dim() > 1  # type: ignore[union-attr]
        with graph.inserting_before(node):
            moved = _permute(graph, input, order, node)
            if per_block:
                scale = _permute(graph, scale, order, node)
            place = order.index(axis) if axis >= 0 else axis
            return _insert(graph, (moved, scale, value.dtype, bits, place, outer), value, node)


def _scale_query(graph: fx.Graph, node: fx.Node) -> int:
    """Lets the scale of a quantized query scale the scores of an attention too, which are scaled by nothing then.

    The layer scales nothing itself, and what would stand between it and the dequantized query keeps a provider from
    seeing that the product is one of quantized values.
    """
    query, value = node.args[0], tensor_value(node)
    if not isinstance(query, fx.Node) or query.target is not dequantize or value is None:
        return 0
    input, scale, *rest = query.args
    assert isinstance(scale, fx.Node)
    held, width = tensor_value(scale), query.meta["val"].shape[-1]
    given = argument(node, "scale")
    if not is_known(scale) or held is None or held.numel() != 1:
        return 0
    if given == 1.0 or (given is None and not isinstance(width, int)):
        return 0
    factor = 1.0 / math.sqrt(width) if given is None else float(given)
    if not factor > 0 or held.dtype is not torch.float32:
        return 0
    with graph.inserting_before(node):
        scaled = insert_call(graph, aten.mul.Tensor, (scale, factor), value=held, origin=node)
        own = insert_call(
            graph, dequantize, (input, scaled, *rest), dict(query.kwargs), value=query.meta["val"], origin=query
        )
    node.update_arg(0, own)  # keys may be the same tensor, and are not scaled
    node.update_kwarg("scale", 1.0)
    if not query.users:
        graph.erase_node(query)
    return 1


def _part(graph: fx.Graph, node: fx.Node) -> int:
    """Gives all readers of a dequantized weight but the first one a copy of the node."""
    if not is_known(node.args[0]):
        return 0
    others = list(node.users)[1:]
    for reader in others:
        if reader.op == "output":
            continue
        with graph.inserting_before(reader):
            own = graph.node_copy(node)
        reader.replace_input_with(node, own)
    return len(others)


def _insert(graph: fx.Graph, args: tuple[Any, ...], value: torch.Tensor, origin: fx.Node) -> fx.Node:
    given = args if args[-1] is not None else args[:-1]
    return insert_call(graph, dequantize, given, value=cast_value(value, args[2]), origin=origin)


def _permute(graph: fx.Graph, operand: Any, order: list[int], origin: fx.Node) -> fx.Node:
    value = operand.meta["val"]
    assert isinstance(value, FakeTensor)
    with value.fake_mode, torch.no_grad():
        moved = value.permute(order)
    return insert_call(graph, aten.permute.default, (operand, order), value=moved, origin=origin)
