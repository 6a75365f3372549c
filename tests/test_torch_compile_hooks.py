"""Hooks for all modules of a process see the modules of the user, and a compiled one once; never engines and blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.utils import _pytree as pytree

import trt_frontends
from trt_frontends.backend import torch_tensorrt_backend

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Interrupted(nn.Module):
    """Two engines with a block in PyTorch between them, and views behind them; in two graphs where it breaks."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.breaks = nn.Linear(4, 8), nn.Linear(8, 4), breaks

    def forward(self, x: torch.Tensor) -> Any:
        """x: (N, 4), float32; returns (4, N) and (N, 4)."""
        y = torch.special.bessel_j0(torch.relu(self.first(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        y = torch.relu(self.second(y))
        return y.t(), y[:, :]


@contextlib.contextmanager
def _calls_watched() -> Iterator[list[str]]:
    """Records calls of all modules, and adds one to what they return."""
    calls: list[str] = []

    def before(module: nn.Module, _: Any) -> None:
        calls.append(f"before {type(module).__name__}")

    def after(module: nn.Module, _: Any, result: Any) -> Any:
        calls.append(f"after {type(module).__name__}")
        return pytree.tree_map(lambda value: value + 1, result)

    def backward(module: nn.Module, *_: Any) -> None:
        calls.append(f"backward {type(module).__name__}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(global_hooks.register_module_forward_pre_hook(before))
        stack.enter_context(global_hooks.register_module_forward_hook(after))
        stack.enter_context(global_hooks.register_module_full_backward_hook(backward))
        stack.enter_context(global_hooks.register_module_full_backward_pre_hook(backward))
        yield calls


@contextlib.contextmanager
def _registrations_watched() -> Iterator[list[str]]:
    """Records what modules register, and puts zeros in the place of tensors."""
    names: list[str] = []

    def note(module: nn.Module, name: str, value: Any) -> Any:
        names.append(f"{type(module).__name__}.{name}")
        return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None

    with contextlib.ExitStack() as stack:
        for what in ("module", "parameter", "buffer"):
            stack.enter_context(getattr(global_hooks, f"register_module_{what}_registration_hook")(note))
        yield names


def _watch_calls(backend: Any, breaks: bool, hooked_calls: range) -> tuple[list[list[str]], list[Any]]:
    torch._dynamo.reset()
    options = {"options": {"min_block_size": 1}} if backend is torch_tensorrt_backend else {}
    optimized = torch.compile(Interrupted(breaks).eval(), backend=backend, **options)
    seen, results = [], []
    for call in range(3):
        with _calls_watched() if call in hooked_calls else contextlib.nullcontext([]) as calls, torch.no_grad():
            results.append(optimized(X))
        seen.append(calls)
    return seen, results


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize(
    ("hooked_calls", "breaks"),
    [(range(3), True), (range(1, 3), False), (range(1), True)],
    ids=["all", "later", "first"],
)
def test_captured_modules_are_hooked_as_dynamo_does_it_and_engines_are_not(hooked_calls: range, breaks: bool) -> None:
    # not `aot_eager`, whose functional graphs are modules that hooks fire on
    wanted, expected = _watch_calls("eager", breaks, hooked_calls)
    seen, results = _watch_calls(torch_tensorrt_backend, breaks, hooked_calls)
    assert seen == wanted
    torch.testing.assert_close(results, expected)


def test_registrations_of_a_build_are_not_seen() -> None:
    torch._dynamo.reset()
    model = Interrupted().eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad(), _registrations_watched() as names:
        torch.testing.assert_close(optimized(X), model(X))
        assert names == []
        nn.Linear(1, 1)
        assert names == ["Linear.weight", "Linear.bias"]


def _saved_and_loaded(model: nn.Module, path: Path) -> nn.Module:
    trt_frontends.save(_compiled(model, path), path / "model.trtp")
    return trt_frontends.load(path / "model.trtp")


def _compiled(model: nn.Module, _: Path) -> nn.Module:
    return trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1)


@pytest.mark.parametrize("make", [_compiled, _saved_and_loaded])
@pytest.mark.parametrize("model", [Interrupted(), nn.Linear(4, 4)], ids=["blocks", "one engine"])
def test_a_compiled_module_is_one_module(model: nn.Module, make: Callable[..., nn.Module], tmp_path: Path) -> None:
    compiled = make(model.eval(), tmp_path)
    with torch.no_grad():
        expected = pytree.tree_map(lambda value: value + 1, model(X))
        with _calls_watched() as calls:
            result = compiled(X)
    name = type(compiled).__name__
    assert calls == [f"before {name}", f"after {name}"]
    torch.testing.assert_close(result, expected)
