"""What is remembered of calls."""

from __future__ import annotations

from side_by_side import in_threads

from trt_core.remembered import MOST, Remembered


def test_the_oldest_make_room() -> None:
    known: Remembered[int, str] = Remembered(3)
    for number in (1, 2, 3, 1, 4):
        known[number] = str(number)
    assert known == {2: "2", 3: "3", 4: "4"}
    known[2] = "again"  # takes no room
    assert known == {2: "again", 3: "3", 4: "4"}


def test_threads_may_share_it() -> None:
    known: Remembered[tuple[int, int], int] = Remembered()

    def use(thread: int) -> None:
        for number in range(3000):
            known[thread, number] = number
            assert known.get((thread, number), number) == number

    in_threads(use, range(4))
    assert MOST - 4 <= len(known) <= MOST + 4
