"""Reports at a prompt and in a notebook."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trtc
from torch import nn

import trt_core
import trt_frontends
import trt_partition
import trt_runtime
from trt_core.reports import DataReport
from trt_frontends.generation.report import GenerationReport
from trt_frontends.onnx_models import explain_onnx
from trt_frontends.quantization import quantization_report, sensitivity
from trt_partition import diff_reports
from trt_runtime.generation import GenerationLimits
from trt_runtime.module import engines_of

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


def _onnx() -> Any:
    onnx = pytest.importorskip("onnx")
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "ab"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["a"], ["b"])], "graph", ends[:1], ends[1:])
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(onnx.helper.make_model(graph), Path(folder) / "model.onnx")
        return explain_onnx(Path(folder) / "model.onnx")


def _diff() -> Any:
    sides = [trt_frontends.explain(_model(), arg_inputs=(X,), min_block_size=size) for size in (1, 5)]
    return diff_reports(*sides)


REPORTS: dict[str, tuple[Callable[[], Any], str]] = {
    "PartitionReport": (lambda: trt_frontends.explain(_model(), arg_inputs=(X,), min_block_size=1), "100.00% coverage"),
    "AccuracyReport": (lambda: trt_frontends.verify(_model(), arg_inputs=(X,), samples=1), "within tolerance"),
    "BisectReport": (lambda: trt_frontends.bisect(_model(), arg_inputs=(X,)), "Sequential: error"),
    "PrecisionReport": (_precision, "allowed 0.01"),
    "ModelReport": (_graphs, "1 graph, 1 engine"),
    "LayerProfile": (
        lambda: trt_runtime.profile_layers(trt_frontends.compile(_model(), arg_inputs=(X,), min_block_size=1), (X,)),
        "mean of 20 calls",
    ),
    "QuantizationReport": (lambda: quantization_report(trt_frontends.quantize(_model(), [X])), "1 of 1 products"),
    "SensitivityReport": (lambda: sensitivity(_model(), [X]), "quantized to"),
    "OnnxReport": (_onnx, "1 of 1 nodes can be in an engine"),
    "ReportDiff": (_diff, "1 settings"),
    "GenerationReport": (
        lambda: GenerationReport("<m>", "cuda:0", 1, 8, 8, 1.0, 0.01, 0.001, 10**9, 10**6, 4e12),
        "on cuda:0, ready in 1.0 s",
    ),
}


def test_every_report_is_tried_here() -> None:
    folders = [Path(package.__path__[0]) for package in (trt_core, trt_frontends, trt_partition, trt_runtime, trtc)]
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in folder.rglob("*.py")]
    ours = {
        name for text in sources for name in re.findall(r"^class (\w+)\((?:Shown|Data)Report\b", text, re.MULTILINE)
    }
    assert ours - {"DataReport"} == REPORTS.keys()


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_shows_itself(name: str) -> None:
    make, told = REPORTS[name]
    report = make()
    assert repr(report).startswith(f"<{name}: ") and told in repr(report)
    assert "\n" not in repr(report) and len(repr(report)) < 250
    shown = report._repr_html_()
    assert shown.startswith(("<pre>", "<iframe sandbox srcdoc=")) and shown.count("<") == 2
    if isinstance(report, DataReport):
        assert {"format": 1}.items() < report.to_dict().items()
        assert json.loads(report.to_json(), parse_constant=pytest.fail) == report.to_dict()


def test_programs_show_what_they_take_and_return(tmp_path: Path) -> None:
    sizes = trt_frontends.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dimensions={0: "batch"})
    compiled = trt_frontends.compile(_model(), arg_inputs=[sizes], min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for program in (compiled, trt_runtime.load(tmp_path / "model.trtp")):
        shown = program._repr_html_()
        assert shown.startswith("<pre>") and shown.count("<") == 2
        assert "input: float32[batch" in shown and "1 engine" in shown and "1 engines" not in shown, shown


def test_a_generator_shows_what_its_step_takes() -> None:
    step = trt_frontends.compile(_model(), arg_inputs=(X,), min_block_size=1)
    shown = trt_runtime.TextGenerator(step, GenerationLimits(2, 8, 4))._repr_html_()
    assert shown.startswith("<pre>TextGenerator(max_batch=2, max_length=8)\ntakes\n  input: float32[2, 4]"), shown


def test_an_engine_says_its_name_and_device() -> None:
    compiled = trt_frontends.compile(_model(), arg_inputs=(X,), min_block_size=1)
    compiled(X)
    assert [repr(engine) for engine in engines_of(compiled)] == ["<LoadedEngine: engine '_run_on_acc_0' on cpu>"]
