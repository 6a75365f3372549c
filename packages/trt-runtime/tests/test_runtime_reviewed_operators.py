"""Reviewed operators keep their contract: nothing beyond operands is touched, and every value of operands ends well."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from fresh_process import run_python

SCRIPT = Path(__file__).parents[3] / "tests" / "support" / "guarded_operators.py"
LONG = "TRT_STRESS" in os.environ
PARTS = 6 if "TRT_FUZZ_MUTATIONS" in os.environ else 60 if LONG else 120
"""All entries of the database in long runs, a tenth of them under `TRT_STRESS`, a few otherwise."""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded as Linux does")
@pytest.mark.timeout(0)
@pytest.mark.sampled
@pytest.mark.parametrize("side", ["end", "begin"])
@pytest.mark.parametrize("part", range(6 if LONG else 1))
def test_operators_between_guard_pages(part: int, side: str) -> None:
    done = run_python(SCRIPT, str(part), str(PARTS), side, timeout=3600.0)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, (last, done.stderr[-2000:])
    found = json.loads(last[0])
    assert found["called"]
    assert found["failed"] < found["calls"] // 2
