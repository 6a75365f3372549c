"""The quickstart: the whole story on small models, on a narrow terminal, and when outputs differ."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from trtc import app, quickstart
from trtc.quickstart import Example, examples, run_quickstart
from typer.testing import CliRunner

from trt_core import Input

WIDTH = 80
ROWS = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.linear(x))
        return {"hidden": hidden, "pooled": torch.tanh(hidden).mean(0)}


def _small() -> list[Example]:
    return [Example("Two (results)", lambda: TwoResults().eval(), (ROWS,))]


def _tell(directory: Path | None = None) -> tuple[bool, str]:
    stream = io.StringIO()
    agreed = run_quickstart(Console(file=stream, width=WIDTH), directory=directory)
    return agreed, stream.getvalue()


@pytest.mark.slow
def test_the_story_is_told_within_eighty_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(quickstart, "examples", _small)
    agreed, text = _tell(tmp_path / "kept")
    assert agreed
    told = [
        "provider",
        "Two (results)",
        "traced in",
        "explained (nothing built) in",
        "100.00% coverage",
        "Compiled with: ",
        "compiled beside eager",
        "worst relative error",
        "milliseconds per call",
        "saved two.trtp",
        "another process",
        "loaded beside eager",
        "every output agrees with eager",
    ]
    positions = [text.index(part) for part in told]
    assert positions == sorted(positions)
    assert text.count("output 1") == 2
    assert max(map(len, text.splitlines())) <= WIDTH
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["two.trtp"]


@pytest.mark.parametrize(
    ("outputs", "sign"),
    [
        ({"output 0": torch.full((2, 4), 9.0), "output 1": torch.ones(4)}, "e+00"),
        ({"output 0": torch.zeros(2, 4)}, "missing"),
        ({"output 0": torch.zeros(2, 4), "output 1": torch.ones(5)}, "another shape"),
    ],
    ids=["values", "missing", "shape"],
)
def test_outputs_that_differ_fail(outputs: dict[str, torch.Tensor], sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "examples", _small)
    monkeypatch.setattr(quickstart, "_run_elsewhere", lambda program, inputs: outputs)
    agreed, text = _tell()
    assert not agreed
    assert sign in text.partition("loaded beside eager")[2]
    assert "outputs differ" in text
    assert CliRunner().invoke(app, ["quickstart"]).exit_code == 1


def test_the_examples_are_two_real_architectures() -> None:
    titles = [example.title for example in examples()]
    assert titles == ["ResNet-18 (torchvision)", "BERT-base encoder (transformers)"]
    assert all(spec.is_dynamic for example in examples() for spec in example.inputs)
