"""Limits of calls hold for programs, engines and generators alike, and in every call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import ExecutionError, limits
from trt_core.limits import CallLimits, LimitReached

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
