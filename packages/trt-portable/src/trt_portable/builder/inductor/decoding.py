"""Operators for steps of decoding: products of few rows, and attention of few queries to long caches.

The time of either is that of reading its matrix, or its keys and values, once. cuBLAS reaches half to two thirds of the
bandwidth there, and attention as it is written out repeats keys for heads that share them, and reads places that a
mask hides. Graphs get these operators in place of PyTorch's where shapes are those of a step.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import fx

from trt_portable.builder.autotune.kernels import fastest
from trt_portable.builder.autotune.oracle import SameResult
from trt_portable.builder.inductor.operators import (
    KernelLaunch,
    OwnOperators,
    calls_of,
    define_operator,
    start_compiling,
    teach_compilers,
)

PRODUCT: Final = "trt_portable::few_rows_linear"
CODES_PRODUCT: Final = "trt_portable::few_rows_codes_linear"
ATTENTION: Final = "trt_portable::few_queries_attention"
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
    """

    columns: int
    depth: int
    warps: int
    stages: int


ONE_ROW: Final = (Form(4, 1024, 4, 1), Form(8, 512, 4, 1), Form(2, 2048, 4, 1), Form(8, 1024, 8, 1))
"""For vectors, which take no tensor cores."""
SEVERAL_ROWS: Final = (Form(16, 256, 4, 4), Form(16, 512, 8, 3), Form(32, 256, 8, 4), Form(64, 128, 4, 4))
"""For matrices of up to 16 rows."""
CODES_ONE_ROW: Final = (
    *(Form(4, 1024, 4, 1), Form(8, 512, 4, 1), Form(4, 512, 4, 1), Form(8, 1024, 8, 1)),
    *(Form(8, 256, 4, 1), Form(8, 128, 4, 1)),
)
"""For vectors and codes, of which `depth` counts bytes."""
CODES_SEVERAL_ROWS: Final = (Form(16, 256, 4, 3), Form(32, 128, 4, 4), Form(16, 128, 4, 4), Form(64, 128, 8, 3))
"""For matrices of up to 16 rows and codes."""


def write_decoding_operators(graph: fx.GraphModule) -> None:
    """Puts these operators in place of PyTorch's wherever shapes are those of a step.

    Args:
        graph: Of ATen operators, with metadata; it is changed.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            _replace_product(graph.graph, node)
        elif node.target in _ATTENTIONS:
            _replace_attention(graph.graph, node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _replace_product(graph: fx.Graph, node: fx.Node) -> None:
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
    with graph.inserting_before(node):
        made = graph.call_function(_operators()[PRODUCT], (x, matrix, bias[0] if bias else None))
    made.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(made)
    graph.erase_node(node)


_ATTENTIONS: Final = (
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)
_MOST_QUERIES: Final = 64  # of all heads that share keys
_LEAST_LENGTH: Final = 128
_TILE: Final = 64  # keys at a time
_BLOCKS: Final = 264  # fill a large GPU twice


def _replace_attention(graph: fx.Graph, node: fx.Node) -> None:
    query, key, value, mask, _, dropout, is_causal, *_ = (*node.args, *[None] * 8)[:8]
    users = list(node.users)
    if mask is None or dropout or is_causal or not all(isinstance(each, fx.Node) for each in (query, key, value, mask)):
        return
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
        return
    key, value = _ungrouped(graph, key, node), _ungrouped(graph, value, node)  # type: ignore[arg-type]
    tensors = [each.meta["val"] for each in (query, key, value, mask)]  # type: ignore[union-attr]
    if not _suits(*tensors):
        return
    scale = node.kwargs.get("scale") or tensors[0].shape[-1] ** -0.5
    with graph.inserting_before(node):
        made = graph.call_function(_operators()[ATTENTION], (query, key, value, mask, scale))
        heads_last = _attention_result(*tensors, scale)
        made.meta["val"] = heads_last
        turned = graph.call_function(torch.ops.aten.permute.default, (made, [0, 2, 1, 3]))
        turned.meta["val"] = heads_last.permute(0, 2, 1, 3)
    for user in users:
        user.replace_all_uses_with(turned)
        graph.erase_node(user)
    graph.erase_node(node)


def _ungrouped(graph: fx.Graph, node: fx.Node, before: fx.Node) -> fx.Node:
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
    with graph.inserting_before(before):
        squeezed = graph.call_function(torch.ops.aten.squeeze.dim, (shared, 2))
    squeezed.meta["val"] = found.squeeze(2)
    return squeezed


def _suits(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether the kernels take these operands, and are made for them."""
    sizes = [size for each in (query, keys, values, mask) for size in (*each.shape, *each.stride())]
    if (
        not all(isinstance(size, int) for size in sizes)
        or len({each.dtype for each in (query, keys, values, mask)}) > 1
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


def multiply(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ matrix.T + bias`` in the way that is the fastest for these extents, measured the first time.

    Args:
        x: (M, K) in half precision; M up to 16.
        matrix: (N, K), dense.
        bias: (N,), or None.
    """
    x = x.contiguous()
    result = torch.empty((x.shape[0], matrix.shape[0]), dtype=x.dtype, device=x.device)
    ways: dict[str, Callable[[], object]] = {_LIBRARY: functools.partial(_by_library, x, matrix, bias, result)}
    if x.is_cuda:
        for index, form in enumerate(forms_for(x.shape[0])):
            ways[f"{form}"] = functools.partial(_kernels()[0], x, matrix, bias, result, index)
        key = ("few rows", tuple(x.shape), len(matrix), x.dtype, bias is not None)
        ways[fastest(ways, x.device, *key, replayed=True, is_right=SameResult(result))]()
    else:
        ways[_LIBRARY]()
    return result


def _by_library(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, matrix.t(), out=result)
    else:
        torch.addmm(bias, x, matrix.t(), out=result)


def forms_for(rows: int) -> tuple[Form, ...]:
    """The forms of the kernel that may be the fastest."""
    return ONE_ROW if rows == 1 else SEVERAL_ROWS


def start_product(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor, form: int
) -> tuple[None, KernelLaunch]:
    """Starts the kernel on the current stream; `form` is one of `forms_for`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.decoding_kernels import few_rows_product

    if not (x.is_contiguous() and matrix.is_contiguous() and result.is_contiguous()):
        raise RuntimeError("operands of a product of few rows lie in another way")
    rows, depth = x.shape
    columns, tile = len(matrix), forms_for(rows)[form]
    grid = (math.ceil(columns / tile.columns), 1, 1)
    arguments = (x, matrix, x if bias is None else bias, result, columns)
    compiled = few_rows_product[grid](
        *arguments,
        ROWS=rows,
        DEPTH=depth,
        HAS_BIAS=bias is not None,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return None, KernelLaunch(compiled, grid, arguments)


def multiply_by_codes(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``x @ (codes * scales).T``, in the form of the kernel that is the fastest, measured the first time.

    Args:
        x: (M, K) in half precision on CUDA; M up to 16.
        codes: (N, K), int8; or (N, K / 2), uint8, two of 4 bits in a byte, the lower one first.
        scales: (N, groups), of which each serves as many codes of a row.
    """
    x = x.contiguous()
    result = torch.empty((x.shape[0], codes.shape[0]), dtype=x.dtype, device=x.device)
    ways = {
        f"{form}": functools.partial(_kernels()[3], x, codes, scales, result, index)
        for index, form in enumerate(codes_forms_for(x.shape[0], codes, scales))
    }
    key = ("few rows of codes", tuple(x.shape), len(codes), scales.shape[1], x.dtype, codes.dtype)
    ways[fastest(ways, x.device, *key, replayed=True, is_right=SameResult(result))]()
    return result


def codes_forms_for(rows: int, codes: torch.Tensor, scales: torch.Tensor) -> tuple[Form, ...]:
    """The forms of the kernel that may be the fastest: whole groups fit into their tiles, and tiles into rows."""
    forms = CODES_ONE_ROW if rows == 1 else CODES_SEVERAL_ROWS
    length, groups = codes.shape[1], scales.shape[1]
    fits = [each for each in forms if not length % each.depth and (groups == 1 or not each.depth % (length // groups))]
    return tuple(fits)


def start_codes_product(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, result: torch.Tensor, form: int
) -> tuple[None, KernelLaunch]:
    """Starts the kernel on the current stream; `form` is one of `codes_forms_for`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.decoding_kernels import few_rows_codes_product

    if not all(each.is_contiguous() for each in (x, codes, scales, result)):
        raise RuntimeError("operands of a product of few rows lie in another way")
    rows, depth = x.shape
    columns, tile = len(codes), codes_forms_for(rows, codes, scales)[form]
    grid = (math.ceil(columns / tile.columns), 1, 1)
    arguments = (x, codes, scales, result, columns)
    compiled = few_rows_codes_product[grid](
        *arguments,
        ROWS=rows,
        DEPTH=depth,
        GROUP=depth // scales.shape[1],
        IS_PACKED=codes.dtype is torch.uint8,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return None, KernelLaunch(compiled, grid, arguments)


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
    batch, heads, queries, width = query.shape
    groups, length = keys.shape[1:3]
    parts = math.ceil(length / _part_of(batch * groups, length))
    rows = _rows_of(heads // groups * queries)
    sums = torch.empty((batch * groups, parts, rows, width), dtype=torch.float32, device=query.device)
    maxima = torch.empty((batch * groups, parts, rows), dtype=torch.float32, device=query.device)
    weights = torch.empty((batch * groups, parts, rows), dtype=torch.float32, device=query.device)
    _, to_part, join, _ = _kernels()
    to_part(query, keys, values, mask, sums, maxima, weights, scale)
    join(sums, maxima, weights, result, groups)
    return result


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


def start_parts(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    sums: torch.Tensor,
    maxima: torch.Tensor,
    weights: torch.Tensor,
    scale: float,
) -> tuple[None, KernelLaunch]:
    """Starts the kernel that attends to parts of the keys."""
    from trt_portable.builder.inductor.decoding_kernels import attend_to_part

    batch, heads, queries, width = query.shape
    groups, length = keys.shape[1:3]
    grid = (batch * groups, sums.shape[1], 1)
    arguments = (query, keys, values, mask, sums, maxima, weights)
    compiled = attend_to_part[grid](
        *arguments,
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
        PART=_part_of(batch * groups, length),
        TILE=_TILE,
        num_warps=4,
        num_stages=2,
    )
    return None, KernelLaunch(compiled, grid, arguments)


def start_joining(
    sums: torch.Tensor, maxima: torch.Tensor, weights: torch.Tensor, result: torch.Tensor, groups: int
) -> tuple[None, KernelLaunch]:
    """Starts the kernel that joins the parts."""
    from trt_portable.builder.inductor.decoding_kernels import join_parts

    batch, queries, heads, width = result.shape
    parts, rows = sums.shape[1:3]
    grid = (batch * groups, heads // groups * queries, 1)
    arguments = (sums, maxima, weights, result)
    compiled = join_parts[grid](
        *arguments,
        GROUPS=groups,
        HEADS=heads // groups,
        QUERIES=queries,
        WIDTH=width,
        ROWS=rows,
        PARTS=parts,
        PARTS_TILE=max(2, 1 << (parts - 1).bit_length()),
        num_warps=2,
    )
    return None, KernelLaunch(compiled, grid, arguments)


def compile_ahead(graph: fx.GraphModule, device: torch.device) -> threading.Thread:
    """Starts a thread that compiles the kernels of a graph; whoever runs the graph waits for it.

    Args:
        graph: Calls the operators.
        device: Where it will run.
    """
    products = {
        (*x.shape, node.args[2] is not None, x.dtype)
        for node in calls_of(graph, PRODUCT)
        for x in (node.args[0].meta["val"],)
    }

    def run() -> None:
        for rows, depth, has_bias, dtype in products:
            x, matrix = (torch.zeros(count, depth, dtype=dtype, device=device) for count in (rows, 64))
            bias = torch.zeros(64, dtype=dtype, device=device) if has_bias else None
            result = torch.empty(rows, 64, dtype=dtype, device=device)
            for form in range(len(forms_for(rows))):
                start_product(x, matrix, bias, result, form)

    return start_compiling(run, device)


@functools.cache
def _kernels() -> tuple[Any, Any, Any, Any]:
    """The kernels as operators, so that a recording sees them start: product, attention's two, product of codes."""
    product = "(Tensor x, Tensor matrix, Tensor? bias, Tensor(a!) result, int form) -> ()"
    part = (
        "(Tensor query, Tensor keys, Tensor values, Tensor mask, Tensor(a!) sums, Tensor(b!) maxima, "
        "Tensor(c!) weights, float scale) -> ()"
    )
    codes = "(Tensor x, Tensor codes, Tensor scales, Tensor(a!) result, int form) -> ()"
    join = "(Tensor sums, Tensor maxima, Tensor weights, Tensor(a!) result, int groups) -> ()"

    def quiet(start: Callable[..., Any]) -> Callable[..., None]:
        def run(*given: Any) -> None:
            start(*given)

        return run

    return (
        define_operator("trt_portable::few_rows_product", product, quiet(start_product), writes_to=("result",)),
        define_operator(
            "trt_portable::attend_to_part", part, quiet(start_parts), writes_to=("sums", "maxima", "weights")
        ),
        define_operator("trt_portable::join_parts", join, quiet(start_joining), writes_to=("result",)),
        define_operator(
            "trt_portable::few_rows_codes_product", codes, quiet(start_codes_product), writes_to=("result",)
        ),
    )


@functools.cache
def _operators() -> dict[str, Any]:
    """The operators that compilers see, by name."""
    linear = define_operator(PRODUCT, "(Tensor x, Tensor matrix, Tensor? bias) -> Tensor", multiply)
    teach_compilers(linear, lambda x, matrix, bias: x.new_empty((x.shape[0], matrix.shape[0])))
    schema = "(Tensor query, Tensor keys, Tensor values, Tensor mask, float scale) -> Tensor"
    attention = define_operator(ATTENTION, schema, attend)
    teach_compilers(attention, _attention_result)
    by_codes = define_operator(CODES_PRODUCT, "(Tensor x, Tensor codes, Tensor scales) -> Tensor", multiply_by_codes)
    teach_compilers(by_codes, lambda x, codes, scales: x.new_empty((x.shape[0], codes.shape[0])))
    return {PRODUCT: linear, ATTENTION: attention, CODES_PRODUCT: by_codes}


def teach_decoding_operators() -> OwnOperators:
    """Makes the operators known to PyTorch, to traces without data, and to Inductor.

    Returns:
        Those for compilers, which are composed, and those of the kernels, which are launched.
    """
    product, parts, joining, codes = _kernels()
    operators = _operators()
    return OwnOperators(
        {product: start_product, parts: start_parts, joining: start_joining, codes: start_codes_product},
        {operators[PRODUCT]: multiply, operators[ATTENTION]: attend, operators[CODES_PRODUCT]: multiply_by_codes},
    )
