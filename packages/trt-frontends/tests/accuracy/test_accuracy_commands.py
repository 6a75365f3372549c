"""`trtc verify`, `trtc bisect` and `trtc precision`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trtc.app import app, read_assignments
from typer.testing import CliRunner

from trt_core import InputError

SOURCE = """
import torch
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval(), (torch.ones(2, 4),)
class Interrupted(torch.nn.Module):
    def forward(self, x):
        if type(x) is torch.Tensor:  # not while it is captured
            raise KeyboardInterrupt
        return x + 1
class Wrong(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(7, 7)
class Logarithm(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)
def interrupted():
    return Interrupted().eval(), (torch.ones(2, 4),)
def wrong():
    return Wrong().eval(), (torch.ones(2, 4),)
def no_numbers():
    return Logarithm().eval(), (-torch.ones(2, 4),)
def no_pair():
    return 5
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command on a model in a file, and returns the result."""
    (tmp_path / "a_small_model.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda command, *rest: CliRunner().invoke(app, [command, "a_small_model:model", *rest])


def test_verify_writes_reports_and_passes(run: Any, tmp_path: Path) -> None:
    result = run("verify", "--json", "report.json", "--html", "report.html", "--samples", "1")
    assert result.exit_code == 0, result.output
    assert "within tolerance" in result.output
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is True
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert run("verify", "--json", "report.json").exit_code == 2  # never overwritten


def test_verify_fails_above_a_bound(run: Any) -> None:
    result = run("verify", "--fail-above", "0", "--setting", "precision=float16", "--samples", "1")
    assert result.exit_code == 1
    assert "BEYOND" in result.output


@pytest.mark.parametrize(
    ("name", "options", "code", "said"),
    [
        ("no_numbers", (), 0, "NaN 16 (eager 16)"),  # the same in both is right
        ("interrupted", (), 130, ""),
        ("wrong", (), 2, "cannot be exported"),
        ("no_pair", (), 2, "returned an int"),
        ("nothing", (), 2, "no callable 'nothing'"),
        ("model", ("--fail-above", "-1"), 2, "--fail-above"),
        ("model", ("--setting", "precission=float16"), 2, "precission"),
    ],
)
def test_exit_codes_say_what_went_wrong(
    run: Any, name: str, options: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    arguments = ["verify", f"a_small_model:{name}", "--samples", "0", "--json", "report.json", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    assert said in result.output
    assert (tmp_path / "report.json").exists() == (code == 0)


def test_bisect_names_the_operator(run: Any, plant_fault: Any) -> None:
    assert run("bisect").exit_code == 0
    plant_fault(torch.ops.aten.tanh.default)
    result = run("bisect")
    assert result.exit_code == 1
    assert "torch_executed_ops={'torch.ops.aten.tanh.default'} makes it right" in result.output


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("optimization_level=3", {"optimization_level": 3}),
        ("refit=true", {"refit": True}),
        ("min_block_size=inf", {"min_block_size": float("inf")}),
        ("optimization_level=none", {"optimization_level": None}),
        ("precision=float16", {"precision": "float16"}),
        ("torch_executed_ops=aten.relu, aten.tanh", {"torch_executed_ops": {"aten.relu", "aten.tanh"}}),
    ],
)
def test_settings_are_read(text: str, value: dict[str, Any]) -> None:
    assert read_assignments([text]) == value


@pytest.mark.parametrize("text", ["precision", "=3", ""])
def test_settings_without_a_name_or_a_value_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="NAME=VALUE"):
        read_assignments([text])


def test_patterns_are_read_one_at_a_time() -> None:
    texts = ["autocast_excluded_nodes=a{1,2}", "autocast_excluded_nodes=b", "autocast_excluded_ops=relu,tanh"]
    assert read_assignments(texts) == {
        "autocast_excluded_nodes": {"a{1,2}", "b"},
        "autocast_excluded_ops": {"relu", "tanh"},
    }


def test_precision_is_chosen(run: Any, tmp_path: Path) -> None:
    result = run("precision", "--json", "precision.json", "--dtype", "float16", "-s", "min_block_size=1")
    assert result.exit_code == 0, result.output
    assert "everything computes in float16" in result.output
    data = json.loads((tmp_path / "precision.json").read_text())
    assert (data["dtype"], data["max_error"], data["engines_tried"]) == ("float16", 0.01, 1)
    nothing = run("precision", "--max-error", "1e-12", "--no-engines")
    assert nothing.exit_code == 1
    assert "everything stays in float32" in nothing.output


def test_explain_takes_settings(run: Any) -> None:
    result = run("explain", "-s", "precision=float16", "-s", "autocast_excluded_nodes=^tanh$")
    assert result.exit_code == 0, result.output
    assert "autocast_excluded_nodes: ^tanh$" in result.output
