"""The benchmark of precision measures what it says, and its table shows it."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tools.bench import models, precision

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_ext"


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    """The smallest model, plain and chosen."""
    common = {"model": "mlp", "date": "2030-01-01", "machine": precision.here()}
    return [{**common, "setting": name, **precision.run("mlp", name)} for name in ("float32", "auto, 1e-2")]


def test_what_is_measured(results: list[dict[str, Any]]) -> None:
    plain, chosen = results
    assert plain["error"] < 1e-6 < chosen["error"] <= 1e-2
    assert chosen["bytes"] < plain["bytes"]
    assert (chosen["chosen"], chosen["reduced_share"]) == ("float16", 1.0)


def test_what_is_there_is_not_measured_again(
    results: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "precision.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in results))
    asked: list[str] = []

    def one(_: str, *arguments: str) -> dict[str, Any]:
        asked.append(arguments[-1])
        raise RuntimeError("it has no GPU")

    monkeypatch.setattr(precision, "in_fresh_process", one)
    found = precision.measure(["mlp"], ["float32", "bfloat16", "auto, 1e-2"], path)
    assert asked == ["bfloat16"]
    assert [each.get("failed") for each in found] == [None, "it has no GPU", None]
    assert len(path.read_text().splitlines()) == 3


def test_the_page_shows_it(results: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    table = importlib.import_module("precision_table")
    path = tmp_path / "precision.jsonl"
    failed = {**results[0], "setting": "bfloat16", "failed": "no GPU"}
    path.write_text("".join(json.dumps(each) + "\n" for each in (*results, failed)))
    shown = table.precision(path)
    assert "| mlp | float32 | " in shown
    assert "100% in float16" in shown
    assert "| mlp | bfloat16 | failed |" in shown


def test_batch_norms_get_statistics() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4, eps=1e-12), nn.ReLU()]
    model, x = nn.Sequential(*layers * 8).eval(), torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        layers[0].weight *= 1e-3
        layers[0].bias.zero_()
        assert model(x).max() < 1e-16
        model = nn.Sequential(*(copy.deepcopy(layer) for layer in model)).eval()
        models.normalize(model, (x,))
        assert 0.1 < model(x).max() < 100
        assert torch.equal(model(x), model(x))
    models.normalize(nn.Linear(2, 2), (torch.randn(1, 3),))  # nothing to do, so nothing is run
