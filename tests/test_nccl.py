"""Engines with collectives on one GPU and on two: values, replay, saving and loading. On one machine, through NCCL."""

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


@pytest.mark.parametrize("gpus", [1, 2])
def test_engines_communicate_through_nccl(gpus: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    parts = ["collectives", "tensor_parallel", "fully_sharded"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", str(PROGRAM)]
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
