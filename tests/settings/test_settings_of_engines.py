"""What settings of building change, in the configuration that the provider's builder is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from settings_models import X, compile_model, engines_of, explain
from torch import nn

from trt_core import BuildError, SettingsError, trt
from trt_core.settings import MiB
from trt_runtime import ENGINES


def test_device(model: nn.Module) -> None:
    for device, why in (("cuda:63", "CUDA device"), ("dla:0", "no deep learning accelerator")):
        with pytest.raises(SettingsError, match=why):
            compile_model(model, device=device)


def test_workspace_size(says_so: Callable[..., Any]) -> None:
    config = says_so(workspace_size=64 * MiB)
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 * MiB


@pytest.mark.parametrize("level", [0, 5])
def test_optimization_level(built_with: Callable[..., Any], level: int) -> None:
    assert built_with().builder_optimization_level not in (0, 5)
    assert built_with(optimization_level=level).builder_optimization_level == level


def test_max_aux_streams(says_so: Callable[..., Any]) -> None:
    assert says_so(max_aux_streams=3).max_aux_streams == 3


def test_num_avg_timing_iters(built_with: Callable[..., Any]) -> None:
    assert built_with(num_avg_timing_iters=4).avg_timing_iterations == 4


def test_disable_tf32(built_with: Callable[..., Any]) -> None:
    assert built_with().get_flag(trt.BuilderFlag.TF32)
    assert not built_with(disable_tf32=True).get_flag(trt.BuilderFlag.TF32)


def test_sparse_weights(says_so: Callable[..., Any]) -> None:
    assert says_so(sparse_weights=True).get_flag(trt.BuilderFlag.SPARSE_WEIGHTS)


def test_refit(model: nn.Module) -> None:
    assert engines_of(compile_model(model))[0].header.refit is None
    assert engines_of(compile_model(model, refit=True))[0].header.refit is not None


def test_enable_weight_streaming(model: nn.Module) -> None:
    for wanted in (False, True):
        compiled = compile_model(model, enable_weight_streaming=wanted)
        engine = engines_of(compiled)[0]
        loaded = ENGINES.engine_for(engine.plan, engine.header.text, torch.device("cpu"))
        assert bool(loaded.weight_budget.streamable) is wanted


def test_version_compatible(says_so: Callable[..., Any], model: nn.Module) -> None:
    assert says_so(version_compatible=True).get_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    assert engines_of(compile_model(model, version_compatible=True))[0].header.version_compatible


def test_hardware_compatible(says_so: Callable[..., Any], model: nn.Module) -> None:
    level = says_so(hardware_compatible=True).hardware_compatibility_level
    assert level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert engines_of(compile_model(model, hardware_compatible=True))[0].header.hardware_compatible


def test_engine_capability(built_with: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    assert built_with(engine_capability="safety").engine_capability == trt.EngineCapability.SAFETY
    assert "engine capability SAFETY needs NVIDIA hardware" in caplog.text


def _dla_pool(built_with: Callable[..., Any], pool: str, **sizes: int) -> int:
    config = built_with(engine_capability="dla_standalone", **sizes)
    size: int = config.get_memory_pool_limit(getattr(trt.MemoryPoolType, pool))
    return size


def test_dla_sram_size(built_with: Callable[..., Any]) -> None:
    assert _dla_pool(built_with, "DLA_MANAGED_SRAM", dla_sram_size=2 * MiB) == 2 * MiB


def test_dla_local_dram_size(built_with: Callable[..., Any]) -> None:
    assert _dla_pool(built_with, "DLA_LOCAL_DRAM", dla_local_dram_size=2 * MiB) == 2 * MiB


def test_dla_global_dram_size(built_with: Callable[..., Any]) -> None:
    assert _dla_pool(built_with, "DLA_GLOBAL_DRAM", dla_global_dram_size=2 * MiB) == 2 * MiB


def test_use_python_runtime(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match="use_python_runtime=True has no effect: engines always run through"):
        explain(model, use_python_runtime=True)


def test_pass_through_build_failures(model: nn.Module) -> None:
    impossible = {"engine_capability": "safety"}
    assert torch.equal(compile_model(model, **impossible)(X), model(X))
    with pytest.raises(BuildError, match="needs NVIDIA hardware"):
        compile_model(model, **impossible, pass_through_build_failures=True)
