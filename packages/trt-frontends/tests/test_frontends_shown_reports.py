"""Reports at a prompt and in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_frontends.quantization import quantization_report

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()


def _precision() -> Any:
    compiled = trt_frontends.compile(_model(), arg_inputs=(X,), precision="auto", min_block_size=1)
    return compiled.meta["precision_report"]


def _graphs() -> Any:
    optimized = trt_frontends.optimize(_model(), min_block_size=1)
    with torch.no_grad():
        optimized(X)
    return trt_frontends.model_report(optimized)


REPORTS: dict[str, tuple[Callable[[], Any], str]] = {
    "PartitionReport": (lambda: trt_frontends.explain(_model(), arg_inputs=(X,), min_block_size=1), "100.00% coverage"),
    "AccuracyReport": (lambda: trt_frontends.verify(_model(), arg_inputs=(X,), samples=1), "within tolerance"),
    "BisectReport": (lambda: trt_frontends.bisect(_model(), arg_inputs=(X,)), "Sequential: error"),
    "PrecisionReport": (_precision, "allowed 0.01"),
    "ModelReport": (_graphs, "1 graphs, 1 engines"),
    "LayerProfile": (
        lambda: trt_runtime.profile_layers(trt_frontends.compile(_model(), arg_inputs=(X,), min_block_size=1), (X,)),
        "mean of 20 calls",
    ),
    "QuantizationReport": (lambda: quantization_report(trt_frontends.quantize(_model(), [X])), "1 of 1 products"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_shows_itself(name: str) -> None:
    make, told = REPORTS[name]
    report = make()
    assert repr(report).startswith(f"<{name}: ") and told in repr(report)
    assert "\n" not in repr(report) and len(repr(report)) < 250
    shown = report._repr_html_()
    assert shown.startswith(("<pre>", "<iframe sandbox srcdoc=")) and shown.count("<") == 2


def test_programs_show_what_they_take_and_return(tmp_path: Path) -> None:
    sizes = trt_frontends.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dimensions={0: "batch"})
    compiled = trt_frontends.compile(_model(), arg_inputs=[sizes], min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for program in (compiled, trt_runtime.load(tmp_path / "model.trtp")):
        shown = program._repr_html_()
        assert shown.startswith("<pre>") and shown.count("<") == 2
        assert "input: float32[batch" in shown and "1 engines" in shown, shown
