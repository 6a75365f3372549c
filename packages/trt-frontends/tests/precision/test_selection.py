"""The choice of groups, of errors that are made up."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from trt_frontends.precision.automatic import MOST_FILLED, select

ERRORS = st.lists(st.floats(0, 1) | st.just(math.inf), min_size=1, max_size=24)
JOINED = {"sum": sum, "worst": max, "squares": lambda items: math.sqrt(sum(item * item for item in items))}


class Asked:
    """Joins the errors of single groups in one of several ways, and counts how often it is asked."""

    def __init__(self, errors: list[float], how: str) -> None:
        self.times = 0
        self._errors, self._join = errors, JOINED[how]

    def __call__(self, reduced: frozenset[int]) -> float:
        self.times += 1
        return self._join([self._errors[index] for index in sorted(reduced)]) if reduced else 0.0


@settings(max_examples=60)
@given(ERRORS, st.sampled_from(sorted(JOINED)), st.floats(1e-3, 2), st.randoms(use_true_random=False))
def test_what_is_chosen_is_allowed_and_is_found_in_few_questions(errors, how, allowed, random) -> None:
    work = [random.randint(0, 100) for _ in errors]
    asked = Asked(errors, how)
    found = select(work, asked, allowed)
    limit = 2 + len(errors) + math.ceil(math.log2(len(errors) + 1)) + MOST_FILLED
    assert asked.times <= limit
    assert len(set(found.reduced)) == len(found.reduced)
    assert not found.reduced or (found.error <= allowed and found.error == Asked(errors, how)(frozenset(found.reduced)))
    assert found == select(work, Asked(errors, how), allowed) or math.isnan(found.error)
    fitting = [index for index, error in enumerate(errors) if error <= allowed]
    assert bool(found.reduced) is bool(fitting)
    if how == "worst":
        assert sorted(found.reduced) == fitting


def test_groups_that_save_much_for_their_error_come_first() -> None:
    found = select([100, 1, 1], Asked([0.5, 0.4, 0.3], "sum"), 0.85)
    assert sorted(found.reduced) == [0, 2]


def test_everything_is_one_question() -> None:
    asked = Asked([0.1] * 20, "sum")
    assert (select([1] * 20, asked, 3.0).reduced, asked.times) == (tuple(range(20)), 1)


def test_a_smaller_choice_gives_up_the_last_groups() -> None:
    found = select([9, 5, 1, 1], Asked([0.1, 0.1, 0.1, 9.0], "sum"), 0.5)
    assert found.reduced == (0, 1, 2)
    assert found.smaller(3 / 4).reduced == (0, 1)
    assert found.smaller(1 / 2).smaller(1 / 2).reduced == ()
