"""What values look like in a report: tensors with ranges of shapes, numbers, and groups of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar

import torch

from trt_core.dtypes import dtype_name
from trt_core.files import typed
from trt_core.files.records import Form
from trt_core.internals import pytree
from trt_core.nesting import children_of
from trt_core.sizes.ranges import ShapeRanges

Dimension = int | tuple[int, int, int]
"""A static extent, or (min, opt, max) of a dynamic one."""


_BRACKETS = {"List": "[]", "Tuple": "()", "Dict": "{}"}
_KINDS = {kind: kind for kind in _BRACKETS}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor.

    Attributes:
        name: Node that makes it.
        shape: Its dimensions.
        dtype: Short name of its type, `float32`.
        item_bytes: Bytes of one element.
    """

    TAG: ClassVar = ("kind", "Tensor")

    name: str
    shape: tuple[Dimension, ...]
    dtype: str
    item_bytes: int

    @property
    def opt_shape(self) -> tuple[int, ...]:
        """The shape that engines are tuned for."""
        return tuple(extent if isinstance(extent, int) else extent[1] for extent in self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the tensor at its opt shape."""
        return math.prod(self.opt_shape) * self.item_bytes

    def __str__(self) -> str:
        parts = [
            str(extent) if isinstance(extent, int) else f"(min={extent[0]}, max={extent[2]})" for extent in self.shape
        ]
        body = ", ".join(parts) + ("," if len(parts) == 1 else "")
        return f"Tensor: ({body})@{self.dtype}"


@dataclass(frozen=True)
class NumberSpec:
    """A number, or anything else that is not a tensor.

    Attributes:
        name: Node that makes it; empty for a constant.
        kind: `int`, `float`, `bool`, or the name of another type.
    """

    TAG: ClassVar = ("kind", "Number")

    name: str
    kind: str = field(metadata={"key": "type"})

    @property
    def bytes(self) -> int:
        """Numbers are not counted."""
        return 0

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Group:
    """Several values.

    Attributes:
        kind: `List`, `Tuple` or `Dict`.
        items: The values.
    """

    kind: Annotated[str, Form(partial(typed.choice, _KINDS, what="kind of value"))]
    items: tuple[ValueSpec, ...]

    def __str__(self) -> str:
        brackets = _BRACKETS[self.kind]
        return f"{self.kind}{brackets[0]}{', '.join(map(str, self.items))}{brackets[1]}"

    def leaves(self) -> tuple[TensorSpec | NumberSpec, ...]:
        """The values without the grouping."""
        found: list[TensorSpec | NumberSpec] = []
        for item in self.items:
            found.extend(item.leaves() if isinstance(item, Group) else (item,))
        return tuple(found)


ValueSpec = TensorSpec | NumberSpec | Group


class SpecReader:
    """Describes values by their metadata, within ranges of shapes.

    Args:
        ranges: What the symbols in shapes may be.
    """

    def __init__(self, ranges: ShapeRanges) -> None:
        self._ranges = ranges
        self._known: dict[Any, Dimension] = {}

    def dimension(self, extent: int | torch.SymInt) -> Dimension:
        """Returns an extent as an int, or as (min, opt, max)."""
        if isinstance(extent, int):
            return extent
        key = extent.node.expr
        if key not in self._known:
            low, best, high = self._ranges.bounds(extent)
            self._known[key] = low if low == high else (low, best, high)
        return self._known[key]

    def opt(self, extent: int | torch.SymInt) -> int:
        """Returns the extent that engines are tuned for."""
        dimension = self.dimension(extent)
        return dimension if isinstance(dimension, int) else dimension[1]

    def describe(self, value: Any, name: str = "") -> ValueSpec:
        """Describes a value: a (fake) tensor, a number, a list or tuple of them, or anything else by its type."""
        if isinstance(value, torch.Tensor):
            shape = tuple(self.dimension(extent) for extent in value.shape)
            return TensorSpec(name, shape, dtype_name(value.dtype), value.dtype.itemsize)
        if isinstance(value, (list, tuple)):
            items = tuple(self.describe(item, name) for item in value)
            return Group("List" if isinstance(value, list) else "Tuple", items)
        return NumberSpec(name, _NUMBER_KINDS.get(type(value), type(value).__name__))


_NUMBER_KINDS: Mapping[type, str] = {
    torch.SymInt: "int",
    torch.SymFloat: "float",
    torch.SymBool: "bool",
    type(None): "None",
}


def regroup(leaves: Sequence[ValueSpec], spec: pytree.TreeSpec | None) -> Group:
    """Groups flat values as the model takes or returns them.

    Args:
        leaves: The flat values.
        spec: How they were flattened; None for values that are flat anyway.

    Returns:
        A list of arguments or results; a dict when the model returns one.
    """
    if spec is None or spec.num_leaves != len(leaves):
        return Group("List", tuple(leaves))
    built = _build(iter(leaves), spec)
    if not isinstance(built, Group):
        return Group("List", (built,))
    return built if built.kind == "Dict" else Group("List", built.items)


def regroup_arguments(leaves: Sequence[ValueSpec], spec: pytree.TreeSpec | None) -> Group:
    """Groups flat inputs: the values of positional and keyword arguments, in one list."""
    grouped = regroup(leaves, spec)
    if spec is None or len(grouped.items) != 2 or spec.num_leaves != len(leaves):
        return grouped
    positional, keywords = grouped.items
    if not (isinstance(positional, Group) and isinstance(keywords, Group)):
        return grouped
    return Group("List", positional.items + keywords.items)


def _build(leaves: Any, spec: pytree.TreeSpec) -> ValueSpec:
    if spec.is_leaf():
        leaf: ValueSpec = next(leaves)
        return leaf
    items = tuple(_build(leaves, child) for child in children_of(spec))
    if spec.type in (list, tuple):
        return Group("List" if spec.type is list else "Tuple", items)
    # a named tuple is described by the function that makes its class
    is_mapping = isinstance(spec.type, type) and issubclass(spec.type, Mapping)
    return Group("Dict" if is_mapping else "Tuple", items)
