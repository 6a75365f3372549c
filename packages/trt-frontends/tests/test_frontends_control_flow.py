"""Branches and loops in engines: `torch.cond`, `while_loop`, `scan` and `map`, whole and through every door."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from control_flow_models import Mapped, Scanned, rows_of
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import trt_frontends
from trt_core import Input

pytestmark = pytest.mark.sampled(4)


class Branch(nn.Module):
    """Two results, weights of either branch, a branch that hands its input on."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def yes(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.left(y).relu(), y + 1

        def no(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.right(y) * y.shape[0], y.clone()

        found: tuple[torch.Tensor, torch.Tensor] = torch.cond(x.sum() > 0, yes, no, (x,))
        return found


class Newton(nn.Module):
    """A loop that ends by what it computes; without any iteration for negative sums."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def goes_on(count: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (count < 6) & (y.sum() > 0)

        def step(count: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 1, torch.nn.functional.layer_norm(self.layer(y), (4,)) + 0.25

        found: tuple[torch.Tensor, torch.Tensor] = while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x))
        return found


class Nested(nn.Module):
    """A branch in a loop in a branch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(count: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            turned = torch.cond(y.mean() > 0.5, lambda z: z * 0.5, lambda z: z + 0.75, (y,))
            return count + 1, turned

        def loop(y: torch.Tensor) -> torch.Tensor:
            last: torch.Tensor = while_loop(lambda count, z: count < 5, step, (y.new_zeros((), dtype=torch.int64), y))[
                1
            ]
            return last

        found: torch.Tensor = torch.cond(x.sum() > 0, loop, lambda y: y - 1, (x,))
        return found


class OtherTypes(nn.Module):
    """Results that are bools, integers and constants."""

    def forward(self, x: torch.Tensor) -> Any:
        def yes(y: torch.Tensor) -> Any:
            return y > 1, y.long(), torch.ones(2)

        return torch.cond((x > 0).all(), yes, lambda y: (y < 1, y.long() + 1, torch.zeros(2)), (x,))


class FoldedWeights(nn.Module):
    """Operators that take constants only: a convolution and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.cond(x.sum() > 0, self.layers, lambda y: self.layers[0](y) * 3, (x[:, None],))
        return found


class InARow(nn.Module):
    """A branch on what another one makes; a scan whose results have an axis more than its states."""

    def forward(self, x: torch.Tensor) -> Any:
        one, two = torch.cond(x.sum() > 0, lambda y: (y.sin(), y.sin() + 1), lambda y: (y.cos(), y.abs()), (x,))
        last = torch.cond(one.sum() > 0, lambda y: y * 2, lambda y: y * 3, (one,))

        def combine(state: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return state + item, (state * item)[None].expand(2, 4).clone()

        return two, last, scan(combine, x[0] + 0, one, dim=0)


MODELS = [Branch, Newton, Scanned, Mapped, Nested, OtherTypes, FoldedWeights, InARow]


def _compile(model: nn.Module, **settings: Any) -> Any:
    varying = Input(min_shape=(2, 4), opt_shape=(3, 4), max_shape=(9, 4))
    return trt_frontends.compile(model, arg_inputs=[varying], **{"min_block_size": 1, "device": "cpu", **settings})


@functools.cache
def _whole(kind: Callable[[], nn.Module], level: int) -> tuple[nn.Module, Any]:
    """A model and what it is compiled to, which tests call and save."""
    torch.manual_seed(0)
    model = kind().eval()
    return model, _compile(model, optimization_level=level)


@pytest.mark.sampled
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_with_control_flow_is_one_engine(kind: Callable[[], nn.Module], level: int) -> None:
    model, compiled = _whole(kind, level)
    report = compiled.meta["partition_report"]
    assert (len(report.engines), report.coverage) == (1, 1.0)
    for rows in (2, 3, 9):
        for x in rows_of(rows):
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("kind", [Branch, Newton, Mapped, Nested])
def test_branches_and_loops_are_taken_for_single_rows_too(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    rows = Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(9, 4))
    compiled = trt_frontends.compile(model, arg_inputs=[rows], min_block_size=1, device="cpu", optimization_level=0)
    for x in (*rows_of(1), *rows_of(9)):
        torch.testing.assert_close(compiled(x), model(x))  # PyTorch still compiles branches of the model itself


class Counted(nn.Module):
    """A branch and a loop that read what the model writes to before and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: x + self.calls, lambda x: x - self.calls, (x,))
        self.calls.add_(1)
        count = torch.zeros((), dtype=torch.int64)
        z = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + self.calls), (count, y))
        self.calls.mul_(2)
        return y, z


@pytest.mark.parametrize("stays", [(), ("torch.ops.higher_order.cond", "torch.ops.higher_order.while_loop")])
def test_branches_and_loops_read_state_that_the_model_writes_to(stays: tuple[str, ...], tmp_path: Path) -> None:
    eager, model = Counted(), Counted()
    compiled = _compile(model, optimization_level=0, torch_executed_ops=set(stays))
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    for x in (*rows_of(2), *rows_of(5)):
        expected = eager(x)
        torch.testing.assert_close(compiled(x), expected)
        torch.testing.assert_close(loaded(x), expected)


@pytest.mark.parametrize("kind", [Branch, Newton, Scanned, Mapped, Nested])
def test_branches_and_loops_are_verified_in_float64(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    x = rows_of(3)[0]
    report = trt_frontends.verify(model, lambda *args: model(*args), arg_inputs=(x,), samples=0)
    assert report.skipped_exact == ""
    assert all(output.nearer for output in report.outputs if output.error.max_abs)
    model(x)


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_program_runs_branches_and_loops(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, compiled = _whole(kind, 0)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    for x in rows_of(5):
        torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_program_runs_what_stays_in_pytorch(kind: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    names = {f"torch.ops.higher_order.{name}" for name in ("cond", "while_loop", "scan", "map_impl")}
    compiled = _compile(model, optimization_level=0, torch_executed_ops=names)
    assert compiled.meta["partition_report"].coverage < 1
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    for rows in (2, 9):
        for x in rows_of(rows):
            torch.testing.assert_close(loaded(x), model(x))


def test_a_branch_that_does_not_convert_runs_in_pytorch_with_its_reason(tmp_path: Path) -> None:
    model = Branch().eval()
    compiled = _compile(model, optimization_level=0, torch_executed_ops={torch.ops.aten.relu.default})
    verdicts = {node.op: node.verdict for node in compiled.meta["partition_report"].nodes}
    refusal = verdicts["torch.ops.higher_order.cond"]
    assert refusal.code == "TRT-F053" and "aten.relu" in refusal.message
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_frontends.load(tmp_path / "model.trtp")
    for x in rows_of(4):
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(loaded(x), model(x))


def test_a_body_that_draws_random_numbers_stays_in_pytorch() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y * 2, (x,))
            return found

    compiled = _compile(Noisy().eval(), optimization_level=0)
    verdicts = {node.op: node.verdict for node in compiled.meta["partition_report"].nodes}
    assert not verdicts["torch.ops.higher_order.cond"].supported
    torch.testing.assert_close(compiled(x := rows_of(3)[1]), x * 2)


def test_extents_that_depend_on_data_in_a_body_keep_it_in_pytorch() -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros(2, dtype=torch.int64)
            found: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y.nonzero().sum(0), lambda y: zeros + 1, (x,))
            return found

    model = Counting().eval()
    compiled = _compile(model, optimization_level=0)
    verdicts = {node.op: node.verdict for node in compiled.meta["partition_report"].nodes}
    assert "has shape (u0, 2)" in verdicts["torch.ops.higher_order.cond"].message
    for x in rows_of(4):
        torch.testing.assert_close(compiled(x), model(x))


def test_engines_of_other_bodies_are_other_engines(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y * self.factor, lambda y: y - 1, (x,))
            return found

    settings: dict[str, Any] = {
        "optimization_level": 0,
        "cache_built_engines": True,
        "reuse_cached_engines": True,
        "engine_cache_dir": str(tmp_path),
    }
    x = rows_of(3)[0]
    for factor in (2.0, 3.0, 2.0):
        torch.testing.assert_close(_compile(Scaled(factor).eval(), **settings)(x), x * factor)


def test_types_that_are_reduced_end_at_a_loop() -> None:
    torch.manual_seed(0)
    model = Newton().eval()
    compiled = _compile(nn.Sequential(nn.Linear(4, 4), model).eval(), precision="float16", optimization_level=0)
    assert compiled.meta["partition_report"].coverage == 1.0


def test_refitted_weights_reach_bodies() -> None:
    torch.manual_seed(0)
    model, other = Branch().eval(), Branch().eval()
    refitted = trt_frontends.refit_module_weights(_compile(model, optimization_level=0, refit=True), other.state_dict())
    for x in rows_of(3):
        torch.testing.assert_close(refitted(x), other(x))


@pytest.mark.parametrize("kind", MODELS)
def test_torch_compile_takes_control_flow(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    options = {"min_block_size": 1, "device": "cpu", "optimization_level": 0}
    optimized = torch.compile(model, backend="torch_tensorrt", options=options)
    with torch.no_grad():
        for x in rows_of(3):
            torch.testing.assert_close(optimized(x), model(x))
