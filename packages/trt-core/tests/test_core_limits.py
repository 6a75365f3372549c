"""An account is charged for what operators make, before they make it, and gives back what is free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from trt_core import ExecutionError, InputError
from trt_core.limits import UNLIMITED, Account, CallLimits, charging, open_account

MIB = 1 << 20


def _watched(run: Callable[[], Any], given: int = 0, **limits: float) -> Account:
    account = Account(CallLimits(**limits), given)
    with torch.inference_mode(), account.watching():
        run()
    return account


def test_what_is_free_may_be_used_again() -> None:
    def run() -> None:
        for _ in range(64):
            torch.zeros(MIB)  # 4 MiB

    account = _watched(run, bytes_alive=16 * MIB)
    assert account.made == 64 * 4 * MIB
    with pytest.raises(ExecutionError, match=r"more than 16777216 bytes at once(.|\n)*aten"):
        _watched(lambda: [torch.zeros(MIB) for _ in range(64)], bytes_alive=16 * MIB)


def test_views_are_free_and_what_reads_them_whole_is_not() -> None:
    x = torch.zeros(1)
    assert _watched(lambda: x.expand(1 << 40), bytes_alive=MIB).alive == 0
    for copy in (torch.clone, torch.neg, torch.sort, torch.median, lambda y: torch.cat([y, y])):
        with pytest.raises(ExecutionError, match=r"bytes (at once|in all)"):
            _watched(lambda copy=copy: copy(x.expand(1 << 40)), bytes_alive=MIB)  # type: ignore[misc]


@pytest.mark.parametrize(
    "pieces",
    [
        lambda x: x.split(1),
        lambda x: x.unbind(),
        lambda x: x.chunk(1 << 31),
        lambda x: x.tensor_split(1 << 31),
        lambda x: torch.split_copy(x, 1),
    ],
)
def test_pieces_are_counted(pieces: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(ExecutionError, match="the call takes more than"):
        _watched(lambda: pieces(torch.zeros(1).expand(1 << 31)))


def test_parts_of_a_product_that_are_unfolded_on_the_way() -> None:
    """A result of 16 MiB, by way of one operand 32 GiB large."""
    with pytest.raises(ExecutionError, match=r"bytes (at once|in all)"):
        _watched(lambda: torch.matmul(torch.ones(1, 2048, 2048), torch.ones(2048, 2048, 1)))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"bytes_made": 10 * MIB}, "10485760 bytes in all"),
        ({"elements": 1000}, "1000 elements to read, make or add up"),
        ({"steps": 3}, "3 operators"),
        ({"seconds": 0.0}, "0 seconds"),
    ],
)
def test_each_limit_holds(limits: dict[str, float], words: str) -> None:
    def run() -> None:
        for _ in range(5):
            torch.zeros(MIB).sum()

    with pytest.raises(ExecutionError, match=words) as found:
        _watched(run, **limits)
    assert next(iter(limits)) in found.value.hint


def test_products_are_added_up() -> None:
    account = _watched(lambda: torch.mm(torch.ones(64, 32), torch.ones(32, 16)))
    assert account.elements >= 64 * 32 * 16


def test_turns_of_loops() -> None:
    account = Account(CallLimits(loop_turns=2))
    account.turn("a")
    account.turn("a")
    with pytest.raises(ExecutionError, match="2 turns of loops"):
        account.turn("a")


def test_a_trusted_call_goes_on() -> None:
    asked = []
    account = Account(CallLimits(bytes_alive=MIB), is_exempt=lambda: not asked.append(1))  # type: ignore[func-returns-value]
    with account.watching():
        torch.zeros(MIB)
        torch.zeros(MIB)
    assert len(asked) == 1
    assert account.limits == UNLIMITED


def test_limits_follow_from_what_is_given() -> None:
    small, large = CallLimits().of_call(0), CallLimits().of_call(1 << 40)
    assert small.bytes_alive == 512 * MIB
    for field in fields(CallLimits):
        assert getattr(small, field.name) <= getattr(large, field.name)
    assert CallLimits(bytes_alive=7).of_call(1 << 40).bytes_alive == 7
    assert (small.loop_turns, small.steps, large.loop_turns, large.steps) == (1 << 14, 1 << 20, 1 << 20, 1 << 24)
    assert CallLimits().of_call(1 << 20).loop_turns == 1 << 18


@pytest.mark.parametrize("value", [-1, math.nan, "1", True, None])
def test_limits_are_numbers(value: Any) -> None:
    with pytest.raises(InputError, match="seconds of limits is a number"):
        CallLimits(seconds=value)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.sum(), False),
        (lambda x: x[:2] + 1, False),
        (lambda x: x.nonzero(), True),
        (lambda x: x[x > 0], True),
        (lambda x: x[torch.tensor([0, 2, 1, 1])], False),
        (lambda x: bool((x > 0).all()), False),  # a check, of which no size comes
        (lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 3])), True),
    ],
)
def test_reading_data_is_noted(call: Callable[[torch.Tensor], Any], expected: bool) -> None:
    assert _watched(lambda: call(torch.ones(3))).has_seen_data is expected


def test_a_part_of_a_call_takes_no_more_than_the_call() -> None:
    """However much a part is given, which other parts of the call may have made."""
    with charging(Account(CallLimits(loop_turns=7), 4)) as outer:
        with charging(Account(CallLimits(elements=9), 1 << 30)) as inner:
            inner.turn("loop")
            assert inner.limits == CallLimits(**{**vars(outer.limits), "elements": 9})
        assert outer.turns == 1 and Account(UNLIMITED).limits == outer.limits
    x = torch.zeros(4)
    for values, fits in (([x, 3], True), ([x.expand(1 << 40, 4)], False), ([x.expand(2, 4), x.expand(3, 4)], True)):
        account = Account(CallLimits(bytes_alive=80))
        if fits:
            account.lay_out(values, "an engine")
        else:
            with pytest.raises(ExecutionError, match="5120 bytes in all"):
                account.lay_out(values, "an engine")


def test_accounts_nest() -> None:
    assert open_account() is None
    outer, inner = Account(CallLimits()), Account(CallLimits())
    with charging(outer):
        with charging(inner):
            assert open_account() is inner
        assert open_account() is outer
    assert open_account() is None


@pytest.mark.parametrize("limits", [CallLimits(), CallLimits(bytes_alive=700, bytes_made=500), UNLIMITED])
def test_room_is_what_would_be_assumed(limits: CallLimits) -> None:
    """Whoever takes room for many operators at once leaves the account as those do who ask for each."""
    asked, told = Account(limits, 100), Account(limits, 100)
    sizes = [(100.0, 3.0), (250.0, 5.0), (149.0, 7.0)]
    most_bytes, most_elements, most_steps = told.room()
    total, elements = (sum(column) for column in zip(*sizes, strict=True))
    assert total <= most_bytes and elements <= most_elements and len(sizes) <= most_steps
    assert all(asked.assume(*size) for size in sizes)
    told.took(total, elements, len(sizes), 0)
    assert _sums(asked) == _sums(told)
    assert asked.assume(2.0, 1.0) is (told.room()[0] >= 2.0)
    for account in (asked, told):
        account.settle([])
    assert told.alive == asked.alive == 0.0


def _made(size: float) -> torch.Tensor:
    """A tensor of so many bytes."""
    return torch.ones(int(size / 8), dtype=torch.float64)


def test_what_is_alive_is_counted_once_for_a_call_and_its_parts() -> None:
    """A part of a call has no room of its own beside what the call holds."""
    with charging(Account(CallLimits(bytes_alive=8 * MIB, bytes_made=math.inf))) as outer:
        with outer.watching():
            held = _made(4 * MIB)
        for _ in range(3):  # what a part has made is free where it ends
            with charging(Account(CallLimits())) as inner, inner.watching():
                _made(3 * MIB)
            assert inner.used.alive == 3 * MIB and inner.used.made == 3 * MIB
        with (
            pytest.raises(ExecutionError, match="more than 8388608 bytes at once"),
            charging(Account(CallLimits())) as inner,
            inner.watching(),
        ):
            _made(4 * MIB + 8)
        assert outer.use_again(inner.used._replace(alive=4 * MIB)) is True
        assert outer.use_again(inner.used._replace(alive=4 * MIB + 8)) is False
        del held
        assert outer.use_again(inner.used._replace(alive=4 * MIB + 8)) is True
        with charging(Account(CallLimits())) as inner, inner.watching():
            _made(4 * MIB + 8)


def test_parts_of_a_call_have_the_room_that_was_assumed_and_is_free() -> None:
    """Estimates are large; what they leave free is found where a part wants it, at any depth."""
    values: list[torch.Tensor] = []
    with charging(Account(CallLimits(bytes_alive=8 * MIB, bytes_made=math.inf))) as outer:
        outer.settle_by(lambda: values)
        assert outer.assume(3 * MIB, 1)
        values.append(_made(MIB))
        with charging(Account(CallLimits())) as middle, charging(Account(CallLimits())) as inner:
            assert inner.alive == 3 * MIB
            with inner.watching():
                _made(6 * MIB)
            assert outer.alive == MIB
            assert middle.alive == inner.alive - 6 * MIB == MIB
            assert inner.used.alive == 6 * MIB
        assert outer.used.alive == 7 * MIB
        assert outer.assume(7 * MIB, 1)
        with charging(Account(CallLimits())) as inner:
            assert inner.alive == MIB  # counted closely at once, where little would be left


def _sums(account: Account) -> list[float]:
    names = ("alive", "made", "elements", "steps", "turns", "_assumed", "_assumed_elements")
    return [getattr(account, name) for name in names]


def test_a_call_inside_of_a_timed_one_is_timed() -> None:
    with charging(Account(CallLimits(seconds=60))):
        assert Account(CallLimits()).is_timed
    assert not Account(CallLimits()).is_timed
