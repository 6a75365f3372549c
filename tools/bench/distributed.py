"""Tensor parallelism: a block of Llama on several GPUs, engines beside eager and `torch.compile` under the same plan.

`torchrun --nproc-per-node=2 -m tools.bench.distributed [--device cuda|cpu] [--hidden N] [--layers N] [--results FILE]`

`--only NAME ...` names contestants. `--parts` measures what a model of scaling is made of instead: collectives of
several sizes, started from the host and out of a CUDA graph, and a block cut for 1, 2, 4 and 8 GPUs without them.

`--builds` times one rank's build beside that of all ranks, of which one builds and the others refit what it has built.
`--plan` needs one process and no device: it shows what rank 0 of `--ranks` would build and communicate, from a model
without data (`python -m tools.bench.distributed --plan --ranks 2 --layers 32` for a Llama of the size of 8B).

Each contestant runs the same shards of the same weights, in bfloat16 on GPUs and float32 on the CPU, and is held to
eager by cosine of its results. Times are medians over rounds in which contestants take turns; a round ends when all
ranks are done. `engines` runs all-reduces inside of CUDA graphs; `engines, not replayed` starts every kernel from the
host; `engines, collectives outside` keeps all-reduces in PyTorch, between engines. Rank 0 prints one line of JSON for
each number of tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F

import trt_frontends as trt
from trt_core import trt as tensorrt
from trt_runtime import TRTModule

_HEAD: Final = 128
_ROUNDS: Final = 30
_BUILDS: Final = 5
_WARM_UP: Final = 8
_REPLAY: Final = "TRT_PORTABLE_REPLAY"

Call = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A layer of Llama: attention with grouped keys, and a gated perceptron, each behind a norm.

    Args:
        hidden: Features; a multiple of 128 times the number of ranks.
        heads: Heads of queries on this rank.
        key_heads: Heads of keys on this rank.
        inner: Features of the perceptron.
    """

    def __init__(self, hidden: int, heads: int, key_heads: int, inner: int, ranks: int) -> None:
        super().__init__()
        self._heads, self._key_heads = heads, key_heads
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.q = nn.Linear(hidden, heads * ranks * _HEAD, bias=False)
        self.k = nn.Linear(hidden, key_heads * ranks * _HEAD, bias=False)
        self.v = nn.Linear(hidden, key_heads * ranks * _HEAD, bias=False)
        self.o = nn.Linear(heads * ranks * _HEAD, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x: (N, S, hidden); cos, sin: (S, 128)."""
        rows, length, _ = x.shape
        y = self.attention_norm(x)
        q = _turned(self.q(y).view(rows, length, self._heads, _HEAD).transpose(1, 2), cos, sin)
        k = _turned(self.k(y).view(rows, length, self._key_heads, _HEAD).transpose(1, 2), cos, sin)
        v = self.v(y).view(rows, length, self._key_heads, _HEAD).transpose(1, 2)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(found.transpose(1, 2).reshape(rows, length, -1))
        y = self.norm(x)
        result: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return result


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Model(nn.Module):
    """Some blocks, and the angles of their positions.

    Args:
        hidden, layers: Size.
        ranks: Over how many processes heads are spread.
        length: Tokens.
    """

    def __init__(self, hidden: int, layers: int, ranks: int, length: int) -> None:
        super().__init__()
        heads = hidden // _HEAD // ranks
        key_heads = max(heads // 4, 1)
        self.blocks = nn.ModuleList(Block(hidden, heads, key_heads, hidden * 7 // 2, ranks) for _ in range(layers))
        angles = torch.outer(torch.arange(length), 500000.0 ** (-torch.arange(0, _HEAD, 2) / _HEAD)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, S, hidden)."""
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x


def sharded(hidden: int, layers: int, length: int, mesh: DeviceMesh, dtype: torch.dtype) -> nn.Module:
    """The model with its products sharded over the ranks of a mesh by columns and rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    ranks = mesh.size()
    with torch.device(mesh.device_type):
        model = Model(hidden, layers, ranks, length).eval()
    for module in model.modules():  # `to` has no form for tensors without data
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(value.detach().to(dtype), requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(dtype))
    columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
    plan: dict[str, Any] = {f"blocks.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"blocks.*.{name}": RowwiseParallel() for name in rows}
    return parallelize_module(model, mesh, plan)


@contextlib.contextmanager
def _without_replay() -> Iterator[None]:
    before = os.environ.get(_REPLAY)
    os.environ[_REPLAY] = "0"
    try:
        yield
    finally:
        os.environ.pop(_REPLAY)
        if before is not None:
            os.environ[_REPLAY] = before


def contestants(
    model: nn.Module, x: torch.Tensor, only: list[str] | None = None, deadline: float = float("inf")
) -> dict[str, Call | str]:
    """Every way to run the model, compiled and called until it has settled; why, where one cannot.

    Args:
        model: The model on this rank.
        x: What it is called with.
        only: Names of ways; all of them by default.
        deadline: When, by the clock of rank 0, no further way is tried.
    """
    outside = {
        "torch_executed_ops": {"torch.ops._c10d_functional.all_reduce", "torch.ops._c10d_functional.wait_tensor"}
    }

    def engines(**settings: Any) -> Call:
        return trt.compile(model, arg_inputs=(x,), min_block_size=1, **settings)

    ways: dict[str, Callable[[], Call]] = {
        "eager": lambda: model,
        "torch.compile": lambda: torch.compile(model, dynamic=False),
        "torch.compile reduce-overhead": lambda: torch.compile(model, dynamic=False, mode="reduce-overhead"),
        "engines": engines,
        "engines, not replayed": engines,
        "engines, collectives outside": lambda: engines(**outside),
    }
    found: dict[str, Call | str] = {}
    for name, make in ways.items():
        late = torch.tensor(time.perf_counter() > deadline, device=x.device, dtype=torch.int32)
        dist.broadcast(late, 0)
        if (only and name not in only) or late.item():
            continue
        torch._dynamo.reset()
        started = time.perf_counter()
        try:
            with _without_replay() if name.endswith("not replayed") else contextlib.nullcontext():
                call = make()
                for _ in range(_WARM_UP):
                    call(x)
            found[name] = call
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:300]
        _say(f"{name}: ready after {time.perf_counter() - started:.1f} s")
        dist.barrier()
    return found


def measure(calls: dict[str, Call | str], x: torch.Tensor, wanted: torch.Tensor) -> dict[str, Any]:
    """Median milliseconds of each contestant, and how far its results are from eager's."""
    times: dict[str, list[float]] = {name: [] for name, call in calls.items() if not isinstance(call, str)}
    for _ in range(_ROUNDS):
        for name in times:
            call = calls[name]
            assert not isinstance(call, str)
            dist.barrier()
            _wait(x)
            started = time.perf_counter()
            for _ in range(4):
                call(x)
            _wait(x)
            times[name].append((time.perf_counter() - started) * 250)
    result: dict[str, Any] = {}
    for name, call in calls.items():
        if isinstance(call, str):
            result[name] = {"error": call}
            continue
        cosine = F.cosine_similarity(call(x).float().flatten(), wanted.float().flatten(), dim=0).item()
        result[name] = {"ms": round(statistics.median(times[name]), 4), "cosine": round(cosine, 6)}
        if isinstance(call, nn.Module) and name.startswith("engines"):
            result[name]["tactics"] = _tactics(call)
    return result


def _tactics(compiled: nn.Module) -> list[str]:
    """Names of the tactics that engines of trt-portable were built with."""
    runtime = tensorrt.Runtime(tensorrt.Logger())
    found = set()
    for module in compiled.modules():
        if isinstance(module, TRTModule):
            engine = runtime.deserialize_cuda_engine(memoryview(module.plan.cpu().numpy().data))
            found.add(engine._state.info.tactic)
    return sorted(found)


def measure_parts(hidden: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Milliseconds of collectives by bytes, and of blocks cut for several GPUs; those on GPUs from CUDA graphs."""
    told: dict[str, Any] = {"collectives": [], "blocks": []}
    ranks = dist.get_world_size()
    for power in range(13, 29 if device.type == "cuda" else 20, 3):
        x = torch.zeros((1 << power) // dtype.itemsize, device=device, dtype=dtype)
        gathered = torch.empty(ranks * x.numel(), device=device, dtype=dtype)
        entry: dict[str, Any] = {"bytes": x.nbytes}
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda x=x: dist.all_reduce(x),  # type: ignore[misc]
            "all_gather": lambda x=x, y=gathered: dist.all_gather_into_tensor(y, x),  # type: ignore[misc]
        }
        for name, call in calls.items():
            entry[f"{name} ms"] = _median_ms(call, x)
            if x.is_cuda:
                entry[f"{name} in a graph ms"] = _median_ms(_as_graph(call), x)
        told["collectives"].append(entry)
    for tokens in (1, 128):
        for parts in (1, 2, 4, 8):
            with torch.device(device):
                heads = hidden // _HEAD // parts
                block = Block(hidden, heads, max(heads // 4, 1), hidden * 7 // 2 // parts, 1)
            block = block.to(dtype).eval().requires_grad_(False)
            x = torch.randn(1, tokens, hidden, device=device, dtype=dtype)
            turns = torch.ones(tokens, _HEAD, device=device, dtype=dtype)
            run: Callable[[], Any] = lambda block=block, x=x, turns=turns: block(x, turns, turns)  # type: ignore[misc]  # noqa: E731
            entry = {"tokens": tokens, "gpus": parts, "ms": _median_ms(_as_graph(run) if x.is_cuda else run, x)}
            told["blocks"].append(entry)
    return told


def measure_builds(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """Seconds of one rank that builds alone and of all ranks together, and the processor seconds of each of them.

    Told are rounds of median seconds. Every rank builds for itself before them, so whichever builds has all imported.
    """

    def build(folder: str) -> None:
        trt.compile(model, arg_inputs=(x,), min_block_size=1, refit=True, engine_cache_dir=folder)

    def shared_folder() -> str:
        made: list[Any] = [tempfile.mkdtemp(dir=root[0])]
        dist.broadcast_object_list(made)
        return str(made[0])

    def timed(work: Callable[[], None]) -> dict[str, Any]:
        dist.barrier()
        started, used = time.perf_counter(), time.process_time()
        work()
        own = [time.perf_counter() - started, time.process_time() - used]
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        seconds, processor = zip(*found, strict=True)
        return {"seconds": round(max(seconds), 2), "processor": [round(each, 2) for each in processor]}

    root: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(root)
    is_first = dist.get_rank() == 0
    timed(lambda: build(tempfile.mkdtemp(dir=root[0])))
    rounds: list[dict[str, Any]] = []
    for _ in range(_BUILDS):
        folder, alone = shared_folder(), shared_folder()
        rounds.append(
            {
                "all ranks": timed(lambda folder=folder: build(folder)),  # type: ignore[misc]
                "from the cache": timed(lambda folder=folder: build(folder)),  # type: ignore[misc]
                "one rank": timed(lambda folder=alone: build(folder) if is_first else None),  # type: ignore[misc]
            }
        )
    if is_first:
        shutil.rmtree(root[0])
    return {
        name: sorted((told[name] for told in rounds), key=lambda told: told["seconds"])[_BUILDS // 2]
        for name in rounds[0]
    }


def show_plan(hidden: int, layers: int, tokens: int, ranks: int) -> dict[str, Any]:
    """What the first rank would build and communicate; neither weights nor other processes exist."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,))
    try:
        with FakeTensorMode(), torch.no_grad():
            dtype = torch.bfloat16
            model = sharded(hidden, layers, tokens, mesh, dtype)
            report = trt.explain(model, arg_inputs=(torch.empty(1, tokens, hidden, dtype=dtype),), min_block_size=1)
        sent = [node.communication.sent_bytes for node in report.collectives if node.communication is not None]
        return {
            "ranks": ranks,
            "hidden": hidden,
            "layers": layers,
            "tokens": tokens,
            "parameters": sum(value.numel() for value in model.parameters()),
            "engines": len(report.engines),
            "coverage": report.coverage,
            "collectives": len(sent),
            "bytes that a rank sends": sum(sent),
        }
    finally:
        dist.destroy_process_group()


def _as_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def _median_ms(call: Callable[[], Any], x: torch.Tensor) -> float:
    """Median milliseconds of one of many calls in a row, over rounds that all ranks begin together."""
    found = []
    for _ in range(10):
        call()
        dist.barrier()
        _wait(x)
        started = time.perf_counter()
        for _ in range(20):
            call()
        _wait(x)
        found.append((time.perf_counter() - started) * 50)
    return round(statistics.median(found), 5)


def _wait(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        Console(stderr=True).print(text)


def main() -> None:
    """Runs the benchmark on this rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 128, 2048])
    parser.add_argument("--only", nargs="+", help="names of contestants")
    parser.add_argument("--parts", action="store_true", help="measure collectives and blocks alone")
    parser.add_argument("--builds", action="store_true", help="measure builds")
    parser.add_argument("--plan", action="store_true", help="show what would be built, on one process without a device")
    parser.add_argument("--ranks", type=int, default=2, help="of the plan")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no build after that long")
    parser.add_argument("--results", type=Path)
    asked = parser.parse_args()
    deadline = time.perf_counter() + asked.seconds
    if asked.plan:
        for tokens in asked.tokens:
            told = show_plan(asked.hidden, asked.layers, tokens, asked.ranks)
            Console(soft_wrap=True).print(json.dumps(told), highlight=False)
        return
    rank = int(os.environ["RANK"])
    device = (
        torch.device(asked.device, int(os.environ["LOCAL_RANK"])) if asked.device == "cuda" else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=300))
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    console = Console(soft_wrap=True)

    def tell(told: dict[str, Any]) -> None:
        if rank == 0:
            console.print(json.dumps(told), highlight=False)
            if asked.results is not None:
                with asked.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(told) + "\n")

    with torch.no_grad():
        if asked.parts:
            tell({"hidden": asked.hidden, "ranks": dist.get_world_size(), **measure_parts(asked.hidden, device, dtype)})
        for tokens in () if asked.parts else asked.tokens:
            model = sharded(asked.hidden, asked.layers, tokens, mesh, dtype)
            torch.manual_seed(1)
            x = torch.randn(1, tokens, asked.hidden, device=device, dtype=dtype)
            if asked.builds:
                tell({"ranks": dist.get_world_size(), "hidden": asked.hidden, **measure_builds(model, x)})
                continue
            wanted = model(x)
            wanted = wanted.wait() if hasattr(wanted, "wait") else wanted
            tell(
                {
                    "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                    "ranks": dist.get_world_size(),
                    "hidden": asked.hidden,
                    "layers": asked.layers,
                    "tokens": tokens,
                    "results": measure(contestants(model, x, asked.only, deadline), x, wanted),
                }
            )
            torch._dynamo.reset()
            gc.collect()  # a group waits for CUDA graphs that hold collectives of it before it goes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
