"""What settings of partitioning and of its report change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fresh_process import run_python
from settings_models import Chain, compile_model, explain
from torch import nn

from trt_core import IncompleteCompilationError, trt


def test_min_block_size() -> None:
    assert len(explain(Chain(), min_block_size=1).engines) == 2
    assert len(explain(Chain(), min_block_size=2).engines) == 1
    assert len(explain(Chain(), min_block_size=float("inf")).engines) == 0


def test_use_fast_partitioner() -> None:
    fast, thorough = (explain(Chain(), min_block_size=3, use_fast_partitioner=fast) for fast in (True, False))
    assert [block.operators for block in fast.engines] == [5]
    assert [block.operators for block in thorough.engines] == [3, 3]


def test_require_full_compilation() -> None:
    with pytest.raises(IncompleteCompilationError, match="bessel_j0"):
        compile_model(Chain(), require_full_compilation=True)


def test_dryrun(model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str], builds: list[str]) -> None:
    compile_model(model, dryrun=True)
    assert "Dry-Run Results" in capsys.readouterr().out
    compile_model(model, dryrun=str(tmp_path / "report.json"))
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
