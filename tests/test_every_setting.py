"""What each compilation setting changes: a test for each, and one that finds a setting without.

Where a setting has no effect, its test holds that the documented message is given.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_builds import record_builds
from fresh_process import run_python
from tensorrt_api import VERSIONS, load
from torch import nn

import trt_frontends
from trt_core import BuildError, CompilationSettings, ExecutionError, IncompleteCompilationError, SettingsError, trt
from trt_core.provider_option import provider_option
from trt_core.settings import MiB, setting_names
from trt_frontends.torch_compile import compiled_graph
from trt_runtime import ENGINES, TRTModule

EXTENSION = Path(__file__).parents[1] / "docs" / "_ext" / "settings_table.py"
X = torch.linspace(-3, 3, 8).reshape(2, 4)
OPTIONS = {field.name: provider_option(field) for field in CompilationSettings.__dataclass_fields__.values()}


class Mlp(nn.Module):
    """A linear layer and an activation in a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        return self.activation(self.linear(x))


class Chain(nn.Module):
    """Two engines around an operator that has no converter, and two operators that may join either."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        free = torch.neg(torch.neg(x))
        return torch.special.bessel_j0(x.abs().sin().cos()) * free


@pytest.fixture
def model() -> nn.Module:
    """The same weights in every test."""
    return Mlp().eval()


def _explain(model: nn.Module, x: torch.Tensor = X, **settings: Any) -> Any:
    return trt_frontends.explain(model, arg_inputs=(x,), **{"min_block_size": 1, **settings})


def _compile(model: nn.Module, **settings: Any) -> Any:
    return trt_frontends.compile(model, arg_inputs=(X,), **{"min_block_size": 1, **settings})


def _engines(compiled: nn.Module) -> list[TRTModule]:
    return [child for child in compiled.modules() if isinstance(child, TRTModule)]


@pytest.fixture
def built_with(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Compiles, and returns the configuration that the provider's builder was given."""
    given: list[Any] = []
    original = trt.Builder.build_serialized_network

    def build(builder: Any, network: Any, config: Any) -> Any:
        given.append(config)
        return original(builder, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build)

    def compile_with(**settings: Any) -> Any:
        given.clear()
        _compile(model, **settings)
        return given[-1]

    return compile_with


@pytest.fixture
def says_so(built_with: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """The same, of settings without effect on the portable provider: its log says what the documentation does."""

    def compile_with(**settings: Any) -> Any:
        with caplog.at_level(logging.INFO, logger="torch_tensorrt"):
            config = built_with(**settings)
        for name in settings:
            option = OPTIONS[name]
            assert option is not None
            assert f"has no effect: {option.portable.removeprefix('no effect: ')}" in caplog.text
        return config

    return compile_with


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of blocks that were built, not found in a cache."""
    return record_builds(monkeypatch)


# The table itself -------------------------------------------------------------------------------------


def test_every_setting_has_a_test() -> None:
    missing = [name for name in setting_names() if f"test_{name}" not in globals()]
    assert not missing, f"show what these change, each in a test named after it: {missing}"


def test_every_setting_is_read_somewhere() -> None:
    spec = importlib.util.spec_from_file_location("settings_table", EXTENSION)
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    unread = [name for name, modules in table.readers().items() if not modules]
    assert not unread, f"nothing reads these: {unread}"
    rendered = table.settings()
    assert all(f"`{name}` = " in rendered for name in setting_names())


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option is not None])
def test_options_are_tensorrts(name: str) -> None:
    option = OPTIONS[name]
    assert option is not None and option.tensorrt and option.portable
    for qualified in option.tensorrt:
        owner, _, member = qualified.partition(".")
        for version in VERSIONS:
            api = load(version)
            assert api.has_member(owner, member) or member in api.attributes(owner), f"{qualified} in {version}"


# Operators and precision ------------------------------------------------------------------------------


def test_precision(model: nn.Module) -> None:
    error = (_compile(model, precision=torch.float16)(X) - model(X)).abs().max()
    assert 0 < error < 1e-2


def test_enabled_precisions(model: nn.Module) -> None:
    with pytest.warns(DeprecationWarning, match="enabled_precisions is retired.*write enable_autocast=True"):
        compiled = _compile(model, enabled_precisions={torch.float16})
    assert torch.equal(compiled(X), _compile(model, enable_autocast=True)(X))


def test_use_explicit_typing(model: nn.Module) -> None:
    with pytest.warns(DeprecationWarning, match="networks are always strongly typed"):
        _explain(model, use_explicit_typing=False)


def test_enable_autocast(model: nn.Module) -> None:
    error = (_compile(model, enable_autocast=True)(X) - model(X)).abs().max()
    assert 0 < error < 1e-2


def test_autocast_dtype(model: nn.Module) -> None:
    half, brain = (
        _compile(model, enable_autocast=True, autocast_dtype=dtype)(X) for dtype in (torch.float16, torch.bfloat16)
    )
    assert not torch.equal(half, brain)


def _kept(model: nn.Module, **settings: Any) -> list[tuple[str, str]]:
    report = _explain(model, precision=torch.float16, **settings)
    return [(node.name, str(node.kept_in_float32)) for node in report.kept_in_float32]


def test_autocast_excluded_ops(model: nn.Module) -> None:
    kept = _kept(model, autocast_excluded_ops={"aten.relu"})
    assert kept == [("relu", "autocast_excluded_ops: torch.ops.aten.relu")]


def test_autocast_excluded_nodes(model: nn.Module) -> None:
    assert _kept(model, autocast_excluded_nodes={"^linear$"}) == [("linear", "autocast_excluded_nodes: ^linear$")]


def test_autocast_max_output_threshold(model: nn.Module) -> None:
    kept = dict(_kept(model, autocast_max_output_threshold=1.0))
    assert kept["linear"] == "autocast_max_output_threshold: x reaches 3"
    assert _kept(model, autocast_max_output_threshold=100.0) == []


def test_autocast_max_depth_of_reduction(model: nn.Module) -> None:
    kept = _kept(model, autocast_max_depth_of_reduction=3)
    assert kept == [("linear", "autocast_max_depth_of_reduction: adds up 4 elements")]
    assert _kept(model, autocast_max_depth_of_reduction=4) == []


def test_max_error(model: nn.Module) -> None:
    exact, rough = (_compile(model, max_error=error).meta["precision_report"] for error in (1e-6, 1e-2))
    assert (exact.dtype, rough.dtype) == ("float32", "float16")


def test_truncate_long_and_double(model: nn.Module) -> None:
    x = X.double()
    assert len(_explain(model.double(), x).engines) == 0
    assert len(_explain(model.double(), x, truncate_long_and_double=True).engines) == 1


def test_torch_executed_ops(model: nn.Module) -> None:
    report = _explain(model, torch_executed_ops={"aten.relu"})
    assert [node.op for node in report.torch_nodes] == ["torch.ops.aten.relu.default"]


def test_torch_executed_modules(model: nn.Module) -> None:
    report = _explain(model, torch_executed_modules={"activation"})
    assert [node.op for node in report.torch_nodes] == ["torch.ops.aten.relu.default"]


def test_check_indices() -> None:
    model, ids = nn.Embedding(3, 4), torch.tensor([0, 2])
    assert _explain(model, ids).coverage == 1
    assert _explain(model, ids, check_indices=True).coverage == 0


def test_enable_experimental_decompositions(model: nn.Module) -> None:
    def operators(**settings: Any) -> set[str]:
        return {node.op for node in _explain(model, **settings).nodes}

    assert "torch.ops.aten.linear.default" in operators()
    assert "torch.ops.aten.linear.default" not in operators(enable_experimental_decompositions=True)


# Partitioning -----------------------------------------------------------------------------------------


def test_min_block_size() -> None:
    assert len(_explain(Chain(), min_block_size=1).engines) == 2
    assert len(_explain(Chain(), min_block_size=2).engines) == 1
    assert len(_explain(Chain(), min_block_size=float("inf")).engines) == 0


def test_use_fast_partitioner() -> None:
    fast, thorough = (_explain(Chain(), min_block_size=3, use_fast_partitioner=fast) for fast in (True, False))
    assert [block.operators for block in fast.engines] == [5]
    assert [block.operators for block in thorough.engines] == [3, 3]


def test_require_full_compilation() -> None:
    with pytest.raises(IncompleteCompilationError, match="bessel_j0"):
        _compile(Chain(), require_full_compilation=True)


def test_dryrun(model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str], builds: list[str]) -> None:
    _compile(model, dryrun=True)
    assert "Dry-Run Results" in capsys.readouterr().out
    _compile(model, dryrun=str(tmp_path / "report.json"))
    assert (tmp_path / "report.json").exists()
    assert not builds


def test_debug(built_with: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    assert built_with().profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    assert "lowering pass" not in caplog.text
    assert built_with(debug=True).profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    for step in ("lowering pass", "Dry-Run Results", "built _run_on_acc_0"):
        assert step in caplog.text


def test_debug_needs_no_logging_of_the_application() -> None:
    done = run_python(
        "import torch, trt_frontends\n"
        "trt_frontends.compile(torch.nn.ReLU(), arg_inputs=(torch.ones(2),), min_block_size=1, debug=True)\n",
        env={"TRT_PROVIDER": "portable"},
    )
    assert done.returncode == 0, done.stderr
    for step in ("DEBUG torch_tensorrt: lowering pass", "DEBUG torch_tensorrt: built _run_on_acc_0"):
        assert step in done.stderr


# Building ---------------------------------------------------------------------------------------------


def test_device(model: nn.Module) -> None:
    for device, why in (("cuda:63", "CUDA device"), ("dla:0", "no deep learning accelerator")):
        with pytest.raises(SettingsError, match=why):
            _compile(model, device=device)


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
    assert _engines(_compile(model))[0].header.refit is None
    assert _engines(_compile(model, refit=True))[0].header.refit is not None


def test_enable_weight_streaming(model: nn.Module) -> None:
    for wanted in (False, True):
        compiled = _compile(model, enable_weight_streaming=wanted)
        engine = _engines(compiled)[0]
        loaded = ENGINES.engine_for(engine.plan, engine.header.text, torch.device("cpu"))
        assert bool(loaded.weight_budget.streamable) is wanted


def test_version_compatible(says_so: Callable[..., Any], model: nn.Module) -> None:
    assert says_so(version_compatible=True).get_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    assert _engines(_compile(model, version_compatible=True))[0].header.version_compatible


def test_hardware_compatible(says_so: Callable[..., Any], model: nn.Module) -> None:
    level = says_so(hardware_compatible=True).hardware_compatibility_level
    assert level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert _engines(_compile(model, hardware_compatible=True))[0].header.hardware_compatible


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
        _explain(model, use_python_runtime=True)


def test_pass_through_build_failures(model: nn.Module) -> None:
    impossible = {"engine_capability": "safety"}
    assert torch.equal(_compile(model, **impossible)(X), model(X))
    with pytest.raises(BuildError, match="needs NVIDIA hardware"):
        _compile(model, **impossible, pass_through_build_failures=True)


# Running ----------------------------------------------------------------------------------------------


def test_use_cuda_graphs(model: nn.Module) -> None:
    with pytest.raises(SettingsError, match="use_cuda_graphs needs a CUDA device"):
        _compile(model, use_cuda_graphs=True)


def test_offload_module_to_cpu(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Any] = []  # on the CPU there is nothing else to see; `test_frontends_running` measures it on a GPU
    monkeypatch.setattr(model, "to", moved.append)
    _compile(model)
    assert not moved
    _compile(model, offload_module_to_cpu=True)
    assert moved == ["cpu"]


# Caching ----------------------------------------------------------------------------------------------


def test_cache_built_engines(model: nn.Module, tmp_path: Path) -> None:
    _compile(model, engine_cache_dir=str(tmp_path), cache_built_engines=False)
    assert not list(tmp_path.glob("*.plan"))


def test_reuse_cached_engines(model: nn.Module, tmp_path: Path, builds: list[str]) -> None:
    for _ in range(2):
        _compile(model, engine_cache_dir=str(tmp_path), reuse_cached_engines=False)
    assert len(builds) == 2


def test_engine_cache_dir(model: nn.Module, tmp_path: Path, builds: list[str]) -> None:
    for _ in range(2):
        _compile(model, engine_cache_dir=str(tmp_path))
    assert len(builds) == 1
    assert list(tmp_path.glob("*.plan"))


def test_engine_cache_size(model: nn.Module, tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="the cache may hold 1"):
        _compile(model, engine_cache_dir=str(tmp_path), engine_cache_size=1)
    assert not list(tmp_path.glob("*.plan"))


def test_timing_cache_path(model: nn.Module, tmp_path: Path) -> None:
    _compile(model, timing_cache_path=str(tmp_path / "timings"))
    assert (tmp_path / "timings").stat().st_size


# Under torch.compile ----------------------------------------------------------------------------------


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


@torch.no_grad()
def test_torch_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(compiled_graph, "compile_pytorch_blocks", compiled.append)
    _optimized(Chain())(X)
    assert not compiled
    _optimized(Chain(), torch_fallback="inductor")(X)
    assert len(compiled) == 1
