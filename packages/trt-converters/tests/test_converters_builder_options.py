"""Every compilation setting that concerns a build reaches the builder's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from trt_converters.build import configure
from trt_core import CompilationSettings, trt
from trt_core.log import provider_logger
from trt_core.settings import MiB


def _config(**settings: Any) -> Any:
    config = trt.Builder(provider_logger()).create_builder_config()
    configure(config, CompilationSettings(**settings))
    return config


def _pool(name: str) -> Any:
    return getattr(trt.MemoryPoolType, name)


def test_defaults_leave_the_builders_own() -> None:
    plain = trt.Builder(provider_logger()).create_builder_config()
    config = _config()
    assert config.builder_optimization_level == plain.builder_optimization_level
    assert config.max_aux_streams == plain.max_aux_streams
    assert config.flags == plain.flags
    assert config.get_memory_pool_limit(_pool("WORKSPACE")) == plain.get_memory_pool_limit(_pool("WORKSPACE"))
    assert config.hardware_compatibility_level == plain.hardware_compatibility_level
    assert config.profiling_verbosity == plain.profiling_verbosity


def test_memory() -> None:
    assert _config(workspace_size=64 * MiB).get_memory_pool_limit(_pool("WORKSPACE")) == 64 * MiB


@pytest.mark.parametrize("level", range(6))
def test_optimization_level(level: int) -> None:
    assert _config(optimization_level=level).builder_optimization_level == level


def test_numbers() -> None:
    assert _config(max_aux_streams=3).max_aux_streams == 3
    assert _config(max_aux_streams=0).max_aux_streams == 0
    assert _config(num_avg_timing_iters=4).avg_timing_iterations == 4


@pytest.mark.parametrize(
    ("setting", "flag", "state"),
    [
        ("sparse_weights", "SPARSE_WEIGHTS", True),
        ("refit", "REFIT_INDIVIDUAL", True),
        ("version_compatible", "VERSION_COMPATIBLE", True),
        ("disable_tf32", "TF32", False),
    ],
)
def test_flags(setting: str, flag: str, state: bool) -> None:
    wanted = getattr(trt.BuilderFlag, flag)
    assert _config().get_flag(wanted) is not state
    assert _config(**{setting: True}).get_flag(wanted) is state


def test_levels() -> None:
    assert _config(hardware_compatible=True).hardware_compatibility_level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert _config(debug=True).profiling_verbosity == trt.ProfilingVerbosity.DETAILED


@pytest.mark.parametrize("capability", ["standard", "safety", "dla_standalone"])
def test_engine_capability(capability: str) -> None:
    found = _config(engine_capability=capability).engine_capability
    assert found == getattr(trt.EngineCapability, capability.upper())


def test_memory_of_dla() -> None:
    config = _config(
        engine_capability="dla_standalone",
        dla_sram_size=2 * MiB,
        dla_local_dram_size=256 * MiB,
        dla_global_dram_size=128 * MiB,
    )
    assert config.get_memory_pool_limit(_pool("DLA_MANAGED_SRAM")) == 2 * MiB
    assert config.get_memory_pool_limit(_pool("DLA_LOCAL_DRAM")) == 256 * MiB
    assert config.get_memory_pool_limit(_pool("DLA_GLOBAL_DRAM")) == 128 * MiB
