"""GEMMs into unaligned rows as an operator for compilers, which is the fastest of several ways."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from trt_core.internals import FakeTensor
from trt_portable.builder.autotune.autotuner import SameResult, fastest, is_trying
from trt_portable.builder.inductor.own_operators import (
    KernelCall,
    OwnOperators,
    define_kernel,
    define_operator,
    teach_compilers,
)
from trt_portable.fusion.cuda_products import period_of, write_interleaved, write_joined

OPERATOR: Final = "trt_portable::unaligned_linear"
KERNEL: Final = "trt_portable::unaligned_product"
_JOINED, _INTERLEAVED, _TILES = "joined", "interleaved", "tiles"
_LEAST_INTERLEAVED_ROWS: Final = 512

Way = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None", torch.Tensor], object]
"""Writes ``x @ matrix.T + bias`` to the last argument."""


@dataclass(frozen=True)
class Form:
    """How the kernel cuts a product into tiles.

    Attributes:
        rows: Of a tile of the result.
        columns: Of a tile of the result.
        depth: Numbers that are added up at a time.
        group: Tiles one below the other that are computed together.
        warps: Warps for a tile.
        stages: Tiles of operands that are underway at a time.
        is_aligned: Whether the rows of a tile are those that begin at the same place within 16 bytes.
    """

    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int
    is_aligned: bool = False


ALIGNED_WIDE: Final = Form(128, 256, 64, 64, 8, 3, is_aligned=True)
"""For many rows."""
WIDE: Final = Form(128, 256, 64, 64, 8, 3)
"""For fewer."""
NARROW: Final = Form(64, 128, 64, 64, 4, 4)
"""For results that do not fill a GPU otherwise."""
FORMS: Final = (ALIGNED_WIDE, WIDE, NARROW)
_MANY_ROWS: Final = 2048  # fill tiles of every eighth row
_MANY_TILES: Final = 256  # fill a large GPU


def multiply(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ matrix.T + bias`` in the way that is the fastest for these extents, measured the first time.

    Args:
        x: (M, K) in half precision; K a multiple of 8.
        matrix: (N, K); N no multiple of 8.
        bias: (N,), or None.
    """
    result = torch.empty((x.shape[0], matrix.shape[0]), dtype=x.dtype, device=x.device)
    if isinstance(x, FakeTensor) and not is_trying():  # a recording for sizes that vary, of which none can be measured
        write_joined(x, matrix, bias, result)
        return result
    ways = _ways(x, matrix, bias)
    name = next(iter(ways))
    if x.is_cuda:
        starts = {each: functools.partial(way, x, matrix, bias, result) for each, way in ways.items()}
        form = ("unaligned product", tuple(x.shape), len(matrix), x.dtype, bias is not None)
        name = fastest(starts, x.device, *form, replayed=True, is_right=SameResult(result))
    ways[name](x, matrix, bias, result)
    return result


def _ways(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> dict[str, Way]:
    """What may be the fastest, by name; the surest first. Choices are remembered for the names, as for the extents."""
    ways: dict[str, Way] = {_JOINED: write_joined}
    if bias is None and len(x) >= _LEAST_INTERLEAVED_ROWS:
        ways[_INTERLEAVED] = write_interleaved
    if x.is_cuda and x.is_contiguous() and matrix.is_contiguous():
        ways[_TILES] = _write_by_tiles
    return ways


def _write_by_tiles(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    _kernel_operator()(x, matrix, bias, result, FORMS.index(form_for(*result.shape)))


def form_for(rows: int, columns: int) -> Form:
    """The form of the kernel that may be the fastest.

    Args:
        rows: Of the result.
        columns: Of the result.
    """
    if rows >= _MANY_ROWS:
        return ALIGNED_WIDE
    is_many = math.ceil(rows / WIDE.rows) * math.ceil(columns / WIDE.columns) >= _MANY_TILES
    return WIDE if is_many else NARROW


def product_call(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor, form: int
) -> KernelCall:
    """The kernel that computes a product by tiles.

    Args:
        x: (M, K) in half precision, dense; K a multiple of 8.
        matrix: (N, K), dense.
        bias: (N,), or None.
        result: (M, N), dense, at a multiple of 16 bytes.
        form: Which of `FORMS`.

    Raises:
        RuntimeError: The operands lie in another way.
    """
    from trt_portable.builder.inductor.triton_kernels import unaligned_product

    if not (x.is_contiguous() and matrix.is_contiguous() and result.is_contiguous()) or x.shape[1] % 8:
        raise RuntimeError("operands of an unaligned product lie in another way")
    (rows, depth), columns, tile = x.shape, len(matrix), FORMS[form]
    period = period_of(columns) if tile.is_aligned else 1
    down = period * math.ceil(math.ceil(rows / period) / tile.rows)
    across = math.ceil((columns + 7) / tile.columns)
    grid = (down * across, 1, 1)
    arguments = (x, matrix, x if bias is None else bias, result, rows)
    return KernelCall.of(
        unaligned_product,
        grid,
        arguments,
        COLUMNS=columns,
        DEPTH=depth,
        HAS_BIAS=bias is not None,
        PERIOD=period,
        TILE_ROWS=tile.rows,
        TILE_COLUMNS=tile.columns,
        TILE_DEPTH=tile.depth,
        GROUP=tile.group,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@functools.cache
def _kernel_operator() -> Any:
    """The kernel as an operator."""
    return define_kernel(KERNEL, product_call)


@functools.cache
def teach_unaligned_products() -> OwnOperators:
    """Makes the operator known to PyTorch, to traces without data, and to Inductor; once per process.

    Returns:
        The operator for compilers, which is composed, and that of the kernel, which is launched.
    """
    operator = define_operator(OPERATOR, multiply)
    teach_compilers(operator, lambda x, matrix, bias: x.new_empty((x.shape[0], matrix.shape[0])))
    return OwnOperators({_kernel_operator(): product_call}, {operator: multiply})
