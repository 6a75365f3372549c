"""What settings of running, caching and `torch.compile` change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from settings_models import Chain, X, compile_model
from torch import nn

from trt_core import ExecutionError, SettingsError
from trt_frontends.torch_compile import compiled_graph


def test_use_cuda_graphs(model: nn.Module) -> None:
    with pytest.raises(SettingsError, match="use_cuda_graphs needs a CUDA device"):
        compile_model(model, use_cuda_graphs=True)


def test_offload_module_to_cpu(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []  # on the CPU there is nothing else to see; `test_frontends_running` measures it on a GPU
    monkeypatch.setattr(model, "to", moved.append)
    compile_model(model)
    assert not moved
    compile_model(model, offload_module_to_cpu=True)
    assert moved == ["cpu"]


def test_cache_built_engines(model: nn.Module, tmp_path: Path) -> None:
    compile_model(model, engine_cache_dir=str(tmp_path), cache_built_engines=False)
    assert not list(tmp_path.glob("*.plan"))


def test_reuse_cached_engines(model: nn.Module, tmp_path: Path, builds: list[str]) -> None:
    for _ in range(2):
        compile_model(model, engine_cache_dir=str(tmp_path), reuse_cached_engines=False)
    assert len(builds) == 2


def test_engine_cache_dir(model: nn.Module, tmp_path: Path, builds: list[str]) -> None:
    for _ in range(2):
        compile_model(model, engine_cache_dir=str(tmp_path))
    assert len(builds) == 1
    assert list(tmp_path.glob("*.plan"))


def test_engine_cache_size(model: nn.Module, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="the cache may hold 1"):
        compile_model(model, engine_cache_dir=str(tmp_path), engine_cache_size=1)
    assert not list(tmp_path.glob("*.plan"))


def test_timing_cache_path(model: nn.Module, tmp_path: Path) -> None:
    compile_model(model, timing_cache_path=str(tmp_path / "timings"))
    assert (tmp_path / "timings").stat().st_size


def _optimized(model: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="torch_tensorrt", dynamic=False, options={"min_block_size": 1, **options})


@torch.no_grad()
@pytest.mark.parametrize("checked", [True, False])
def test_check_weights(model: nn.Module, checked: bool) -> None:
    optimized = _optimized(model, check_weights=checked)
    before = optimized(X)
    model.linear.weight.add_(1)
    assert torch.equal(optimized(X), before) is not checked


def test_gradients(model: nn.Module) -> None:
    with pytest.raises(ExecutionError, match="gradient"):
        _optimized(model)(X).sum().backward()
    _optimized(model, gradients="pytorch")(X).sum().backward()
    assert model.linear.weight.grad is not None
    with pytest.raises(SettingsError, match="is for torch"):
        compile_model(model, gradients="pytorch")


@torch.no_grad()
def test_torch_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(compiled_graph, "compile_pytorch_blocks", compiled.append)
    _optimized(Chain())(X)
    assert not compiled
    _optimized(Chain(), torch_fallback="inductor")(X)
    assert len(compiled) == 1
    with pytest.warns(UserWarning, match="has no effect outside torch"):
        compile_model(Chain(), torch_fallback="inductor")
