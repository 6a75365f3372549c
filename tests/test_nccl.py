"""Engines with collectives on two GPUs: values, replay, saving and loading. On one machine, through NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

PROGRAM = Path(__file__).resolve().parent / "support" / "nccl_program.py"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_engines_communicate_through_nccl(tmp_path: Path) -> None:
    parts = ["collectives", "tensor_parallel", "fully_sharded"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    found = subprocess.run(
        [*run, str(tmp_path / "model"), *parts],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    told = [json.loads(line)["done"] for line in found.stdout.splitlines() if line.startswith("{")]
    assert told == parts
