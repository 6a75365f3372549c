"""Time of a call on the CPU, of peers that take turns in one process: `python -m tools.bench.cpu_turns`.

`[--models NAME...] [--peers NAME...] [--seconds N] [--results FILE]`

For machines with other work: what slows one peer down slows the others alike, and of each only the time counts that
its process had a processor for. One thread, float32, batch 1. ``portable`` may use the libraries that are installed;
``own kernels`` is the same without them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from tools.bench.latency import NAMES, OURS
from tools.bench.latency_peers import PEERS, Tensors
from tools.bench.models import make
from trt_portable.libraries.library import SWITCH

OWN_KERNELS: Final = "own kernels"
_PEERS: Final = ("eager", "torch.compile frozen", "onnxruntime", "openvino", OWN_KERNELS, OURS)
_LEAST_TURNS: Final = 5


def measure(name: str, peers: Sequence[str] = _PEERS, seconds: float = 20.0) -> dict[str, Any]:
    """Builds all peers of a model and times their calls in turns.

    Args:
        name: The model.
        peers: Who takes part.
        seconds: How long turns are taken.

    Returns:
        ``milliseconds`` (10th percentile of the process's processor time) by peer, ``turns``,
        and ``errors`` of peers that cannot be built.
    """
    torch.set_num_threads(1)
    model, inputs = make(name)
    tensors = tuple(spec.example() for spec in inputs)
    runs: dict[str, Callable[[], Any]] = {}
    errors: dict[str, str] = {}
    with torch.inference_mode():
        for peer in peers:
            try:
                call = _built(peer, model, tensors)
                call(*tensors)
            except Exception as error:  # somebody else's compiler may fail in any way
                errors[peer] = f"{type(error).__name__}: {error}"[:200]
                continue
            runs[peer] = lambda call=call: call(*tensors)  # type: ignore[misc]
        gc.collect()
        times: dict[str, list[float]] = {peer: [] for peer in runs}
        until = time.monotonic() + seconds
        order = list(runs)
        while time.monotonic() < until or min(map(len, times.values())) < _LEAST_TURNS:
            for peer in order:
                started = time.process_time()
                runs[peer]()
                times[peer].append(time.process_time() - started)
            order.reverse()
    return {
        "model": name,
        "turns": len(times[order[0]]),
        "milliseconds": {peer: round(statistics.quantiles(found, n=10)[0] * 1e3, 3) for peer, found in times.items()},
        "errors": errors,
    }


def _built(peer: str, model: nn.Module, tensors: Tensors) -> Callable[..., Any]:
    allowed = os.environ.pop(SWITCH, None)
    if peer == OWN_KERNELS:
        os.environ[SWITCH] = ""
    try:
        folder = Path(tempfile.mkdtemp(prefix="cpu-turns-"))
        return PEERS[OURS if peer == OWN_KERNELS else peer].build(model, tensors, folder)
    finally:
        os.environ.pop(SWITCH, None)
        if allowed is not None:
            os.environ[SWITCH] = allowed


def main() -> None:
    """Measures the models that the command line names, and prints a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="tools.bench.cpu_turns")
    parser.add_argument("--models", nargs="+", default=list(NAMES))
    parser.add_argument("--peers", nargs="+", default=list(_PEERS), choices=[*_PEERS, *PEERS])
    parser.add_argument("--seconds", type=float, default=20.0, help="of turns for each model")
    parser.add_argument("--results", type=Path, help="append to this file, too")
    arguments = parser.parse_args()
    for name in arguments.models:
        line = json.dumps(measure(name, arguments.peers, arguments.seconds)) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if arguments.results is not None:
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(line)


if __name__ == "__main__":
    main()
