"""A Triton kernel for linear maps in half precision into dense rows that are not aligned.

A tile may have every eighth row, which all begin at the same place within 16 bytes, and columns that begin at a
multiple of 16 bytes. Then it stores eight numbers at once, but where it crosses an end of the rows. Otherwise it has
rows that follow each other, and stores number by number, neighbours by neighbouring threads.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
from triton import language as tl


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def unaligned_product(  # type: ignore[no-untyped-def]
    x,
    matrix,
    bias,
    y,
    rows,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PERIOD: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Computes a tile of ``x @ matrix.T + bias``; GROUP tiles, one below the other, read the same columns.

    A tile has every PERIODth row. If all of these are aligned alike, its columns begin where they are aligned.
    """
    SHIFT: tl.constexpr = COLUMNS % 8 if (PERIOD * COLUMNS) % 8 == 0 else 0
    tiles_down = PERIOD * tl.cdiv(tl.cdiv(rows, PERIOD), TILE_ROWS)
    tiles_across: tl.constexpr = (COLUMNS + 7 + TILE_COLUMNS - 1) // TILE_COLUMNS
    tile = tl.program_id(0)
    group = tile // (GROUP * tiles_across)
    height = tl.minimum(tiles_down - group * GROUP, GROUP)
    within = tile - group * GROUP * tiles_across
    down = group * GROUP + within % height
    across = within // height
    first = down % PERIOD
    row = ((down // PERIOD) * TILE_ROWS + tl.arange(0, TILE_ROWS)) * PERIOD + first
    begin = across * TILE_COLUMNS - (first * SHIFT) % 8  # may lie left of the row
    column = begin + tl.arange(0, TILE_COLUMNS)
    depth = tl.arange(0, TILE_DEPTH)
    read_column = tl.minimum(tl.maximum(column, 0), COLUMNS - 1)
    left = x + (tl.minimum(row, rows - 1).to(tl.int64) * DEPTH)[:, None] + depth[None, :]
    right = matrix + (read_column.to(tl.int64) * DEPTH)[None, :] + depth[:, None]
    total = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for at in range(0, DEPTH, TILE_DEPTH):
        if DEPTH % TILE_DEPTH == 0:
            total = tl.dot(tl.load(left), tl.load(right), total)
        else:
            is_read = depth < DEPTH - at
            some = tl.load(left, mask=is_read[None, :], other=0.0)
            total = tl.dot(some, tl.load(right, mask=is_read[:, None], other=0.0), total)
        left += TILE_DEPTH
        right += TILE_DEPTH
    if HAS_BIAS:
        total += tl.load(bias + read_column).to(tl.float32)[None, :]
    result = total.to(y.dtype.element_ty)
    start = row.to(tl.int64) * COLUMNS + begin
    if SHIFT:
        start = tl.multiple_of(start, 8)
    place = start[:, None] + tl.arange(0, TILE_COLUMNS)[None, :]
    is_row = (row < rows)[:, None]
    if (begin >= 0) & (begin + TILE_COLUMNS <= COLUMNS):
        tl.store(y + place, result, mask=is_row)
    else:
        tl.store(y + place, result, mask=is_row & (column >= 0)[None, :] & (column < COLUMNS)[None, :])
