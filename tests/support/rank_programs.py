"""What ranks run in tests: functions that a new process can import."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import wait_no_longer
from torch import nn
from torch.distributed import distributed_c10d

import trt_frontends as trt
import trt_runtime as runtime
from trt_core import ExecutionError, FileError, Input, InputError, PlanError
from trt_core.process_groups import GroupMembers, find_group
from trt_frontends import engine_source
from trt_frontends.torch_compile.compiled_graph import CompiledGraph
from trt_runtime import signatures


class Collectives(nn.Module):
    """Every collective that has a layer, in one group of ranks.

    Args:
        group: The process group.
    """

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.product = nn.Linear(8, 8)
        self._group = group

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: (N, 8), N a multiple of the group's size."""
        operators: Any = torch.ops._c10d_functional
        name, size = self._group.group_name, self._group.size()

        def done(started: torch.Tensor) -> torch.Tensor:
            return operators.wait_tensor(started)  # type: ignore[no-any-return]

        summed = done(operators.all_reduce(self.product(x), "sum", name))
        gathered = done(operators.all_gather_into_tensor(torch.relu(x), size, name))
        scattered = done(operators.reduce_scatter_tensor(gathered + 1, "sum", size, name))
        parts = [x.shape[0] // size] * size
        exchanged = done(operators.all_to_all_single(summed, parts, parts, name))
        sent = done(operators.broadcast(exchanged * 2, size - 1, name))
        largest = done(operators.all_reduce(x.sum(), "max", name))
        return summed, gathered, scattered, exchanged, sent, largest


def in_turn(rank: int, calls: list[tuple[Any, ...]]) -> list[Any]:
    """Calls several functions with the rank and what is given for each, in ranks that import what they need once."""
    return [function(rank, *args) for function, *args in calls]


def share_a_data_set(rank: int) -> None:
    """Holds a loop over this rank's share of a data set, of a size that ranks do not divide, to eager on all of it."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(0)
    rows, model = torch.randn(11, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh()).eval().requires_grad_(False)
    compiled = trt.compile(model, arg_inputs=(Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(4, 8)),))
    data = TensorDataset(torch.arange(len(rows)), rows)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True, seed=3))
    mine = {int(index): result for indices, x in loader for index, result in zip(indices, compiled(x), strict=True)}
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    assert mine.keys() != everybody[1 - rank].keys()
    found = {index: result for share in everybody for index, result in share.items()}
    torch.testing.assert_close(torch.stack([found[index] for index in range(len(rows))]), model(rows))


def compile_for_a_group_made_later(rank: int) -> None:
    """Holds an engine to eager whose group was gone when it was called, and made again of the same ranks."""
    torch.manual_seed(0)
    first = dist.new_group([0, 1])
    model = Collectives(first).eval().requires_grad_(False)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))
    expected = model(x)
    compiled = trt.compile(model, arg_inputs=(x,))
    torch.testing.assert_close(compiled(x), expected)
    dist.destroy_process_group(first)
    dist.new_group([0, 1])
    torch.testing.assert_close(compiled(x), expected)


def call_with_newcomers(rank: int, way: str) -> None:
    """Holds a model to eager that the first rank has called with the second one, and calls with the third one then."""
    store: Any = distributed_c10d._get_default_store()
    dist.destroy_process_group()
    x = torch.ones(4, 8)
    compiled: Any = None
    for partner in (1, 2):
        if rank not in (0, partner):
            continue
        own = distributed_c10d.PrefixStore(f"with {partner}", store)
        dist.init_process_group("gloo", store=own, rank=int(rank > 0), world_size=2, timeout=store.timeout)
        if compiled is None and way == "compile":
            compiled = trt.compile(Branching(), arg_inputs=(x, ""), min_block_size=1)
        elif compiled is None:
            compiled = torch.compile(Branching(), backend="torch_tensorrt", options={"min_block_size": 1})
        for _ in range(2):
            torch.testing.assert_close(compiled(x, ""), Branching()(x, ""))
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=distributed_c10d.PrefixStore("all", store), rank=rank, world_size=3)


def compile_collectives(rank: int, groups: list[list[int]]) -> dict[str, Any]:
    """Compiles `Collectives` in the group of this rank and compares it with eager at several sizes."""
    made = [dist.new_group(ranks) for ranks in groups]
    (group,) = [found for found, ranks in zip(made, groups, strict=True) if rank in ranks]
    torch.manual_seed(0)
    model = Collectives(group).eval().requires_grad_(False)
    compiled = trt.compile(model, arg_inputs=(Input(min_shape=(4, 8), opt_shape=(4, 8), max_shape=(16, 8)),))
    torch.manual_seed(rank + 1)
    for rows in (4, 8, 16):
        x = torch.randn(rows, 8)
        for found, wanted in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(found, wanted)
    report = compiled.meta["partition_report"]
    return {"engines": len(report.engines), "coverage": report.coverage}


class SummedMeans(nn.Module):
    """Sums means over all ranks, twice; each rank may bring as many rows as it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 8)."""
        operators: Any = torch.ops._c10d_functional
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        for _ in range(2):
            x = torch.relu(self.product(x))
            x = x + operators.wait_tensor(operators.all_reduce(x.mean(0), "sum", name))
        return x


def count_runs(rank: int, directory: str) -> dict[str, list[int]]:
    """Counts the collectives that engines start on this rank: in builds, in each call of some size, saved and loaded.

    Ranks build at other levels, so that each chooses its own kernels, and call with other sizes than the others.
    """
    from trt_portable.layers import collective

    module: Any = collective
    start, started = module._start, 0

    def count(*args: Any) -> torch.Tensor:
        nonlocal started
        started += 1
        return start(*args)  # type: ignore[no-any-return]

    module._start = count
    found: dict[str, list[int]] = {}

    def note(name: str) -> None:
        nonlocal started
        found.setdefault(name, []).append(started)
        started = 0

    torch.manual_seed(0)
    model = SummedMeans().eval().requires_grad_(False)
    given = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1, optimization_level=(0, 5)[rank % 2])
    note("build")
    runtime.save_sharded(compiled, directory)
    loaded, trusted = trt.load(directory), trt.load(directory, trust=True)
    note("save and load")
    for name, one in (("compiled", compiled), ("loaded", loaded), ("trusted", trusted)):
        for call in range(20):
            x = torch.randn(1 + (call // 2 if rank == 0 else call % 3), 8)
            result = one(x)
            note(name)
            torch.testing.assert_close(result, model(x))
    return found


class Perceptron(nn.Module):
    """Two products with a norm before them; the second one's columns are the first one's rows.

    Args:
        hidden: Features in between.
    """

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, hidden)
        self.down = nn.Linear(hidden, 16)

    def forward(self, x: torch.Tensor) -> Any:
        """x: (N, S, 16)."""
        return self.down(torch.relu(self.up(self.norm(x))))


def plan_of(kind: str) -> dict[str, Any]:
    """How the parts of a `Perceptron` are sharded."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    if kind == "tensor":
        return {"up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
    if kind == "uneven":
        return {"up": tp.ColwiseParallel(use_local_output=False), "down": tp.RowwiseParallel()}
    if kind == "sequence":
        return {
            "": tp.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
            "norm": tp.SequenceParallel(),
            "up": tp.ColwiseParallel(input_layouts=Shard(1)),
            "down": tp.RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
    assert kind == "distributed output"
    return {
        "up": tp.ColwiseParallel(),
        "down": tp.RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }


def parallel_perceptron(kind: str, hidden: int = 32, mesh: Any = None) -> nn.Module:
    """The same model on every rank, sharded over a mesh of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    model = Perceptron(hidden).eval().requires_grad_(False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if mesh is None else mesh
    return parallelize_module(model, mesh, plan_of(kind))


def whole(value: Any) -> torch.Tensor:
    """The whole tensor of a `DTensor`; anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # type: ignore[no-any-return]


def compile_parallel(rank: int, kinds: list[str], way: str, batches: list[int]) -> dict[str, Any]:
    """Compiles sharded `Perceptron`s in one of two ways and compares them with eager, for several batches."""
    return {kind: _compile_parallel(kind, way, batches) for kind in kinds}


def _compile_parallel(kind: str, way: str, batches: list[int]) -> dict[str, Any]:
    torch._dynamo.reset()
    model = parallel_perceptron(kind, 33 if kind == "uneven" else 32)
    if way == "compile":
        given = Input(min_shape=(2, 4, 16), opt_shape=(4, 4, 16), max_shape=(16, 4, 16))
        compiled: Any = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    else:
        compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
    torch.manual_seed(1)
    for batch in batches:
        if kind == "distributed output" and batch % dist.get_world_size():
            continue  # it shards the batch
        x = torch.randn(batch, 4, 16)
        with torch.no_grad():
            wanted, found = model(x), compiled(x)
        assert hasattr(found, "full_tensor") == hasattr(wanted, "full_tensor")
        torch.testing.assert_close(whole(found), whole(wanted), rtol=1e-4, atol=1e-5)
    if way == "compile":
        report = compiled.meta["partition_report"]
        return {"engines": len(report.engines), "coverage": report.coverage}
    told = trt.model_report(compiled)
    return {"engines": told.engines // len(told.graphs), "coverage": told.coverage}


def compile_losses(rank: int, wanted_ways: tuple[str, ...]) -> dict[str, int]:
    """Holds losses of logits that are sharded over classes to that of whole logits; returns engines of each way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    def parallel_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with loss_parallel():
            return nn.functional.cross_entropy(logits, target)

    class Loss(nn.Module):
        def __init__(self, loss: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(8, 6)
            self.loss = loss

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
            return self.loss(self.head(x), target)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: Any = {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    x, target = torch.linspace(-1, 1, 32).reshape(4, 8), torch.tensor([0, 1, 5, 3])
    distributed = distribute_tensor(target, mesh, [Replicate()])
    wanted = Loss(nn.functional.cross_entropy)(x, target)
    ways: Any = {
        "compile": (parallel_loss, distributed, "compile"),
        "left to PyTorch": (torch.compiler.disable(parallel_loss, reason="parallel"), target, "torch.compile"),
        "traced": (parallel_loss, distributed, "torch.compile"),
        "gathered": (nn.functional.cross_entropy, distributed, "torch.compile"),
    }
    engines = {}
    for name in wanted_ways:
        loss, given, way = ways[name]
        torch._dynamo.reset()
        model = parallelize_module(Loss(loss).eval().requires_grad_(False), mesh, plan)
        if way == "compile":
            compiled: Any = trt.compile(model, arg_inputs=(x, given), min_block_size=1)
        else:
            compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
        torch.testing.assert_close(whole(compiled(x, given)), wanted)
        report = compiled.meta["partition_report"].engines if way == "compile" else trt.model_report(compiled).engines
        engines[name] = report if isinstance(report, int) else len(report)
    return engines


class Exchange(nn.Module):
    """Communicates what every rank can check: parts of different sizes, which no engine exchanges, and more.

    Args:
        group: A process group of two.
        mesh: A device mesh of all ranks.
    """

    def __init__(self, group: Any, mesh: Any) -> None:
        super().__init__()
        self.product = nn.Linear(16, 16)
        self._group, self._mesh = group, mesh

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: (4, 16)."""
        from torch.distributed.tensor import Shard, distribute_tensor

        operators: Any = torch.ops._c10d_functional
        taken = [1, 1] if self._group.rank() == 0 else [3, 3]
        exchanged = operators.all_to_all_single(self.product(x), taken, [1, 3], self._group.group_name)
        summed = torch.relu(x)
        summing = dist.all_reduce(summed, group=self._group, async_op=True)
        shard = distribute_tensor(x, self._mesh, [Shard(0)]).to_local()
        assert summing is not None
        summing.wait()
        return torch.relu(operators.wait_tensor(exchanged) + 1), summed, shard


def _exchange(rank: int, mesh: Any, directory: str) -> str:
    """Saves and loads a model that communicates in PyTorch; returns what is said where its group is gone."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group: Any = groups[rank // 2]
    torch.manual_seed(rank)
    model = Exchange(group, mesh).eval().requires_grad_(False)
    x = torch.randn(4, 16)
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    wanted = model(x)
    torch.testing.assert_close(compiled(x), wanted)
    assert any("all_to_all" in node.op and node.verdict.code for node in compiled.meta["partition_report"].nodes)
    path = f"{directory}-of-{rank}.trtp"
    trt.save(compiled, path)
    loaded = trt.load(path)
    torch.testing.assert_close(tuple(loaded(x)), wanted)
    dist.barrier()
    _refuse_program_of_another(f"{directory}-of-{{}}.trtp", rank)
    dist.destroy_process_group(group)
    try:
        trt.load(path)(x)
    except ExecutionError as error:
        return error.what
    return "nothing was said"


def _refuse_program_of_another(path: str, rank: int, load: Callable[[str], Any] = trt.load) -> None:
    """Makes sure that a rank loads no program that another one saved: it would compute with that one's shards."""
    other = (rank + 1) % dist.get_world_size()
    try:
        load(path.format(other))
    except PlanError as error:
        assert f"rank {other} has saved it, and this is rank {rank}" in error.why, error
    else:
        raise AssertionError(f"rank {rank} loaded the program of rank {other}")


def save_and_load(rank: int, directory: str) -> dict[str, Any]:
    """Saves a sharded model, loads it again, and says what became of wrong loads."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = parallel_perceptron("tensor", mesh=mesh["model"])
    given = Input(min_shape=(2, 4, 16), opt_shape=(4, 4, 16), max_shape=(16, 4, 16))
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    runtime.save_sharded(compiled, directory, mesh=mesh)
    loaded = trt.load(directory, mesh=mesh)
    torch.manual_seed(rank // 2)
    x = torch.randn(8, 4, 16)
    torch.testing.assert_close(loaded(x), model(x) + 0, rtol=1e-4, atol=1e-5)
    runtime.save_sharded(loaded, directory, mesh=mesh)  # the folder is replaced
    torch.testing.assert_close(trt.load(directory)(x), loaded(x))
    own: dict[str, Any] = {"mesh": mesh["model"], "group": mesh["model"].get_group()}
    saved = compiled
    for turn in range(2):  # ranks that communicate may have a folder of their own
        runtime.save_sharded(saved, f"{directory}-{rank // 2}-{turn}", **own)
        saved = trt.load(f"{directory}-{rank // 2}-{turn}", **own)
        torch.testing.assert_close(saved(x), loaded(x))
    told = {}
    for wrong_group in ("no such", 3):
        with pytest.raises(InputError, match="is no process group"):
            runtime.save_sharded(compiled, directory, group=wrong_group)
        with pytest.raises(InputError, match="is no process group"):
            trt.load(directory, group=wrong_group)
    dist.barrier()
    try:
        trt.load(f"{directory}-{1 - rank // 2}-0", group=own["group"])
    except PlanError as error:
        told["others"] = error.what
    wrong = {
        "mesh": {"mesh": init_device_mesh("cpu", (4,))},
        "world": {"group": dist.new_group([0, 1])},
    }
    if rank > 1:
        with pytest.raises(LookupError, match="has no process group of the ranks 0, 1; it has 0 to 3; "):
            find_group(GroupMembers("", (0, 1)))
    try:
        runtime.save_sharded(compiled, f"{directory}-other", group=mesh["data"].get_group())
    except InputError as error:
        told["outside"] = error.what
    try:
        runtime.save_sharded(compiled, f"{directory}-of-{rank}")
    except (InputError, FileError) as error:
        told["folders"] = str(error)
    for name, options in wrong.items():
        if name == "world" and rank > 1:
            continue
        try:
            trt.load(directory, **options)
        except PlanError as error:
            told[name] = error.what
    return {**told, "gone": _exchange(rank, wrong["mesh"]["mesh"], directory)}


def load_changed(rank: int, directory: str, ways: list[str]) -> dict[str, str]:
    """Says what becomes of folders whose files are all signed, and whose manifests were made to fit other ones."""
    compiled = trt.compile(parallel_perceptron("tensor"), arg_inputs=(torch.ones(4, 16),), min_block_size=1)
    runtime.save_sharded(compiled, f"{directory}/saved")
    runtime.save_sharded(compiled, f"{directory}/saved again")
    if rank == 0:
        for way in ways:
            shutil.copytree(f"{directory}/saved", f"{directory}/{way}")
    dist.barrier()
    if "an earlier release" in ways:
        runtime.save(compiled, f"{directory}/an earlier release/rank-{rank}.trtp", metadata={})
    dist.barrier()
    if rank == 0:
        for way in ways:
            _change(Path(directory, way), way)
    dist.barrier()
    return {way: _load_changed(Path(directory, way), rank, compiled) for way in ways}


def _load_changed(folder: Path, rank: int, compiled: nn.Module) -> str:
    x = torch.ones(4, 16)
    key = signatures.verified_signer(folder / f"rank-{rank}.trtp")
    try:
        loaded = runtime.load(folder, trusted_keys=[str(key)])
    except PlanError as error:
        return str(error)
    try:
        torch.testing.assert_close(loaded(x), compiled(x))
    except ExecutionError as error:
        return error.what
    return "it ran"


def _change(folder: Path, way: str) -> None:
    """Changes files of a folder, and its manifest so that it describes them."""
    first, second = folder / "rank-0.trtp", folder / "rank-1.trtp"
    manifest = json.loads((folder / "manifest.json").read_text())
    if way == "swapped":
        first.rename(folder / "kept")
        second.rename(first)
        (folder / "kept").rename(second)
    elif way == "another save":
        shutil.copy(folder.with_name("saved again") / "rank-1.trtp", second)
    for path, program in zip((first, second), manifest["programs"], strict=True):
        content = path.read_bytes()
        program.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        if way == "collectives":
            program["collectives"] = [[ranks, "0" * 64] for ranks, _ in program["collectives"]]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def differ(rank: int, way: str) -> str:
    """Ranks that compiled different models find out before they communicate."""
    torch.manual_seed(0)
    group = dist.group.WORLD
    model = Collectives(group).eval().requires_grad_(False)
    x = torch.randn(4 + 4 * rank, 8)
    if way == "compile":
        compiled: Any = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    else:
        compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
    try:
        compiled(x)
    except ExecutionError as error:
        return error.what
    return "nothing was found"


class Branching(nn.Module):
    """Sums something of its own size over all ranks, and a mean of one size; gathers where it is told to."""

    def forward(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """x: (N, 8)."""
        operators: Any = torch.ops._c10d_functional
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        y = torch.sin(x)
        summed = operators.wait_tensor(operators.all_reduce(y.mean(0) if kind == "mean" else y, "sum", name))
        if kind == "gather":
            summed = operators.wait_tensor(operators.all_gather_into_tensor(summed, 2, name))
        return torch.relu(summed)


def meet(name: str, absent: int = 0) -> None:
    """Waits until all ranks but some are here, as long as it takes: one may compile longer than groups wait."""
    store = distributed_c10d._get_default_store()
    for step in ("here", "going"):
        store.add(f"{name}/{step}", 1)
        if step == "here" or dist.get_rank() == 0:  # the first rank keeps the store, and would take it along
            while store.add(f"{name}/{step}", 0) < dist.get_world_size() - absent:
                time.sleep(0.01)


def differ_later(rank: int, kinds: tuple[str, str], rows: tuple[int, int]) -> str:
    """Ranks whose graphs agree in their first call, and may not in the next one, for which `torch.compile` compiles."""
    compiled = torch.compile(Branching(), backend="torch_tensorrt", options={"min_block_size": 1})
    first = "" if kinds[0] == "gather" else kinds[0]
    compiled(torch.ones(4, 8), first)
    wait_no_longer()
    x = torch.full((rows[rank], 8), rank + 1.0)
    try:
        torch.testing.assert_close(compiled(x, kinds[rank]), Branching()(x, kinds[rank]))
    finally:
        meet("ended")
    return "eager's values"


def no_disk(*_: Any, **__: Any) -> None:
    """Stands for what writes to a disk."""
    raise OSError("the disk is gone")


def save_with_a_fault(rank: int, failing: int, way: str, step: int, source: str, directory: str) -> None:
    """Saves what a file holds on all ranks, of which one fails at a step: an exchange with others, or a file's change.

    Args:
        rank: The rank.
        failing: The rank that fails.
        way: `dies` before the step, or takes an exchange for failed that was none, `at once` or `late`.
        step: Which of the steps of that rank; where it has fewer, it dies when the model is saved.
        source: A saved program.
        directory: Where it is saved.
    """
    taken = 0

    def failing_at(work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken == step and way == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            done = work(*args, **kwargs)
            if taken == step:
                time.sleep(0.3 if way == "late" else 0)
                raise RuntimeError("the connection is gone")
            return done

        return run

    loaded = trt.load(source)
    if rank == failing:
        places: list[tuple[Any, str]] = [(dist, "all_gather_object")]
        if way == "dies":
            places += [(Path, "rename"), (Path, "write_text"), (shutil, "rmtree")]
        for place, name in places:
            setattr(place, name, failing_at(getattr(place, name)))
    meet("loaded")
    wait_no_longer()
    runtime.save_sharded(loaded, directory)
    if rank == failing and way == "dies":
        os.kill(os.getpid(), signal.SIGKILL)


STEPS = {"open", "mkdir", "rename", "replace", "remove", "unlink", "rmdir", "fsync", "flock", "write", "flush", "mmap"}
STEPS |= {"allgather", "set", "check"}
"""What changes or opens files, and what asks other ranks, by the names of the functions of C that do it."""


def save_model(rank: int, directory: str, factor: float) -> list[float]:
    """Saves a sharded model whose weights a factor tells from others; returns what it computes."""
    model = parallel_perceptron("tensor")
    for parameter in model.parameters():
        parameter.mul_(factor)
    x = torch.ones(2, 4, 16)
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    runtime.save_sharded(compiled, directory)
    return compiled(x).flatten().tolist()  # type: ignore[no-any-return]


def load_and_call(rank: int, directory: str) -> list[float]:
    """Returns what a saved model computes."""
    return trt.load(directory)(torch.ones(2, 4, 16)).flatten().tolist()  # type: ignore[no-any-return]


def die_at_a_step(rank: int, failing: int, fatal: int, when: str, source: str, target: str) -> list[str]:
    """Saves a folder's model as another folder, or loads it and calls it; one rank is killed before one of its steps.

    Args:
        rank: The rank.
        failing: The one that is killed.
        fatal: The number of the step, from 1; 0 for none.
        when: `save` or `load`.
        source: A folder that `save_sharded` wrote.
        target: Where it is saved, or what is loaded.

    Returns:
        The steps of this rank.
    """
    taken: list[str] = []

    def note(_: Any, event: str, function: Any) -> None:
        if event != "c_call" or function.__name__ not in STEPS:
            return
        if not isinstance(function.__self__, (dict, str, set, deque, list, ContextVar)):
            taken.append(function.__name__)
            if rank == failing and len(taken) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    loaded = trt.load(source) if when == "save" else None
    meet("ready")
    wait_no_longer()
    threading.setprofile(note)  # asking the store is done by a thread
    sys.setprofile(note)
    try:
        if loaded is not None:
            runtime.save_sharded(loaded, target)
        else:
            load_and_call(rank, target)
    finally:
        sys.setprofile(None)
    return taken


def look_at_one_row(rank: int) -> None:
    """Holds a sharded model to eager that looks at the numbers of a batch of one row."""

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = parallel_perceptron("tensor")

        def forward(self, x: torch.Tensor) -> Any:
            if x.shape[0] == 1 and bool((x == x).all()):
                return self.model(x)
            return self.model(torch.where(x == x, x, 0))

    _hold_to_eager(Looking().eval(), "compile", Input(min_shape=(1, 4, 16), opt_shape=(2, 4, 16), max_shape=(4, 4, 16)))


class UnevenExchange(nn.Module):
    """Exchanges parts of different sizes, which PyTorch does between two engines."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (4, N)."""
        operators: Any = torch.ops._c10d_functional
        taken, name = [1 + 2 * dist.get_rank()] * 2, dist.group.WORLD.group_name  # type: ignore[union-attr]
        return torch.relu(operators.wait_tensor(operators.all_to_all_single(torch.relu(x), taken, [1, 3], name)) + 1)


def call_alone(rank: int, where: str, way: str, directory: str) -> None:
    """The second rank dies between two calls of a model whose collectives run in an engine or in PyTorch."""
    model: Any = UnevenExchange() if where == "PyTorch" else parallel_perceptron("tensor")
    x = torch.ones(4, 16) if where == "PyTorch" else torch.ones(2, 4, 16)
    if way == "torch.compile":
        compiled: Any = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
    else:
        compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    if way == "load":
        runtime.save_sharded(compiled, directory)
        compiled = trt.load(directory, trust=True)
    with torch.no_grad():
        compiled(x)
        meet("ready")
        wait_no_longer()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        compiled(x)


def build_once(rank: int, directory: str) -> dict[str, int]:
    """Compiles with a cache that all four ranks share; returns how many engines this rank has built of each model.

    Two stages of a pipeline are sharded over two ranks each, another model over all, and one is whole on each.
    """
    from torch.distributed.device_mesh import init_device_mesh

    source: Any = engine_source
    built = 0
    build_block = source.build_block

    def count(*args: Any, **kwargs: Any) -> Any:
        nonlocal built
        built += 1
        return build_block(*args, **kwargs)

    source.build_block = count
    rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "model"))["model"]
    torch.manual_seed(0)
    x = torch.randn(2, 4, 16)
    models = {
        "whole": (Perceptron(48).eval().requires_grad_(False), False),
        "sharded": (parallel_perceptron("tensor"), True),
        "stages": (parallel_perceptron("tensor", hidden=64 + 32 * (rank // 2), mesh=rows), True),
    }
    models["gone from the cache"] = models["sharded"]
    found: dict[str, int] = {}
    for kind, (model, refit) in models.items():
        built = 0
        folder = f"{directory} anew" if "gone" in kind else directory
        compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1, refit=refit, engine_cache_dir=folder)
        torch.testing.assert_close(compiled(x), model(x) + 0, rtol=1e-4, atol=1e-5)
        found[kind] = built
        if refit:
            _hold_refitted_to_eager(compiled, model, x)
    return found


def _hold_refitted_to_eager(compiled: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    """Changes the weights of a sharded model, and gives them to its compiled form: each rank its own shards."""
    for parameter in model.parameters():
        parameter.mul_(1.5)
    wanted = model(x) + 0
    for weights in (model, model.state_dict()):
        refitted = trt.refit_module_weights(compiled, weights)
        torch.testing.assert_close(refitted(x), wanted, rtol=1e-4, atol=1e-5)


def reshard(rank: int, whole_path: str, folder: str) -> dict[int, str]:
    """Shards whole weights over all ranks, compiles, saves, and tells what became of a folder for other numbers.

    Args:
        rank: The rank.
        whole_path: A file for the whole weights, which the first run makes.
        folder: Where folders of all numbers of ranks lie.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    world = dist.get_world_size()
    model = parallel_perceptron("tensor")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    x = torch.linspace(-1, 1, 128).reshape(2, 4, 16)
    if not os.path.exists(whole_path):
        dist.barrier()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)  # weights that no seed makes again
        found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            torch.save({"weights": found, "result": model(x) + 0}, whole_path)
        else:
            model(x)
        dist.barrier()
    held = torch.load(whole_path)
    for parameter in model.parameters():
        parameter.zero_()
    set_model_state_dict(model, held["weights"] if rank == 0 else {}, options=options)
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    runtime.save_sharded(compiled, f"{folder}/for-{world}")
    torch.testing.assert_close(trt.load(f"{folder}/for-{world}")(x), held["result"], rtol=1e-4, atol=1e-5)
    told: dict[int, str] = {}
    for other in sorted({1, 2, 4} - {world}):
        try:
            trt.load(f"{folder}/for-{other}")
        except PlanError as error:
            told[other] = error.what
        except OSError:
            told[other] = "nothing was saved"
    return told


def run_sample(rank: int, code: str, directory: str) -> None:
    """Runs a script of the documentation in the process group that is there."""
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.chdir(directory)
    ends = ("dist.init_process_group", "dist.destroy", "accelerator.end")  # the group is the test's
    lines = [line for line in code.splitlines() if not line.startswith(ends)]
    exec(compile("\n".join(lines), "sample", "exec"), {"__name__": "__main__"})


def run_agent(arguments: list[str], directory: str) -> None:
    """Is what torchrun is with these arguments."""
    from torch.distributed.run import main

    os.chdir(directory)
    main(arguments)


def compile_fully_sharded(rank: int, kind: str) -> dict[str, Any]:
    """Compiles models that `fully_shard` has wrapped, alone or over tensor parallelism, after a call and before one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    torch.manual_seed(0)
    model = nn.Sequential(Perceptron(33), Perceptron(32)).eval().requires_grad_(False)
    tolerance: Any = {"rtol": 1e-4, "atol": 1e-5}
    if kind == "two dimensions":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        parallelize_module(model[1], mesh["model"], plan_of("tensor"))
        for part in model:
            fully_shard(part, mesh=mesh["data"])
    else:
        is_mixed = kind == "mixed precision"
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if is_mixed else None, output_dtype=torch.float32)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if is_mixed else tolerance
        for part in model:
            fully_shard(part, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    torch.manual_seed(rank // (2 if kind == "two dimensions" else 1))
    x = torch.randn(4, 4, 16)
    if kind == "mixed precision":
        model(x)  # leaves weights of the root whole
    given = Input(min_shape=(2, 4, 16), opt_shape=(4, 4, 16), max_shape=(8, 4, 16))
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    for batch in (4, 8):
        x = torch.randn(batch, 4, 16)
        torch.testing.assert_close(compiled(x), model(x) + 0, **tolerance)
    report = compiled.meta["partition_report"]
    gathers = [node.op for node in report.collectives if "all_gather" in node.op]
    held = sum(value.numel() for value in trt.trace(model, arg_inputs=(x,)).state_dict.values())
    whole_size = sum(value.numel() for value in model.state_dict().values())
    return {"engines": len(report.engines), "gathers": len(gathers), "in parts": held < 0.6 * whole_size}


def compile_on_two_dimensions(rank: int, way: str) -> None:
    """Holds models on a mesh of two dimensions to eager: sharded over one of them, over both, and with FSDP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    mixed = nn.Sequential(Perceptron(33), Perceptron(32)).eval().requires_grad_(False)
    parallelize_module(mixed[1], mesh["model"], plan_of("tensor"))
    for part in (*mixed, mixed):
        fully_shard(part, mesh=mesh["data"])

    class OverBoth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            product = nn.Linear(16, 33)
            self.weight = nn.Parameter(distribute_tensor(product.weight.data, mesh, [Shard(0), Shard(1)]))
            self.bias = nn.Parameter(distribute_tensor(product.bias.data, mesh, [Shard(0), Replicate()]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            whole = DTensor.from_local(x, mesh, [Replicate(), Replicate()], run_check=False)
            found: Any = nn.functional.linear(whole, self.weight, self.bias)
            return found.full_tensor()  # type: ignore[no-any-return]

    models = (parallel_perceptron("uneven", 33, mesh["model"]), OverBoth().eval().requires_grad_(False), mixed)
    for seed, model in zip((rank // 2, 0, rank // 2), models, strict=True):
        torch.manual_seed(seed)
        _hold_to_eager(model, way, Input(min_shape=(2, 4, 16), opt_shape=(4, 4, 16), max_shape=(8, 4, 16)))


class Placed(nn.Module):
    """Computes on distributed tensors that lie in any way.

    Args:
        case: See `hold_placements_to_eager`.
        mesh: The mesh.
    """

    def __init__(self, case: dict[str, Any], mesh: Any) -> None:
        super().__init__()
        from torch.distributed.tensor import distribute_tensor

        weight = torch.linspace(-1, 1, 5 * case["features"]).reshape(5, case["features"])
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, _placements(case["weight"])))
        self._operation, self._result = case["operation"], _placements(case["result"])

    def forward(self, x: Any) -> Any:
        """x: (N, features), distributed."""
        if self._operation == "product":
            found: Any = torch.relu(nn.functional.linear(x, self.weight))
        elif self._operation == "sums":
            found = (x * 2).sum(0, keepdim=True) + x.mean(1, keepdim=True)
        else:
            found = torch.softmax(x * 0.5, -1) + self.weight[:1]
        return found.redistribute(placements=self._result)


def _placements(names: list[str]) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    others = {"R": Replicate(), "P": Partial()}
    return [others[name] if name in others else Shard(int(name)) for name in names]


def hold_placements_to_eager(rank: int, cases: list[dict[str, Any]], way: str) -> int:
    """Compiles modules on distributed tensors and compares them with eager; returns how many PyTorch could run.

    Args:
        rank: The rank.
        cases: Of each the extents of the mesh, the operation, rows and features of the input, and how input, weight
            and result lie: of each axis of the mesh the axis of the tensor that is sharded over it, R or P.
        way: Which of the two ways of compiling.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, distribute_tensor

    ran = 0
    for case in cases:
        torch._dynamo.reset()
        mesh = init_device_mesh("cpu", tuple(case["mesh"]))
        given = torch.linspace(-2, 2, case["rows"] * case["features"]).reshape(case["rows"], case["features"])
        placed = [name if name != "P" else "R" for name in case["input"]]
        shard = distribute_tensor(given, mesh, _placements(placed))
        x = DTensor.from_local(
            shard.to_local(),
            mesh,
            _placements(case["input"]),
            run_check=False,
            shape=given.shape,
            stride=given.stride(),
        )
        model = Placed(case, mesh).eval().requires_grad_(False)
        try:
            wanted = model(x)
        except (RuntimeError, NotImplementedError, AssertionError):
            continue  # on all ranks
        if way == "compile":
            compiled: Any = trt.compile(model, arg_inputs=(x,), min_block_size=1)
        else:
            compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
        with torch.no_grad():
            found = compiled(x)
        assert found.placements == wanted.placements, case
        torch.testing.assert_close(whole(found), whole(wanted), rtol=1e-4, atol=1e-5, msg=f"values of {case}")
        ran += 1
    return ran


class Called(nn.Module):
    """Calls functions on tensors that it distributes.

    Args:
        calls: What is called, and how each of its tensors lies, by name.
        mesh: The mesh.
    """

    def __init__(self, calls: dict[str, tuple[Any, str]], mesh: Any) -> None:
        super().__init__()
        self._calls, self._mesh = calls, mesh

    def forward(self, shards: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        """shards: What this rank has of each tensor of each function."""
        from torch.distributed.tensor import DTensor

        def call(function: Any, lie: str, given: list[torch.Tensor]) -> torch.Tensor:
            lying = zip(given, _placements([*lie]), strict=True)
            found = function(*(DTensor.from_local(x, self._mesh, [how], run_check=False) for x, how in lying))
            return found.full_tensor()  # type: ignore[no-any-return]

        return {name: call(function, lie, shards[name]) for name, (function, lie) in self._calls.items()}


def hold_operators_to_whole(rank: int, names: set[str]) -> list[str]:
    """Compares operators on distributed tensors with those on whole ones; returns what they became.

    Eager is no measure of attention: PyTorch takes long to find out how it lies on the CPU, and refuses masks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    attend: Any = nn.functional.scaled_dot_product_attention
    x, pictures = torch.linspace(-1, 2, 60).sin().reshape(6, 10), torch.linspace(-3, 3, 384).cos().reshape(2, 4, 6, 8)
    few, mask = pictures[:, :2] * 2, torch.linspace(-1, 1, 144).sin().reshape(1, 4, 6, 6)
    table = torch.arange(40.0).reshape(10, 4)
    cases: dict[str, Any] = {
        "largest of an axis": (lambda x: x.argmax(0), "0", x),
        "largest of all": (lambda x: x.argmin(), "1", x),
        "rows of a table": (nn.functional.embedding, "00", torch.arange(8).reshape(4, 2), table),
        "covariance": (torch.cov, "0", x),
        "outer product": (torch.addr, "0RR", x, x[:, 0].contiguous(), x[0]),
        "differences": (lambda x: torch.gradient(x, dim=0)[0], "1", x),
        "resized": (lambda x: nn.functional.interpolate(x, scale_factor=2), "0", pictures),
        "attention by batch": (attend, "000", *[pictures] * 3),
        "attention by head": (lambda q, k, v: attend(q, k, v, is_causal=True), "111", *[pictures] * 3),
        "attention of groups": (lambda q, k, v: attend(q, k, v, enable_gqa=True), "111", pictures, few, few),
        "attention with a mask": (lambda q, k, v, m: attend(q, k, v, attn_mask=m), "1111", *[pictures] * 3, mask),
        "attention by row": (lambda q, k, v: attend(q, k, v, scale=0.5), "2RR", *[pictures] * 3),
        "attention by whatever": (attend, "30R", *[pictures] * 3),
    }
    chosen = {name: cases[name] for name in sorted(names)}
    calls = {name: (function, lie) for name, (function, lie, *_) in chosen.items()}
    calls |= {"attention of any rows": (lambda q: attend(q, q, q), "1"), "places in any rows": (_places, "0")}
    shards: dict[str, list[Any]] = {
        name: [
            distribute_tensor(x, mesh, [how]).to_local() for x, how in zip(tensors, _placements([*lie]), strict=True)
        ]
        for name, (_, lie, *tensors) in chosen.items()
    }
    rows = Input(min_shape=(2, 2, 6, 8), opt_shape=(4, 2, 6, 8), max_shape=(6, 2, 6, 8))
    given = {**shards, "attention of any rows": [rows], "places in any rows": [rows]}
    compiled = trt.compile(Called(calls, mesh).eval(), arg_inputs=(given,), min_block_size=1)
    for extent in (2, 6):
        heads = pictures[:1].expand(extent, 4, 6, 8)
        many = torch.linspace(-9, 9, 2 * extent * 96).cos().reshape(2 * extent, 2, 6, 8)
        given["attention of any rows"] = [heads.chunk(2, 1)[rank].contiguous()]
        given["places in any rows"] = [many.chunk(2)[rank]]
        wanted = {name: function(*tensors) for name, (function, _, *tensors) in chosen.items()}
        wanted |= {"attention of any rows": attend(heads, heads, heads), "places in any rows": _places(many)}
        found = compiled(given)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, msg=name)
    return [node.op for node in compiled.meta["partition_report"].nodes]


def _places(x: torch.Tensor) -> torch.Tensor:
    """x: (N, ...); where the largest number of each row is, and the least of all."""
    return x.argmax(0) * 1000 + x.argmin()


def gather_varying_rows(rank: int) -> list[str]:
    """Gathers a distributed input of several sizes under `torch.compile`; returns what is refused for an argument."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def gather(x: Any) -> Any:
        doubled: Any = torch.relu(x * 2)
        return doubled.full_tensor() + 1

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    compiled = torch.compile(gather, backend="torch_tensorrt", options={"min_block_size": 1}, dynamic=True)
    for rows in (5, 7, 10):
        x = distribute_tensor(torch.linspace(-1, 1, rows * 4).reshape(rows, 4), mesh, [Shard(0)])
        torch.testing.assert_close(compiled(x), gather(x))
    partition: Any = trt.model_report(compiled).graphs[0].builds[-1].partition
    return [node.op for node in partition.nodes if node.verdict.code == "TRT-F022"]


_TWO_OF_FOUR: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
_SIZES: dict[str, dict[str, Any]] = {
    "mixtral": _TWO_OF_FOUR,
    "gpt_oss": _TWO_OF_FOUR,
    "qwen2_moe": _ROUTED | {"shared_expert_intermediate_size": 64},
    "qwen3_moe": _ROUTED,
    "deepseek_v2": _LATENT | {"topk_method": "greedy"},
    "deepseek_v3": _LATENT,
}
"""Sizes that only configurations of some types have."""


def _save_tiny(rank: int, name: str, directory: str, layers: int = 2) -> None:
    """Saves a tiny model of transformers, on the first rank, where all see it; lets others load it in parts."""
    from transformers import AutoConfig, AutoModelForCausalLM

    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    sizes: Any = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    sizes |= {"head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if rank == 0:
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **sizes | _SIZES.get(name, {}))
        AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    dist.barrier()


def generate_text(rank: int, directory: str) -> None:
    """Holds text of a model that is sharded by its own plan to that of the whole model, compiled and loaded."""
    _save_tiny(rank, "llama", directory, layers=1)
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    whole, model = (
        AutoModelForCausalLM.from_pretrained(directory, distributed_config=plan).eval().requires_grad_(False)
        for plan in (None, DistributedConfig(tp_plan="auto"))
    )
    prompts = torch.tensor([[1, 5, 9, 11], [1, 8, 7, 4]])
    wanted = whole.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=12, eos_token_id=None)
    generator = trt.compile_generation(model, max_batch=2, max_length=32, min_block_size=1)
    generator.save(f"{directory}/{rank}.trtp")
    for one in (generator, runtime.TextGenerator.load(f"{directory}/{rank}.trtp")):
        torch.testing.assert_close(one.generate(prompts, max_new_tokens=12, eos_token_id=()), wanted)
    dist.barrier()
    _refuse_program_of_another(f"{directory}/{{}}.trtp", rank, runtime.TextGenerator.load)


def compile_transformers(rank: int, kind: str, way: str, directory: str, fewest: int = 2) -> None:
    """Holds a tiny model of transformers, sharded by its own plan, to eager.

    Args:
        rank: The rank.
        kind: Type of the model's configuration; `experts` is a Mixtral whose experts are spread.
        way: Which of the two ways of compiling.
        directory: A folder for its weights.
        fewest: Least rows of a batch.
    """
    _save_tiny(rank, "mixtral" if kind == "experts" else kind, directory)
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    plan = DistributedConfig(tp_plan="auto", enable_expert_parallel=kind == "experts")
    model = AutoModelForCausalLM.from_pretrained(directory, distributed_config=plan).eval().requires_grad_(False)
    model.config.use_cache = False
    given = Input(min_shape=(fewest, 4), opt_shape=(2, 6), max_shape=(4, 8), dtype=torch.int64)
    torch.manual_seed(0)
    _hold_to_eager(model, way, given)


def _hold_to_eager(model: nn.Module, way: str, given: Input) -> None:
    torch._dynamo.reset()
    if way == "compile":
        compiled: Any = trt.compile(model, arg_inputs=(given,), min_block_size=1)
        assert compiled.meta["partition_report"].coverage == 1.0
    else:
        compiled = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
    for shape in (given.opt_shape, given.max_shape, given.min_shape):
        assert shape is not None
        x = torch.randint(0, 64, shape) if given.dtype is torch.int64 else torch.randn(*shape)
        with torch.no_grad():
            found, wanted = (getattr(result, "logits", result) for result in (compiled(x), model(x)))
        torch.testing.assert_close(whole(found) + 0, whole(wanted) + 0, rtol=1e-4, atol=1e-5)


def run_schedule(rank: int, name: str) -> None:
    """Runs compiled stages of a pipeline under a schedule of PyTorch's and holds the last one's result to eager.

    Args:
        rank: The rank.
        name: Class of the schedule; interleaved ones have two stages on each rank.
    """
    from torch.distributed import pipelining

    world, is_looped = dist.get_world_size(), "Interleaved" in name or "Looped" in name
    torch.manual_seed(0)
    count = world * (2 if is_looped else 1)
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval().requires_grad_(False) for _ in range(count)]
    example = torch.randn(2, 8)
    stages = []
    for index in range(rank, count, world):
        compiled = trt.compile(parts[index], arg_inputs=(example,), min_block_size=1)
        assert compiled.meta["partition_report"].coverage == 1.0
        stages.append(
            pipelining.PipelineStage(
                compiled, index, count, torch.device("cpu"), input_args=(example,), output_args=(parts[index](example),)
            )
        )
    schedule = getattr(pipelining, name)(stages if is_looped else stages[0], n_microbatches=4)
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    for _ in range(2):
        with torch.no_grad():
            found = schedule.eval(x) if rank == 0 else schedule.eval()
        if rank == world - 1:
            torch.testing.assert_close(found, nn.Sequential(*parts)(x))


def destroy_groups(rank: int) -> str:
    """Destroys all process groups beside live models, makes them again, and calls the models again."""
    model = parallel_perceptron("tensor")
    x = torch.linspace(-1, 1, 128).reshape(2, 4, 16)
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    wanted = compiled(x)
    dist.barrier()
    store = distributed_c10d._get_default_store()
    dist.destroy_process_group()
    told = ""
    try:
        compiled(x)
    except ExecutionError as error:
        told = str(error)
    dist.init_process_group(
        "gloo", store=distributed_c10d.PrefixStore("again", store), rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    torch.testing.assert_close(compiled(x), wanted)
    return told


def fail_somewhere(rank: int, when: str, way: str, failing: int, directory: str) -> None:
    """One rank, the first or another, fails in the midst of something that all of them do.

    Args:
        rank: The rank.
        when: In what it fails: `build`, `shared build` (that others wait for), `exchange` (ranks compare what they are
            about to communicate), `recompile` (they compare a graph that `torch.compile` captures for another size),
            `call`, `save` or `load`.
        way: `throws`, `hangs`, or the signal that it gets.
        failing: The rank that fails.
        directory: Where models are saved.
    """
    from trt_runtime import sharded
    from trt_runtime.program import saving

    model = parallel_perceptron("tensor")
    x = torch.randn(2, 4, 16)
    store: Any = distributed_c10d._get_default_store()
    builds = "build" in when
    shared: Any = {"refit": True, "engine_cache_dir": Path(directory).parents[1] / "cache"}

    def fail(*_: Any, **__: Any) -> Any:
        if way.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, way))
        if way == "hangs":
            time.sleep(600)
        raise ValueError("this rank has had enough")

    def fail_when_awaited(*_: Any, **__: Any) -> Any:
        store.set("builds", b"")
        while store.add("others", 0) < dist.get_world_size() - 1:
            time.sleep(0.01)
        fail()

    def half_save(_: nn.Module, path: Any, **__: Any) -> None:
        path.write_bytes(b"half")
        fail()

    places: Any = {
        "build": (engine_source, "build_block", fail),
        "shared build": (engine_source, "build_block", fail_when_awaited),
        "save": (saving, "save", half_save),
        "load": (sharded.RankPart, "check", fail),
        "exchange": (sharded, "said_in", fail),
        "recompile": (sharded, "said_in", fail),
    }

    def begin_to_fail() -> None:
        if rank == failing and when in places:
            setattr(*places[when])

    if builds:
        begin_to_fail()
    if when == "shared build":
        if rank != failing:
            store.wait(["builds"])
            store.add("others", 1)
        wait_no_longer()
    if when == "recompile":
        compiled: Any = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
        with torch.no_grad():
            compiled(x)
    else:
        options: dict[str, Any] = {"min_block_size": 1, "pass_through_build_failures": True}
        options |= shared if when == "shared build" else {}
        compiled = trt.compile(model, arg_inputs=(x,), **options)
    if when == "load":
        runtime.save_sharded(compiled, directory)
    if not builds or failing > 0:  # the first rank keeps the store
        meet("made", absent=int(builds))
    wait_no_longer()
    begin_to_fail()
    if when == "save":
        runtime.save_sharded(compiled, directory)
    if when in ("save", "load"):
        compiled = trt.load(directory)
    with torch.no_grad():
        compiled(torch.randn(4, 4, 16) if when == "recompile" else x)
        if when == "call" and rank == failing:
            fail()
        compiled(x)


def fall_back(rank: int, ways: list[str]) -> list[str]:
    """Calls models under `torch.compile` of which the last rank runs one graph, or more than one, without engines.

    Args:
        rank: The rank.
        ways: What the last rank does, one call after the other: it records `gradients`, is `refused` what its backend
            needs, a build `fails`, its graph `breaks` before the first collective, or `between` two; its code is
            captured `too often`, or is `not captured`.

    Returns:
        What each call said.
    """
    is_last = rank == dist.get_world_size() - 1
    options: Any = {"min_block_size": 1, "gradients": "pytorch"}
    said = []
    for rows, way in enumerate(ways, 1):  # what ranks agreed on once they do not compare again
        mine = way if is_last else ""
        torch._dynamo.reset()
        compiled = torch.compile(Stepwise(mine), backend="torch_tensorrt", options=options, dynamic=False)
        x = torch.full((rows, 8), rank + 1.0, requires_grad=mine == "gradients")
        if way == "too often":
            compiled(torch.ones(64, 8))
        limit = 1 if mine == "too often" else 8
        with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(recompile_limit=limit):
            if mine in ("refused", "fails"):
                patch.setattr(CompiledGraph, "__init__" if mine == "refused" else "_compile", no_disk)
            try:
                found = _while_handling_an_error(compiled, x) if is_last else compiled(x)
                torch.testing.assert_close(found, Stepwise("")(x))
                said.append("eager's values")
            except (ExecutionError, OSError) as error:
                said.append(str(error))
        meet(way)
    return said


def _while_handling_an_error(run: Callable[..., Any], *args: Any) -> Any:
    """Calls something where an error of something else is being handled, as code that tries again does."""
    try:
        raise KeyError
    except KeyError:
        return run(*args)


class _Leaving:
    """What PyTorch cannot go on in the midst of: it leaves the function alone that does this."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Stepwise(nn.Module):
    """Sums over ranks twice; leaves what a compiler captures where it is told to."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 8)."""
        operators: Any = torch.ops._c10d_functional
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        y = torch.sin(x)
        if self._way == "not captured":
            with _Leaving():
                torch._dynamo.graph_break()
            raise OSError("this rank sums nothing")  # it would wait for the others
        if self._way == "breaks":
            torch._dynamo.graph_break()
        y = operators.wait_tensor(operators.all_reduce(y, "sum", name)) + 1
        if self._way == "between":
            torch._dynamo.graph_break()
        return operators.wait_tensor(operators.all_reduce(torch.cos(y), "sum", name))  # type: ignore[no-any-return]
