"""Sizes that engines are built for, and when they are built again."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.torch_compile import compiled_graph
from trt_frontends.torch_compile.compiled_graph import CompiledGraph

OPTIONS = {"min_block_size": 1}


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Ranges of the builds that are made while the test runs."""
    found = []
    build = CompiledGraph._build

    def spy(graph: CompiledGraph, inputs: Any, chosen: Any, reason: str) -> Any:
        found.append(dict(chosen.symbols))
        return build(graph, inputs, chosen, reason)

    monkeypatch.setattr(CompiledGraph, "_build", spy)
    return found


def _check(optimized: Any, function: Any, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(optimized(*inputs), function(*inputs))


def test_sizes_are_tuned_for_the_first_call_and_have_a_generous_end(ranges: list[Any]) -> None:
    optimized = torch.compile(torch.relu, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    _check(optimized, torch.relu, torch.randn(6, 7))
    assert sorted(bounds[1] for bounds in ranges[0].values()) == [6, 7]
    assert all(low == 2 and high == compiled_graph.GENEROUS for low, _, high in ranges[0].values())


def test_marked_bounds_are_kept(ranges: list[Any]) -> None:
    optimized = torch.compile(torch.relu, backend=torch_tensorrt_backend, options=OPTIONS)
    x = torch.randn(6, 7)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=32)
    _check(optimized, torch.relu, x)
    assert list(ranges[0].values()) == [(4, 6, 32)]


def test_a_call_beyond_the_range_builds_a_wider_one(monkeypatch: pytest.MonkeyPatch, ranges: list[Any]) -> None:
    monkeypatch.setattr(compiled_graph, "GENEROUS", 8)
    optimized = torch.compile(torch.relu, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for rows in (2, 8, 9, 40, 3):
        _check(optimized, torch.relu, torch.randn(rows, rows))
    assert [max(high for _, _, high in found.values()) for found in ranges] == [8, 64]
    (graph,) = model_report(optimized).graphs
    assert "is 9, built for 2 to 8" in graph.builds[1].reason


def test_no_tensor_is_larger_than_tensorrt_counts(ranges: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ x.transpose(-1, -2))

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    _check(optimized, function, torch.randn(3, 9, 16))
    (found,) = ranges
    batch, length, width = (next(high for _, opt, high in found.values() if opt == size) for size in (3, 9, 16))
    assert batch * length * max(length, width) <= compiled_graph.MOST_ELEMENTS
    assert batch >= 64 and length >= 64


def test_ends_agree_with_guards(ranges: list[Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] % 8 == 0 and y.shape[0] > x.shape[0]:
            return torch.relu(x.reshape(-1, 8)).sum(0) + torch.relu(y).sum()
        return x

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    _check(optimized, function, torch.randn(16), torch.randn(20))
    (found,) = ranges
    first, second = (next(bounds for bounds in found.values() if bounds[1] == size) for size in (16, 20))
    assert first[0] % 8 == 0 and first[2] % 8 == 0
    assert first[0] < second[0] and first[2] < second[2]


def test_ends_at_which_sizes_divide_by_zero() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, parts = 64 // y.shape[0], y.shape[0] // 4
        return torch.relu(x[: x.shape[0] // rows]) if x.shape[0] % parts == 0 else x

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for sizes in ((32, 16), (36, 12)):
        _check(optimized, function, *map(torch.randn, sizes))


def test_an_end_that_no_guard_allows_is_as_far_as_guards_hold(ranges: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) if (x.shape[0] // 8) ** 2 == 16 else x

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for size in (34, 39, 32):
        _check(optimized, function, torch.randn(size))
    assert [list(found.values()) for found in ranges] == [[(32, 34, 39)]]


def test_an_end_that_no_guard_allows_is_a_multiple_of_the_size(ranges: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.reshape(-1, 1300)) if x.shape[0] % 1300 == 0 else x

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for size in (2600, 3900, 5200):
        _check(optimized, function, torch.randn(size))
    assert [list(found.values()) for found in ranges] == [[(1300, 2600, 10400)]]


@pytest.mark.parametrize("dynamic", [None, True])
def test_batch_and_length_together(dynamic: bool | None, ranges: list[Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()

    def function(x: torch.Tensor) -> torch.Tensor:
        return model(x).softmax(1)

    optimized = torch.compile(function, backend=torch_tensorrt_backend, dynamic=dynamic)
    for size in range(2, 42):
        _check(optimized, function, torch.randn(size, 3 * size, 16))
    assert len(ranges) == (2 if dynamic is None else 1)


def test_floats_that_stay_are_constants_and_floats_that_change_are_inputs(ranges: list[Any]) -> None:
    def function(x: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.relu(x) * scale

    optimized = torch.compile(function, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    with torch.no_grad():
        for rows in (3, 4, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(optimized(x, 0.5), function(x, 0.5))
        assert len(ranges) == 1
        assert model_report(optimized).coverage == 1.0
        for step in range(5):
            torch.testing.assert_close(optimized(x, 0.1 * step), function(x, 0.1 * step))
    assert len(ranges) <= 3


def test_batch_norm_runs_in_an_engine_with_sizes_that_vary() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for batch, size in ((2, 8), (3, 9), (15, 30)):  # PyTorch's convolution itself tells batches up to 15 from others
        _check(optimized, model, torch.randn(batch, 3, size, size))
    report = model_report(optimized)
    assert (report.coverage, report.engines) == (1.0, 1)


def test_a_fused_encoder_layer_runs_in_an_engine_with_sizes_that_vary() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for batch, length in ((2, 5), (3, 9)):
        _check(optimized, model, torch.randn(batch, length, 8))
    report = model_report(optimized)
    assert (len(report.graphs), report.coverage, report.engines) == (1, 1.0, 1)


def test_a_number_that_stays_is_part_of_the_engine_and_one_that_changes_an_input() -> None:
    linear = nn.Linear(4, 4).eval()

    def last(x: torch.Tensor, count: int) -> torch.Tensor:
        return linear(torch.relu(linear(x))[:, slice(-count, None)])

    optimized = torch.compile(last, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    for count in (3, 3, 2, 4, 3):
        with torch.no_grad():
            torch.testing.assert_close(optimized(torch.ones(2, 5, 4), count), last(torch.ones(2, 5, 4), count))
    (graph,) = model_report(optimized).graphs
    first, second = graph.builds
    assert first.partition is not None
    assert not first.partition.torch_nodes
    assert "numbers changed" in second.reason


def test_a_guard_may_divide_by_a_number() -> None:
    def parted(x: torch.Tensor, count: int) -> torch.Tensor:
        return torch.relu(x) if x.shape[0] % count == 0 else x

    optimized = torch.compile(parted, backend=torch_tensorrt_backend, options=OPTIONS, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(optimized(torch.ones(6, 4), 3), torch.ones(6, 4))
        torch.testing.assert_close(optimized(torch.ones(6, 4), 2), torch.ones(6, 4))  # a number that was seen to change


def test_sizes_marked_as_unknown_are_compiled_without_a_warning() -> None:
    optimized = torch.compile(lambda x: (x * 2, x.sum(0)), backend=torch_tensorrt_backend, options=OPTIONS)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            torch.testing.assert_close(optimized(x), (x * 2, x.sum(0)))
