"""An engine for a range of sizes beside engines for each size, eager, and `torch.compile` with sizes that vary.

`python -m tools.bench.ranges MODEL...` measures each peer in a process of its own with empty caches, and prints a line
of JSON for each: milliseconds at every size of `RANGES`, of a stream of sizes of which no two are alike, and of the
slowest call of a size that was not seen before. `--results FILE` appends the lines there, for docs/speed.md.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import trt_frontends
from tools.bench.latency_results import append, machine, today
from tools.bench.measure import among_others, in_fresh_process, wait_for_device, waited_milliseconds
from tools.bench.models import make
from trt_core import Input
from trt_frontends.backend import torch_tensorrt_backend

Shape = tuple[int, ...]
Call = Callable[[torch.Tensor], Any]


@dataclass(frozen=True)
class Sizes:
    """What a model is given.

    Attributes:
        usual: The size that is tuned for.
        others: Further sizes that are measured; with the usual one, they bound the range.
        multiple: Axes but the first vary in steps of that many.
    """

    usual: Shape
    others: tuple[Shape, ...]
    multiple: int = 1

    @property
    def all(self) -> tuple[Shape, ...]:
        """Every size that is measured."""
        return (self.usual, *self.others)

    @property
    def least(self) -> Shape:
        """The lower end of the range."""
        return tuple(map(min, *self.all))

    @property
    def most(self) -> Shape:
        """The upper end of the range."""
        return tuple(map(max, *self.all))

    def stream(self, count: int) -> list[Shape]:
        """Sizes of the range, no two alike and none of those that are measured; fewer where there are not as many."""
        chance = random.Random(0)
        steps = [1, *[self.multiple] * (len(self.usual) - 1)]
        found: dict[Shape, None] = {}
        for _ in range(100 * count):
            ends = zip(self.least, self.most, steps, strict=True)
            shape = tuple(low + step * chance.randint(0, (high - low) // step) for low, high, step in ends)
            if shape not in self.all and len(found) < count:
                found[shape] = None
        return list(found)


_TOKENS: Final = Sizes((8, 128), ((1, 128), (1, 16), (3, 77), (8, 100), (17, 500), (32, 256), (2, 512)))
_FEWER_TOKENS: Final = Sizes((4, 128), ((1, 128), (1, 16), (3, 77), (4, 100), (7, 500), (16, 256), (2, 512)))
_IMAGES: Final = Sizes((8, 3, 224, 224), tuple((batch, 3, 224, 224) for batch in (1, 32, 5, 17, 64)))
RANGES: Final[dict[str, Sizes]] = {
    "bert_base": _TOKENS,
    "gpt2": _FEWER_TOKENS,
    "llama": _FEWER_TOKENS,
    "vit": _IMAGES,
    "swin": _IMAGES,
    "whisper_encoder": Sizes((4, 80, 3000), tuple((batch, 80, 3000) for batch in (1, 3, 7, 16))),
    "unet": Sizes((4, 3, 256, 256), ((1, 3, 256, 256), (1, 3, 512, 512), (3, 3, 128, 200), (8, 3, 384, 320)), 8),
    "detr": Sizes((4, 3, 512, 512), ((1, 3, 512, 512), (1, 3, 800, 800), (3, 3, 480, 640), (8, 3, 384, 320)), 32),
    "llama_block": Sizes((4, 128, 2048), ((1, 16, 2048), (16, 256, 2048), (2, 500, 2048))),
    "mlp": Sizes((8, 64), ((1, 64), (5, 64), (64, 64))),
}
"""What each model is measured at."""


def _range(model: torch.nn.Module, spec: dict[str, Any], sizes: Sizes) -> Call:
    declared = Input(min_shape=sizes.least, opt_shape=sizes.usual, max_shape=sizes.most, **spec)
    compiled: Call = trt_frontends.compile(model, inputs=[declared])
    return compiled


def _eager(model: torch.nn.Module, spec: dict[str, Any], sizes: Sizes) -> Call:
    return model


def _torch_compile(**keywords: Any) -> Callable[[torch.nn.Module, dict[str, Any], Sizes], Call]:
    def build(model: torch.nn.Module, spec: dict[str, Any], sizes: Sizes) -> Call:
        compiled = torch.compile(model, **keywords)
        varying = [axis for axis, ends in enumerate(zip(sizes.least, sizes.most, strict=True)) if len(set(ends)) > 1]

        def call(x: torch.Tensor) -> Any:
            for axis in varying:
                torch._dynamo.mark_dynamic(x, axis, min=max(2, sizes.least[axis]), max=sizes.most[axis])
            return compiled(x)

        call(_tensor(sizes.usual, spec))
        return compiled

    return build


PEERS: Final[dict[str, Callable[[torch.nn.Module, dict[str, Any], Sizes], Call]]] = {
    "range": _range,
    "eager": _eager,
    "torch.compile": _torch_compile(),
    "torch.compile reduce-overhead": _torch_compile(mode="reduce-overhead"),
    "torch.compile, our backend": _torch_compile(backend=torch_tensorrt_backend),
}
"""Ways to serve a range with one callable; besides them there is ``fixed``, an engine for each size."""


def measure(
    name: str,
    peer: str,
    *,
    streamed: int = 32,
    measured: int | None = None,
    profiles: Path | None = None,
    log: bool = False,
) -> dict[str, Any]:
    """Builds and times one peer in this process.

    Args:
        name: Of `RANGES`.
        peer: Of `PEERS`, or ``fixed``.
        streamed: How many sizes the stream has.
        measured: How many sizes are measured, of those of the model the first; all by default.
        profiles: A folder for tables of the kernels that each size took.
        log: Whether the builder says on stderr what it tries.

    Returns:
        ``build_seconds``, the first call included, that of the usual size for ``fixed``; ``milliseconds`` by size, the
        medians of calls that are waited for; with `profiles`, ``kernel_milliseconds`` by size; and but for ``fixed``
        ``stream_milliseconds``, the mean of calls of sizes of which no two are alike, ``again_milliseconds``, that of
        the same sizes in a second turn, and ``cold_milliseconds``, the slowest of the first turn.
    """
    if log:
        _show_builds()
    sizes = RANGES[name]
    shapes = sizes.all[:measured]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))  # every peer begins with empty caches
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
        model, (given,) = make(name)
        is_cuda = torch.cuda.is_available()
        model = model.to("cuda").half() if is_cuda else model
        dtype = torch.float16 if is_cuda and given.dtype.is_floating_point else given.dtype
        spec: dict[str, Any] = {"dtype": dtype, "name": given.name, "tensor_domain": given.tensor_domain}
        with among_others(fcntl.LOCK_SH):
            model(_tensor(sizes.usual, spec))  # libraries have loaded at first use, whoever comes first
            wait_for_device()
            started = time.perf_counter()
            if peer == "fixed":
                calls = {sizes.usual: _fixed(model, spec, sizes.usual)}
                seconds = time.perf_counter() - started
                calls |= {shape: _fixed(model, spec, shape) for shape in shapes[1:]}
            else:
                call = PEERS[peer](model, spec, sizes)
                call(_tensor(sizes.usual, spec))
                wait_for_device()
                seconds = time.perf_counter() - started
                calls = dict.fromkeys(shapes, call)
                for shape in shapes:  # what is compiled for a size alone is, before anybody is timed
                    for _ in range(3):
                        call(_tensor(shape, spec))
            wait_for_device()
            path = None if profiles is None else profiles / f"{name}-{peer.replace(' ', '-')}.txt"
            if path is not None:  # which takes seconds the first time
                _profile({sizes.usual: calls[sizes.usual]}, spec, path)
        with among_others(fcntl.LOCK_EX):
            times = {shape: _median(each, _tensor(shape, spec)) for shape, each in calls.items()}
            found = {"build_seconds": seconds, "milliseconds": {_text(shape): found for shape, found in times.items()}}
            if peer != "fixed":
                found |= _streamed(call, [_tensor(shape, spec) for shape in sizes.stream(streamed)])
            if path is not None:
                found["kernel_milliseconds"] = _profile(calls, spec, path)
    return found


def _fixed(model: torch.nn.Module, spec: dict[str, Any], shape: Shape) -> Call:
    compiled: Call = trt_frontends.compile(model, inputs=[Input(shape, **spec)])
    compiled(_tensor(shape, spec))
    wait_for_device()
    return compiled


def _tensor(shape: Shape, spec: dict[str, Any]) -> torch.Tensor:
    return Input(shape, **spec).example(device="cuda" if torch.cuda.is_available() else "cpu")


def _text(shape: Shape) -> str:
    return " by ".join(map(str, shape))


def _median(call: Call, x: torch.Tensor) -> float:
    for _ in range(5):  # recordings are made at the first calls
        call(x)
    return statistics.median(waited_milliseconds(lambda: call(x), least_seconds=0.1))


def _streamed(call: Call, stream: list[torch.Tensor]) -> dict[str, float]:
    turns = []
    for _ in range(2):
        times = []
        for x in stream:
            wait_for_device()
            started = time.perf_counter()
            call(x)
            wait_for_device()
            times.append((time.perf_counter() - started) * 1e3)
        turns.append(times)
    return {
        "stream_milliseconds": statistics.mean(turns[0]),
        "again_milliseconds": statistics.mean(turns[1]),
        "cold_milliseconds": max(turns[0]),
    }


def _profile(calls: dict[Shape, Call], spec: dict[str, Any], path: Path) -> dict[str, float]:
    """Writes the kernels of a few calls of each size, and returns the milliseconds of those of one call."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {}
    with path.open("w", encoding="utf-8") as file:
        for shape, call in calls.items():
            x = _tensor(shape, spec)
            with torch.profiler.profile(activities=kinds[torch.cuda.is_available() :]) as profile:
                for _ in range(4):
                    call(x)
                wait_for_device()
            averages = profile.key_averages()
            found[_text(shape)] = sum(each.self_device_time_total for each in averages) / 4e3
            table = averages.table(sort_by=order, row_limit=24, max_name_column_width=90)
            file.write(f"{_text(shape)}, 4 calls\n{table}\n")
    return found


def _show_builds() -> None:
    """Prints what the portable builder says."""
    from trt_portable.reporting import Reporter

    def say(reporter: Any, text: str, *rest: Any) -> None:
        sys.stderr.write(f"  {text}\n")

    for name in ("verbose", "info", "warning"):
        setattr(Reporter, name, say)


def main() -> None:
    """Measures the models that the command line names, or with `--peer` one peer of one, in this process."""
    parser = argparse.ArgumentParser(prog="tools.bench.ranges", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", choices=list(RANGES))
    parser.add_argument("--peers", nargs="+", choices=["fixed", *PEERS], default=["fixed", *PEERS])
    parser.add_argument("--peer", choices=["fixed", *PEERS], help="measure it here")
    parser.add_argument("--jobs", type=int, default=1, help="how many peers build at a time; calls are timed alone")
    parser.add_argument("--seconds", type=float, default=90, help="when a peer is given up")
    parser.add_argument("--stream", type=int, default=32, help="how many sizes a stream has")
    parser.add_argument("--sizes", type=int, help="how many sizes of a model are measured; all by default")
    parser.add_argument("--results", type=Path, help="append what was measured to that file")
    parser.add_argument("--profiles", type=Path, help="a folder for tables of kernels")
    parser.add_argument("--log", action="store_true", help="with --peer: show what the builder tried, on stderr")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if arguments.peer:
        (name,) = arguments.models
        found = measure(
            name,
            arguments.peer,
            streamed=arguments.stream,
            measured=arguments.sizes,
            profiles=arguments.profiles,
            log=arguments.log,
        )
        sys.stdout.write(json.dumps(found) + "\n")
        return

    def run(job: tuple[str, str]) -> None:
        name, peer = job
        rest = ["--stream", str(arguments.stream)]
        rest += [] if arguments.sizes is None else ["--sizes", str(arguments.sizes)]
        if arguments.profiles is not None and peer in ("range", "fixed"):
            rest += ["--profiles", str(arguments.profiles.resolve())]
        try:
            module = "tools.bench.ranges"
            found = in_fresh_process(module, name, "--peer", peer, *rest, seconds=arguments.seconds)
        except (RuntimeError, TimeoutError) as error:
            found = {"error": str(error)[-2000:]}
        result = {"model": name, "peer": peer, **found}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        if arguments.results is not None:
            append(arguments.results, result | {"date": today(), "machine": machine()})

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, [(name, peer) for name in arguments.models for peer in arguments.peers]))


if __name__ == "__main__":
    main()
