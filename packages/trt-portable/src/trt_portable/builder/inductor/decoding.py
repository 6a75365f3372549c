"""Operators for steps of decoding: products of few rows, and attention of few queries to long caches.

The time of either is that of reading its matrix, or its keys and values, once. cuBLAS reaches half to two thirds of the
bandwidth there, and attention as it is written out repeats keys for heads that share them, and reads places that a
mask hides. Graphs get these operators in place of PyTorch's where shapes are those of a step.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import fx

from trt_core.graph_search import reachable
from trt_core.internals import FakeTensor
from trt_portable.builder.autotune.autotuner import SameResult, fastest
from trt_portable.builder.inductor.own_operators import (
    KernelCall,
    Launch,
    OwnOperators,
    define_kernel,
    define_operator,
    teach_compilers,
)
from trt_portable.errors import present
from trt_portable.kernels.low_precision_products import assembly, words_of_unit
from trt_portable.layers.low_precision import inverse_order

PRODUCT: Final = "trt_portable::few_rows_linear"
CODES_PRODUCT: Final = "trt_portable::few_rows_codes_linear"
DECODED: Final = "trt_portable::decoded_codes"
CHOSEN_PRODUCT: Final = "trt_portable::chosen_linear"
GROUPED_PRODUCT: Final = "trt_portable::grouped_linear"
ATTENTION: Final = "trt_portable::few_queries_attention"
UPDATING_ATTENTION: Final = "trt_portable::few_queries_attention_in_place"
_HALF: Final = (torch.float16, torch.bfloat16)
_MOST_ROWS: Final = 16
_LEAST_DEPTH: Final = 256
_LEAST_COLUMNS: Final = 256
_LIBRARY: Final = "library"
"""The way that PyTorch goes."""


@dataclass(frozen=True)
class Form:
    """How a block of the product reads the matrix.

    Attributes:
        columns: Of the result, which are rows of the matrix.
        depth: Numbers of each row at a time.
        warps: Warps of a block.
        stages: Tiles that are underway at a time.
        rows: Of the result, where there are many.
    """

    columns: int
    depth: int
    warps: int
    stages: int
    rows: int = 16


ONE_ROW: Final = (Form(4, 1024, 4, 1), Form(8, 512, 4, 1), Form(2, 1024, 2, 1))
"""For vectors, which take no tensor cores."""
ONE_LONG_ROW: Final = (Form(2, 2048, 4, 1), Form(4, 2048, 4, 1), Form(8, 2048, 8, 1))
ONE_LONGEST_ROW: Final = (Form(2, 4096, 8, 1), Form(1, 4096, 4, 1), Form(4, 2048, 8, 1))
"""For vectors of 2048 and of 4096 numbers and more."""
SEVERAL_ROWS: Final = (Form(16, 256, 4, 4), Form(16, 512, 8, 3), Form(32, 256, 8, 4), Form(64, 128, 4, 4))
"""For matrices of up to 16 rows."""
CODES_ONE_ROW: Final = (Form(16, 2, 2, 8), Form(16, 8, 4, 4), Form(8, 8, 4, 4), Form(8, 4, 4, 2), Form(8, 8, 8, 4))
"""For vectors and codes; `depth` counts units of a row, of which two halves are read at a time for 8 columns."""
_SLOTS_AHEAD: Final = 32
"""Codes of a word, of all tiles that are underway at a time."""
CODES_SEVERAL_ROWS: Final = (Form(16, 128, 4, 3), Form(16, 64, 2, 4), Form(64, 64, 2, 3), Form(64, 32, 1, 4))
"""For up to 16 rows and codes; `depth` counts words of 32 bits, of which each warp has a part."""
CODES_MANY_ROWS: Final = (Form(64, 0, 4, 3, 128), Form(128, 0, 4, 3, 128), Form(128, 0, 4, 3, 64))
"""For more rows and codes, of which a block reads a unit of each column at a time."""
CHOSEN_ROWS: Final = (Form(8, 512, 4, 1), Form(4, 1024, 4, 1), Form(8, 256, 4, 1), Form(16, 256, 4, 1))
"""For chosen matrices whose rows lie in one piece."""
CHOSEN_COLUMNS: Final = (Form(64, 64, 4, 1), Form(128, 32, 4, 1), Form(64, 128, 8, 1), Form(128, 64, 8, 1))
"""For chosen matrices whose columns lie in one piece."""
GROUPED_ROWS: Final = (
    *(Form(256, 64, 8, 4, 64), Form(128, 64, 4, 4, 64), Form(128, 64, 8, 4, 128)),
    *(Form(128, 64, 4, 4, 32), Form(128, 128, 8, 3, 64), Form(128, 128, 4, 3, 16)),
)
"""For many rows that are sorted by what they choose."""


def write_decoding_operators(graph: fx.GraphModule, weights: int = 0) -> None:
    """Puts these operators in place of PyTorch's wherever shapes are those of a step.

    Args:
        graph: Of ATen operators, with metadata; it is changed.
        weights: So many of the tensors that it takes first are never written to.
    """
    kept = set([node for node in graph.graph.nodes if node.op == "placeholder"][:weights])
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            _replace_product(node, kept)
        elif node.target in ATTENTIONS:
            _replace_attention(node)
    graph.graph.eliminate_dead_code()
    for node in list(graph.graph.nodes):
        if node.target in _products() and len(node.meta["val"]) <= _MOST_ROWS:
            _fold_residual(node)
        elif node.target is _operators()[ATTENTION]:
            _fold_updates(node)
    for node in list(graph.graph.nodes):
        if node.target in _products() and len(node.meta["val"]) <= _MOST_ROWS:
            _fold_normalization(node)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        _fold_gate(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _products() -> tuple[Any, ...]:
    """Products of few rows, whose first six operands are alike."""
    return _operators()[PRODUCT], _operators()[CODES_PRODUCT]


def _replace_product(node: fx.Node, kept: set[fx.Node]) -> None:
    *bias, x, turned = node.args
    if node.kwargs or not isinstance(x, fx.Node) or not isinstance(turned, fx.Node):
        return
    if turned.target is not torch.ops.aten.permute.default or list(turned.args[1]) != [1, 0]:  # type: ignore[arg-type]
        return
    matrix = turned.args[0]
    assert isinstance(matrix, fx.Node)
    rows, weights = x.meta["val"], matrix.meta["val"]
    sizes = (*rows.shape, *weights.shape)
    if not all(isinstance(size, int) for size in sizes) or rows.dtype not in _HALF or rows.dtype is not weights.dtype:
        return
    columns, depth = weights.shape
    if not 1 <= rows.shape[0] <= _MOST_ROWS or depth < _LEAST_DEPTH or columns < _LEAST_COLUMNS or depth % 16:
        return
    if not weights.is_contiguous() or (bias and bias[0].meta["val"].shape != (columns,)):  # type: ignore[union-attr]
        return
    arguments = (x, matrix, bias[0] if bias else None, None, None, None, False, _source(matrix) in kept)
    _replace(node, _operators()[PRODUCT], arguments)


def _fold_residual(node: fx.Node) -> None:
    """Lets a product add what its result alone is added to."""
    view = _last_view(node)
    total = _only_user(view, torch.ops.aten.add.Tensor)
    if total is None or total.kwargs or len(total.args) != 2:
        return
    (residual,) = [each for each in total.args if each is not view] or [None]
    if not isinstance(residual, fx.Node):
        return
    product, other, value = node.meta["val"], residual.meta["val"], total.meta["val"]
    if other.shape != value.shape or view.meta["val"].shape != value.shape or other.dtype is not product.dtype:
        return
    flat = _viewed(residual, product.shape, before=total)
    made = _call(node.target, (*node.args[:5], flat, *node.args[6:]), product, before=total)
    _replace(total, torch.ops.aten.view.default, (made, list(value.shape)))
    while view is not node:
        view, gone = view.args[0], view  # type: ignore[assignment]
        node.graph.erase_node(gone)
    node.graph.erase_node(node)


def _fold_normalization(node: fx.Node) -> None:
    """Lets a product divide its rows by the root of their mean square, if that is how they were made."""
    x, matrix, bias, _, _, *others = node.args
    found = _normalization(_source(x))  # type: ignore[arg-type]
    if found is None:
        return
    rows, gain, epsilon = found
    value, count = x.meta["val"], x.meta["val"].shape[-1]  # type: ignore[union-attr]
    if rows.meta["val"].numel() != value.numel() or gain.meta["val"].numel() != count:
        return
    operands = ((rows, value.shape), (gain, [count]), (epsilon, [1]))
    flat = [_viewed(each, shape, before=node) for each, shape in operands]
    _replace(node, node.target, (flat[0], matrix, bias, *flat[1:], *others))


def _normalization(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """The rows, the gain and the epsilon of which a node is the normalization, in half precision."""
    for gain, cast in _pairs(node, torch.ops.aten.mul.Tensor):
        dtype, scaled = node.meta["val"].dtype, _cast_from(cast, node.meta["val"].dtype)
        for wide, inverse in () if scaled is None else _pairs(scaled, torch.ops.aten.mul.Tensor):
            rows = _cast_from(wide, torch.float32)
            root = _only_argument(inverse, torch.ops.aten.reciprocal.default, torch.ops.aten.sqrt.default)
            root = root or _only_argument(inverse, torch.ops.aten.rsqrt.default)
            for mean, epsilon in () if root is None else _pairs(root, torch.ops.aten.add.Tensor):
                is_mean = mean.target is torch.ops.aten.mean.dim and mean.meta["val"].shape[-1] == 1
                is_whole = is_mean and mean.meta["val"].dim() == wide.meta["val"].dim() and len(mean.args[1]) == 1  # type: ignore[arg-type]
                squares = mean.args[0] if is_whole and mean.args[1][0] in (-1, wide.meta["val"].dim() - 1) else None  # type: ignore[index]
                if rows is None or not isinstance(squares, fx.Node) or epsilon.meta["val"].numel() != 1:
                    continue
                is_square = squares.target is torch.ops.aten.mul.Tensor and squares.args == (wide, wide)
                if is_square and rows.meta["val"].dtype is gain.meta["val"].dtype is dtype:
                    return rows, gain, epsilon
    return None


def _fold_gate(node: fx.Node) -> None:
    """Lets a product multiply the second half of its columns by SiLU of the first, if nothing else reads them."""
    for activated, up in _pairs(node, torch.ops.aten.mul.Tensor):
        gate = _silu_of(activated)
        halves = [None if each is None else _stretch_of(_source(each)) for each in (gate, up)]
        if halves[0] is None or halves[1] is None or halves[0][0] is not halves[1][0]:
            continue
        source, made = halves[0][0], _source(halves[0][0])
        is_plain = made.target is _operators()[PRODUCT] and not made.args[6]
        is_coded = made.target is _operators()[CODES_PRODUCT] and not made.args[_MATRICES] and not made.args[_GATE]
        if not (is_plain or is_coded) or made.args[5] is not None or len(made.meta["val"]) > _MOST_ROWS:
            continue
        rows, columns = made.meta["val"].shape
        half, value = columns // 2, node.meta["val"]
        if (halves[0][1:], halves[1][1:]) != ((0, half), (half, columns)) or source.meta["val"].shape[-1] != columns:
            continue
        if value.numel() != rows * half or not _is_read_only_for(made, node):
            continue
        given = (*made.args[:_GATE], True) if is_coded else (*made.args[:6], True, made.args[7])
        folded = _call(made.target, given, made.meta["val"].new_empty((rows, half)), before=node)
        _replace(node, torch.ops.aten.view.default, (folded, list(value.shape)))
        return


_SCALES: Final = 6
_MATRICES: Final = 10
_GATE: Final = 11
"""Places of arguments of `CODES_PRODUCT`."""


def _silu_of(node: fx.Node) -> fx.Node | None:
    """What a node is SiLU of, computed in single precision."""
    quotient = _cast_from(node, node.meta["val"].dtype)
    if quotient is None or quotient.target is not torch.ops.aten.div.Tensor:
        return None
    wide, total = quotient.args
    if not isinstance(wide, fx.Node) or not isinstance(total, fx.Node) or total.target is not torch.ops.aten.add.Tensor:
        return None
    power, one = total.args
    is_silu = one == 1 and _only_argument(power, torch.ops.aten.exp.default, torch.ops.aten.neg.default) is wide  # type: ignore[arg-type]
    return _cast_from(wide, torch.float32) if is_silu else None


def _stretch_of(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """A tensor, and the places of its last axis that a node is."""
    if node.target is torch.ops.aten.slice.Tensor:
        given: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
        source, axis, begin, end, step = given
        extents = source.meta["val"].shape
        if axis not in (-1, len(extents) - 1) or step != 1:
            return None
        first, last, _ = slice(begin, end).indices(extents[-1])
        return source, first, last
    split: Any = node.args[0] if node.target is operator.getitem else None
    if split is None or split.target is not torch.ops.aten.split_with_sizes.default:
        return None
    source, sizes, axis = (*split.args, 0)[:3]
    if axis not in (-1, source.meta["val"].dim() - 1):
        return None
    first = sum(sizes[: node.args[1]])
    return source, first, first + sizes[node.args[1]]


def _is_read_only_for(made: fx.Node, node: fx.Node) -> bool:
    """Whether all that is computed from one node, up to another one, is read for that alone."""
    inside = {made, *reachable([node], lambda each: [item for item in each.all_input_nodes if item is not made])}
    return all(user in inside for each in inside if each is not node for user in each.users)


def _pairs(node: fx.Node, target: Any) -> list[tuple[fx.Node, fx.Node]]:
    """The two operands of a node in either order, if it is a call of an operator with two tensors."""
    if node.target is not target or node.kwargs or not all(isinstance(each, fx.Node) for each in node.args):
        return []
    one, other = node.args
    return [(one, other), (other, one)]  # type: ignore[list-item]


def _cast_from(node: fx.Node, dtype: torch.dtype) -> fx.Node | None:
    """What a node casts to a type, if it is that."""
    is_cast = node.target is torch.ops.prims.convert_element_type.default and node.args[1] is dtype
    return node.args[0] if is_cast else None  # type: ignore[return-value]


def _only_argument(node: fx.Node, *targets: Any) -> fx.Node | None:
    """What goes into a chain of operators of one operand, if a node is the last of it."""
    found: Any = node
    for target in targets:
        if not isinstance(found, fx.Node) or found.target is not target:
            return None
        found = found.args[0]
    return found if isinstance(found, fx.Node) else None


def _source(node: fx.Node) -> fx.Node:
    """A tensor before it was viewed in other extents."""
    while node.target is torch.ops.aten.view.default:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _call(target: Any, args: tuple[Any, ...], value: Any, before: fx.Node) -> fx.Node:
    """A new call whose result is known."""
    with before.graph.inserting_before(before):
        made = before.graph.call_function(target, args)
    made.meta["val"] = value
    return made


def _replace(node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    """Puts a call of another operator in place of one."""
    node.replace_all_uses_with(_call(target, args, node.meta["val"], before=node))
    node.graph.erase_node(node)


def _viewed(node: fx.Node, shape: Any, before: fx.Node) -> fx.Node:
    """A tensor in other extents; as it was, where it had these before it was viewed."""
    source = _source(node)
    if list(source.meta["val"].shape) == list(shape):
        return source
    return _call(torch.ops.aten.view.default, (node, list(shape)), node.meta["val"].reshape(list(shape)), before)


def _last_view(node: fx.Node) -> fx.Node:
    """A tensor as it is read at last, where views alone read it."""
    while (view := _only_user(node, torch.ops.aten.view.default)) is not None:
        node = view
    return node


def _only_user(node: fx.Node, target: Any) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


ATTENTIONS: Final = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)
_MOST_QUERIES: Final = 64  # of all heads that share keys
_LEAST_LENGTH: Final = 128
_TILE: Final = 64  # keys at a time
_BLOCKS: Final = 264  # fill a large GPU twice


def _replace_attention(node: fx.Node) -> None:
    query, key, value, mask, _, dropout, is_causal, *_ = (*node.args, *[None] * 8)[:8]
    users = list(node.users)
    if mask is None or dropout or is_causal or not all(isinstance(each, fx.Node) for each in (query, key, value, mask)):
        return
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
        return
    key, value = _ungrouped(key, node), _ungrouped(value, node)  # type: ignore[arg-type]
    mask = _choice_of(mask)  # type: ignore[arg-type]
    tensors = [each.meta["val"] for each in (query, key, value, mask)]  # type: ignore[union-attr]
    if not _suits(*tensors):
        return
    scale = node.kwargs.get("scale") or tensors[0].shape[-1] ** -0.5
    heads_last = _attention_result(*tensors, scale)
    made = _call(_operators()[ATTENTION], (query, key, value, mask, scale), heads_last, before=node)
    turned = _call(torch.ops.aten.permute.default, (made, [0, 2, 1, 3]), heads_last.permute(0, 2, 1, 3), before=node)
    for user in users:
        user.replace_all_uses_with(turned)
        node.graph.erase_node(user)
    node.graph.erase_node(node)


_LEAST_SCORE: Final = -65504.0
"""Scores beside which no other is seen: cuDNN gets it for minus infinity."""


def _choice_of(mask: fx.Node) -> fx.Node:
    """What says which keys are seen, of a mask that was made of it."""
    seen = mask.args[0] if mask.target is torch.ops.aten.where.self else None
    if not isinstance(seen, fx.Node) or seen.meta["val"].shape != mask.meta["val"].shape:
        return mask
    shown, hidden = (_number_of(each) for each in mask.args[1:])
    return seen if shown == 0 and hidden is not None and hidden <= _LEAST_SCORE else mask


def _number_of(value: Any) -> float | None:
    """A number that a graph holds as a tensor."""
    is_made = isinstance(value, fx.Node) and value.target in _NUMBERS
    found = value.args[value.target is torch.ops.aten.full.default] if is_made else None
    return float(found) if isinstance(found, (int, float)) else None


_NUMBERS: Final = (torch.ops.aten.scalar_tensor.default, torch.ops.aten.full.default)


@dataclass(frozen=True)
class _Update:
    """A new key or value of each batch and group, and where it goes.

    Attributes:
        cache: (batch, groups, length, width), what the graph takes.
        row: (batch, groups, 1, width).
        start: (batch,), int64.
        made: What computes the cache anew.
        write_back: What copies that to the cache.
    """

    cache: fx.Node
    row: fx.Node
    start: fx.Node
    made: fx.Node
    write_back: fx.Node


def _fold_updates(node: fx.Node) -> None:
    """Lets attention write the new key and value to the caches that it reads, and turn them by their places."""
    query, keys, values, mask, scale = node.args
    updates = [_update_of(each, node) for each in (keys, values)]  # type: ignore[arg-type]
    key, value = updates
    if key is None or value is None or key.start is not value.start or query.meta["val"].shape[2] != 1:  # type: ignore[union-attr]
        return
    turned = _turned(query), _turned(key.row)  # type: ignore[arg-type]
    asked, row, turns = query, key.row, (None, None)
    if turned[0] is not None and turned[1] is not None and turned[0][1:] == turned[1][1:]:
        asked, row, turns = turned[0][0], turned[1][0], turned[0][1:]  # type: ignore[assignment]
    if any(each.meta["val"].stride(3) != 1 for each in (asked, row, value.row)):  # type: ignore[union-attr]
        return
    arguments = (asked, key.cache, value.cache, row, value.row, key.start, *turns, mask, scale)
    _replace(node, _operators()[UPDATING_ATTENTION], arguments)
    for update in (key, value):
        update.write_back.graph.erase_node(update.write_back)


_RESHAPES: Final = frozenset(
    {
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.view.default,
        torch.ops.aten.slice.Tensor,  # of all there is
    }
)


def _update_of(node: fx.Node, attention: fx.Node) -> _Update | None:
    """The update that makes keys or values of an attention, if nothing else reads what it makes."""
    chain, made = [attention], node
    while made.target in _RESHAPES and made.meta["val"].numel() == made.args[0].meta["val"].numel():  # type: ignore[union-attr]
        chain.append(made)
        made = made.args[0]  # type: ignore[assignment]
    if made.target is not torch.ops.aten.index_put.default or len(made.args) != 3:
        return None
    if made.meta["val"].shape != node.meta["val"].shape:
        return None
    cache, places, rows = made.args
    if not isinstance(cache, fx.Node) or cache.op != "placeholder" or rows.target is not torch.ops.aten.where.self:  # type: ignore[union-attr]
        return None
    written = [user for user in made.users if user.target is torch.ops.aten.copy_.default and user.args[0] is cache]
    readers = [user for link in (made, *chain[1:]) for user in link.users if user not in written]
    if len(written) != 1 or any(reader not in chain for reader in readers):
        return None
    row, old = rows.args[1:]  # type: ignore[union-attr]
    start: Any = places[2]  # type: ignore[index]
    for target in _OF_PLACES:
        if not isinstance(start, fx.Node) or start.target is not target:
            return None
        start = start.args[0]
    begin: Any = start.args[0] if start.target is torch.ops.aten.add.Tensor else None
    if not isinstance(begin, fx.Node) or begin.target is not torch.ops.aten.unsqueeze.default:
        return None
    begin = begin.args[0]
    value, taken = row.meta["val"], cache.meta["val"]  # type: ignore[union-attr]
    is_one = tuple(value.shape) == (*taken.shape[:2], 1, taken.shape[3]) and value.dtype is taken.dtype
    is_old = old.target is torch.ops.aten._unsafe_index.Tensor and old.args[0] is cache  # type: ignore[union-attr]
    if not (is_one and is_old and taken.is_contiguous()) or tuple(begin.meta["val"].shape) != (taken.shape[0],):
        return None
    return _Update(cache, row, begin, made, written[0])  # type: ignore[arg-type]


_OF_PLACES: Final = (
    *(torch.ops.aten.expand.default, torch.ops.aten.unsqueeze.default),
    *(torch.ops.aten.clamp_max.default, torch.ops.aten.clamp_min.default),
)
"""What `IKVCacheUpdateLayer` makes places of rows with, the last one first; the kernel drops what is outside, too."""


def _turned(node: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """What a node turns, half of its last axis against the other; cosines and sines, (batch or 1, 1, 1, width)."""
    for straight, crossed in _pairs(node, torch.ops.aten.add.Tensor):
        for x, cosines in _pairs(straight, torch.ops.aten.mul.Tensor):
            for swapped, sines in _pairs(crossed, torch.ops.aten.mul.Tensor):
                if _is_swapped(swapped, x) and _are_turns(x, cosines, sines):
                    return x, cosines, sines
    return None


def _is_swapped(node: fx.Node, x: fx.Node) -> bool:
    """Whether a node is the second half of another, negated, and then the first one."""
    rank, width = x.meta["val"].dim(), x.meta["val"].shape[-1]
    if node.target is not torch.ops.aten.cat.default or len(node.args) != 2 or node.args[1] not in (-1, rank - 1):
        return False
    parts: Any = node.args[0]
    second = _only_argument(parts[0], torch.ops.aten.neg.default) if len(parts) == 2 else None
    if second is None:
        return False
    return _stretch_of(second) == (x, width // 2, width) and _stretch_of(parts[1]) == (x, 0, width // 2)


def _are_turns(x: fx.Node, cosines: fx.Node, sines: fx.Node) -> bool:
    value = x.meta["val"]
    return all(
        turns.dim() == 4
        and turns.shape[0] in (1, value.shape[0])
        and tuple(turns.shape[1:]) == (1, 1, value.shape[3])
        and turns.dtype is value.dtype
        for turns in (cosines.meta["val"], sines.meta["val"])
    )


def _ungrouped(node: fx.Node, before: fx.Node) -> fx.Node:
    """Keys or values, (batch, groups, length, width), before they were repeated for the heads that share them."""
    view = node
    copied = view.args[0] if view.target is torch.ops.aten.view.default else None
    spread = copied.args[0] if isinstance(copied, fx.Node) and copied.target is torch.ops.aten.clone.default else None
    if not isinstance(spread, fx.Node) or spread.target is not torch.ops.aten.expand.default:
        return node
    shared = spread.args[0]
    assert isinstance(shared, fx.Node)
    found, wide, tall = shared.meta["val"], spread.meta["val"].shape, view.meta["val"].shape
    if found.dim() != 5 or found.shape[2] != 1 or len(tall) != 4:
        return node
    batch, groups, heads, length, width = wide
    if tuple(tall) != (batch, groups * heads, length, width) or tuple(found.shape) != (batch, groups, 1, length, width):
        return node
    return _call(torch.ops.aten.squeeze.dim, (shared, 2), found.squeeze(2), before)


def _suits(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether the kernels take these operands, and are made for them."""
    sizes = [size for each in (query, keys, values, mask) for size in (*each.shape, *each.stride())]
    if (
        not all(isinstance(size, int) for size in sizes)
        or len({each.dtype for each in (query, keys, values)}) > 1
        or mask.dtype not in (query.dtype, torch.bool)
    ):
        return False
    if (
        query.dtype not in _HALF
        or keys.shape != values.shape
        or mask.dim() != 4
        or any(0 in each.shape for each in (query, keys))
    ):
        return False
    batch, heads, queries, width = query.shape
    groups, length = keys.shape[1:3]
    return (
        heads % groups == 0
        and heads // groups * queries <= _MOST_QUERIES
        and length >= _LEAST_LENGTH
        and width in (16, 32, 64, 128, 256)
        and keys.shape == (batch, groups, length, width)
        and all(each.stride(3) == 1 for each in (query, keys, values))
        and mask.shape[0] in (1, batch)
        and (mask.shape[1] == 1 or mask.stride(1) == 0)
        and tuple(mask.shape[2:]) == (queries, length)
        and mask.stride(3) == 1
    )


def multiply(
    x: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    epsilon: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
    is_weight: bool = False,
) -> torch.Tensor:
    """``x @ matrix.T + bias + residual`` in the way that is the fastest for these extents, measured the first time.

    Args:
        x: (M, K) in half precision; M up to 16.
        matrix: (N, K), dense.
        bias: (N,), or None.
        gain: (K,), or None: what rows are multiplied by after they were divided by the root of their mean square.
        epsilon: (1,), what is added to the mean square.
        residual: (M, N), or None.
        is_gated: Return the second half of the columns, multiplied by SiLU of the first.
        is_weight: The matrix is never written to while kernels run.
    """
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    result = _product_result(x, matrix, is_gated=is_gated)

    def by_library(matrix: torch.Tensor) -> None:
        rows = x
        if gain is not None and epsilon is not None:
            wide = x.to(torch.float32)
            rows = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * gain
        if is_gated:
            gate, up = F.linear(rows, matrix, bias).chunk(2, -1)
            torch.mul(F.silu(gate), up, out=result)
        elif bias is None:
            torch.mm(rows, matrix.t(), out=result)
        else:
            torch.addmm(bias, rows, matrix.t(), out=result)
        if residual is not None:
            result.add_(residual)

    def by_one_kernel(matrix: torch.Tensor, form: int) -> None:
        _kernels()[product_call](x, matrix, bias, gain, epsilon, residual, is_gated, is_weight, result, form)

    def by_two_kernels(matrix: torch.Tensor, form: int) -> None:
        """Rows are normalized once for all blocks of the product, instead of in each of them."""
        rows = _normalized(x, gain, epsilon)
        _kernels()[product_call](rows, matrix, bias, None, None, residual, is_gated, is_weight, result, form)

    if not x.is_cuda:
        by_library(matrix)
        return result
    ways: dict[str, _Way] = {_LIBRARY: by_library}
    for index, form in enumerate(forms_for(*x.shape, is_gated=is_gated)):
        ways[f"{form}"] = functools.partial(by_one_kernel, form=index)
        if gain is not None and len(x) > 1:
            ways[f"apart, {form}"] = functools.partial(by_two_kernels, form=index)
    folded = (bias is not None, gain is not None, residual is not None, is_gated, is_weight)
    _run_fastest(ways, matrix, result, "few rows", tuple(x.shape), len(matrix), x.dtype, *folded)
    return result


def _product_result(x: torch.Tensor, matrix: torch.Tensor, *, is_gated: bool) -> torch.Tensor:
    return x.new_empty((x.shape[0], matrix.shape[0] // (1 + is_gated)))


_Way = Callable[[torch.Tensor], object]
"""Computes a product with a matrix."""
_MORE_THAN_CACHED: Final = 128 << 20
_MOST_COPIES: Final = 64


def _run_fastest(ways: Mapping[str, _Way], matrix: torch.Tensor, result: torch.Tensor, *form: object) -> None:
    """Goes the way that is the fastest; arguments are those of `_fastest_way`."""
    ways[_fastest_way(ways, matrix, result, *form)](matrix)


def _result_of_fastest(
    ways: Mapping[str, _Way],
    by_library: Callable[[torch.Tensor], torch.Tensor],
    matrix: torch.Tensor,
    result: torch.Tensor,
    *form: object,
) -> torch.Tensor:
    """What the fastest way gives: `result`, or what a library returns, which is copied there in the contest alone."""
    chosen = _fastest_way(ways, matrix, result, *form)
    if chosen == _LIBRARY:
        return by_library(matrix)
    ways[chosen](matrix)
    return result


def _fastest_way(ways: Mapping[str, _Way], matrix: torch.Tensor, result: torch.Tensor, *form: object) -> str:
    """The way that is the fastest where each matrix is read once, as in a step: no cache holds any of it.

    Args:
        ways: The surest first.
        matrix: What they read.
        result: What they write.
        form: What else decides about the time.
    """
    matrices: list[torch.Tensor] = []

    def start(run: _Way) -> None:
        if isinstance(matrix, FakeTensor):  # of which nothing is read
            run(matrix)
            return
        if not matrices:
            count = min(math.ceil(_MORE_THAN_CACHED / matrix.nbytes), _MOST_COPIES)
            matrices.extend([matrix, *(matrix.clone() for _ in range(count - 1))])
            if matrix.is_cuda:  # kernels that start early read them before what made them is waited for
                torch.cuda.current_stream(matrix.device).synchronize()
        for each in matrices:
            run(each)

    starts = {name: functools.partial(start, run) for name, run in ways.items()}
    return fastest(starts, matrix.device, "uncached", *form, replayed=True, is_right=SameResult(result))


def _normalized(x: torch.Tensor, gain: torch.Tensor | None, epsilon: torch.Tensor | None) -> torch.Tensor:
    """Rows divided by the root of their mean square, and multiplied by the gain, by a kernel of its own."""
    rows = torch.empty_like(x)
    _kernels()[normalization_call](x, gain, epsilon, rows)
    return rows


def normalization_call(x: torch.Tensor, gain: torch.Tensor, epsilon: torch.Tensor, result: torch.Tensor) -> KernelCall:
    """The kernel that normalizes rows."""
    from trt_portable.builder.inductor.triton_kernels import normalize_rows

    rows, depth = x.shape
    grid, arguments = (rows, 1, 1), (x, gain, epsilon, result)
    return KernelCall.of(
        normalize_rows, grid, arguments, DEPTH=depth, TILE=1 << (depth - 1).bit_length(), num_warps=8, **_early(x)
    )


def forms_for(rows: int, depth: int, *, is_gated: bool = False) -> tuple[Form, ...]:
    """The forms of the kernel that may be the fastest; with a gate, columns come in pairs."""
    long = ONE_LONGEST_ROW if depth >= 2 * _LONG else ONE_LONG_ROW
    forms = SEVERAL_ROWS if rows > 1 else long if depth >= _LONG else ONE_ROW
    return tuple(form for form in forms if form.columns > 1 or not is_gated)


_LONG: Final = 2048


@functools.cache
def starts_early(device: torch.device) -> bool:
    """Whether kernels may start while the one before them ends (programmatic dependent launch)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER


_HOPPER: Final = (9, 0)


def _early(x: torch.Tensor) -> dict[str, bool]:
    """What kernels are compiled and launched with."""
    is_early = starts_early(x.device)
    return {"IS_EARLY": True, "launch_pdl": True} if is_early else {"IS_EARLY": False}


def product_call(
    x: torch.Tensor,
    matrix: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None,
    epsilon: torch.Tensor | None,
    residual: torch.Tensor | None,
    is_gated: bool,
    is_weight: bool,
    result: torch.Tensor,
    form: int,
) -> KernelCall:
    """The kernel of a product of few rows; `form` is one of `forms_for`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import few_rows_product, one_row_product

    given = [each for each in (x, matrix, gain, residual, result) if each is not None]
    if not all(each.is_contiguous() for each in given):
        raise RuntimeError("operands of a product of few rows lie in another way")
    rows, depth = x.shape
    columns, tile = len(matrix), forms_for(rows, depth, is_gated=is_gated)[form]
    grid = (math.ceil(columns / tile.columns), 1, 1)
    optional = [x if each is None else each for each in (bias, gain, epsilon, residual)]
    arguments = (x, matrix, *optional, result, columns)
    kernel: Any = one_row_product if rows == 1 else few_rows_product
    return KernelCall.of(
        kernel,
        grid,
        arguments,
        **({"IS_WEIGHT": is_weight} if rows == 1 else {"ROWS": rows}),
        DEPTH=depth,
        HAS_BIAS=bias is not None,
        IS_NORMALIZED=gain is not None,
        HAS_RESIDUAL=residual is not None,
        IS_GATED=is_gated,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **_early(x),
    )


def multiply_by_codes(
    x: torch.Tensor,
    codes: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None,
    epsilon: torch.Tensor | None,
    residual: torch.Tensor | None,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    places: torch.Tensor | None,
    levels: Sequence[float],
    matrices: int,
    is_gated: bool = False,
) -> torch.Tensor:
    """``x @ (codes * scales - offsets).T + bias + residual``, in the fastest form of the kernel, as `multiply`.

    Args:
        x: (M, K) in half precision on CUDA.
        codes: What `FewRowsOfCodes` prepared of (N, K) codes.
        bias, gain, epsilon, residual: As of `multiply`; the bias alone for more than 16 rows.
        scales: (groups, N), of which each serves as many codes of a row.
        offsets: (groups, N), or None.
        places: (M,), integers: for any number of rows, which of the matrices each is multiplied by, all of which are
            one below the other in the codes.
        levels: What codes of 4 bits stand for, in the order of their bits; none for integers.
        matrices: How many there are; 0 for one without places.
        is_gated: As of `multiply`; for up to 16 rows, without places.
    """
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    result = _codes_result(x, scales, matrices, is_gated)
    folded = (bias, gain, epsilon, residual)
    rest = (scales, offsets, places, levels, matrices, is_gated, result)

    rows = 1 if matrices else len(x)
    forms = codes_forms_for(rows, is_gated=is_gated)

    def by(index: int) -> _Way:
        return lambda each: _kernels()[codes_call](x, each, *folded, *rest, index)

    def by_two_kernels(index: int) -> _Way:
        """The row is normalized once for all blocks of the product, instead of in each of them."""

        def run(each: torch.Tensor) -> None:
            _kernels()[codes_call](_normalized(x, gain, epsilon), each, bias, None, None, residual, *rest, index)

        return run

    def by_library(each: torch.Tensor) -> torch.Tensor:
        return F.linear(x, decode(each, scales, offsets, levels, x.dtype), bias)

    is_large = not matrices and len(x) > _MOST_ROWS
    ways: dict[str, _Way] = {_LIBRARY: lambda each: result.copy_(by_library(each))} if is_large else {}
    for index, form in enumerate(forms):
        ways[f"{form}"] = by(index)
        if gain is not None and rows > 1:
            ways[f"apart, {form}"] = by_two_kernels(index)
    given = (*(each is not None for each in (*folded, offsets, places)), matrices, bool(levels), is_gated)
    key = ("few rows of codes", tuple(x.shape), tuple(scales.shape), scales.dtype, x.dtype, codes.dtype, *given)
    return _result_of_fastest(ways, by_library, codes, result, *key)


def _codes_result(x: torch.Tensor, scales: torch.Tensor, matrices: int, is_gated: bool = False) -> torch.Tensor:
    return x.new_empty((x.shape[0], scales.shape[1] // max(matrices, 1) // (1 + is_gated)))


def codes_forms_for(rows: int, *, is_gated: bool = False) -> tuple[Form, ...]:
    """The forms of the kernels that may be the fastest; with a gate, columns come in pairs."""
    if rows > 1:
        return CODES_MANY_ROWS if rows > _MOST_ROWS else CODES_SEVERAL_ROWS
    return tuple(form for form in CODES_ONE_ROW if form.columns == 16 or not is_gated)


def codes_call(
    x: torch.Tensor,
    codes: torch.Tensor,
    bias: torch.Tensor | None,
    gain: torch.Tensor | None,
    epsilon: torch.Tensor | None,
    residual: torch.Tensor | None,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    places: torch.Tensor | None,
    levels: Sequence[float],
    matrices: int,
    is_gated: bool,
    result: torch.Tensor,
    form: int,
) -> KernelCall:
    """The kernel of a product with codes; `form` is one of `codes_forms_for`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import (
        few_rows_codes_product,
        many_rows_codes_product,
        one_row_codes_product,
    )

    optional = (bias, gain, epsilon, residual, offsets, places)
    given = [each for each in (x, codes, scales, result, *optional) if each is not None]
    if not all(each.is_contiguous() for each in given):
        raise RuntimeError("operands of a product of few rows lie in another way")
    (count, depth), (groups, all_columns) = x.shape, scales.shape
    columns, rows = all_columns // max(matrices, 1), 1 if matrices else count
    tile, slots = codes_forms_for(rows, is_gated=is_gated)[form], 8 if codes.dtype is torch.uint8 else 4
    grid = (math.ceil(columns / tile.columns), count if matrices else 1, 1)
    folded = [x if each is None else each for each in optional]
    arguments: tuple[Any, ...] = (x, codes, *folded[:4], scales, *folded[4:], result, columns, all_columns)
    kernel: Any = many_rows_codes_product
    extents: dict[str, Any] = {"STAGES": tile.stages}
    if rows > _MOST_ROWS:
        extents["TILE_ROWS"] = tile.rows
        extents["IS_ASYNCHRONOUS"] = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == _HOPPER[0]
        grid = (grid[0] * math.ceil(rows / tile.rows), 1, 1)
        arguments = (x, codes, folded[0], scales, folded[4], result, rows, columns)
    else:
        extents |= {"IS_NORMALIZED": gain is not None, "HAS_RESIDUAL": residual is not None, "IS_GATED": is_gated}
        if rows > 1:
            kernel = few_rows_codes_product
            extents |= {"ROWS": rows, "TILE_ROWS": 8 if rows <= 8 else 16, "PARTS": tile.warps}
            arguments = (x, codes, *folded[:4], scales, folded[4], result, columns)
        else:
            kernel = one_row_codes_product
            extents |= {"MATRICES": matrices, "TILE_UNITS": tile.depth, "THREADS": 32 * tile.warps}
            extents["STAGES"] = min(tile.stages, _SLOTS_AHEAD // slots)
    return KernelCall.of(
        kernel,
        grid,
        arguments,
        **extents,
        DEPTH=depth,
        GROUP=depth // groups,
        SLOTS=slots,
        WORDS=present(words_of_unit(slots, depth, groups)),
        ASSEMBLY=assembly(codes.dtype, x.dtype, tuple(levels)),
        HAS_BIAS=bias is not None,
        HAS_OFFSETS=offsets is not None,
        TILE_COLUMNS=tile.columns,
        num_warps=tile.warps,
        **_early(x),
    )


def decode(
    codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, levels: Sequence[float], dtype: torch.dtype
) -> torch.Tensor:
    """``codes * scales - offsets``, (N, K), of what `FewRowsOfCodes` prepared.

    Args:
        codes, scales, offsets, levels: As of `multiply_by_codes`.
        dtype: float16 or bfloat16.
    """
    result = _decoded_like(codes, scales, offsets, levels, dtype)
    _kernels()[decoding_call](codes, scales, offsets, levels, result)
    return result


def _decoded_like(codes: torch.Tensor, scales: torch.Tensor, *given: Any) -> torch.Tensor:
    depth = codes.shape[1] * (2 if codes.dtype is torch.uint8 else 1)
    return codes.new_empty((scales.shape[1], depth), dtype=given[-1])


_DECODED: Final = 8
"""Units that are decoded at a time."""


def decoding_call(
    codes: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    levels: Sequence[float],
    result: torch.Tensor,
) -> KernelCall:
    """The kernel that decodes.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import decode_codes

    if not all(each.is_contiguous() for each in (codes, scales, scales if offsets is None else offsets, result)):
        raise RuntimeError("codes to be decoded lie in another way")
    columns, depth = result.shape
    slots = 8 if codes.dtype is torch.uint8 else 4
    words = present(words_of_unit(slots, depth, len(scales)))
    grid = (math.ceil(columns / 16) * math.ceil(depth / (words * slots * _DECODED)), 1, 1)
    arguments = (codes, scales, scales if offsets is None else offsets, result, columns)
    return KernelCall.of(
        decode_codes,
        grid,
        arguments,
        DEPTH=depth,
        GROUP=depth // len(scales),
        SLOTS=slots,
        WORDS=words,
        ASSEMBLY=assembly(codes.dtype, result.dtype, tuple(levels)),
        HAS_OFFSETS=offsets is not None,
        AT_ONCE=_DECODED,
        num_warps=4,
        **_early(result),
    )


def multiply_by_chosen(x: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """``x[i] @ matrices[places[i]].T``, in the form of the kernel that is the fastest, measured the first time.

    Args:
        x: (S, K) in half precision on CUDA.
        places: (S,), integers; zeros come where there is no such matrix.
        matrices: (E, N, K), of which rows or columns lie in one piece.
    """
    x, places = x.contiguous(), places.contiguous()
    result = torch.empty((x.shape[0], matrices.shape[1]), dtype=x.dtype, device=x.device)

    def by(index: int) -> _Way:
        return lambda each: _kernels()[chosen_call](x, places, each, result, index)

    ways = {f"{form}": by(index) for index, form in enumerate(chosen_forms_for(matrices))}
    _run_fastest(ways, matrices, result, "chosen", len(x), tuple(matrices.shape), matrices.stride(), x.dtype)
    return result


def chosen_forms_for(matrices: torch.Tensor) -> tuple[Form, ...]:
    """The forms of the kernel that may be the fastest."""
    return CHOSEN_ROWS if matrices.stride(2) == 1 else CHOSEN_COLUMNS


def chosen_call(
    x: torch.Tensor, places: torch.Tensor, matrices: torch.Tensor, result: torch.Tensor, form: int
) -> KernelCall:
    """The kernel of a product with chosen matrices; `form` is one of `chosen_forms_for`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import chosen_product

    if not all(each.is_contiguous() for each in (x, places, result)):
        raise RuntimeError("operands of a product with chosen matrices lie in another way")
    columns, tile = matrices.shape[1], chosen_forms_for(matrices)[form]
    grid = (math.ceil(columns / tile.columns), len(x), 1)
    arguments = (x, places, matrices, result, columns)
    return KernelCall.of(chosen_product, grid, arguments, **_matrices_in(matrices, tile), **_early(x))


def _matrices_in(matrices: torch.Tensor, tile: Form) -> dict[str, int]:
    """How matrices (E, N, K) lie, and what a block reads of one."""
    return {
        "MATRICES": matrices.shape[0],
        "DEPTH": matrices.shape[2],
        "MATRIX_STEP": matrices.stride(0),
        "COLUMN_STEP": matrices.stride(1),
        "DEPTH_STEP": matrices.stride(2),
        "TILE_COLUMNS": tile.columns,
        "TILE_DEPTH": tile.depth,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def multiply_by_groups(
    x: torch.Tensor, order: torch.Tensor | None, ends: torch.Tensor, matrices: torch.Tensor
) -> torch.Tensor:
    """``x[i] @ matrices[j].T`` for the rows of each matrix, in the way that is the fastest, measured the first time.

    Args:
        x: (S, K) in half precision on CUDA.
        order: (S,), int64: rows one after the other by the matrix that they choose; first those of the first one.
            None where they lie so, and all choose one.
        ends: (E,), int32: how many rows there are up to those of each matrix; rows behind the last one get zeros.
        matrices: (E, N, K), of which rows or columns lie in one piece.

    Returns:
        (S, N), in the order of `x`.
    """
    x = x.contiguous()
    result = torch.empty((x.shape[0], matrices.shape[1]), dtype=x.dtype, device=x.device)

    def by_library(each: torch.Tensor) -> torch.Tensor:
        rows = x if order is None else x[order]
        choice = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
        if is_known:
            made = torch._grouped_mm(rows, each.mT, ends)
        else:  # products of all rows with each matrix
            made = torch.zeros_like(result)
            for index, matrix in enumerate(each):
                made = torch.where((choice == index)[:, None], F.linear(rows, matrix), made)
        if order is None:
            return made
        back = inverse_order(order)
        return torch.where((choice < len(each))[back, None], made[back], 0)

    def by(index: int) -> _Way:
        return lambda each: _kernels()[grouped_call](x, order, ends, each, result, index)

    is_aligned = matrices.shape[1] % _ALIGNED == 0 and matrices.shape[2] % _ALIGNED == 0
    is_known = x.dtype is torch.bfloat16 and is_aligned
    ways: dict[str, _Way] = {_LIBRARY: lambda each: result.copy_(by_library(each))}
    ways |= {f"{form}": by(index) for index, form in enumerate(GROUPED_ROWS)}
    key = ("grouped", len(x), tuple(matrices.shape), matrices.stride(), x.dtype, order is None)
    return _result_of_fastest(ways, by_library, matrices, result, *key)


_ALIGNED: Final = 8
"""Numbers of half precision in 16 bytes, at whose multiples the library's rows begin."""


def grouped_call(
    x: torch.Tensor,
    order: torch.Tensor | None,
    ends: torch.Tensor,
    matrices: torch.Tensor,
    result: torch.Tensor,
    form: int,
) -> KernelCall:
    """The kernel of a grouped product; `form` is one of `GROUPED_ROWS`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import grouped_product

    if not all(each.is_contiguous() for each in (x, ends if order is None else order, ends, result)):
        raise RuntimeError("operands of a grouped product lie in another way")
    rows, (count, columns, _), tile = len(x), matrices.shape, GROUPED_ROWS[form]
    tiles = math.ceil(rows / tile.rows) + count  # each matrix, and what chooses none, may have one that is not full
    grid = (tiles, math.ceil(columns / tile.columns), 1)
    arguments = (x, ends if order is None else order, ends, matrices, result, rows, columns)
    return KernelCall.of(
        grouped_product,
        grid,
        arguments,
        HAS_ORDER=order is not None,
        MATRICES_TILE=1 << count.bit_length(),
        TILE_ROWS=tile.rows,
        **_matrices_in(matrices, tile),
        **_early(x),
    )


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of few queries, whose heads may share keys.

    Args:
        query: (batch, heads, queries, width) in half precision.
        keys, values: (batch, groups, length, width); heads are a multiple of groups.
        mask: (batch or 1, 1, queries, length), what is added to scores.
        scale: What scores are multiplied by.

    Returns:
        (batch, queries, heads, width), dense.
    """
    result = _attention_result(query, keys, values, mask, scale)
    if not query.is_cuda:
        heads = query.shape[1] // keys.shape[1]
        key, value = (each.repeat_interleave(heads, 1) for each in (keys, values))
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
        return result.copy_(found.transpose(1, 2))
    _attend_on_gpu(query, keys, values, mask, result, scale)
    return result


def attend_in_place(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
    start: torch.Tensor,
    cosines: torch.Tensor | None,
    sines: torch.Tensor | None,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """As `attend`, after one more key and value of each batch and group were written to the caches.

    Args:
        query: (batch, heads, 1, width) in half precision.
        keys, values: (batch, groups, length, width); written to.
        new_keys, new_values: (batch, groups, 1, width).
        start: (batch,), int64: where they go; places outside of the caches are left out.
        cosines, sines: (batch or 1, 1, 1, width), by which queries and new keys are turned; or None.
        mask: (batch or 1, 1, 1, length), what is added to scores.
        scale: What scores are multiplied by.
    """
    result = _attention_result(query)
    if query.is_cuda:
        _attend_on_gpu(query, keys, values, mask, result, scale, (new_keys, new_values, start, cosines, sines))
        return result
    if cosines is not None and sines is not None:
        query, new_keys = (each * cosines + _swapped(each) * sines for each in (query, new_keys))
    for row, place in enumerate(start.tolist()):
        if 0 <= place < keys.shape[2]:
            keys[row, :, place], values[row, :, place] = new_keys[row, :, 0], new_values[row, :, 0]
    return attend(query, keys, values, mask, scale)


def _swapped(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


_Updates = tuple[torch.Tensor | None, ...]
"""New keys and values, where they go, and what they are turned by."""
_NO_UPDATES: Final[_Updates] = (None,) * 5


def _attend_on_gpu(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    result: torch.Tensor,
    scale: float,
    updates: _Updates = _NO_UPDATES,
) -> None:
    batch, heads, queries, width = query.shape
    groups, length = keys.shape[1:3]
    parts = math.ceil(length / _part_of(batch * groups, length))
    rows = _rows_of(heads // groups * queries)
    sums = torch.empty((batch * groups, parts, rows, width), dtype=torch.float32, device=query.device)
    maxima = torch.empty((batch * groups, parts, rows), dtype=torch.float32, device=query.device)
    weights = torch.empty((batch * groups, parts, rows), dtype=torch.float32, device=query.device)
    kernels = _kernels()
    kernels[parts_call](query, keys, values, mask, *updates, sums, maxima, weights, scale)
    kernels[joining_call](sums, maxima, weights, result, groups)


def _attention_result(query: torch.Tensor, *_: Any) -> torch.Tensor:
    batch, heads, queries, width = query.shape
    return query.new_empty((batch, queries, heads, width))


def _rows_of(queries: int) -> int:
    """Rows of a tile of queries."""
    return max(16, 1 << (queries - 1).bit_length())


def _part_of(groups: int, length: int) -> int:
    """Keys of a part: so many that all parts together fill a GPU."""
    parts = min(math.ceil(_BLOCKS / groups), math.ceil(length / _TILE))
    return math.ceil(math.ceil(length / parts) / _TILE) * _TILE


def parts_call(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    new_keys: torch.Tensor | None,
    new_values: torch.Tensor | None,
    start: torch.Tensor | None,
    cosines: torch.Tensor | None,
    sines: torch.Tensor | None,
    sums: torch.Tensor,
    maxima: torch.Tensor,
    weights: torch.Tensor,
    scale: float,
) -> KernelCall:
    """The kernel that attends to parts of the keys, and updates them first."""
    from trt_portable.builder.inductor.triton_kernels import attend_to_part

    batch, heads, queries, width = query.shape
    groups, length = keys.shape[1:3]
    grid = (batch * groups, sums.shape[1], 1)
    optional = [query if each is None else each for each in (new_keys, new_values, start, cosines, sines)]
    arguments = (query, keys, values, mask, *optional, sums, maxima, weights)
    key_strides, value_strides = ((0, 0) if each is None else each.stride()[:2] for each in (new_keys, new_values))
    return KernelCall.of(
        attend_to_part,
        grid,
        arguments,
        SCALE=scale,
        GROUPS=groups,
        HEADS=heads // groups,
        QUERIES=queries,
        LENGTH=length,
        WIDTH=width,
        ROWS=sums.shape[2],
        QUERY_BATCH=query.stride(0),
        QUERY_HEAD=query.stride(1),
        QUERY_PLACE=query.stride(2),
        KEY_BATCH=keys.stride(0),
        KEY_HEAD=keys.stride(1),
        KEY_PLACE=keys.stride(2),
        VALUE_BATCH=values.stride(0),
        VALUE_HEAD=values.stride(1),
        VALUE_PLACE=values.stride(2),
        MASK_BATCH=mask.stride(0) if mask.shape[0] > 1 else 0,
        MASK_QUERY=mask.stride(2),
        NEW_KEY_BATCH=key_strides[0],
        NEW_KEY_HEAD=key_strides[1],
        NEW_VALUE_BATCH=value_strides[0],
        NEW_VALUE_HEAD=value_strides[1],
        TURN_BATCH=cosines.stride(0) if cosines is not None and cosines.shape[0] > 1 else 0,
        HAS_UPDATE=start is not None,
        IS_TURNED=cosines is not None,
        PART=_part_of(batch * groups, length),
        TILE=_TILE,
        num_warps=4,
        num_stages=2,
        **_early(query),
    )


def joining_call(
    sums: torch.Tensor, maxima: torch.Tensor, weights: torch.Tensor, result: torch.Tensor, groups: int
) -> KernelCall:
    """The kernel that joins the parts."""
    from trt_portable.builder.inductor.triton_kernels import join_parts

    batch, queries, heads, width = result.shape
    parts, rows = sums.shape[1:3]
    grid = (batch * groups, heads // groups * queries, 1)
    arguments = (sums, maxima, weights, result)
    return KernelCall.of(
        join_parts,
        grid,
        arguments,
        GROUPS=groups,
        HEADS=heads // groups,
        QUERIES=queries,
        WIDTH=width,
        ROWS=rows,
        PARTS=parts,
        PARTS_TILE=max(2, 1 << (parts - 1).bit_length()),
        num_warps=2,
        **_early(sums),
    )


_KERNELS: Final[Mapping[str, Launch]] = {
    "few_rows_product": product_call,
    "attend_to_part": parts_call,
    "join_parts": joining_call,
    "few_rows_codes_product": codes_call,
    "decode_codes": decoding_call,
    "chosen_product": chosen_call,
    "grouped_product": grouped_call,
    "normalize_rows": normalization_call,
}


@functools.cache
def _kernels() -> Mapping[Launch, Any]:
    """The kernels as operators, by what says their calls."""
    others: Mapping[Launch, tuple[str, ...]] = {parts_call: ("keys", "values", "sums", "maxima", "weights")}
    return {
        launch: define_kernel(f"trt_portable::{name}", launch, others.get(launch, ("result",)))
        for name, launch in _KERNELS.items()
    }


def _dense(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    """Memory for a product with matrices (E, N, K), the last operand."""
    return x.new_empty((x.shape[0], given[-1].shape[1]))


_COMPUTED: Final[Mapping[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]]] = {
    PRODUCT: (multiply, lambda x, matrix, *given: _product_result(x, matrix, is_gated=given[-2])),
    ATTENTION: (attend, _attention_result),
    UPDATING_ATTENTION: (attend_in_place, _attention_result),
    CODES_PRODUCT: (
        multiply_by_codes,
        lambda *given: _codes_result(given[0], given[_SCALES], *given[_MATRICES:]),
    ),
    DECODED: (decode, _decoded_like),
    CHOSEN_PRODUCT: (multiply_by_chosen, _dense),
    GROUPED_PRODUCT: (multiply_by_groups, _dense),
}
"""What computes each operator that compilers see, and memory for its result."""


@functools.cache
def _operators() -> dict[str, Any]:
    """The operators that compilers see, by name."""
    written = {UPDATING_ATTENTION: ("keys", "values")}
    made: dict[str, Any] = {}
    for name, (run, like_result) in _COMPUTED.items():
        made[name] = define_operator(name, run, writes_to=written.get(name, ()))
        teach_compilers(made[name], like_result)
    return made


def teach_decoding_operators() -> OwnOperators:
    """Makes the operators known to PyTorch, to traces without data, and to Inductor.

    Returns:
        Those for compilers, which are composed, and those of the kernels, which are launched.
    """
    launched = {operator: launch for launch, operator in _kernels().items()}
    return OwnOperators(launched, {operator: _COMPUTED[name][0] for name, operator in _operators().items()})
