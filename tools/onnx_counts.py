"""Runs ONNX's own tests of backends through the parser, and counts what became of them, all and those of TensorRT.

    python -m tools.onnx_counts [REPORT]

`REPORT` is what an earlier run wrote (`TRT_ONNX_REPORT`); without it all tests are run, which takes minutes. The tests
of TensorRT are those whose operators its parser lists, on types that it computes with, of opsets that it reads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = "packages/trt-portable/tests/onnx_parser/test_onnx_backend.py"
VARIABLE: Final = "TRT_ONNX_REPORT"
PASSED: Final = ("passed", "passed with constants")
OUTSIDE: Final = ("lacks a type", "newer", "not in TensorRT")
"""What TensorRT's parser does not promise either."""


def run_tests(report: Path) -> None:
    """Runs all tests and writes their outcomes to a file.

    Raises:
        subprocess.CalledProcessError: A test ended otherwise than the list of exclusions says.
    """
    command = [sys.executable, "-m", "pytest", "-q", TESTS, "-k", "test_report_of_all_cases"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: str(report)}, check=True)


def summary(report: Mapping[str, Any]) -> str:
    """The counts of a report as lines of text: outcomes, the share of TensorRT's tests, and reasons of exclusions."""
    counts: Mapping[str, int] = report["counts"]
    passed = sum(counts.get(outcome, 0) for outcome in PASSED)
    promised = report["cases"] - sum(counts.get(outcome, 0) for outcome in OUTSIDE)
    reasons = Counter(reason for outcome, reason in report["others"].values() if outcome == "excluded")
    lines = [f"ONNX {report['onnx']}: {passed} of {report['cases']} tests pass"]
    lines += [f"  {outcome}: {count}" for outcome, count in sorted(counts.items())]
    lines.append(
        f"of operators, types and opsets of TensorRT's parser: {passed} of {promised} ({passed / promised:.1%})"
    )
    lines += [f"  excluded: {count}: {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def main() -> None:
    """Counts, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="what an earlier run wrote")
    given: Path | None = parser.parse_args().report
    with tempfile.TemporaryDirectory() as folder:
        report = given or Path(folder) / "report.json"
        if given is None:
            run_tests(report)
        sys.stdout.write(summary(json.loads(report.read_text(encoding="utf-8"))) + "\n")


if __name__ == "__main__":
    main()
