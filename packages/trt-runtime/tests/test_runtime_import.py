"""What importing the package loads, and does not load."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from fresh_process import run_python

import trt_runtime
from trt_runtime import TRTModule, save

NOT_TO_RUN: Final = (
    "concurrent.futures",
    "numpy.typing",
    "sympy",
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch._subclasses",
    "torch.export",
    "torch.fx.experimental",
    "trt_core.input",
    "trt_core.sizes.grid",
    "trt_core.sizes.guards",
    "trt_core.sizes.ranges",
    "trt_core.refit_table",
    "trt_core.settings",
    "trt_frontends",
    "trt_portable.builder",
    "trt_portable.layers.indexing",
    "trt_portable.layers.transformer",
    "trt_portable.network.control_flow",
    "trt_portable.network.network",
    "trt_portable.plugin",
    "trt_portable.plan.artifact",
    "trt_portable.fusion.cuda_products",
    "trt_portable.fusion.loops",
    "trt_portable.runtime.inspector",
    "trt_portable.execution.launch_list",
    "trt_portable.execution.replay",
    "trt_portable.execution.weight_streaming",
    "trt_portable.builder.inductor.tactic",
    "trt_runtime.graphed_calls",
    "trt_runtime.exchange",
    "trt_runtime.isolation",
    "trt_runtime.program.interface",
    "trt_runtime.program.model_facts",
    "trt_runtime.program.operand_checks",
    "trt_runtime.program.saving",
    "trt_runtime.refit",
)
"""Modules, and packages, that loading and calling a program of pointwise layers must not import after PyTorch."""

_RUN = """
import sys
import torch
before = set(sys.modules)
import trt_runtime
trt_runtime.load(sys.argv[1])(torch.ones(2, 3))
print(*sorted(set(sys.modules) - before))
"""


def test_import_is_light_and_registers_the_operator() -> None:
    script = """
import sys
import torch
before = set(sys.modules)
import trt_runtime
added = set(sys.modules) - before
heavy = ("torch.", "tensorrt", "trt_portable", "trt_lowering", "trt_partition", "trt_converters", "trt_frontends")
late = ("trt_core.limits", "trt_core.operator_counts", "trt_runtime.program", "trt_runtime.signatures")
print(sorted(name for name in added if name.startswith(heavy + late)), torch.cuda.is_initialized())
torch.ops.trt.execute_engine.default
import trt_runtime.isolation.worker
print("torch._dynamo" in sys.modules)
"""
    result = run_python(script, bare=True)
    assert result.stdout == "[] False\nFalse\n", result.stderr


def test_public_names_exist() -> None:
    assert [name for name in trt_runtime.__all__ if not hasattr(trt_runtime, name)] == []


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_loading_and_calling_import_only_what_runs(
    static_engine: TRTModule, dynamic_engine: TRTModule, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "model.trtp"
    save(static_engine if kind == "static" else dynamic_engine, path)
    done = run_python(_RUN, str(path), bare=True)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "trt_portable.layers.pointwise" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{package}." for package in NOT_TO_RUN))] == []
