"""The profile that a call runs with takes its shapes, and is tuned for the nearest."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_runtime.profile_choice import ProfileChoice


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int, int]:
    low, best, high = sorted(draw(st.lists(st.integers(1, 64), min_size=3, max_size=3)))
    return low, best, high


def _shapes(*shapes: tuple[int, ...]) -> tuple[torch.Size, ...]:
    return tuple(map(torch.Size, shapes))


@settings(max_examples=50)
@given(st.lists(st.tuples(bounds(), bounds()), min_size=2, max_size=4), st.integers(1, 64), st.integers(1, 64))
def test_what_is_chosen_takes_the_shapes_and_nothing_is_chosen_only_where_none_does(
    profiles: list[tuple[tuple[int, int, int], ...]], batch: int, length: int
) -> None:
    choice = ProfileChoice([(profile,) for profile in profiles])
    shapes = _shapes((batch, length))
    takes = [(b[0] <= batch <= b[2]) and (s[0] <= length <= s[2]) for b, s in profiles]
    chosen = choice.choose(shapes)
    assert takes[chosen] if chosen is not None else not any(takes)
    assert choice.known(shapes) == chosen


def test_the_nearest_tuned_sizes_win_and_the_first_where_they_tie() -> None:
    wide, narrow = (((1, 32, 64),),), (((1, 1, 4),),)
    choice = ProfileChoice([wide, narrow, narrow])
    assert [choice.choose(_shapes((size,))) for size in (1, 4, 5, 60)] == [1, 1, 0, 0]
