"""Finds weights that a model unpacks by arithmetic of its own, and keeps them in as few bits as they were stored in."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.attributes import is_state, read_attribute
from trt_core.dtypes import FLOATS
from trt_core.internals import FakeTensor, OpOverload
from trt_core.quantization import dequantize, limits, quantize
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import is_kept_in_torch, is_pure, tensor_value

aten = torch.ops.aten

_FLOAT8: Final = torch.float8_e4m3fn
_RESHAPES: Final = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
_MOST_OF_FLOATS: Final = 0.75
"""Share of the bytes of a weight, as floats, that what it is unpacked from may take."""


class _Codes(NamedTuple):
    """A type that holds values exactly."""

    dtype: torch.dtype
    bits: int


class RecognizeStoredWeights(GraphPass):
    """Writes `unpack(stored) * scale`, all of it known, as `trt::dequantize` of values and scales.

    However a library unpacks, by shifts, masks, tables or arithmetic on the bits of floats: what comes of it is looked
    at, and where a type of 8 or 4 bits holds it exactly, and a scale belongs to each block, slice or all of it, these
    are kept in place of floats. Numbers are the same. Weights that may be replaced later are left alone.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.

    Args:
        settings: Operators in `torch_executed_ops` stay.
    """

    name = "recognize_stored_weights"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        """Looks at every product of known tensors once; other weights might not fit into the bits of these."""
        if self._settings.refit:
            return 0
        known = _known_nodes(gm)
        changes = 0
        for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
            if node in known and not is_kept_in_torch(node.target, self._settings):
                changes += self._rewrite(gm, node, known)
        return changes

    def _rewrite(self, gm: fx.GraphModule, node: fx.Node, known: dict[fx.Node, int]) -> int:
        value = tensor_value(node)
        if value is None or value.dtype not in FLOATS or value.dim() < 2:
            return 0
        if known[node] > _MOST_OF_FLOATS * value.numel() * value.element_size() or not value.numel():
            return 0
        for codes, scale in (node.args[:2], node.args[1::-1]):
            if not isinstance(codes, fx.Node) or not isinstance(scale, fx.Node) or codes is scale:
                continue
            if not _divides(scale, codes, value) or not _is_stored_small(codes):
                continue
            unpacked = _evaluate(gm, codes)
            held = None if unpacked is None else _type_that_holds(unpacked)
            if held is None:
                continue
            levels = _inner_and_outer(gm, scale) if held == _Codes(_FLOAT8, 4) else None
            if levels is None and any(item.target is dequantize for item in _origins(scale)):
                continue  # scales of scales, in a format that has none
            self._insert(gm, node, codes, scale, held, levels)
            return 1
        return 0

    def _insert(
        self,
        gm: fx.GraphModule,
        node: fx.Node,
        codes: fx.Node,
        scale: fx.Node,
        held: _Codes,
        levels: tuple[fx.Node, fx.Node] | None,
    ) -> None:
        last = _merged_blocks(node, scale)
        shape = list(last.meta["val"].shape)
        blocks = list(scale.meta["val"].shape)
        blocks = [1] * (len(codes.meta["val"].shape) - len(blocks)) + blocks
        if last is not node and len(blocks) == 2:
            blocks = [shape[0], shape[1] // codes.meta["val"].shape[1]]
        elif last is not node:
            blocks = [*blocks[:-2], blocks[-2] * blocks[-1]]
        wide_axes = [index for index, count in enumerate(blocks) if count != 1]
        axis = -1
        if levels is None and len(wide_axes) < 2 and all(blocks[index] == shape[index] for index in wide_axes):
            axis = wide_axes[0] if wide_axes else -1
            blocks = [blocks[index] for index in wide_axes]
        steps, outer = (scale, None) if levels is None else levels
        with gm.graph.inserting_before(last):
            values = _call(gm, aten.reshape.default, (_cast(gm, codes, held.dtype, last), shape), last)
            wide = _call(gm, aten.reshape.default, (steps, blocks), last)
            wide = _cast(gm, wide, _type_of_scales(gm, scale, held, levels is not None, len(blocks) < 2), last)
            args: tuple[Any, ...] = (values, wide, last.meta["val"].dtype, held.bits, axis)
            if outer is not None:
                flat = _call(gm, aten.reshape.default, (outer, []), last)
                args = (*args, _cast(gm, flat, torch.float32, last))
            made = insert_call(gm.graph, dequantize, args, value=last.meta["val"], origin=last)
        last.replace_all_uses_with(made)
        for gone in (last, node):
            if not gone.users and not gone._erased:
                gm.graph.erase_node(gone)


def _known_nodes(gm: fx.GraphModule) -> dict[fx.Node, int]:
    """Returns the nodes that follow from attributes alone, and the bytes of the attributes that each follows from."""
    sources: dict[fx.Node, frozenset[str]] = {}
    size: dict[str, int] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = read_attribute(gm, str(node.target))
            real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and not value.is_meta
            if real and not is_state(node):
                size[str(node.target)] = value.numel() * value.element_size()
                sources[node] = frozenset({str(node.target)})
        elif node.op == "call_function" and _is_computable(node):
            origins = [sources.get(operand) for operand in node.all_input_nodes]
            if None not in origins:
                sources[node] = frozenset().union(*filter(None, origins))
    return {node: sum(size[name] for name in names) for node, names in sources.items()}


def _is_computable(node: fx.Node) -> bool:
    target = node.target
    value = tensor_value(node)
    if not isinstance(target, OpOverload) or value is None or not all(isinstance(each, int) for each in value.shape):
        return False
    return target is dequantize or (is_pure(node) and target.namespace in ("aten", "prims"))


def _origins(node: fx.Node) -> list[fx.Node]:
    """Returns a node and what it follows from, in the order of the graph."""
    pending, seen = [node], {node}
    while pending:
        fresh = [operand for operand in pending.pop().all_input_nodes if operand not in seen]
        seen.update(fresh)
        pending.extend(fresh)
    return sorted(seen)


def _evaluate(gm: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    """Computes a known node."""
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for item in _origins(node):
            if item.op == "get_attr":
                values[item] = read_attribute(gm, str(item.target)).detach()
            else:
                args: Any = fx.map_arg(item.args, values.__getitem__)
                kwargs: Any = fx.map_arg(item.kwargs, values.__getitem__)
                values[item] = item.target(*args, **kwargs)  # type: ignore[operator]
    result = values[node]
    return result if isinstance(result, torch.Tensor) else None


def _type_that_holds(values: torch.Tensor) -> _Codes | None:
    """Returns the type of fewest bits that holds values exactly."""
    wide = values.to(torch.float32)
    if not bool(wide.isfinite().all()):
        return None
    least, largest = float(wide.min()), float(wide.max())
    if bool((wide == wide.round()).all()):
        for bits in (4, 8):
            low, high = limits(torch.int8, bits)
            if low <= least and largest <= high:
                return _Codes(torch.int8, bits)
    largest = max(-least, largest)
    if largest > torch.finfo(_FLOAT8).max or not bool((wide == wide.to(_FLOAT8).to(torch.float32)).all()):
        return None
    one = torch.ones((), device=wide.device)
    return _Codes(_FLOAT8, 4 if bool((wide == quantize(wide, one, _FLOAT8, 4).to(torch.float32)).all()) else 8)


def _divides(scale: fx.Node, codes: fx.Node, value: torch.Tensor) -> bool:
    """Whether codes have the shape of a product, and a scale one element for each block of theirs."""
    found, shape = tensor_value(scale), tensor_value(codes)
    if found is None or shape is None or tuple(shape.shape) != tuple(value.shape) or found.dtype not in FLOATS:
        return False
    return found.numel() < value.numel()


def _is_stored_small(codes: fx.Node) -> bool:
    """Whether values come from integers or float8: floats that happen to fit, such as zeros, are no codes."""
    held = [item.meta["val"] for item in _origins(codes) if item.op == "get_attr"]
    return bool(held) and max(held, key=lambda value: value.numel()).dtype not in FLOATS


def _merged_blocks(node: fx.Node, scale: fx.Node) -> fx.Node:
    """Returns the node that puts blocks, the last axis of a product, next to each other in rows; else the product."""
    shape = node.meta["val"].shape
    user = next(iter(node.users)) if len(node.users) == 1 else node
    if user.target not in _RESHAPES or user.args[0] is not node:
        return node
    joined = tuple(user.meta["val"].shape)
    if len(shape) == len(joined) == 2:  # each row is a block
        is_blocked = tuple(scale.meta["val"].shape) == (shape[0], 1) and joined[1] % shape[1] == 0
        return user if is_blocked else node
    return user if len(shape) > 2 and joined == (*shape[:-2], shape[-2] * shape[-1]) else node


def _inner_and_outer(gm: fx.GraphModule, scale: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Returns the scales that float8 holds and the scale of all of them, where a scale is a product of such two."""
    while scale.target in _RESHAPES or scale.target in (aten._to_copy.default, aten.to.dtype, aten.unsqueeze.default):
        source = scale.args[0]
        assert isinstance(source, fx.Node)
        if tensor_value(source) is None or tensor_value(source).numel() != tensor_value(scale).numel():  # type: ignore[union-attr]
            return None
        scale = source
    if scale.target not in (aten.mul.Tensor, dequantize):
        return None
    for inner, outer in (scale.args[:2], scale.args[1::-1]):
        if isinstance(inner, fx.Node) and isinstance(outer, fx.Node) and tensor_value(outer).numel() == 1:  # type: ignore[union-attr]
            values = _evaluate(gm, inner)
            if values is not None and _fits_float8(values):
                return inner, outer
    return None


def _fits_float8(values: torch.Tensor) -> bool:
    wide = values.to(torch.float32)
    return bool(((wide > 0) & (wide == wide.to(_FLOAT8).to(torch.float32))).all())


def _type_of_scales(gm: fx.GraphModule, scale: fx.Node, held: _Codes, is_inner: bool, is_simple: bool) -> torch.dtype:
    """Returns the type of eight bits that holds scales exactly, in the formats that have them; else float32."""
    if is_inner:
        return _FLOAT8
    if is_simple or held.dtype is not _FLOAT8:
        return torch.float32
    values = _evaluate(gm, scale)
    assert values is not None
    if held.bits == 4 and _fits_float8(values):
        return _FLOAT8
    mantissa, _ = torch.frexp(values.to(torch.float32))
    return torch.float8_e8m0fnu if held.bits == 8 and bool((mantissa == 0.5).all()) else torch.float32


def _cast(gm: fx.GraphModule, node: fx.Node, dtype: torch.dtype, origin: fx.Node) -> fx.Node:
    if node.meta["val"].dtype is dtype:
        return node
    return _call(gm, aten._to_copy.default, (node,), origin, {"dtype": dtype})


def _call(
    gm: fx.GraphModule, target: Any, args: tuple[Any, ...], origin: fx.Node, kwargs: dict[str, Any] | None = None
) -> fx.Node:
    value = args[0].meta["val"]
    with value.fake_mode, torch.no_grad():
        result = target(value, *args[1:], **(kwargs or {}))
    return insert_call(gm.graph, target, args, kwargs or {}, value=result, origin=origin)
