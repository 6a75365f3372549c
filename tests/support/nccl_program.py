"""What `tests/test_nccl.py` starts on each GPU: engines with collectives beside eager models, on NCCL."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import rank_programs
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import trt_frontends as trt
import trt_runtime as runtime
from trt_core import Input

CALLS = 8
"""More calls than it takes to record a run, of an engine or of a whole module."""


def compare(model: nn.Module, given: Any, sizes: tuple[tuple[int, ...], ...], **tolerance: float) -> Any:
    """Compiles a model and calls it often, with numbers of this rank, beside the model itself."""
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    for size in sizes:
        for _ in range(CALLS):
            x = torch.randn(size, device="cuda")
            found, wanted = compiled(x), model(x)
            for one, other in zip(_flat(found), _flat(wanted), strict=True):
                torch.testing.assert_close(rank_programs.whole(one), rank_programs.whole(other), **tolerance)
    assert compiled.meta["partition_report"].coverage == 1.0
    return compiled


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def collectives(_: str) -> None:
    """Every collective that has a layer."""
    torch.manual_seed(0)
    model = rank_programs.Collectives(dist.group.WORLD).cuda().eval().requires_grad_(False)
    torch.manual_seed(dist.get_rank() + 1)
    given = Input(min_shape=(4, 8), opt_shape=(4, 8), max_shape=(16, 8))
    compare(model, given, ((4, 8), (16, 8)), rtol=1e-3, atol=1e-3)


def tensor_parallel(folder: str) -> None:
    """A model sharded by columns and rows; saved and loaded."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = rank_programs.Perceptron(64).cuda().eval().requires_grad_(False)
    parallelize_module(model, mesh, rank_programs.plan_of("tensor"))
    torch.manual_seed(1)
    compiled = compare(model, torch.randn(4, 4, 16, device="cuda"), ((4, 4, 16),), rtol=1e-3, atol=1e-3)
    runtime.save_sharded(compiled, folder, mesh=mesh)
    x = torch.randn(4, 4, 16, device="cuda")
    torch.testing.assert_close(runtime.load(folder, mesh=mesh)(x), compiled(x), rtol=1e-3, atol=1e-3)


def fully_sharded(_: str) -> None:
    """Weights in parts, gathered in every call."""
    torch.manual_seed(0)
    model = nn.Sequential(*[rank_programs.Perceptron(64) for _ in range(3)]).cuda().eval().requires_grad_(False)
    for part in model:
        fully_shard(part)
    fully_shard(model)
    torch.manual_seed(dist.get_rank() + 1)
    compare(model, torch.randn(4, 4, 16, device="cuda"), ((4, 4, 16),), rtol=1e-3, atol=1e-3)


def own_sizes(_: str) -> None:
    """Ranks call with sizes that come again at other calls than those of the others."""
    torch.manual_seed(0)
    model = rank_programs.SummedMeans().cuda().eval().requires_grad_(False)
    given = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    orders = [(1 + call // 2, 8) if dist.get_rank() else (1 + call % 3, 8) for call in range(2 * CALLS)]
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    for size in orders:
        x = torch.randn(size, device="cuda")
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)


def whole_module_graphs(folder: str) -> None:
    """Graphs over whole modules, of which collectives run in engines and in PyTorch; compiled and loaded, two sizes."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = rank_programs.Perceptron(64).cuda().eval().requires_grad_(False)
    parallelize_module(model, mesh, rank_programs.plan_of("tensor"))
    given = Input(min_shape=(2, 4, 16), opt_shape=(4, 4, 16), max_shape=(8, 4, 16))
    for executed in ((), (torch.ops._c10d_functional.all_reduce.default,)):
        compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1, torch_executed_ops=executed)
        runtime.save_sharded(compiled, folder, mesh=mesh)
        for one in (compiled, runtime.load(folder, mesh=mesh, trust=True)):
            with runtime.cuda_graphs(one) as graphed:
                for call in range(2 * CALLS):
                    x = torch.full((4 + 4 * (call % 2), 4, 16), float(call), device="cuda")
                    torch.testing.assert_close(graphed(x), model(x) + 0, rtol=1e-3, atol=1e-3)
                (calls,) = [graphs for graphs, _ in (graphed._calls or {}).values()]
                assert len(calls) == 2
                assert (calls._watched is not None) == (dist.get_world_size() > 1)


def killed_rank(_: str) -> None:
    """The last rank dies, and the others replay what waits for it: an engine's own recording."""
    _die_and_wait(use_cuda_graphs=False)


def killed_rank_of_a_module(_: str) -> None:
    """The same for a graph over the whole module, of which collectives run in an engine."""
    _die_and_wait(use_cuda_graphs=True)


def killed_rank_between_engines(_: str) -> None:
    """The same for a graph over the whole module, of which collectives run in PyTorch."""
    _die_and_wait(use_cuda_graphs=True, torch_executed_ops=(torch.ops._c10d_functional.all_reduce.default,))


def killed_rank_while_recording(_: str) -> None:
    """The last rank dies while it records a run, which the others replay."""
    if dist.get_rank() == dist.get_world_size() - 1:
        from trt_portable.execution import replay

        def die(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        replay._recorded = die
    _die_and_wait()


def _die_and_wait(**settings: Any) -> None:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = rank_programs.Perceptron(64).cuda().eval().requires_grad_(False)
    parallelize_module(model, mesh, rank_programs.plan_of("tensor"))
    x = torch.randn(4, 4, 16, device="cuda")
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1, **settings)
    for _call in range(CALLS):
        compiled(x)
    torch.cuda.synchronize()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3)
    compiled(x)
    torch.cuda.synchronize()


def main() -> None:
    """Runs the parts that are named, and says on rank 0 which of them are done."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=timedelta(seconds=float(os.environ.get("GROUP_SECONDS", "60"))))
    folder, *names = sys.argv[1:]
    with torch.no_grad():
        for name in names:
            globals()[name](folder)
            gc.collect()  # a group waits for CUDA graphs that hold collectives of it before it goes
            if dist.get_rank() == 0:
                sys.stdout.write(json.dumps({"done": name}) + "\n")
                sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
