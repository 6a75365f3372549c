"""One peer of the latency benchmark, in a process of its own; prints JSON.

`python -m tools.bench.latency_peer MODEL BATCH PEER [--load FOLDER | --no-load]`
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tools.bench.floor import floor_milliseconds, work
from tools.bench.latency_peers import PEERS, Call, Peer, Tensors
from tools.bench.measure import (
    among_others,
    first_tensor,
    forget_peak,
    gpu_peak,
    in_fresh_process,
    peak_bytes,
    wait_for_device,
    waited_milliseconds,
)
from tools.bench.models import make, narrowed


def device_name() -> str:
    """The device that is measured, as the table of floors names it."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def run(name: str, batch: int, peer: str, *, loads: bool = True) -> dict[str, Any]:
    """Builds and times one peer.

    Args:
        name: The model.
        batch: Its batch size.
        peer: How it is run.
        loads: Whether to time loading too, in another process.

    Returns:
        ``milliseconds`` (median), ``low`` and ``high`` (10th and 90th percentile), ``build_seconds``, ``load_seconds``
        (from what a build left behind to the first result, in another process; None where a peer keeps nothing, or
        it was not asked for),
        ``host_bytes`` (peak of this process while building, above its level before), ``build_bytes`` and ``run_bytes``
        (peaks on the GPU, weights included), ``floor_milliseconds``, and ``error_float32``: the distance from
        float32 over its size.
    """
    cuda = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))  # every peer begins with empty caches
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
        with among_others(fcntl.LOCK_SH):  # nobody times a call meanwhile
            model, tensors = _subject(name, batch)
            exact = first_tensor(model(*tensors)).float().cpu()
            if cuda:
                model, tensors = model.half(), narrowed(tensors, torch.float16)
            least = floor_milliseconds(work(model, tensors), device_name(), "float16" if cuda else "float32")
            wait_for_device()  # libraries have loaded at first use, whoever comes first
            made: list[Call] = []
            result: Any = None

            def build() -> None:
                nonlocal result
                made.append(PEERS[peer].build(model, tensors, Path(folder)))
                for _ in range(3):
                    result = made[0](*tensors)
                wait_for_device()

            forget_peak()
            started = time.perf_counter()
            host = peak_bytes(build)
            build_seconds = time.perf_counter() - started
            found = first_tensor(result).float().cpu()
            build_bytes = gpu_peak()
        forget_peak()
        with among_others(fcntl.LOCK_EX):
            times = waited_milliseconds(lambda: made[0](*tensors))
        run_bytes = gpu_peak()
        load_seconds = _load_elsewhere(name, batch, peer, made[0], Path(folder)) if loads else None
    cuts = statistics.quantiles(times, n=10)
    return {
        "milliseconds": statistics.median(times),
        "low": cuts[0],
        "high": cuts[-1],
        "build_seconds": build_seconds,
        "load_seconds": load_seconds,
        "host_bytes": host,
        "build_bytes": build_bytes,
        "run_bytes": run_bytes,
        "floor_milliseconds": least,
        "error_float32": ((found - exact).norm() / exact.norm()).item(),
    }


def load(name: str, batch: int, peer: str, folder: Path) -> dict[str, Any]:
    """Loads what a build left behind, and times that to the first result.

    Returns:
        ``load_seconds``, and ``size``: the distance of the result from nothing, so that somebody looks at it.
    """
    chosen = PEERS[peer]
    assert chosen.load is not None
    with torch.inference_mode():
        model, tensors = _subject(name, batch)
        if torch.cuda.is_available():
            model, tensors = model.half(), narrowed(tensors, torch.float16)
        wait_for_device()
        started = time.perf_counter()
        result = first_tensor(chosen.load(model, tensors, folder)(*tensors))
        wait_for_device()
        return {"load_seconds": time.perf_counter() - started, "size": result.float().norm().item()}


def _load_elsewhere(name: str, batch: int, peer: str, call: Call, folder: Path) -> float | None:
    chosen: Peer = PEERS[peer]
    if chosen.load is None:
        return None
    if chosen.save is not None:
        chosen.save(call, folder)
    found = in_fresh_process("tools.bench.latency_peer", name, str(batch), peer, "--load", str(folder))
    seconds: float = found["load_seconds"]
    return seconds


def _subject(name: str, batch: int) -> tuple[torch.nn.Module, Tensors]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, inputs = make(name)
    tensors = tuple(spec.example(device=device) for spec in inputs)
    if batch > 1:
        tensors = tuple(tensor.repeat(batch, *[1] * (tensor.dim() - 1)) for tensor in tensors)
    return model.to(device), tensors


def main() -> None:
    """Runs, or loads, the peer that the command line names."""
    parser = argparse.ArgumentParser(prog="tools.bench.latency_peer")
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("peer", choices=list(PEERS))
    parser.add_argument("--load", type=Path, help="load from there instead of building")
    parser.add_argument("--no-load", action="store_true", help="do not time loading")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    subject = (arguments.model, arguments.batch, arguments.peer)
    found = run(*subject, loads=not arguments.no_load) if arguments.load is None else load(*subject, arguments.load)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
