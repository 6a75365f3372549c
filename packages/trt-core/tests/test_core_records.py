"""Dataclasses as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Annotated, Any, ClassVar

import pytest

from trt_core.files import records, typed
from trt_core.files.records import Form, Grown, Row
from trt_core.files.typed import BadField


class Color(Enum):
    RED = "r"
    BLUE = "b"


@dataclass(frozen=True)
class Pair(Row):
    low: int
    high: Annotated[int, Form(partial(typed.integer, low=-1))]


@dataclass(frozen=True)
class Circle:
    TAG: ClassVar = ("shape", "circle")

    radius: float


@dataclass(frozen=True)
class Square:
    TAG: ClassVar = ("shape", "square")

    side: int
    inside: tuple[Shape, ...] = ()


@dataclass(frozen=True)
class Text:
    text: str = field(metadata={"key": "words"})


Shape = Circle | Square | Text


@dataclass(frozen=True)
class Drawing:
    name: str
    is_done: bool
    color: Color
    paper: Annotated[Color, records.by_value(Color)]
    ranges: Mapping[str, Pair]
    names: Mapping[tuple[int, ...], str]
    words: frozenset[str]
    shapes: tuple[Shape, ...]
    size: tuple[int, int] | None
    extent: int | Pair
    widths: tuple[int | tuple[int, int], ...]
    depth: Annotated[int, Form(partial(typed.integer, low=-1))] | None
    rest: Any


DRAWING = Drawing(
    name="x",
    is_done=True,
    color=Color.RED,
    paper=Color.BLUE,
    ranges={"a": Pair(1, -1)},
    names={(1, 2): "b"},
    words=frozenset({"v", "u"}),
    shapes=(Circle(0.5), Square(2, (Text("inside"), Square(1)))),
    size=None,
    extent=Pair(2, 3),
    widths=(4, (5, 6)),
    depth=-1,
    rest={"free": [None]},
)

WRITTEN = {
    "name": "x",
    "is_done": True,
    "color": "RED",
    "paper": "b",
    "ranges": {"a": [1, -1]},
    "names": [[[1, 2], "b"]],
    "words": ["u", "v"],
    "shapes": [
        {"shape": "circle", "radius": 0.5},
        {"shape": "square", "side": 2, "inside": [{"words": "inside"}, {"shape": "square", "side": 1, "inside": []}]},
    ],
    "size": None,
    "extent": [2, 3],
    "widths": [4, [5, 6]],
    "depth": -1,
    "rest": {"free": [None]},
}


def test_what_is_written_is_read_again() -> None:
    assert records.write(DRAWING) == WRITTEN
    assert records.read(Drawing, json.loads(json.dumps(WRITTEN)), "a drawing") == DRAWING


@pytest.mark.parametrize(
    ("change", "place", "why"),
    [
        ({"name": 1}, "a drawing, name", "a string is needed"),
        ({"is_done": 1}, "a drawing, is_done", "true or false"),
        ({"color": "r"}, "a drawing, color", "is no Color"),
        ({"paper": "BLUE"}, "a drawing, paper", "is no Color"),
        ({"ranges": {"a": [1]}}, "a drawing, ranges 'a'", "a list of 2"),
        ({"ranges": {"a": [1, -2]}}, "a drawing, ranges 'a'", "from -1"),
        ({"names": {}}, "a drawing, names", "a list is needed"),
        ({"words": [1]}, "a drawing, words", "a string is needed"),
        ({"shapes": [{"shape": "star"}]}, "a drawing, shapes 0", "none of Circle, Square, Text"),
        ({"shapes": [{"words": "a"}, {"shape": "circle"}]}, "a drawing, shapes 1", "lacks the field 'radius'"),
        ({"shapes": [{"shape": "circle", "radius": 1, "r": 1}]}, "a drawing, shapes 0", "the unknown field 'r'"),
        ({"size": [1, 2, 3]}, "a drawing, size", "a list of 2"),
        ({"extent": True}, "a drawing, extent", "an integer from 0"),
        ({"extent": -1}, "a drawing, extent", "an integer from 0"),
        ({"extent": [1]}, "a drawing, extent", "a list of 2"),
        ({"widths": [1, "2"]}, "a drawing, widths 1", "a list of 2"),
        ({"more": 1}, "a drawing", "the unknown field 'more'"),
    ],
)
def test_nothing_else_is_read(change: dict[str, Any], place: str, why: str) -> None:
    with pytest.raises(BadField, match=why) as caught:
        records.read(Drawing, {**WRITTEN, **change}, "a drawing")
    assert caught.value.place == place


@pytest.mark.parametrize("name", WRITTEN)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(BadField, match=f"lacks the field '{name}'"):
        records.read(Drawing, {key: value for key, value in WRITTEN.items() if key != name}, "a drawing")


@dataclass(frozen=True)
class Longer(Row, Grown):
    low: int
    step: int = 1
    last: int = 9


@pytest.mark.parametrize("row", [Longer(3), Longer(3, 2), Longer(3, 1, 4)])
def test_rows_that_grew_are_as_long_as_what_differs(row: Longer) -> None:
    written = records.write(row)
    assert written == {(1, 9): [3], (2, 9): [3, 2], (1, 4): [3, 1, 4]}[row.step, row.last]
    assert records.read(Longer, written, "a row") == row


@pytest.mark.parametrize("row", [[], [3, 1, 9, 9], 3])
def test_rows_that_grew_have_their_first_fields_and_no_others(row: Any) -> None:
    with pytest.raises(BadField, match="a list of 3"):
        records.read(Longer, row, "a row")
