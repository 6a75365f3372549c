"""How much operators make that can make far more than they are given, by the numbers among their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Shape = Sequence[int]
Operands = Mapping[str, Any]
"""Arguments by their names in the schema: numbers, lists of them, and `Shape`s as tuples in the place of tensors."""


def elements_made(name: str, operands: Operands) -> float | None:
    """Elements that an operator makes, at least; None for other operators.

    Args:
        name: Namespace and name, `aten::tile`.
        operands: Its arguments, without those that are not given.

    Raises:
        ArithmeticError, TypeError, ValueError, KeyError, IndexError: The arguments make no sense; the operator will
            say so.
    """
    count = _COUNTS.get(name)
    return None if count is None else count(operands)


def _range(operands: Operands) -> float:
    length = abs(operands["end"] - operands.get("start", 0))
    return float(math.ceil(length / abs(operands.get("step", 1)))) if math.isfinite(length) else math.inf


def _filled(operands: Operands) -> float:
    return math.prod(operands["size"])


def _identity(operands: Operands) -> float:
    return float(operands["n"] * operands.get("m", operands["n"]))


def _triangle(operands: Operands) -> float:
    return float(2 * operands["row"] * operands["col"])


def _copies(operands: Operands) -> float:
    return float(math.prod(operands["self"]) * math.prod(operands.get("repeats", operands.get("dims", ()))))


def _padded(operands: Operands) -> float:
    shape = list(operands["self"])
    pads = operands.get("pad", operands.get("padding", ()))
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=False), start=1):
        shape[-axis] = max(shape[-axis] + before + after, 0)
    return float(math.prod(shape))


def _products(operands: Operands) -> float:
    return float(math.prod(operands["self"]) * math.prod(operands["other"]))


def _windows(operands: Operands) -> float:
    (*outer, height, width), (rows, columns) = operands["self"], operands["kernel_size"]
    (above, beside), (down, along) = operands["padding"], operands["stride"]
    steps = ((height + 2 * above - rows) // down + 1) * ((width + 2 * beside - columns) // along + 1)
    return float(math.prod(outer) * rows * columns * steps)


def _resampled(operands: Operands) -> float:
    shape: Shape = operands["self" if "self" in operands else "input"]
    sizes = operands.get("output_size")
    if sizes is None:
        sizes = [extent * factor for extent, factor in zip(shape[2:], operands["scale_factors"], strict=True)]
    return float(math.prod(shape[:2]) * math.prod(sizes))


_COUNTS: Final[dict[str, Callable[[Operands], float]]] = {
    **dict.fromkeys(("aten::arange", "aten::range"), _range),
    "aten::randint": _filled,
    "aten::eye": _identity,
    **dict.fromkeys(("aten::tril_indices", "aten::triu_indices"), _triangle),
    **dict.fromkeys(("aten::tile", "aten::repeat"), _copies),
    **dict.fromkeys(
        ("aten::constant_pad_nd", "aten::pad", *(f"aten::replication_pad{rank}d" for rank in (1, 2, 3))), _padded
    ),
    "aten::kron": _products,
    "aten::im2col": _windows,
    **{
        f"aten::{name}": _resampled
        for name in (
            *(f"{kind}{rank}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)),
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
            *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        )
    },
}
