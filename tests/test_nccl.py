"""Engines with collectives on one GPU and on two: values, replay, saving and loading. On one machine, through NCCL."""

from __future__ import annotations

import json
import os
import signal
import socket
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
    parts = ["collectives", "tensor_parallel", "fully_sharded", "own_sizes", "whole_module_graphs"]
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


@pytest.mark.parametrize(
    ("part", "operation", "handling"),
    [
        ("killed_rank", "ALL_REDUCE", "3"),
        ("killed_rank", "ALL_REDUCE", "0"),
        ("killed_rank_while_recording", "ALL_REDUCE", "3"),
        ("killed_rank_of_a_module", "ALL_REDUCE", "3"),
        ("killed_rank_between_engines", "all_reduce", "3"),
    ],
)
def test_a_replay_that_waits_for_a_dead_rank_ends_in_time(
    part: str, operation: str, handling: str, tmp_path: Path
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path / "model"), part],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GROUP_SECONDS": "15",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": handling,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        if handling == "0":
            with pytest.raises(subprocess.TimeoutExpired):  # as it was asked to, it waits
                ranks[0].wait(timeout=100)
            ranks[0].kill()
        told = ranks[0].communicate(timeout=150)[1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[1].returncode == -signal.SIGKILL
    assert f"a replayed run with {operation} of the ranks 0, 1 has not ended on rank 0 within the 15 s" in told, told
    assert ranks[0].returncode == -(signal.SIGKILL if handling == "0" else signal.SIGABRT)
