"""What a model asks of the sizes of its inputs beyond a range for each: multiples, and relations between them.

A condition is what tracing found while it followed the model's code for some sizes: `x.shape[0] % 4 == 0`, or that two
sizes differ. For other sizes the captured graph is not the model. Conditions are data in the grammar of extents, so
they are checked without sympy, and without running anything that came from a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from trt_core.errors import InputError
from trt_core.files.records import Form, Row
from trt_core.files.typed import BadField
from trt_core.sizes.expressions import (
    Expression,
    Extent,
    evaluate_extent,
    expression_of,
    format_extent,
    is_extent,
    linear_form,
    multiple_in_words,
    read_extent,
    symbols_in,
)
from trt_core.sizes.functions import FUNCTIONS, RELATIONS

_WORDS: Final = {
    "eq": "must be",
    "ne": "must not be",
    "lt": "must be less than",
    "le": "must be at most",
    "gt": "must be more than",
    "ge": "must be at least",
}
"""What is said of a size on the left of a relation."""

_MIRRORED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class Relation(Row):
    """A comparison of two expressions.

    Attributes:
        left, right: What is compared; both are known from the inputs of a call.
        name: One of `trt_core.sizes.functions.RELATIONS`.
    """

    left: Annotated[Expression, Form()]
    name: str
    right: Annotated[Expression, Form()]

    @property
    def is_whole(self) -> bool:
        """Whether it compares integers."""
        return is_extent(self.left) and is_extent(self.right)

    def holds(self, symbols: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the symbols; a comparison that cannot be computed does not.

        Under tracing, where sizes are symbolic, the answer is a guard of whoever traces.
        """
        try:
            sides = evaluate_extent(self.left, symbols), evaluate_extent(self.right, symbols)
        except (ArithmeticError, ValueError):
            return False
        return bool(FUNCTIONS[self.name].compute(*sides))


def relation_of(left: Any, name: str, right: Any) -> Relation | None:
    """A comparison of two of sympy's expressions; None where data cannot say one of them.

    Args:
        left, right: What is compared.
        name: What compares them.
    """
    sides = expression_of(left), expression_of(right)
    is_said = all(side is not None and is_extent(side, is_whole=False) for side in sides)
    return Relation(sides[0], name, sides[1]) if is_said else None


Condition = tuple[Relation, ...]
"""Holds where one of its relations does."""


@dataclass(frozen=True)
class Home:
    """Where a call shows the value of a symbol.

    Attributes:
        place: How messages call the input.
        index: Number of the input.
        axis: The dimension; None where the input is a number.
        factor, offset: The dimension is `factor * symbol + offset`.
    """

    place: str
    index: int
    axis: int | None
    factor: int = 1
    offset: int = 0

    def value(self, flat: Sequence[Any]) -> int:
        """The value of the symbol in a call."""
        size: int = flat[self.index] if self.axis is None else flat[self.index].shape[self.axis]
        return size if self.factor == 1 and not self.offset else (size - self.offset) // self.factor

    def __str__(self) -> str:
        return f"input {self.place}" if self.axis is None else f"dimension {self.axis} of input {self.place}"

    @property
    def expression(self) -> str:
        """The symbol as the user would write it: `x.shape[0]`."""
        size = self.place if self.axis is None else f"{self.place}.shape[{self.axis}]"
        if self.offset:
            size = f"({size} {'-' if self.offset > 0 else '+'} {abs(self.offset)})"
        return size if self.factor == 1 else f"{size} // {self.factor}"


Homes = Mapping[str, Home]


def symbols_of(condition: Condition) -> set[str]:
    """Names of the symbols in a condition."""
    return {name for relation in condition for side in (relation.left, relation.right) for name in symbols_in(side)}


def check_condition(condition: Condition, place: str, symbols: Collection[str]) -> None:
    """Checks a condition that was read from a file.

    Args:
        condition: What was read.
        place: What messages call it.
        symbols: Names of the sizes that there are.

    Raises:
        BadField: It has no relation, or one of something else than these sizes.
    """
    if not condition:
        raise BadField(place, "it has no relation, so nothing would fit it")
    for relation in condition:
        for side in (relation.left, relation.right):
            if read_extent(side, place, symbols, is_whole=False) is None:
                raise BadField(place, "it compares a size that depends on data")
        if relation.name not in RELATIONS:
            raise BadField(place, f"{relation.name!r:.60} is no relation")


def require_conditions(conditions: Iterable[Condition], symbols: Mapping[str, int], homes: Homes) -> None:
    """Refuses sizes that the model was not captured for.

    Args:
        conditions: What must hold.
        symbols: The sizes of a call.
        homes: Where the call shows them.

    Raises:
        InputError: The message says which dimension, what it is, and what it must be.
    """
    for condition in conditions:
        if not all_hold((condition,), symbols):
            raise _refusal(condition, symbols, homes)


_MOST_TRIED: Final = 4096
"""Sizes on either side of the usual one."""


def require_varying(conditions: Iterable[Condition], symbols: Mapping[str, tuple[int, int, int]], homes: Homes) -> None:
    """Refuses ranges of which conditions leave the usual size alone.

    Args:
        conditions: What must hold.
        symbols: (min, opt, max) of the sizes that somebody asked for.
        homes: Where a call shows them.

    Raises:
        InputError: The message says which dimension, and what the model asked.
    """
    of_one: dict[str, list[Condition]] = {}
    for condition in conditions:
        if len(names := symbols_of(condition)) == 1:
            of_one.setdefault(names.pop(), []).append(condition)
    for name, home in homes.items():
        if name not in of_one or name not in symbols:
            continue
        (least, usual, most), asked = symbols[name], of_one[name]
        near = range(max(least, usual - _MOST_TRIED), min(most, usual + _MOST_TRIED) + 1)
        sizes = {least, *near, most} - {usual}
        if max(sizes, default=1) > 1 and not any(all_hold(asked, {name: size}) for size in sizes):
            extent = home.factor * usual + home.offset
            raise InputError(
                f"{home} cannot vary: the model works for {extent} only",
                why=f"its code asked when it was captured: {', '.join(_written(each, homes) for each in asked)}",
                hint=f"give {extent} as min, opt and max, or change what in the model asks for it",
            )


def all_hold(conditions: Iterable[Condition], symbols: Mapping[str, int]) -> bool:
    """Whether sizes fulfil all conditions."""
    return all(any(relation.holds(symbols) for relation in condition) for condition in conditions)


def _refusal(condition: Condition, symbols: Mapping[str, int], homes: Homes) -> InputError:
    involved = [home for name, home in homes.items() if name in symbols_of(condition)]
    values = {name: symbols[name] for name in homes if name in symbols_of(condition)}
    sizes = {
        str(home): home.factor * value + home.offset for home, value in zip(involved, values.values(), strict=True)
    }
    given = " and ".join(f"{what} is {size}" for what, size in sizes.items())
    rule = _rule_of_one_size(condition[0], homes) if len(condition) == 1 and len(involved) == 1 else None
    if rule is not None and "multiple" in rule:
        return InputError(
            f"{given}, and {rule}",
            why="the model was captured for such sizes",
            hint="pad the input to such a size, or change what in the model works for no other",
        )
    written = _written(condition, homes)
    return InputError(
        f"{given}, and {rule}" if rule is not None else f"{given}, and the model was captured for {written}",
        why="the code of the model asked for that when it was captured, and takes another way where it does not hold"
        + ("" if rule is None else f": {written}"),
        hint="give other sizes, compile another module for such sizes, or change the model to treat all sizes alike; "
        "a program that was exported elsewhere may ask more than its model, which `compile` takes as well",
    )


def _written(condition: Condition, homes: Homes) -> str:
    return " or ".join(
        f"{write_extent(relation.left, homes)} {FUNCTIONS[relation.name].sign} {write_extent(relation.right, homes)}"
        for relation in condition
    )


def _rule_of_one_size(relation: Relation, homes: Homes) -> str | None:
    """What a size on one side of a relation must be, in words; None where neither side is a size by itself."""
    for left, name, right in (
        (relation.left, relation.name, relation.right),
        (relation.right, _MIRRORED[relation.name], relation.left),
    ):
        if isinstance(left, str) and isinstance(right, int):
            home = homes[left]
            return f"{_WORDS[name]} {home.factor * right + home.offset}"
        if isinstance(left, list) and left[0] == "mod" and len(left) == 3 and name == "eq":
            multiple = _multiple(left[1], left[2], right, homes)
            if multiple is not None:
                return f"must be {multiple}"
    return None


def _multiple(size: Expression, modulus: Expression, rest: Expression, homes: Homes) -> str | None:
    if not (isinstance(size, str) and isinstance(modulus, int) and isinstance(rest, int)):
        return None
    home = homes[size]
    return multiple_in_words(modulus * home.factor, rest * home.factor + home.offset)


def write_extent(extent: Expression, homes: Homes) -> str:
    """Writes an extent in terms of the inputs: `2 * x.shape[0]`."""
    return format_extent(extent, lambda symbol: homes[symbol].expression, is_wide=True)


def home_of(extent: Extent, place: str, index: int, axis: int) -> tuple[str, Home] | None:
    """Returns the symbol that a dimension shows, and where; None for what shows none."""
    form = linear_form(extent)
    if form is None:
        return None
    symbol, factor, offset = form
    return symbol, Home(place, index, axis, factor, offset)
