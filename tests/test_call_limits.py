"""Limits of calls hold for programs, engines and generators alike, and in every call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_files
import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import ExecutionError, limits
from trt_core.limits import Account, CallLimits, LimitReached
from trt_runtime.program import loaded_program
from trt_runtime.program.load_options import LoadOptions
from trt_runtime.program.loading import program_from_memory

KINDS = {"an engine": set(), "steps": {"aten.relu", "aten.tanh"}, "engines and a step": {"aten.tanh"}}


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's program: one engine, steps of PyTorch alone, or both."""
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    layers = (
        [nn.ReLU(), nn.Tanh()] if request.param == "steps" else [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU()]
    )
    model = nn.Sequential(*layers).eval().requires_grad_(False)
    compiled = trt_frontends.compile(
        model, arg_inputs=(torch.ones(64, 4),), min_block_size=1, torch_executed_ops=KINDS[request.param]
    )
    trt_runtime.save(compiled, tmp_path / "model.trtp")
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "others"))
    return tmp_path / "model.trtp"


def _fails(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(ExecutionError, match=f"more than .* {word}"):
        call()


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("bytes_alive", "bytes at once"),
        ("bytes_made", "bytes in all"),
        ("elements", "elements"),
        ("steps", "operators"),
        ("seconds", "seconds"),
    ],
)
def test_each_limit_holds(path: Path, field: str, word: str) -> None:
    x = torch.ones(64, 4)
    others = {"bytes_made": math.inf} if field == "bytes_alive" else {}  # which follow from it
    program = trt_runtime.load(path, limits=CallLimits(**{field: 0.0}, **others))
    for _ in range(2):
        _fails(lambda: program(x), word)
    assert trt_runtime.load(path, limits=CallLimits(**{field: math.inf}))(x).shape == (64, 4)


def test_time_is_bounded_in_every_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that have passed are not counted again; the clock is looked at all the same."""
    x = torch.ones(64, 4)
    program = trt_runtime.load(path, limits=CallLimits(seconds=60.0))
    for _ in range(3):
        program(x)
    clock = itertools.count(0, 61)
    with monkeypatch.context() as patch:
        patch.setattr(limits.time, "monotonic", lambda: next(clock))
        _fails(lambda: program(x), "seconds")
    program(x)


def test_engines_of_a_program_share_its_time() -> None:
    outer = limits.Account(CallLimits(seconds=0.0))
    with limits.charging(outer):
        inner = limits.Account(CallLimits(seconds=1000.0))
    with pytest.raises(LimitReached, match="seconds"):
        inner.look_at_clock("an engine")


ROWS = (1, 2, 8, 16)
ATTENTION = "scaled_dot_product_attention"


def _attending(*more: list[Any]) -> bytearray:
    """A program that attends as often as there are arguments beyond query, key and value."""
    made = hostile_files.tensor_type(torch.float32, *ROWS)
    operands = [hostile_files.value(at) for at in range(3)]
    steps = [hostile_files.operator(ATTENTION, [*operands, *one], made) for one in more]
    return bytearray(
        hostile_files.program([(torch.float32, ROWS)] * 3, steps, hostile_files.value(2 + len(more))).to_bytes()
    )


def _watched(monkeypatch: pytest.MonkeyPatch, content: bytearray, *inputs: torch.Tensor) -> tuple[int, Account]:
    """How many of its calls were watched in a first call of a stranger's program, and what was charged."""
    accounts: list[Account] = []
    seen: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            limits, "Account", lambda *given, **named: accounts.append(Account(*given, **named)) or accounts[-1]
        )
        watching = Account.watching
        patch.setattr(Account, "watching", lambda self: (seen.append(self), watching(self))[1])
        program_from_memory(content)(*inputs)
    return len(seen), accounts[0]


def test_operators_that_use_as_much_are_watched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator without an estimate uses follows from which it is, its numbers, and how its operands lie."""
    plain, causal = [None, 0.0, False], [None, 0.0, True]
    q, k, v = torch.randn(3, *ROWS)
    assert _watched(monkeypatch, _attending(plain), q, k, v)[0] == 1
    times, account = _watched(monkeypatch, _attending(*[plain] * 7), q, k, v)
    assert times == 1
    assert _watched(monkeypatch, _attending(plain, causal, plain, causal), q, k, v)[0] == 2
    monkeypatch.setattr(loaded_program._Watch, "alike", lambda self, at, slots: None)
    each, wanted = _watched(monkeypatch, _attending(*[plain] * 7), q, k, v)
    assert each == 7
    assert (account.steps, account.elements, account.made) == (wanted.steps, wanted.elements, wanted.made)


def test_operators_that_are_watched_once_have_no_more_room_than_there_is() -> None:
    content = _attending(*[[None, 0.0, False]] * 7)
    inputs = torch.randn(3, *ROWS)
    for given, word in (
        (CallLimits(steps=6.0), "operators"),
        (CallLimits(bytes_made=6.0 * inputs[0].nbytes), "bytes in all"),
    ):
        program = program_from_memory(content, LoadOptions(limits=given))
        for _ in range(2):
            _fails(lambda program=program: program(*inputs), word)  # type: ignore[misc]  # bound in the loop
