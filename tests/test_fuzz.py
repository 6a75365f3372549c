"""Mutated programs and plans, and forged calls of operators: each ends in an error of ours or in a sane result."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from fresh_process import run_python

COUNT = int(os.environ.get("TRT_FUZZ_MUTATIONS", "400")) // 2
SEED = int(os.environ.get("TRT_FUZZ_SEED", "0"))
SCRIPT = Path(__file__).parent / "support" / "fuzzing.py"

OPERANDS = Path(__file__).parent / "support" / "operand_fuzzing.py"
CALLS, PARTS = (8, 1) if "TRT_FUZZ_MUTATIONS" in os.environ else (1, 24)

HOURS = 7200.0
"""Seconds that a long run may take."""

MOST_MEMORY = 200 << 20
"""Bytes that any number of mutations may add: caches of allocators and of kernels, nothing that a file asks for."""


@pytest.mark.skipif(os.name != "posix", reason="alarms and memory are told by POSIX")
@pytest.mark.parametrize("kind", ["programs", "plans"])
@pytest.mark.timeout(0)
def test_mutations_end_well(kind: str) -> None:
    result = run_python(SCRIPT, kind, str(SEED), str(COUNT), timeout=HOURS)
    last = result.stderr.splitlines()[-3:]
    assert result.returncode == 0, f"mutation {last} ended the process with {result.returncode}"
    found = json.loads(result.stdout)
    assert not found["wrong"], found
    assert found["refused"] > COUNT // 4
    assert found["ran"] > COUNT // 50
    assert found["grown"] < MOST_MEMORY, found["grown"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits and memory are told by Linux")
@pytest.mark.timeout(0)
def test_hostile_operands_end_well() -> None:
    result = run_python(OPERANDS, str(SEED), str(CALLS), str(SEED % PARTS), str(PARTS), timeout=HOURS)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert not found["wrong"], found["wrong"]
    assert found["failed"] > found["refused"] // 2  # most calls come as far as the operator


@pytest.mark.skipif(sys.platform != "linux", reason="limits and memory are told by Linux")
@pytest.mark.timeout(0)
def test_changed_onnx_models_end_well() -> None:
    pytest.importorskip("onnx")
    count = COUNT * 2 if "TRT_FUZZ_MUTATIONS" in os.environ else 30
    script = Path(__file__).parent / "support" / "onnx_fuzzer.py"
    result = run_python(script, str(SEED), str(count), timeout=HOURS)
    last = result.stderr.splitlines()[-3:]
    assert result.returncode == 0, f"model {last} ended the process with {result.returncode}"
    found = json.loads(result.stdout)
    assert not found["wrong"], found
    assert found["ends"]["refused"] > count // 3
    assert found["ends"]["ran"] + found["ends"]["parsed"] > count // 10
    assert found["grown"] < 1 << 30, found["grown"]
