"""Kernels in Triton, which is imported with this module: products of few rows or at odd addresses, convolutions.

IS_EARLY kernels start while the one before them ends (programmatic dependent launch), and let the next one start at
once. Until they have waited they read nothing but what no kernel beside them writes: weights, and caches that they own.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
from triton import language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait  # type: ignore[import-untyped]


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


@triton.jit  # type: ignore[untyped-decorator]
def column_of(number, columns, IS_GATED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The column of a matrix that a block takes: with a gate, those of both halves in turns."""
    return number % 2 * (columns // 2) + number // 2 if IS_GATED else number


@triton.jit(do_not_specialize=["columns"])  # type: ignore[untyped-decorator]
def one_row_product(  # type: ignore[no-untyped-def]
    x,
    matrix,
    bias,
    gain,
    epsilon,
    residual,
    y,
    columns,
    DEPTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_WEIGHT: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Computes columns of ``x @ matrix.T + bias + residual`` for one row.

    One that is normalized is divided by the root of its mean square plus epsilon, and multiplied by the gain. With a
    gate, result ``i`` of the first half of the columns is ``silu(i) * (i + half)``.

    All that is read beside tiles is read at once: each wait for memory is a fifth of the time of a small matrix.
    """
    number = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    column = column_of(number, columns, IS_GATED)
    is_column = number < columns
    read = tl.minimum(column, columns - 1)
    depth = tl.arange(0, TILE_DEPTH)
    right = matrix + (read.to(tl.int64) * DEPTH)[:, None] + depth[None, :]
    is_read = (depth < DEPTH)[None, :]
    if IS_EARLY:
        gdc_launch_dependents()
        if not IS_WEIGHT:
            gdc_wait()
    part = tl.load(right, mask=is_read, other=0.0, eviction_policy="evict_first")
    if IS_EARLY and IS_WEIGHT:
        gdc_wait()
    if IS_NORMALIZED:
        least = tl.load(epsilon).to(tl.float32)
    if HAS_BIAS:
        more = tl.load(bias + read).to(tl.float32)
    if HAS_RESIDUAL:
        other = tl.load(residual + read).to(tl.float32)
    sums = tl.zeros([TILE_COLUMNS, TILE_DEPTH], tl.float32)
    squares = tl.zeros([TILE_DEPTH], tl.float32)
    for at in tl.static_range(0, DEPTH, TILE_DEPTH):
        left = tl.load(x + at + depth, mask=depth < DEPTH - at, other=0.0).to(tl.float32)
        if IS_NORMALIZED:
            squares += left * left
            left *= tl.load(gain + at + depth, mask=depth < DEPTH - at, other=0.0).to(tl.float32)
        following = part
        if at + TILE_DEPTH < DEPTH:
            is_read = (depth < DEPTH - at - TILE_DEPTH)[None, :]
            following = tl.load(right + at + TILE_DEPTH, mask=is_read, other=0.0, eviction_policy="evict_first")
        sums += part.to(tl.float32) * left[None, :]
        part = following
    total = tl.sum(sums, 1)
    if IS_NORMALIZED:
        total *= 1.0 / tl.sqrt(tl.sum(squares, 0) / DEPTH + least)
    if HAS_BIAS:
        total += more
    if IS_GATED:
        gate, total = tl.split(tl.reshape(total, [TILE_COLUMNS // 2, 2]))
        total = gate / (1.0 + tl.exp(-gate)) * total
        column = tl.program_id(0) * (TILE_COLUMNS // 2) + tl.arange(0, TILE_COLUMNS // 2)
        is_column = column < columns // 2
    if HAS_RESIDUAL:
        total += other
    tl.store(y + column, total.to(y.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["columns"])  # type: ignore[untyped-decorator]
def few_rows_product(  # type: ignore[no-untyped-def]
    x,
    matrix,
    bias,
    gain,
    epsilon,
    residual,
    y,
    columns,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """The same for 2 to 16 rows, which are read from a cache each time."""
    number = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    column = column_of(number, columns, IS_GATED)
    read = tl.minimum(column, columns - 1)
    depth = tl.arange(0, TILE_DEPTH)
    right = matrix + (read.to(tl.int64) * DEPTH)[:, None] + depth[None, :]
    row = tl.arange(0, 16)
    left = x + (tl.minimum(row, ROWS - 1) * DEPTH)[None, :] + depth[:, None]
    totals = tl.zeros([TILE_COLUMNS, 16], tl.float32)
    row_squares = tl.zeros([16], tl.float32)
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    for at in range(0, DEPTH, TILE_DEPTH):
        if DEPTH % TILE_DEPTH == 0:
            part = tl.load(right + at, eviction_policy="evict_first")
            numbers = tl.load(left + at)
        else:
            is_read = depth < DEPTH - at
            part = tl.load(right + at, mask=is_read[None, :], other=0.0, eviction_policy="evict_first")
            numbers = tl.load(left + at, mask=is_read[:, None], other=0.0)
        if IS_NORMALIZED:
            wide = numbers.to(tl.float32)
            row_squares += tl.sum(wide * wide, 0)
            by = tl.load(gain + at + depth, mask=depth < DEPTH - at, other=0.0).to(tl.float32)
            numbers = (wide * by[:, None]).to(x.dtype.element_ty)
        totals = tl.dot(part, numbers, totals)
    if IS_NORMALIZED:
        totals *= (1.0 / tl.sqrt(row_squares / DEPTH + tl.load(epsilon).to(tl.float32)))[None, :]
    if HAS_BIAS:
        totals += tl.load(bias + read).to(tl.float32)[:, None]
    if IS_GATED:
        gate, totals = tl.split(tl.permute(tl.reshape(totals, [TILE_COLUMNS // 2, 2, 16]), (0, 2, 1)))
        totals = gate / (1.0 + tl.exp(-gate)) * totals
        columns = columns // 2
        column = tl.program_id(0) * (TILE_COLUMNS // 2) + tl.arange(0, TILE_COLUMNS // 2)
    place = row.to(tl.int64)[None, :] * columns + column[:, None]
    is_there = (row < ROWS)[None, :] & (column < columns)[:, None]
    if HAS_RESIDUAL:
        totals += tl.load(residual + place, mask=is_there, other=0.0).to(tl.float32)
    tl.store(y + place, totals.to(y.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def normalize_rows(  # type: ignore[no-untyped-def]
    x, gain, epsilon, y, DEPTH: tl.constexpr, TILE: tl.constexpr, IS_EARLY: tl.constexpr
):
    """Divides each row by the root of its mean square plus epsilon, and multiplies it by the gain."""
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * DEPTH
    depth = tl.arange(0, TILE)
    numbers = tl.load(x + at + depth, mask=depth < DEPTH, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / DEPTH + tl.load(epsilon).to(tl.float32))
    by = tl.load(gain + depth, mask=depth < DEPTH, other=0.0).to(tl.float32)
    tl.store(y + at + depth, (numbers * scale * by).to(y.dtype.element_ty), mask=depth < DEPTH)


@triton.jit  # type: ignore[untyped-decorator]
def take_apart(words, y, SLOTS: tl.constexpr, ASSEMBLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """SLOTS tensors of what the codes in each two neighbouring words stand for, in the type that y points to.

    So a product reads words alone into shared memory, and takes them apart in the registers that tensor cores read.
    """
    if SLOTS == 8:
        made = tl.inline_asm_elementwise(
            ASSEMBLY,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r",
            [words],
            (y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty)  # noqa: RUF005 - no stars here
            + (y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty),
            True,
            2,
        )
    else:
        made = tl.inline_asm_elementwise(
            ASSEMBLY,
            "=r,=r,=r,=r,r,r",
            [words],
            (y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty, y.dtype.element_ty),
            True,
            2,
        )
    return made


@triton.jit  # type: ignore[untyped-decorator]
def few_rows_codes_product(  # type: ignore[no-untyped-def]
    x,
    codes,
    bias,
    gain,
    epsilon,
    residual,
    scales,
    offsets,
    y,
    columns,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    IS_GATED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Computes columns of ``x @ (codes * scales - offsets).T + bias + residual`` for up to 16 rows.

    Rows that are normalized are divided by the root of their mean square plus epsilon, and multiplied by the gain.
    With a gate, result ``i`` of the first half of the columns is ``silu(i) * (i + half)``.

    A unit is WORDS of SLOTS codes: slot j of its words has the numbers from WORDS * j on. Units of 16 columns lie
    together. Each warp has one of PARTS units at a time. Scales and offsets are (groups, columns), those of a group
    for GROUP numbers each.
    """
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    UNIT: tl.constexpr = WORDS * SLOTS
    UNITS: tl.constexpr = DEPTH // UNIT
    TILE: tl.constexpr = 16 * WORDS
    IS_SPLIT: tl.constexpr = GROUP < DEPTH
    RUN: tl.constexpr = SLOTS if GROUP >= UNIT else GROUP // WORDS  # slots of a group
    kind: tl.constexpr = x.dtype.element_ty
    number = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    is_column = number < columns
    column = column_of(number, columns, IS_GATED)
    part = tl.arange(0, PARTS)
    word = tl.arange(0, WORDS)
    row = tl.arange(0, TILE_ROWS)
    lies = tl.minimum(column, columns - 1).to(tl.int64)
    first = ((lies // 16) * UNITS * TILE + (lies % 16) * WORDS)[None, :, None] + (part * TILE)[:, None, None]
    right = codes.to(tl.pointer_type(tl.int32), bitcast=True) + first + word[None, None, :]
    place_of_word = (part * UNIT)[:, None] + word[None, :]
    ones = tl.full([PARTS, TILE_COLUMNS, WORDS], 1.0, kind)
    totals = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32)
    plains = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32)
    for at in tl.range(0, UNITS, PARTS, num_stages=STAGES):
        is_unit = at + part < UNITS
        words = tl.load(right + at * TILE, mask=is_unit[:, None, None], other=0, eviction_policy="evict_first")
        taken = take_apart(words, x, SLOTS, ASSEMBLY)
        some = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32) if IS_SPLIT else totals
        plain = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32) if IS_SPLIT else plains
        for slot in tl.static_range(SLOTS):
            here = place_of_word + (at * UNIT + slot * WORDS)
            is_read = is_unit[:, None, None] & (row < ROWS)[None, None, :]
            given = tl.load(x + here[:, :, None] + (row * DEPTH)[None, None, :], mask=is_read, other=0.0)
            if IS_NORMALIZED:
                given *= tl.load(gain + here, mask=is_unit[:, None], other=0.0)[:, :, None]
            some = tl.dot(taken[slot], given, some)
            if HAS_OFFSETS:
                plain = tl.dot(ones, given, plain)
            if IS_SPLIT and slot % RUN == RUN - 1:
                group = ((at + part) * UNIT + slot * WORDS) // GROUP
                at_group = group.to(tl.int64)[:, None] * columns + column[None, :]
                is_scale = is_unit[:, None] & (column < columns)[None, :]
                totals += some * tl.load(scales + at_group, mask=is_scale, other=0.0).to(tl.float32)[:, :, None]
                some = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32)
                if HAS_OFFSETS:
                    offset = tl.load(offsets + at_group, mask=is_scale, other=0.0).to(tl.float32)
                    totals -= plain * offset[:, :, None]
                    plain = tl.zeros([PARTS, TILE_COLUMNS, TILE_ROWS], tl.float32)
        if not IS_SPLIT:
            totals = some
            plains = plain
    total = tl.sum(totals, 0)
    if not IS_SPLIT:
        total *= tl.load(scales + lies).to(tl.float32)[:, None]
        if HAS_OFFSETS:
            total -= tl.sum(plains, 0) * tl.load(offsets + lies).to(tl.float32)[:, None]
    if IS_NORMALIZED:
        depth = tl.arange(0, 512)
        squares = tl.zeros([TILE_ROWS, 512], tl.float32)
        for at in tl.static_range(0, DEPTH, 512):  # all of it is read at once
            is_there = (row < ROWS)[:, None] & (at + depth < DEPTH)[None, :]
            wide = tl.load(x + (row * DEPTH)[:, None] + (at + depth)[None, :], mask=is_there, other=0.0).to(tl.float32)
            squares += wide * wide
        total *= (1.0 / tl.sqrt(tl.sum(squares, 1) / DEPTH + tl.load(epsilon).to(tl.float32)))[None, :]
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    if IS_GATED:
        gate, total = tl.split(tl.permute(tl.reshape(total, [TILE_COLUMNS // 2, 2, TILE_ROWS]), (0, 2, 1)))
        total = gate / (1.0 + tl.exp(-gate)) * total
        columns = columns // 2
        column = tl.program_id(0) * (TILE_COLUMNS // 2) + tl.arange(0, TILE_COLUMNS // 2)
        is_column = column < columns
    target = row.to(tl.int64)[None, :] * columns + column[:, None]
    is_there = (row < ROWS)[None, :] & is_column[:, None]
    if HAS_RESIDUAL:
        total += tl.load(residual + target, mask=is_there, other=0.0).to(tl.float32)
    tl.store(y + target, total.to(y.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def floats_or_zero(place, is_there, IS_GIVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """What lies at a place that may not be given."""
    if IS_GIVEN:
        return tl.load(place, mask=is_there, other=0.0).to(tl.float32)
    else:
        return 0.0


@triton.jit  # type: ignore[untyped-decorator]
def chosen_matrix(places, MATRICES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The matrix that `places` has for a row of the grid, or the first; and whether there is one of that number."""
    place = tl.load(places + tl.program_id(1)).to(tl.int64)
    is_chosen = (place >= 0) & (place < MATRICES)
    return tl.where(is_chosen, place, 0), is_chosen


@triton.jit
def multiply_fragments(low, high, x, totals):  # type: ignore[no-untyped-def]
    """Adds ``rows @ x`` to totals, on tensor cores, for registers that hold what these read.

    All are (32 * units, 4), four numbers for each thread of a warp: a row's sixteen lie in four threads that follow one
    another, so that a unit has eight rows. In this order Triton gives threads their numbers.

    Args:
        low, high: Half precision, of eight rows each.
        x: Likewise, of eight columns.
        totals: In float32: thread ``4 * i + j`` of a unit has products of row i of `low` with columns ``2 * j`` and
            ``2 * j + 1``, and those of row i of `high`.
    """
    kind: tl.constexpr = "bf16" if x.dtype == tl.bfloat16 else "f16"
    return tl.inline_asm_elementwise(
        "mma.sync.aligned.m16n8k16.row.col.f32." + kind + "." + kind + ".f32 "
        "{$0, $1, $2, $3}, {$4, $6, $5, $7}, {$8, $9}, {$10, $11, $12, $13};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        [low, high, x, totals],
        tl.float32,
        True,
        4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def sums_of_fragments(totals, UNITS: tl.constexpr, HALVES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over units of what `multiply_fragments` gives, for the eight rows of `low` and for those of `high`.

    All columns are the same one, or with two HALVES even ones belong to `low` and odd ones to `high`, which are halves
    of the same rows: then both sums are that of both.
    """
    if HALVES == 2:
        place = tl.arange(0, 4)[None, :]
        totals = tl.where((place == 0) | (place == 3), totals, 0.0)
    found = tl.sum(tl.sum(tl.reshape(totals, [UNITS, 8, 4, 4]), 2), 0)  # four threads have each, twice but for halves
    if HALVES == 2:
        both = tl.sum(found, 1) * 0.25
        return both, both
    else:
        return tl.split(tl.sum(tl.reshape(found, [8, 2, 2]), 2) * 0.125)


@triton.jit
def multiply_pairs(one, other):  # type: ignore[no-untyped-def]
    """Products of numbers in half precision, two in an instruction."""
    if one.dtype == tl.bfloat16:
        product: tl.constexpr = "{ .reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 $0, $1, $2, z; }"  # z: -0
        return tl.inline_asm_elementwise(product, "=r,r,r", [one, other], one.dtype, True, 2)
    else:
        return tl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [one, other], one.dtype, True, 2)


@triton.jit  # type: ignore[untyped-decorator]
def words_of_units(  # type: ignore[no-untyped-def]
    low, high, unit, LOW_UNITS: tl.constexpr, HIGH_UNITS: tl.constexpr, TILE: tl.constexpr
):
    """Twice words of rows of codes, whose units lie TILE words apart; zeros behind their ends."""
    place = (unit * TILE)[:, None]
    low_words = tl.load(low + place, mask=(unit < LOW_UNITS)[:, None], other=0, eviction_policy="evict_first")
    high_words = tl.load(high + place, mask=(unit < HIGH_UNITS)[:, None], other=0, eviction_policy="evict_first")
    return (low_words, high_words)


@triton.jit
def of_either(table, low, high, is_low, is_high):  # type: ignore[no-untyped-def]
    """What a table has for `low`, for two numbers of a thread, and for `high`, for the next two."""
    low_found, high_found = floats_or_zero(table + low, is_low, True), floats_or_zero(table + high, is_high, True)
    return tl.where(tl.arange(0, 4)[None, :] < 2, low_found, high_found)


@triton.jit  # type: ignore[untyped-decorator]
def inverse_root_of_row(x, epsilon, DEPTH: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One over the root of the mean square of a row, and epsilon; all of it is read at once."""
    depth = tl.arange(0, TILE)
    least = tl.load(epsilon).to(tl.float32)
    squares = tl.zeros([TILE], tl.float32)
    for at in tl.static_range(0, DEPTH, TILE):
        wide = tl.load(x + at + depth, mask=at + depth < DEPTH, other=0.0).to(tl.float32)
        squares += wide * wide
    return 1.0 / tl.sqrt(tl.sum(squares, 0) / DEPTH + least)


@triton.jit  # type: ignore[untyped-decorator]
def one_row_codes_product(  # type: ignore[no-untyped-def]
    x,
    codes,
    bias,
    gain,
    epsilon,
    residual,
    scales,
    offsets,
    places,
    y,
    columns,
    all_columns,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    MATRICES: tl.constexpr,
    IS_GATED: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    THREADS: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """As `few_rows_codes_product` for one row: codes go from registers to tensor cores, through no shared memory.

    A block has sixteen columns: eight and the next eight, or those of the gate and what it opens for; or eight, and
    multiplies both halves of them at once. Four threads have a column's unit: four words each, which are taken apart
    into what one of the four has in tensor cores. In which order numbers are multiplied does not matter, as long as the
    row is read in the same one. STAGES tiles of codes, which are weights, are read before the kernel in front has
    ended. With MATRICES, which lie one below the other, each of some rows is multiplied by the one that `places` has
    for it.

    Squares are added up before anything is multiplied: that reads all of a row at once, where each tile on its own
    would wait for its numbers to come from far. TILES are written out one after the other, so that no tile's loads wait
    for another one.
    """
    tl.static_assert(WORDS == 16 and (TILE_COLUMNS == 16 or (TILE_COLUMNS == 8 and not IS_GATED)))
    if IS_EARLY:
        gdc_launch_dependents()
        if MATRICES > 0:
            gdc_wait()
    UNIT: tl.constexpr = WORDS * SLOTS
    ALL_UNITS: tl.constexpr = DEPTH // UNIT
    HALVES: tl.constexpr = 16 // TILE_COLUMNS
    UNITS: tl.constexpr = (ALL_UNITS + HALVES - 1) // HALVES
    SKIPPED: tl.constexpr = UNITS * (HALVES - 1)
    HIGH_UNITS: tl.constexpr = ALL_UNITS - SKIPPED
    TILE: tl.constexpr = 16 * WORDS
    IS_SPLIT: tl.constexpr = GROUP < DEPTH
    RUN: tl.constexpr = SLOTS if GROUP >= UNIT else GROUP // WORDS
    MOST_TILES: tl.constexpr = 64 // SLOTS if RUN == SLOTS else 4  # where scales are many, kernels take long to compile
    TILES: tl.constexpr = min(MOST_TILES, (UNITS + TILE_UNITS - 1) // TILE_UNITS)
    SHAPE: tl.constexpr = (32 * TILE_UNITS, 4)
    results = columns // 2 if IS_GATED else columns
    begin = 0
    if MATRICES > 0:
        matrix, is_chosen = chosen_matrix(places, MATRICES)
        begin = matrix.to(tl.int32) * columns
        x += tl.program_id(1) * DEPTH
        y += tl.program_id(1) * columns
    first = tl.program_id(0) * (8 if IS_GATED else TILE_COLUMNS)
    apart = results if IS_GATED else TILE_COLUMNS - 8
    thread = tl.arange(0, 32 * TILE_UNITS)
    unit = thread // 32
    low_lies = tl.minimum(begin + first + thread // 4 % 8, all_columns - 1).to(tl.int64)
    high_lies = tl.minimum(begin + first + thread // 4 % 8 + apart, all_columns - 1).to(tl.int64)
    four = tl.arange(0, 4)[None, :]
    word = (thread % 4 * 4)[:, None] + four
    right = codes.to(tl.pointer_type(tl.int32), bitcast=True)
    low_right = right + (low_lies // 16 * (ALL_UNITS * TILE) + low_lies % 16 * WORDS)[:, None] + word
    high_right = (
        right + (high_lies // 16 * (ALL_UNITS * TILE) + high_lies % 16 * WORDS + SKIPPED * TILE)[:, None] + word
    )
    skipped = (thread // 4 % 2 * SKIPPED)[:, None]  # units of the row in front of those of a thread's column
    ones = tl.full(SHAPE, 1.0, x.dtype.element_ty)
    ahead = ()
    for tile in tl.static_range(STAGES):
        ahead = ahead + words_of_units(low_right, high_right, tile * TILE_UNITS + unit, UNITS, HIGH_UNITS, TILE)
    low = first + tl.arange(0, 8)
    high = low + apart
    is_low = low < results
    is_high = high < columns
    low_scale = floats_or_zero(scales + begin + low, is_low, not IS_SPLIT)
    high_scale = floats_or_zero(scales + begin + high, is_high, not IS_SPLIT)
    if IS_EARLY and MATRICES == 0:
        gdc_wait()
    low_more = floats_or_zero(bias + low, is_low, HAS_BIAS)
    high_more = floats_or_zero(bias + high, is_high, HAS_BIAS)
    low_other = floats_or_zero(residual + low, is_low, HAS_RESIDUAL)
    high_other = floats_or_zero(residual + high, is_high, HAS_RESIDUAL)
    inverse = inverse_root_of_row(x, epsilon, DEPTH, 8 * THREADS) if IS_NORMALIZED else 1.0
    totals = tl.zeros(SHAPE, tl.float32)
    plains = tl.zeros(SHAPE, tl.float32)
    for start in range(0, UNITS, TILES * TILE_UNITS):
        for tile in tl.static_range(TILES):
            at = start + tile * TILE_UNITS
            here = (at + unit)[:, None]
            is_unit = (here < UNITS) & (here + skipped < ALL_UNITS)
            taken = (take_apart(ahead[0], x, SLOTS, ASSEMBLY), take_apart(ahead[1], x, SLOTS, ASSEMBLY))  # type: ignore[misc]
            read = ahead[:2]  # of a row that is written out as a whole, nothing lies behind its end
            if TILES * TILE_UNITS < UNITS or (tile + STAGES) * TILE_UNITS < UNITS:
                after = at + STAGES * TILE_UNITS + unit
                read = words_of_units(low_right, high_right, after, UNITS, HIGH_UNITS, TILE)
            ahead = ahead[2:] + read
            some = tl.zeros(SHAPE, tl.float32) if IS_SPLIT else totals
            plain = tl.zeros(SHAPE, tl.float32) if IS_SPLIT else plains
            for slot in tl.static_range(SLOTS):
                place = (here + skipped) * UNIT + slot * WORDS + word
                given = tl.load(x + place, mask=is_unit, other=0.0)
                if IS_NORMALIZED:
                    given = multiply_pairs(given, tl.load(gain + place, mask=is_unit, other=0.0))
                some = multiply_fragments(taken[0][slot], taken[1][slot], given, some)
                if HAS_OFFSETS:
                    plain = multiply_fragments(ones, ones, given, plain)
                if IS_SPLIT and slot % RUN == RUN - 1:
                    low_group, high_group = here * UNIT + slot * WORDS, (here + SKIPPED) * UNIT + slot * WORDS
                    low_at = (low_group // GROUP).to(tl.int64) * all_columns + low_lies[:, None]
                    high_at = (high_group // GROUP).to(tl.int64) * all_columns + high_lies[:, None]
                    is_high_unit = here < HIGH_UNITS
                    totals += some * of_either(scales, low_at, high_at, here < UNITS, is_high_unit)
                    some = tl.zeros(SHAPE, tl.float32)
                    if HAS_OFFSETS:
                        totals -= plain * of_either(offsets, low_at, high_at, here < UNITS, is_high_unit)
                        plain = tl.zeros(SHAPE, tl.float32)
            if not IS_SPLIT:
                totals = some
                plains = plain
    low_total, high_total = sums_of_fragments(totals, TILE_UNITS, HALVES)
    if not IS_SPLIT:
        low_total *= low_scale
        high_total *= high_scale
        if HAS_OFFSETS:
            low_plain, high_plain = sums_of_fragments(plains, TILE_UNITS, HALVES)
            low_total -= low_plain * floats_or_zero(offsets + begin + low, is_low, True)
            high_total -= high_plain * floats_or_zero(offsets + begin + high, is_high, True)
    low_total = low_total * inverse + low_more
    high_total = high_total * inverse + high_more
    if MATRICES > 0:
        low_total = tl.where(is_chosen, low_total, 0.0)
        high_total = tl.where(is_chosen, high_total, 0.0)
    if IS_GATED:
        low_total = low_total / (1.0 + tl.exp(-low_total)) * high_total
    elif HALVES == 1:
        tl.store(y + high, (high_total + high_other).to(y.dtype.element_ty), mask=is_high)
    tl.store(y + low, (low_total + low_other).to(y.dtype.element_ty), mask=is_low)


@triton.jit  # type: ignore[untyped-decorator]
def in_line(  # type: ignore[no-untyped-def]
    taken, FIRST: tl.constexpr, COUNT: tl.constexpr, UNITS: tl.constexpr, COLUMNS: tl.constexpr, WORDS: tl.constexpr
):
    """COUNT of the slots that words were taken apart into, one behind the other: (UNITS, COLUMNS, COUNT * WORDS)."""
    if COUNT == 8:
        even = tl.join(tl.join(taken[0], taken[4]), tl.join(taken[2], taken[6]))
        found = tl.join(even, tl.join(tl.join(taken[1], taken[5]), tl.join(taken[3], taken[7])))
    elif COUNT == 4:
        even = tl.join(taken[FIRST], taken[FIRST + 2])
        found = tl.join(even, tl.join(taken[FIRST + 1], taken[FIRST + 3]))
    elif COUNT == 2:
        found = tl.join(taken[FIRST], taken[FIRST + 1])
    else:
        found = taken[FIRST]
    lines = tl.permute(tl.reshape(found, [UNITS, COLUMNS, WORDS, COUNT]), (0, 1, 3, 2))
    return tl.reshape(lines, [UNITS, COLUMNS, COUNT * WORDS])


@triton.jit(do_not_specialize=["rows", "columns"])  # type: ignore[untyped-decorator]
def many_rows_codes_product(  # type: ignore[no-untyped-def]
    x,
    codes,
    bias,
    scales,
    offsets,
    y,
    rows,
    columns,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    IS_ASYNCHRONOUS: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Computes a tile of ``x @ (codes * scales - offsets).T + bias``, of codes as of `few_rows_codes_product`.

    Tiles that are computed at a time read the same codes, which are decoded in the registers that tensor cores read.
    """
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    UNIT: tl.constexpr = WORDS * SLOTS
    UNITS: tl.constexpr = DEPTH // UNIT
    PARTS: tl.constexpr = UNIT // GROUP if GROUP < UNIT else 1
    kind: tl.constexpr = x.dtype.element_ty
    down = tl.cdiv(rows, TILE_ROWS)
    column = (tl.program_id(0) // down) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    row = (tl.program_id(0) % down) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    read = tl.minimum(column, columns - 1)
    lies = ((read // 16).to(tl.int64) * (UNITS * 16) + read % 16) * WORDS
    right = codes.to(tl.pointer_type(tl.int32), bitcast=True) + lies[:, None] + tl.arange(0, WORDS)[None, :]
    left = x + (tl.minimum(row, rows - 1).to(tl.int64) * DEPTH)[None, :] + tl.arange(0, UNIT)[:, None]
    total = tl.zeros([TILE_COLUMNS, TILE_ROWS], tl.float32)
    for unit in tl.range(0, UNITS, num_stages=STAGES):
        taken = take_apart(tl.load(right + unit * (16 * WORDS)), x, SLOTS, ASSEMBLY)
        made = in_line(taken, 0, SLOTS, 1, TILE_COLUMNS, WORDS)
        if GROUP < DEPTH or HAS_OFFSETS:
            part = tl.arange(0, PARTS)
            at = (unit * UNIT // GROUP + part).to(tl.int64)[None, :] * columns + read[:, None]
            made = tl.reshape(made, [TILE_COLUMNS, PARTS, UNIT // PARTS])
            if HAS_OFFSETS or scales.dtype.element_ty != kind:
                made = made.to(tl.float32) * tl.load(scales + at).to(tl.float32)[:, :, None]
                if HAS_OFFSETS:
                    made -= tl.load(offsets + at).to(tl.float32)[:, :, None]
                made = made.to(kind)
            else:
                made *= tl.load(scales + at)[:, :, None]
        given = tl.load(left + unit * UNIT)
        total = tl.dot(tl.reshape(made, [TILE_COLUMNS, UNIT]), given, total)
        if (
            IS_ASYNCHRONOUS
        ):  # Hopper's tensor cores read registers while code goes on, which is not waited for otherwise
            tl.inline_asm_elementwise(
                "wgmma.wait_group.sync.aligned 0; mov.b32 $0, $1;", "=r,r", [unit], tl.int32, False, 1
            )
    if GROUP == DEPTH and not HAS_OFFSETS:
        total *= tl.load(scales + read).to(tl.float32)[:, None]
    if HAS_BIAS:
        total += tl.load(bias + read).to(tl.float32)[:, None]
    target = row.to(tl.int64)[None, :] * columns + column[:, None]
    tl.store(y + target, total.to(kind), mask=(row < rows)[None, :] & (column < columns)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def decode_codes(  # type: ignore[no-untyped-def]
    codes,
    scales,
    offsets,
    y,
    columns,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    SLOTS: tl.constexpr,
    WORDS: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Writes ``codes * scales - offsets``, in rows of DEPTH numbers, of AT_ONCE units of 16 columns."""
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    UNIT: tl.constexpr = WORDS * SLOTS
    UNITS: tl.constexpr = DEPTH // UNIT
    STEPS: tl.constexpr = (UNITS + AT_ONCE - 1) // AT_ONCE
    PARTS: tl.constexpr = UNIT // GROUP if GROUP < UNIT else 1
    WIDTH: tl.constexpr = UNIT // PARTS
    unit = (tl.program_id(0) % STEPS) * AT_ONCE + tl.arange(0, AT_ONCE)
    tile = tl.program_id(0) // STEPS
    line = tl.arange(0, 16)
    column = tile * 16 + line
    is_there = (unit < UNITS)[:, None] & (column < columns)[None, :]
    at = (tile.to(tl.int64) * UNITS + unit)[:, None, None] * (16 * WORDS) + (line * WORDS)[None, :, None]
    right = codes.to(tl.pointer_type(tl.int32), bitcast=True) + at + tl.arange(0, WORDS)[None, None, :]
    taken = take_apart(tl.load(right, mask=(unit < UNITS)[:, None, None], other=0), y, SLOTS, ASSEMBLY)
    number = tl.arange(0, WIDTH)
    for each in tl.static_range(PARTS):
        found = in_line(taken, each * (SLOTS // PARTS), SLOTS // PARTS, AT_ONCE, 16, WORDS).to(tl.float32)
        here = ((unit * UNIT + each * WIDTH) // GROUP)[:, None] * columns + column[None, :]
        found *= tl.load(scales + here, mask=is_there, other=0.0).to(tl.float32)[:, :, None]
        if HAS_OFFSETS:
            found -= tl.load(offsets + here, mask=is_there, other=0.0).to(tl.float32)[:, :, None]
        target = column.to(tl.int64)[None, :, None] * DEPTH + (unit * UNIT + each * WIDTH)[:, None, None]
        tl.store(y + target + number[None, None, :], found.to(y.dtype.element_ty), mask=is_there[:, :, None])


@triton.jit(do_not_specialize=["columns"])  # type: ignore[untyped-decorator]
def chosen_product(  # type: ignore[no-untyped-def]
    x,
    places,
    matrices,
    y,
    columns,
    DEPTH: tl.constexpr,
    MATRICES: tl.constexpr,
    MATRIX_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    DEPTH_STEP: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Computes columns of ``x[i] @ matrices[places[i]].T``; zeros where there is no such matrix.

    A matrix has DEPTH_STEP numbers between those of a row, COLUMN_STEP between rows.
    """
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(1)
    matrix, is_chosen = chosen_matrix(places, MATRICES)
    column = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    depth = tl.arange(0, TILE_DEPTH)
    first = matrices + matrix * MATRIX_STEP
    right = first + (column.to(tl.int64) * COLUMN_STEP)[:, None] + (depth * DEPTH_STEP)[None, :]
    is_column = (column < columns)[:, None]
    sums = tl.zeros([TILE_COLUMNS, TILE_DEPTH], tl.float32)
    for at in range(0, DEPTH, TILE_DEPTH):
        is_read = depth < DEPTH - at
        part = tl.load(right + at * DEPTH_STEP, mask=is_column & is_read[None, :], other=0.0)
        number = tl.load(x + row * DEPTH + at + depth, mask=is_read, other=0.0)
        sums += part.to(tl.float32) * number.to(tl.float32)[None, :]
    total = tl.where(is_chosen, tl.sum(sums, 1), 0.0)
    tl.store(y + row.to(tl.int64) * columns + column, total.to(y.dtype.element_ty), mask=column < columns)


@triton.jit(do_not_specialize=["rows", "columns"])  # type: ignore[untyped-decorator]
def grouped_product(  # type: ignore[no-untyped-def]
    x,
    order,
    ends,
    matrices,
    y,
    rows,
    columns,
    DEPTH: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    MATRICES: tl.constexpr,
    MATRICES_TILE: tl.constexpr,
    MATRIX_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    DEPTH_STEP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Computes a tile of ``x[i] @ matrices[j].T`` for the rows that choose one matrix.

    In their order, rows of matrix ``j`` end at ``ends[j]``; those behind the last one choose none and get zeros. Tiles
    of rows are counted up to that: none has rows of two matrices.
    """
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    index = tl.arange(0, MATRICES_TILE)
    end = tl.load(ends + index, mask=index < MATRICES, other=0)
    end = tl.where(index < MATRICES, end, rows)
    begin = tl.load(ends + index - 1, mask=(index > 0) & (index <= MATRICES), other=0)
    begin = tl.where(index <= MATRICES, begin, rows)
    tiles = tl.cumsum((end - begin + TILE_ROWS - 1) // TILE_ROWS, 0)
    tile = tl.program_id(0)
    matrix = tl.sum((tiles <= tile).to(tl.int32), 0)
    if matrix <= MATRICES:
        before = tl.max(tl.where(index < matrix, tiles, 0), 0)
        first = tl.sum(tl.where(index == matrix, begin, 0), 0)
        last = tl.sum(tl.where(index == matrix, end, 0), 0)
        place = first + (tile - before) * TILE_ROWS + tl.arange(0, TILE_ROWS)
        row = tl.where(place < last, place, 0).to(tl.int64)
        if HAS_ORDER:
            row = tl.load(order + place, mask=place < last, other=0)
        column = tl.program_id(1) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        depth = tl.arange(0, TILE_DEPTH)
        totals = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
        if matrix < MATRICES:
            left = x + row[:, None] * DEPTH + depth[None, :]
            read = tl.minimum(column, columns - 1).to(tl.int64) * COLUMN_STEP
            right = matrices + matrix.to(tl.int64) * MATRIX_STEP + read[None, :] + (depth * DEPTH_STEP)[:, None]
            for at in range(0, DEPTH, TILE_DEPTH):
                if DEPTH % TILE_DEPTH == 0:
                    totals = tl.dot(tl.load(left + at), tl.load(right + at * DEPTH_STEP), totals)
                else:
                    is_read = depth < DEPTH - at
                    some = tl.load(left + at, mask=is_read[None, :], other=0.0)
                    part = tl.load(right + at * DEPTH_STEP, mask=is_read[:, None], other=0.0)
                    totals = tl.dot(some, part, totals)
        is_there = (place < last)[:, None] & (column < columns)[None, :]
        found = y + row[:, None] * columns + column[None, :]
        tl.store(found, totals.to(y.dtype.element_ty), mask=is_there)


@triton.jit
def penalty(pointer, is_read):  # type: ignore[no-untyped-def]
    """What a mask adds to scores: its numbers, or nothing where it is true; no score is left where it is not read."""
    if pointer.dtype.element_ty == tl.int1:
        return tl.where(tl.load(pointer, mask=is_read, other=0) != 0, 0.0, -float("inf"))
    return tl.load(pointer, mask=is_read, other=-float("inf")).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def attend_to_part(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    mask,
    new_keys,
    new_values,
    start,
    cosines,
    sines,
    sums,
    maxima,
    weights,
    SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    LENGTH: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    QUERY_BATCH: tl.constexpr,
    QUERY_HEAD: tl.constexpr,
    QUERY_PLACE: tl.constexpr,
    KEY_BATCH: tl.constexpr,
    KEY_HEAD: tl.constexpr,
    KEY_PLACE: tl.constexpr,
    VALUE_BATCH: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    VALUE_PLACE: tl.constexpr,
    MASK_BATCH: tl.constexpr,
    MASK_QUERY: tl.constexpr,
    NEW_KEY_BATCH: tl.constexpr,
    NEW_KEY_HEAD: tl.constexpr,
    NEW_VALUE_BATCH: tl.constexpr,
    NEW_VALUE_HEAD: tl.constexpr,
    TURN_BATCH: tl.constexpr,
    HAS_UPDATE: tl.constexpr,
    IS_TURNED: tl.constexpr,
    IS_EARLY: tl.constexpr,
    PART: tl.constexpr,
    TILE: tl.constexpr,
):
    """Attends from all queries of the heads that share keys to one part of the keys, in tiles that are seen at all.

    With an update, a new key and value of each batch and group go to place ``start`` of the keys and values first; what
    is turned, queries and new keys, is multiplied by ``cosines``, and its other half by ``sines``. Each tile is read
    while the one before it is computed.

    ``sums`` is (batch * GROUPS, parts, ROWS, WIDTH), ``maxima`` and ``weights`` are without the last axis.
    """
    group = tl.program_id(0)
    part = tl.program_id(1)
    parts: tl.constexpr = (LENGTH + PART - 1) // PART
    batch = group // GROUPS
    shared = group % GROUPS
    row = tl.arange(0, ROWS)
    is_row = row < HEADS * QUERIES
    head = shared * HEADS + tl.minimum(row, HEADS * QUERIES - 1) // QUERIES
    asked = tl.minimum(row, HEADS * QUERIES - 1) % QUERIES
    column = tl.arange(0, WIDTH)
    keys += batch.to(tl.int64) * KEY_BATCH + shared * KEY_HEAD
    values += batch.to(tl.int64) * VALUE_BATCH + shared * VALUE_HEAD
    end = tl.minimum(part * PART + PART, LENGTH)
    place = part * PART + tl.arange(0, TILE)
    if IS_EARLY:
        gdc_launch_dependents()
    if HAS_UPDATE:  # then nothing else writes to keys and values
        key = tl.load(keys + place[None, :] * KEY_PLACE + column[:, None], mask=(place < end)[None, :], other=0.0)
        value = tl.load(values + place[:, None] * VALUE_PLACE + column[None, :], mask=(place < end)[:, None], other=0.0)
    if IS_EARLY:
        gdc_wait()
    seen = mask + batch * MASK_BATCH + asked[:, None] * MASK_QUERY
    bias = penalty(seen + place[None, :], (place < end)[None, :])
    asked_at = batch * QUERY_BATCH + head * QUERY_HEAD + asked * QUERY_PLACE
    question = tl.load(query + asked_at[:, None] + column[None, :])
    if IS_TURNED:
        other = (column + WIDTH // 2) % WIDTH
        cosine = tl.load(cosines + batch * TURN_BATCH + column).to(tl.float32)
        sine = tl.load(sines + batch * TURN_BATCH + column).to(tl.float32) * tl.where(column < WIDTH // 2, -1.0, 1.0)
        opposite = tl.load(query + asked_at[:, None] + other[None, :]).to(tl.float32)
        question = (question.to(tl.float32) * cosine[None, :] + opposite * sine[None, :]).to(query.dtype.element_ty)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    if HAS_UPDATE:
        new_keys += batch * NEW_KEY_BATCH + shared * NEW_KEY_HEAD
        new_key = tl.load(new_keys + column)
        if IS_TURNED:
            far = tl.load(new_keys + other).to(tl.float32)
            new_key = (new_key.to(tl.float32) * cosine + far * sine).to(keys.dtype.element_ty)
        new_value = tl.load(new_values + batch * NEW_VALUE_BATCH + shared * NEW_VALUE_HEAD + column)
        updated = tl.load(start + batch)
        if (updated >= part * PART) & (updated < end):
            tl.store(keys + updated * KEY_PLACE + column, new_key)
            tl.store(values + updated * VALUE_PLACE + column, new_value)
    is_seen = tl.max(bias) > -float("inf")
    if not HAS_UPDATE:
        is_read = place < tl.where(is_seen, end, 0)
        key = tl.load(keys + place[None, :] * KEY_PLACE + column[:, None], mask=is_read[None, :], other=0.0)
        value = tl.load(values + place[:, None] * VALUE_PLACE + column[None, :], mask=is_read[:, None], other=0.0)
    for begin in range(part * PART, end, TILE):
        if PART > TILE:
            ahead = begin + TILE + tl.arange(0, TILE)
            next_bias = penalty(seen + ahead[None, :], (ahead < end)[None, :])
            is_next = tl.max(next_bias) > -float("inf")
            is_read = ahead < tl.where(is_next, end, 0)
            next_key = tl.load(keys + ahead[None, :] * KEY_PLACE + column[:, None], mask=is_read[None, :], other=0.0)
            next_value = tl.load(
                values + ahead[:, None] * VALUE_PLACE + column[None, :], mask=is_read[:, None], other=0.0
            )
        if is_seen:
            if HAS_UPDATE:
                is_new = begin + tl.arange(0, TILE) == updated
                key = tl.where(is_new[None, :], new_key[:, None], key)
                value = tl.where(is_new[:, None], new_value[None, :], value)
            score = tl.dot(question, key) * SCALE + bias
            top = tl.maximum(highest, tl.max(score, 1))
            base = tl.where(top == -float("inf"), 0.0, top)
            shrink = tl.exp(highest - base)
            likely = tl.exp(score - base[:, None])
            total = total * shrink[:, None] + tl.dot(likely.to(value.dtype), value)
            weight = weight * shrink + tl.sum(likely, 1)
            highest = top
        if PART > TILE:
            bias, is_seen, key, value = next_bias, is_next, next_key, next_value
    slot = (group * parts + part) * ROWS + row
    tl.store(maxima + slot, highest, mask=is_row)
    tl.store(weights + slot, weight, mask=is_row)
    tl.store(sums + slot[:, None] * WIDTH + column[None, :], total, mask=is_row[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def join_parts(  # type: ignore[no-untyped-def]
    sums,
    maxima,
    weights,
    result,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    QUERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_TILE: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Joins what each part of the keys gave one query: result is (batch, QUERIES, GROUPS * HEADS, WIDTH), dense."""
    if IS_EARLY:
        gdc_launch_dependents()
        gdc_wait()
    group = tl.program_id(0)
    row = tl.program_id(1)
    part = tl.arange(0, PARTS_TILE)
    is_part = part < PARTS
    slot = (group * PARTS + part) * ROWS + row
    highest = tl.load(maxima + slot, mask=is_part, other=-float("inf"))
    share = tl.where(highest == -float("inf"), 0.0, tl.exp(highest - tl.max(highest, 0)))
    weight = tl.sum(tl.load(weights + slot, mask=is_part, other=0.0) * share, 0)
    weight = tl.where(weight == 0.0, 1.0, weight)  # a query that sees nothing gets zeros
    column = tl.arange(0, WIDTH)
    part_sums = tl.load(sums + slot[:, None] * WIDTH + column[None, :], mask=is_part[:, None], other=0.0)
    total = tl.sum(part_sums * share[:, None], 0) / weight
    asked = (group // GROUPS) * QUERIES + row % QUERIES
    place = asked * GROUPS * HEADS + (group % GROUPS) * HEADS + row // QUERIES
    tl.store(result + place.to(tl.int64) * WIDTH + column, total.to(result.dtype.element_ty))


CONVOLUTION_SIZES = [
    *("pixels", "height", "width", "rows", "columns", "depth", "maps", "window_rows", "window_columns"),
    *("stride_rows", "stride_columns", "padding_rows", "padding_columns", "dilation_rows", "dilation_columns"),
    *("image_step", "channel_step", "row_step", "column_step"),
]


@triton.jit  # type: ignore[untyped-decorator]
def place_before(place, tap, stride, padding, dilation, IS_TRANSPOSED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a tap of a window reads along one axis for a place of the result, and whether it reads there at all."""
    if IS_TRANSPOSED:
        at = place + padding - tap * dilation
        return at // stride, at % stride == 0
    else:
        return place * stride - padding + tap * dilation, place >= 0


@triton.jit(do_not_specialize=CONVOLUTION_SIZES)  # type: ignore[untyped-decorator]
def convolution(  # type: ignore[no-untyped-def]
    x,
    kernel,
    bias,
    other,
    y,
    pixels,
    height,
    width,
    rows,
    columns,
    depth,
    maps,
    window_rows,
    window_columns,
    stride_rows,
    stride_columns,
    padding_rows,
    padding_columns,
    dilation_rows,
    dilation_columns,
    image_step,
    channel_step,
    row_step,
    column_step,
    IS_TRANSPOSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_OTHER: tl.constexpr,
    IS_RELU: tl.constexpr,
    DEPTH_UNIT: tl.constexpr,
    MAPS_UNIT: tl.constexpr,
    TILE_PIXELS: tl.constexpr,
    TILE_MAPS: tl.constexpr,
    TILE_DEPTH: tl.constexpr,
    GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Computes some maps of some pixels of a convolution, of which all sizes are arguments; channels vary fastest.

    Depth and maps are those of one group, counted in units. Where depth is a multiple of 8, each step reads some
    channels of one tap of the window, eight at a time; else it reads the next ones of all taps one after the other, and
    images may lie in any way. Then there is one group, and one part; parts of the taps have sums of their own in `y`.
    """
    channels = depth * DEPTH_UNIT
    results = maps * MAPS_UNIT
    group = tl.program_id(1)
    part = tl.program_id(2)
    taps = window_rows * window_columns
    tiles = tl.cdiv(results, TILE_MAPS)
    pixel = (tl.program_id(0) // tiles) * TILE_PIXELS + tl.arange(0, TILE_PIXELS)
    one = (tl.program_id(0) % tiles) * TILE_MAPS + tl.arange(0, TILE_MAPS)
    column = pixel % columns
    row = (pixel // columns) % rows
    image = (pixel // (columns * rows)).to(tl.int64)
    is_pixel = pixel < pixels
    is_map = one < results
    step = tl.arange(0, TILE_DEPTH)
    total = tl.zeros([TILE_PIXELS, TILE_MAPS], tl.float32)
    if DEPTH_UNIT > 1:
        blocks = tl.cdiv(channels, TILE_DEPTH)
        share = tl.cdiv(taps * blocks, PARTS)
        for at in range(part * share, min(part * share + share, taps * blocks)):
            tap = at // blocks
            channel = (at - tap * blocks) * TILE_DEPTH + step
            is_channel = channel < channels
            tap_row = tap // window_columns
            tap_column = tap - tap_row * window_columns
            at_row, has_row = place_before(row, tap_row, stride_rows, padding_rows, dilation_rows, IS_TRANSPOSED)
            at_column, has_column = place_before(
                column, tap_column, stride_columns, padding_columns, dilation_columns, IS_TRANSPOSED
            )
            is_inside = is_pixel & has_row & (at_row >= 0) & (at_row < height)
            is_inside &= has_column & (at_column >= 0) & (at_column < width)
            place = ((image * height + at_row) * width + at_column) * (channels * GROUPS) + group * channels
            left = tl.load(
                x + place[:, None] + channel[None, :], mask=is_inside[:, None] & is_channel[None, :], other=0.0
            )
            if IS_TRANSPOSED:
                weights = ((group * channels + channel) * taps + tap).to(tl.int64)[:, None] * results + one[None, :]
            else:
                weights = ((group * results + one) * taps + tap).to(tl.int64)[None, :] * channels + channel[:, None]
            right = tl.load(kernel + weights, mask=is_channel[:, None] & is_map[None, :], other=0.0)
            total = tl.dot(left, right, total)
    else:
        tl.static_assert(GROUPS * PARTS == 1)
        for begin in range(0, taps * channels, TILE_DEPTH):
            number = begin + step
            is_number = number < taps * channels
            tap = number // channels
            channel = number - tap * channels
            tap_row = tap // window_columns
            tap_column = tap - tap_row * window_columns
            at_row, has_row = place_before(
                row[:, None], tap_row[None, :], stride_rows, padding_rows, dilation_rows, IS_TRANSPOSED
            )
            at_column, has_column = place_before(
                column[:, None], tap_column[None, :], stride_columns, padding_columns, dilation_columns, IS_TRANSPOSED
            )
            is_inside = is_pixel[:, None] & is_number[None, :] & has_row & (at_row >= 0) & (at_row < height)
            is_inside &= has_column & (at_column >= 0) & (at_column < width)
            place = image[:, None] * image_step + at_row.to(tl.int64) * row_step + at_column.to(tl.int64) * column_step
            place += (channel.to(tl.int64) * channel_step)[None, :]
            left = tl.load(x + place, mask=is_inside, other=0.0)
            if IS_TRANSPOSED:
                weights = (channel * taps + tap).to(tl.int64)[:, None] * results + one[None, :]
            else:
                weights = one.to(tl.int64)[None, :] * (taps * channels) + number[:, None]
            right = tl.load(kernel + weights, mask=is_number[:, None] & is_map[None, :], other=0.0)
            total = tl.dot(left, right, total)
    if HAS_BIAS:
        total += tl.load(bias + group * results + one, mask=is_map, other=0.0).to(tl.float32)[None, :]
    row_of_maps = (part * pixels + pixel).to(tl.int64) * GROUPS + group
    place = row_of_maps[:, None] * results + one[None, :]
    is_result = is_pixel[:, None] & is_map[None, :]
    if HAS_OTHER:
        total += tl.load(other + place, mask=is_result, other=0.0).to(tl.float32)
    if IS_RELU:
        total = tl.where(total < 0.0, 0.0, total)  # what is no number stays none
    tl.store(y + place, total.to(y.dtype.element_ty), mask=is_result)
