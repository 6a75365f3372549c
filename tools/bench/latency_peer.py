"""One peer of the latency benchmark: `python -m tools.bench.latency_peer MODEL BATCH PEER` prints JSON."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tools.bench.models import make

Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., Any]
_LEAST_CALLS = 20
_LEAST_SECONDS = 1.0


@dataclass(frozen=True)
class Peer:
    """A way to run a model.

    Attributes:
        build: Makes a callable of a model and example inputs.
        on: ``cpu``, ``cuda``, or empty for both.
        package: What must be installed for it.
    """

    build: Callable[[nn.Module, Tensors], Call]
    on: str = ""
    package: str = "torch"

    def is_available(self) -> bool:
        """Whether this machine can run it."""
        here = "cuda" if torch.cuda.is_available() else "cpu"
        return self.on in ("", here) and importlib.util.find_spec(self.package) is not None


def _eager_graph(model: nn.Module, tensors: Tensors) -> Call:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(*tensors)

    def run(*_: torch.Tensor) -> Any:
        graph.replay()
        return result

    return run


def _compile(**options: Any) -> Callable[[nn.Module, Tensors], Call]:
    def build(model: nn.Module, tensors: Tensors) -> Call:
        torch._inductor.config.freezing = bool(options.get("freezing"))
        mode = options.get("mode")
        return torch.compile(model, mode=mode)

    return build


def _portable(level: int | None) -> Callable[[nn.Module, Tensors], Call]:
    def build(model: nn.Module, tensors: Tensors) -> Call:
        import trt_frontends

        return trt_frontends.compile(model, arg_inputs=tensors, optimization_level=level)

    return build


def _onnxruntime(model: nn.Module, tensors: Tensors) -> Call:
    import onnxruntime

    path = Path(tempfile.mkdtemp()) / "model.onnx"
    torch.onnx.export(model, tensors, str(path), dynamo=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> Any:
        given = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, given)]

    return run


PEERS: dict[str, Peer] = {
    "eager": Peer(lambda model, tensors: model),
    "eager + CUDA graph": Peer(_eager_graph, on="cuda"),
    "torch.compile": Peer(_compile()),
    "torch.compile reduce-overhead": Peer(_compile(mode="reduce-overhead"), on="cuda"),
    "torch.compile max-autotune": Peer(_compile(mode="max-autotune"), on="cuda"),
    "torch.compile frozen": Peer(_compile(freezing=True), on="cpu"),
    "onnxruntime": Peer(_onnxruntime, on="cpu", package="onnxruntime"),
    "portable, level 0": Peer(_portable(0), package="trt_frontends"),
    "portable": Peer(_portable(None), package="trt_frontends"),
}
"""Name to peer, in the order of the table's columns."""


def run(name: str, batch: int, peer: str) -> dict[str, Any]:
    """Builds and times one peer.

    Returns:
        ``milliseconds`` (median), ``low`` and ``high`` (10th and 90th percentile), ``build_seconds``,
        ``peak_bytes`` (on a GPU), and ``error_float32``: the distance from float32 over its size.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    model, inputs = make(name)
    model = model.to(device)
    tensors = tuple(spec.example(device=device) for spec in inputs)
    if batch > 1:
        tensors = tuple(tensor.repeat(batch, *[1] * (tensor.dim() - 1)) for tensor in tensors)
    with torch.inference_mode():
        exact = _first(model(*tensors)).float().cpu()
        if cuda:
            model = model.half()
            tensors = tuple(tensor.half() if tensor.is_floating_point() else tensor for tensor in tensors)
            model(*tensors)  # libraries load at first use, whoever comes first
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        call = PEERS[peer].build(model, tensors)
        for _ in range(3):
            result = call(*tensors)
        _wait()
        build = time.perf_counter() - started
        found = _first(result).float().cpu()
        error = ((found - exact).norm() / exact.norm()).item()
        with _alone():
            times = _times(lambda: call(*tensors))
    cuts = statistics.quantiles(times, n=10)
    return {
        "milliseconds": statistics.median(times),
        "low": cuts[0],
        "high": cuts[-1],
        "build_seconds": build,
        "error_float32": error,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
    }


def _times(action: Callable[[], Any]) -> list[float]:
    """Milliseconds of calls that are waited for."""
    for _ in range(10):
        action()
    times: list[float] = []
    until = time.perf_counter() + _LEAST_SECONDS
    while len(times) < _LEAST_CALLS or time.perf_counter() < until:
        _wait()
        started = time.perf_counter()
        action()
        _wait()
        times.append((time.perf_counter() - started) * 1e3)
    return times


@contextmanager
def _alone() -> Iterator[None]:
    """Times one process of the benchmark at a time."""
    with open(Path(tempfile.gettempdir()) / "tools-bench-latency.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _first(result: Any) -> torch.Tensor:
    while not isinstance(result, torch.Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result


def main() -> None:
    """Runs the peer that the command line names, with empty compiler caches."""
    name, batch, peer = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as caches:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = caches
        sys.stdout.write(json.dumps(run(name, int(batch), peer)) + "\n")


if __name__ == "__main__":
    main()
