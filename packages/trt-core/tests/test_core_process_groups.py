"""Process groups as messages name them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trt_core.process_groups import show_ranks


def test_many_ranks_are_said_briefly() -> None:
    assert show_ranks(range(64)) == "0 to 63"
    assert show_ranks((5, 0, 8, 16, 24)) == "5, 0 to 24 by 8"
    assert show_ranks((3, 2)) == "3, 2"
    assert show_ranks([0] * (1 << 20)).endswith("0, 0 and 1048512 more")


@given(st.lists(st.integers(0, 40), unique=True))
def test_the_text_says_every_rank_in_its_order(ranks: list[int]) -> None:
    told: list[int] = []
    for part in filter(None, show_ranks(ranks).split(", ")):
        ends, _, step = part.partition(" by ")
        first, _, last = ends.partition(" to ")
        told += range(int(first), int(last or first) + 1, int(step or 1))
    assert told == ranks
