"""Reviewed operators keep their contract: nothing beyond operands is touched, and every value of operands ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tests" / "support" / "guarded_operators.py"
PARTS = 6 if "TRT_FUZZ_MUTATIONS" in os.environ else 60
"""All entries of the database in long runs, a tenth of them under `TRT_STRESS`, a sixtieth otherwise."""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded as Linux does")
@pytest.mark.timeout(0)
@pytest.mark.sampled
@pytest.mark.parametrize("side", ["end", "begin"])
@pytest.mark.parametrize("part", range(6 if "TRT_STRESS" in os.environ else 1))
def test_operators_between_guard_pages(part: int, side: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(part), str(PARTS), side], capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, (last, done.stderr[-2000:])
    found = json.loads(last[0])
    assert found["called"]
    assert found["failed"] < found["calls"] // 2
