"""Finds weights that a model unpacks by arithmetic of its own, and keeps them in as few bits as they were stored in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from trt_core.attributes import add_constant, is_state, read_attribute
from trt_core.dtypes import FLOATS
from trt_core.graph_search import reachable
from trt_core.internals import OWN_NAMESPACES, FakeTensor, OpOverload
from trt_core.quantization import dequantize, limits, quantize, simple_scale
from trt_core.verdicts import IN_FLOATS
from trt_lowering.contract import OperatorPass
from trt_lowering.node_metadata import insert_call, provenance_of
from trt_lowering.operator_traits import is_pure, tensor_value
from trt_lowering.passes.normalize_quantization import parts_of_blocks

aten = torch.ops.aten

_FLOAT8: Final = torch.float8_e4m3fn
_RESHAPES: Final = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
_MOST_OF_FLOATS: Final = 0.75
"""Share of the bytes of a weight, as floats, that what it is unpacked from may take."""


_LEVELS: Final = 16
"""Different values that weights of 4 bits have, whatever these are."""
_E2M1_BLOCK: Final = 16
"""Elements of E2M1 that share a scale in layers."""
_LARGEST_POWER: Final = 256.0
"""The largest power of two of float8_e4m3fn."""
_REPLACEABLE: Final = "with refit=True weights may be replaced, and codes would not follow those of this form"
_FITS_NO_LAYER: Final = "no layer holds its codes with scales in blocks of one size, along one axis"
_SAMPLE: Final = 1 << 14
"""Elements that are looked at before all of a weight is."""


class _Codes(NamedTuple):
    """A type that holds values exactly."""

    dtype: torch.dtype
    bits: int


@dataclass
class _Stored:
    """A weight in canonical form: `(values - zeros) * scale`, or `table[values] * scale`, in blocks of one extent.

    Attributes:
        values: int8 or float8_e4m3fn, as `trt::dequantize` takes them with `bits`; places in the table less half of
            its length where there is one.
        bits: 4 or 8.
        scale: float32, or float8_e4m3fn with `outer`; for each block, with the rank of the values.
        zeros: As the scale; None where there are none.
        table: (16,), float32, what a value stands for; None where it stands for itself.
        order: (axis, places): which slice along an axis each one of the values is, where blocks are made of slices that
            lie apart in the weight; None where all is in its place.
        outer: 0-d, float32, the scale of scales in float8_e4m3fn; None for scales in float32.
    """

    values: torch.Tensor
    bits: int
    scale: torch.Tensor
    zeros: torch.Tensor | None = None
    table: torch.Tensor | None = None
    order: tuple[int, torch.Tensor] | None = None
    outer: torch.Tensor | None = None


class RecognizeStoredWeights(OperatorPass):
    """Writes `unpack(stored) * scale`, all of it known, as `trt::dequantize` of values and scales.

    However a library unpacks, by shifts, masks, tables or arithmetic on the bits of floats: what comes of it is looked
    at, and where a type of 8 or 4 bits holds it exactly, and a scale belongs to each block, slice or all of it, these
    are kept in place of floats. Numbers are the same. Weights that may be replaced later are left alone.

    What a scale belongs to is read off its values as well, so it may come as wide as the weight, from `scales[g_idx]`
    for one. Zero points are subtracted behind the dequantization, where that takes fewer bits. Where the slices that
    share a scale lie apart, they are put next to each other, and the other operand of the product is put in that order.
    A weight of sixteen different values, such as one of NF4, is kept as places in a table of them.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.
    """

    name = "recognize_stored_weights"

    def call(self, gm: fx.GraphModule) -> int:
        """Looks at every product of known tensors once; other weights might not fit into the bits of these."""
        known = _known_nodes(gm)
        found = gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
        products = [node for node in found if node in known and _is_smaller_before(node, known)]
        changes = 0
        if not self._settings.refit and not self.stays(aten.mul.Tensor):
            for node in products:
                changes += self._rewrite(gm, node, known) or _rewrite_by_value(gm, node, known)
        why = _REPLACEABLE if self._settings.refit else _FITS_NO_LAYER
        for node in products:
            if not node._erased and _is_unpacked_weight(node):
                _note_floats(node, known, why)
        return changes

    def _rewrite(self, gm: fx.GraphModule, node: fx.Node, known: dict[fx.Node, int]) -> int:
        value = node.meta["val"]
        for codes, scale in (node.args[:2], node.args[1::-1]):
            if not isinstance(codes, fx.Node) or not isinstance(scale, fx.Node) or codes is scale:
                continue
            if not _divides(scale, codes, value) or not _is_stored_small(codes):
                continue
            unpacked = _evaluate(gm, codes)
            held = None if unpacked is None else _type_that_holds(unpacked)
            if held is None or (held == _Codes(torch.int8, 8) and _without_zeros(gm, codes, 4) is not None):
                continue
            levels = _inner_and_outer(gm, scale) if held == _Codes(_FLOAT8, 4) else None
            if held == _Codes(_FLOAT8, 4) and levels is None and _has_powers_of_two(gm, scale):
                continue  # MXFP4
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


def _is_smaller_before(node: fx.Node, known: dict[fx.Node, int]) -> bool:
    """Whether a product of known tensors has a weight's form, and takes fewer bytes where it comes from."""
    value = tensor_value(node)
    if value is None or value.dtype not in FLOATS or value.dim() < 2 or not value.numel():
        return False
    return known[node] <= _MOST_OF_FLOATS * value.numel() * value.element_size()


def _is_unpacked_weight(node: fx.Node) -> bool:
    """Whether such a product is of a tensor of fewer bits that has its shape."""
    shape = node.meta["val"].shape
    tensors = [(item, tensor_value(item)) for item in node.all_input_nodes]
    return any(found is not None and found.shape == shape and _is_stored_small(item) for item, found in tensors)


def _note_floats(weight: fx.Node, known: dict[fx.Node, int], why: str) -> None:
    """Notes with those who read a weight, if any still do, that it becomes floats."""
    for node in reachable([weight], lambda node: [user for user in node.users if user in known]):
        for user in node.users:
            if user not in known and user.op == "call_function":
                user.meta[IN_FLOATS] = why


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
    return target is dequantize or (is_pure(node) and target.namespace in OWN_NAMESPACES)


def _origins(node: fx.Node) -> list[fx.Node]:
    """Returns a node and what it follows from, in the order of the graph."""
    return sorted(reachable([node], lambda each: each.all_input_nodes))


def _evaluate(gm: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    """Computes a known node."""
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for item in _origins(node):
            if item.op == "get_attr":
                values[item] = read_attribute(gm, str(item.target)).detach()
            else:
                args, kwargs = fx.map_arg((item.args, item.kwargs), values.__getitem__)
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
    held = [
        reader.meta["val"] if (reader := next(iter(item.users))).target is aten.view.dtype else item.meta["val"]
        for item in _origins(codes)
        if item.op == "get_attr"
    ]
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


def _has_powers_of_two(gm: fx.GraphModule, scale: fx.Node) -> bool:
    values = _evaluate(gm, scale)
    return values is not None and _are_powers_of_two(values)


def _are_powers_of_two(values: torch.Tensor) -> bool:
    return bool((torch.frexp(values.to(torch.float32)).mantissa == 0.5).all())


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
    return torch.float8_e8m0fnu if held.bits == 8 and _are_powers_of_two(values) else torch.float32


def _cast(gm: fx.GraphModule, node: fx.Node, dtype: torch.dtype, origin: fx.Node) -> fx.Node:
    if node.meta["val"].dtype is dtype:
        return node
    return _call(gm, aten._to_copy.default, (node,), origin, {"dtype": dtype})


def _call(
    gm: fx.GraphModule, target: Any, args: tuple[Any, ...], origin: fx.Node, kwargs: dict[str, Any] | None = None
) -> fx.Node:
    mode = args[0].meta["val"].fake_mode
    given: Any = fx.map_arg(args, lambda node: node.meta["val"])
    with mode, torch.no_grad():
        result = target(*given, **(kwargs or {}))
    return insert_call(gm.graph, target, args, kwargs or {}, value=result, origin=origin)


# What values say ------------------------------------------------------------------------------------------------------


def _rewrite_by_value(gm: fx.GraphModule, node: fx.Node, known: dict[fx.Node, int]) -> int:
    """Writes a product of codes by scales that are not one for each block as they come, or of codes that are no values.

    Returns:
        1 where it did, 0 where no form with fewer bits holds the weight.
    """
    value = node.meta["val"]
    last, moves = _moved(node, known)
    for codes, scale in (node.args[:2], node.args[1::-1]):
        if not isinstance(codes, fx.Node) or not isinstance(scale, fx.Node) or codes is scale:
            continue
        found = tensor_value(codes)
        if found is None or found.shape != value.shape or not _is_stored_small(codes):
            continue
        stored = _read(gm, codes, scale, value.shape, moves)
        if stored is None or not _is_smaller(stored, last.meta["val"]):
            continue
        made = _write(gm, last, stored)
        last.replace_all_uses_with(made)
        if stored.order is not None:
            _restore_order(gm, made, *stored.order)
        return 1
    return 0


def _moved(node: fx.Node, known: dict[fx.Node, int]) -> tuple[fx.Node, list[fx.Node]]:
    """Returns the last node that holds the values of a product in their order, and what leads there."""
    moves: list[fx.Node] = []
    while len(node.users) == 1:
        user = next(iter(node.users))
        value = tensor_value(user)
        if user not in known or value is None or value.dtype not in FLOATS or user.target not in _MOVES:
            break
        if user.args[0] is not node or value.dim() < 2:
            break
        moves.append(user)
        node = user
    return node, moves


_CASTS: Final = frozenset({aten._to_copy.default, aten.to.dtype})
_MOVES: Final = (
    _RESHAPES | _CASTS | {aten.slice.Tensor, aten.clone.default, aten.contiguous.default, aten.detach.default}
)


def _read(
    gm: fx.GraphModule, codes: fx.Node, scale: fx.Node, shape: Sequence[int], moves: Sequence[fx.Node]
) -> _Stored | None:
    """Returns the canonical form of a product, where it has one."""

    def settle(values: torch.Tensor) -> torch.Tensor:
        values = values.expand(shape)
        for move in moves:
            if move.target in _RESHAPES:
                values = values.reshape(move.meta["val"].shape)
            elif move.target not in _CASTS:
                values = move.target(values, *move.args[1:], **move.kwargs)  # type: ignore[operator]
        return values

    unpacked, steps = _evaluate(gm, codes), _evaluate(gm, scale)
    if unpacked is None or steps is None or not bool(steps.isfinite().all()):
        return None
    coded = _without_zeros(gm, codes, 4) or _encoded(unpacked) or _without_zeros(gm, codes, 8) or _by_place(unpacked)
    if coded is None:
        return None
    values, bits, zeros, table = coded
    values, steps = settle(values), settle(steps.to(torch.float32))
    zeros = None if zeros is None else settle(zeros)
    wide = [steps] if zeros is None else [steps, zeros]
    order = None
    extents = _extents_of_blocks(wide, values.shape)
    if values.dim() == 2 and 1 in extents:
        order = _order_of_blocks(wide, extents)
    if order is not None:
        values, *wide = (item.index_select(*order) for item in (values, *wide))
        extents = _extents_of_blocks(wide, values.shape)
    extents = _of_one_axis(extents, values.shape)
    firsts = tuple(slice(None, None, extent) for extent in extents)
    steps, zeros = wide[0][firsts].contiguous(), None if zeros is None else wide[1][firsts].contiguous()
    stored = _Stored(values.contiguous(), bits, steps, zeros, table, order)
    return _in_two_levels(stored) if values.dtype is _FLOAT8 and bits == 4 else stored


def _in_two_levels(stored: _Stored) -> _Stored:
    """Returns values of E2M1 in blocks of 16 with scales in float8 and one above them, where that holds the scales.

    So are blocks of 32 with powers of two for scales, as in MXFP4, if these lie within 17 doublings. What scales blocks
    of zeros is of no account.
    """
    shape, counts = stored.values.shape, stored.scale.shape
    if shape[-1] % _E2M1_BLOCK or (shape[-1] // counts[-1]) % _E2M1_BLOCK:
        return stored
    steps = stored.scale.expand(*shape[:-1], counts[-1])
    steps = steps.repeat_interleave(shape[-1] // counts[-1] // _E2M1_BLOCK, -1)
    is_used = (stored.values.to(torch.float32) != 0).unflatten(-1, (-1, _E2M1_BLOCK)).any(-1)
    steps = torch.where(is_used, steps, steps.max())
    outer = steps.max() / _LARGEST_POWER
    inner = steps / outer
    if not _fits_float8(inner):
        return stored
    return replace(stored, scale=inner.to(_FLOAT8), outer=outer.to(torch.float32).reshape(()))


_Coded = tuple[torch.Tensor, int, torch.Tensor | None, torch.Tensor | None]
"""Values, bits, zeros and a table; see `_Stored`."""


def _encoded(unpacked: torch.Tensor) -> _Coded | None:
    held = _type_that_holds(unpacked)
    return None if held is None else (unpacked.to(held.dtype), held.bits, None, None)


def _without_zeros(gm: fx.GraphModule, codes: fx.Node, bits: int) -> _Coded | None:
    """Returns codes as they were before zeros were subtracted, where `bits` hold them, and not the differences."""
    while codes.target in _CASTS and isinstance(codes.args[0], fx.Node):
        codes = codes.args[0]
    if codes.target not in (aten.sub.Tensor, aten.sub.Scalar) or len(codes.args) > 2 or codes.kwargs:
        return None
    minuend, subtrahend = codes.args
    found = tensor_value(minuend) if isinstance(minuend, fx.Node) else None
    if found is None or found.shape != codes.meta["val"].shape or not _is_stored_small(minuend):  # type: ignore[arg-type]
        return None
    raw, difference = _evaluate(gm, minuend), _evaluate(gm, codes)  # type: ignore[arg-type]
    zeros = _evaluate(gm, subtrahend) if isinstance(subtrahend, fx.Node) else torch.tensor(float(subtrahend))  # type: ignore[arg-type]
    if raw is None or zeros is None or difference is None:
        return None
    wide, zeros = raw.to(torch.float32), zeros.to(torch.float32)
    low, high = limits(torch.int8, bits)
    if not bool((wide == wide.round()).all()) or not bool((wide - zeros == difference.to(torch.float32)).all()):
        return None  # the difference wraps, or is rounded
    if bits == 4 and _type_that_holds(difference) in (_Codes(torch.int8, 4), _Codes(_FLOAT8, 4)):
        return None  # nothing is gained
    least, largest = float(wide.min()), float(wide.max())
    shift = 0.0 if least < 0 else -low
    if least - shift < low or largest - shift > high:
        return None
    return (wide - shift).to(torch.int8), bits, (zeros - shift).expand(wide.shape), None


def _by_place(unpacked: torch.Tensor) -> _Coded | None:
    """Returns the places of values among the different ones that there are, where these are few."""
    wide = unpacked.to(torch.float32).contiguous()
    flat = wide.reshape(-1)
    levels = flat[:: max(1, flat.numel() // _SAMPLE)].unique()
    if len(levels) > _LEVELS or not bool(flat.isfinite().all()):
        return None
    places = _nearest(levels, flat)
    missed = flat[levels[places] != flat]
    if missed.numel():
        levels = torch.cat((levels, missed.unique())).sort().values
        if len(levels) > _LEVELS:
            return None
        places = _nearest(levels, flat)
    table = torch.cat((levels, levels.new_zeros(_LEVELS - len(levels))))
    return (places - _LEVELS // 2).to(torch.int8).reshape(wide.shape), 4, None, table


def _nearest(levels: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(levels, values).clamp(max=len(levels) - 1)


def _extents_of_blocks(wide: Sequence[torch.Tensor], shape: Sequence[int]) -> list[int]:
    """Returns the largest extents of equal blocks that each have one value in every tensor."""
    extents: list[int] = []
    for axis, extent in enumerate(shape):
        size = extent
        for values in wide:
            rows = values.movedim(axis, 0).flatten(1)
            changes = (rows[1:] != rows[:-1]).any(1).nonzero().flatten() + 1
            size = math.gcd(size, *changes.tolist()) if len(changes) else size
        extents.append(size)
    return extents


def _of_one_axis(extents: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Returns the extents of smaller blocks such as layers have: along one of the last two axes, or of whole slices."""
    apart = [axis for axis, extent in enumerate(extents) if extent != shape[axis]]
    if len(apart) < 2 and all(extents[axis] == 1 for axis in apart):
        return list(extents)
    largest = max(range(max(0, len(shape) - 2), len(shape)), key=lambda axis: extents[axis] if axis in apart else 1)
    return [extent if axis == largest else 1 for axis, extent in enumerate(extents)]


def _order_of_blocks(wide: Sequence[torch.Tensor], extents: Sequence[int]) -> tuple[int, torch.Tensor] | None:
    """Returns an axis, and an order of the slices along it that puts those next to each other that share all scales."""
    for axis, extent in enumerate(extents):
        slices = torch.cat([values.movedim(axis, 0).flatten(1) for values in wide], 1)
        if extent != 1 or len(slices) == 1:
            continue
        generator = torch.Generator().manual_seed(0)
        mixed = slices.cpu().double() @ torch.rand(slices.shape[1], generator=generator, dtype=torch.float64)
        _, owner, counts = mixed.unique(return_inverse=True, return_counts=True)
        if len(counts) == len(slices) or int(counts.min()) != int(counts.max()):
            continue
        order = owner.argsort(stable=True).to(slices.device)
        grouped = slices[order].unflatten(0, (len(counts), -1))
        if bool((grouped == grouped[:, :1]).all()):
            return axis, order
    return None


def _is_smaller(stored: _Stored, weight: torch.Tensor) -> bool:
    parts = [part for part in (stored.scale, stored.zeros, stored.table) if part is not None]
    size = stored.values.numel() * stored.bits / 8 + sum(part.numel() * part.element_size() for part in parts)
    return size <= _MOST_OF_FLOATS * weight.numel() * weight.element_size()


def _write(gm: fx.GraphModule, last: fx.Node, stored: _Stored) -> fx.Node:
    """Adds a weight in canonical form behind a node, and returns it."""
    shape, dtype = list(stored.values.shape), last.meta["val"].dtype
    counts = list(stored.scale.shape)
    scale, axis = simple_scale(stored.scale, shape)
    with gm.graph.inserting_before(last):
        values = _constant(gm, stored.values, last)
        if stored.table is None and stored.zeros is None:
            args: tuple[Any, ...] = (values, _constant(gm, scale, last), dtype, stored.bits, axis)
            if stored.outer is not None:
                args = (*args, _constant(gm, stored.outer, last))
            return insert_call(gm.graph, dequantize, args, value=last.meta["val"], origin=last)
        parts, blocks = parts_of_blocks(shape, counts)
        if stored.zeros is not None:
            wide = _call(gm, dequantize, (values, _constant(gm, scale, last), torch.float32, stored.bits, axis), last)
            offset = _constant(gm, (stored.zeros * stored.scale).reshape(blocks), last)
            split = _call(gm, aten.sub.Tensor, (_reshaped(gm, wide, parts, last), offset), last)
        else:
            assert stored.table is not None
            one = _constant(gm, torch.ones((), device=stored.values.device), last)
            places = _call(gm, dequantize, (values, one, torch.float32, stored.bits), last)
            places = _call(gm, aten.add.Tensor, (places, float(_LEVELS // 2)), last)
            places = _cast(gm, places, torch.int64, last)
            looked_up = _call(gm, aten.index.Tensor, (_constant(gm, stored.table, last), [places]), last)
            steps = _constant(gm, stored.scale.reshape(blocks), last)
            split = _call(gm, aten.mul.Tensor, (_reshaped(gm, looked_up, parts, last), steps), last)
        return _cast(gm, _reshaped(gm, split, shape, last), dtype, last)


def _reshaped(gm: fx.GraphModule, node: fx.Node, shape: list[int], origin: fx.Node) -> fx.Node:
    return node if list(node.meta["val"].shape) == shape else _call(gm, aten.reshape.default, (node, shape), origin)


def _constant(gm: fx.GraphModule, value: torch.Tensor, origin: fx.Node) -> fx.Node:
    node = gm.graph.get_attr(add_constant(gm, value))
    mode = origin.meta["val"].fake_mode
    node.meta.update(provenance_of(origin))
    node.meta["val"] = mode.from_tensor(value, static_shapes=True)
    return node


_PRODUCTS: Final[dict[Any, int]] = {
    aten.linear.default: 1,
    aten.mm.default: 0,
    aten.matmul.default: 0,
    aten.addmm.default: 0,
}
"""Operators that multiply by a matrix, and which of its axes is summed over."""


def _restore_order(gm: fx.GraphModule, weight: fx.Node, axis: int, order: torch.Tensor) -> None:
    """Puts the slices of a weight where its readers expect them, or what products multiply it by in its own order."""
    whole = None
    for user in list(weight.users):
        place = 2 if user.target is aten.addmm.default else 1
        fits = _PRODUCTS.get(user.target) == axis and len(user.args) > place and user.args[place] is weight
        other = user.args[place - 1] if fits else None
        if isinstance(other, fx.Node) and other is not weight and other.meta["val"].dim() > 0:
            with gm.graph.inserting_before(user):
                moved = _call(gm, aten.index_select.default, (other, -1, _constant(gm, order, weight)), user)
            user.update_arg(place - 1, moved)
            continue
        if whole is None:
            with gm.graph.inserting_before(weight.next):
                inverse = _constant(gm, order.argsort(), weight)
                whole = _call(gm, aten.index_select.default, (weight, axis, inverse), weight)
        user.replace_input_with(weight, whole)
