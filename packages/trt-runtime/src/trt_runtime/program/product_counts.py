"""Elements that operators make which combine their operands: by broadcasting, as products, or in pairs and tuples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]


class MaskShape(tuple[int, ...]):
    """The shape of a tensor of truth values, which index differently."""


Operands = Mapping[str, Any]
"""Arguments by their names in the schema: numbers, lists of them, and shapes as tuples in the place of tensors."""

Count = Callable[[Operands], float]
"""Elements that a call makes, at least; whatever Python raises where arguments make no sense."""


def shapes_in(operands: Operands) -> list[Shape]:
    """Shapes of all tensors among arguments."""
    found = []
    for value in operands.values():
        if isinstance(value, tuple):
            found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, tuple)]
    return found


def joined(shapes: Sequence[Shape]) -> list[int]:
    """The shape that all of them broadcast to, the last extent first."""
    rank = max(map(len, shapes), default=0)
    return [max(shape[-axis] if axis <= len(shape) else 1 for shape in shapes) for axis in range(1, rank + 1)]


def broadcast(operands: Operands) -> float:
    """Elements of what all operands broadcast to."""
    shapes = shapes_in(operands)
    if any(0 in shape for shape in shapes):
        return 0.0
    return float(math.prod(joined(shapes)))


def matrix_product(one: str, other: str) -> Count:
    """Products of matrices, batches of them broadcast."""

    def count(operands: Operands) -> float:
        first, second = operands[one], operands[other]
        rows = first[-2] if len(first) > 1 else 1
        columns = second[-1] if len(second) > 1 else 1
        return float(math.prod(joined([first[:-2], second[:-2]])) * rows * columns)

    return count


def linear(operands: Operands) -> float:
    """Rows of the operand times rows of the weights."""
    return float(math.prod(operands["input"][:-1]) * math.prod(operands["weight"][:-1]))


def all_pairs(one: str, other: str) -> Count:
    """A product for each pair of elements."""
    return lambda operands: float(math.prod(operands[one]) * math.prod(operands[other]))


def inner(operands: Operands) -> float:
    """Products along the last axes."""
    return float(math.prod(operands["self"][:-1]) * math.prod(operands["other"][:-1]))


def contracted(operands: Operands) -> float:
    """Products along the axes that are named."""
    kept = [
        math.prod(extent for axis, extent in enumerate(shape) if axis not in {item % len(shape) for item in axes})
        for shape, axes in (
            (operands["self"], operands["dims_self"]),
            (operands["other"], operands["dims_other"]),
        )
    ]
    return float(math.prod(kept))


def labelled(operands: Operands) -> float:
    """`einsum`: extents of the labels of the result, and of what three dots stand for."""
    inputs, arrow, result = operands["equation"].replace(" ", "").partition("->")
    extents: dict[str, int] = {}
    dotted: list[Shape] = []
    for labels, shape in zip(inputs.split(","), operands["tensors"], strict=True):
        before, dots, after = labels.partition("...")
        end = len(shape) - len(after)
        for label, extent in [*zip(before, shape, strict=False), *zip(after, shape[end:], strict=True)]:
            extents[label] = max(extent, extents.get(label, 0))
        dotted += [shape[len(before) : end]] * bool(dots)
    kept = set(result) - {"."} if arrow else {label for label in extents if inputs.count(label) == 1}
    return float(math.prod(extents[label] for label in kept) * math.prod(joined(dotted)))


def distances(operands: Operands) -> float:
    """One for each pair of rows."""
    first, second = operands["x1"], operands["x2"]
    return float(math.prod(joined([first[:-2], second[:-2]])) * first[-2] * second[-2])


def own_distances(operands: Operands) -> float:
    """One for each pair of rows of one operand."""
    return float(operands["self"][0] ** 2 / 2)


def correlations(operands: Operands) -> float:
    """One for each pair of variables."""
    shape = operands["self" if "self" in operands else "input"]
    return float(shape[0] ** 2) if len(shape) > 1 else 1.0


def factors(is_whole: Callable[[Operands], bool]) -> Count:
    """Factors of matrices: square ones where all of them are asked for."""

    def count(operands: Operands) -> float:
        *outer, rows, columns = next(iter(shapes_in(operands)))
        return float(math.prod(outer) * max(rows, columns) ** 2) if is_whole(operands) else 0.0

    return count


def tuples(operands: Operands) -> float:
    """One element of each operand in every combination."""
    shapes = shapes_in(operands)
    return float(len(shapes) * math.prod(math.prod(shape) for shape in shapes))


def choices(operands: Operands) -> float:
    """Combinations of the elements of one operand."""
    count, taken = math.prod(operands["self"]), operands.get("r", 2)
    count += taken * bool(operands.get("with_replacement"))
    if min(taken, count - taken) > 64:
        return math.inf  # not worth a long product
    return float(taken * math.comb(count, taken))


def blocks(operands: Operands) -> float:
    """Operands along a diagonal."""
    shapes = [(1, 1, *shape)[-2:] for shape in shapes_in(operands)]
    return float(sum(rows for rows, _ in shapes) * sum(columns for _, columns in shapes))


def bilinear(operands: Operands) -> float:
    """One for each row and output."""
    return float(math.prod(operands["input1"][:-1]) * operands["weight"][0])
