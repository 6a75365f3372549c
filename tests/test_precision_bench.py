"""The benchmark of precision measures what it says, and its table shows it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench import precision

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
