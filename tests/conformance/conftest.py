"""The whole set of samples runs on request, and its outcomes go to a file: see the session `conformance` of nox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance_check import updated_report
from opinfo_samples import entries

OPTION = "--conformance-report"
LIMIT = "--conformance-limit"
PROPERTY = "conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, default=None, help="write what became of every operator to this JSON file")
    parser.addoption(LIMIT, type=int, default=None, help="most samples of an operator and type; by default all of them")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the whole set alone unless its marker asks for it: listing its operators alone takes seconds."""
    if collection_path.name == "test_all_samples.py" and PROPERTY not in config.getoption("markexpr"):
        return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption(OPTION, None)
    if target is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_ReportWriter(target, config.getoption(LIMIT)))


@pytest.fixture
def sample_limit(request: pytest.FixtureRequest) -> int | None:
    """Most samples of an operator and type."""
    limit: int | None = request.config.getoption(LIMIT)
    return limit


class _ReportWriter:
    """Collects the outcomes that tests recorded, from every worker, and writes them in the end."""

    def __init__(self, target: Path, limit: int | None) -> None:
        self._target = target
        self._limit = limit
        self._operators: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if report.when == "call" and name == PROPERTY:
                assert isinstance(value, dict)
                self._add(value)

    def _add(self, outcome: dict[str, Any]) -> None:
        entry = self._operators.setdefault(outcome["operator"], {"types": {}, "refusals": {}})
        entry["types"][outcome["type"]] = outcome["counts"]
        entry["refusals"][outcome["type"]] = outcome["refusals"]

    def pytest_sessionfinish(self) -> None:
        earlier = json.loads(self._target.read_text(encoding="utf-8")) if self._target.exists() else {}
        there = entries()  # other releases of PyTorch have other ones
        kept = {name: entry for name, entry in earlier.get("operators", {}).items() if name in there}
        outcomes = {name: _merged(entry) for name, entry in self._operators.items()}
        report = updated_report(earlier | {"operators": kept}, outcomes, torch.__version__, self._limit)
        rows = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in report["operators"].items()]
        # one operator on a line, so that a change shows as a change of its lines
        head = f'"torch": {json.dumps(report["torch"])},\n"limit": {json.dumps(report["limit"])},\n"operators": {{\n'
        self._target.write_text("{\n" + head + ",\n".join(rows) + "\n}}\n", encoding="utf-8")


def _merged(entry: dict[str, Any]) -> dict[str, Any]:
    """One message for each code, that of the first type that has it."""
    refusals: dict[str, str] = {}
    for dtype in sorted(entry["refusals"], key=lambda name: (name != "float32", name)):
        for code, message in entry["refusals"][dtype].items():
            refusals.setdefault(code, message)
    types = {dtype: entry["types"][dtype] for dtype in sorted(entry["types"])}
    return {"types": types, "refusals": dict(sorted(refusals.items()))}
