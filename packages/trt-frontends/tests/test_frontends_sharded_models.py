"""Models that are sharded over processes, in one process: the others exist in name only."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import trt_core
import trt_frontends as trt
import trt_runtime
from trt_core import Input, InputError
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.torch_compile import compiled_graph
from trt_runtime.module import engines_of
from trt_runtime.sharded import digests_of

pytestmark = pytest.mark.sampled(4)

FAKE_GROUPS_COPY = torch.__version__ >= (2, 12)
"""Whether groups of ranks that are not there give results; before, these are memory that nobody wrote."""


@pytest.fixture(autouse=True)
def _fake_world() -> Iterator[None]:
    """Two ranks, of which this process is the first."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        found: torch.Tensor = self.down(torch.relu(self.up(x)))
        return found if scale is None else found * scale


def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2,))


def _model(mesh: Any, **output: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = Perceptron().eval().requires_grad_(False)
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(**output)})


def test_a_dry_run_needs_no_second_process() -> None:
    report = trt.explain(_model(_mesh()), arg_inputs=(torch.ones(2, 8),))
    assert report.coverage == 1.0
    assert [node.op for node in report.nodes if "c10d" in node.op] == [
        "torch.ops._c10d_functional.all_reduce.default",
        "torch.ops._c10d_functional.wait_tensor.default",
    ]
    (moved,) = [node.communication for node in report.collectives]
    assert moved is not None
    assert (moved.ranks, moved.sent_bytes) == ((0, 1), 2 * 8 * 4)
    assert f"each rank sends 64 bytes in group '{moved.group}' (ranks 0, 1)" in report.to_text()
    assert trt.PartitionReport.from_json(report.to_json()) == report
    assert "communicate with other processes" in report.to_html()


class Communicating(nn.Module):
    """Calls one functional collective."""

    def __init__(self, name: str, *given: Any) -> None:
        super().__init__()
        self.operator, self.given = getattr(torch.ops._c10d_functional, name), given

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops._c10d_functional.wait_tensor(self.operator(x, *self.given))
        return found


def test_ranks_compare_reductions_sources_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that differ in nothing else ran together, each with its own idea of what was computed."""
    group, told = _mesh().get_group().group_name, list[Any]()
    monkeypatch.setattr(compiled_graph, "compare_new", lambda digests, *_: told.append(digests))
    programs = [("all_reduce", "sum", torch.float32), ("all_reduce", "max", torch.float32)]
    programs += [("all_reduce", "sum", torch.int32), ("broadcast", 0, torch.float32), ("broadcast", 1, torch.float32)]
    said = []
    for name, given, dtype in programs:
        model, x = Communicating(name, given, group), torch.ones(2, 8).to(dtype)
        report = trt.explain(model, arg_inputs=(x,))
        (moved,) = [node.communication for node in report.collectives]
        assert moved is not None
        said.append(moved.terms)
        told.append(digests_of(report.collectives))
        assert trt.PartitionReport.from_json(report.to_json()) == report
        torch._dynamo.reset()
        torch.compile(model, backend=torch_tensorrt_backend)(x)
    assert said == ["sum of float32", "max of float32", "sum of int32", "0 of float32", "1 of float32"]
    assert len(told) == 2 * len(programs)
    for way in (told[::2], told[1::2]):
        assert len({tuple(digests.values()) for digests in way}) == len(programs)


def test_ranks_that_are_not_there_save_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one wrote a folder of its own program for all, and others a file where they happened to be."""
    monkeypatch.chdir(tmp_path)
    compiled = trt.compile(_model(_mesh()), arg_inputs=(torch.ones(2, 8),), min_block_size=1)
    with pytest.raises(InputError, match=r"(?s)1 of the 2 ranks are not there.*fake.*trt_runtime\.save saves"):
        trt_runtime.save_sharded(compiled, "model")
    assert not list(tmp_path.iterdir())


def test_equal_layers_are_sharded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import DTensor

    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    find, asked = propagator.propagate_op_sharding_non_cached, list[Any]()

    def noting(schema: Any) -> Any:
        asked.append(schema.op)
        return find(schema)

    monkeypatch.setattr(propagator, "propagate_op_sharding_non_cached", noting)
    mesh, counts = _mesh(), list[int]()
    for layers, rows in ((1, 11), (4, 13)):  # sizes that nothing has asked for before
        asked.clear()
        trt.explain(nn.Sequential(*(_model(mesh) for _ in range(layers))), arg_inputs=(torch.ones(rows, 8),))
        counts.append(asked.count(torch.ops.aten.addmm.default))
    assert counts[0] == counts[1] > 0


def test_tied_weights_are_one() -> None:
    model = nn.Sequential(_model(_mesh()), _model(_mesh()))
    model[1].up.weight = model[0].up.weight
    report = trt.explain(model, arg_inputs=(torch.ones(2, 8),))
    assert (report.coverage, len(report.collectives)) == (1.0, 2)


def test_weights_keep_the_names_of_the_model_and_the_shapes_of_shards() -> None:
    program = trt.trace(_model(_mesh()), arg_inputs=(torch.ones(2, 8),))
    assert {name: tuple(value.shape) for name, value in program.state_dict.items()} == {
        "up.weight": (8, 8),
        "up.bias": (8,),
        "down.weight": (8, 8),
        "down.bias": (8,),
    }


def test_nodes_know_their_modules() -> None:
    report = trt.explain(
        _model(_mesh()), arg_inputs=(torch.ones(2, 8),), torch_executed_modules={"up"}, min_block_size=1
    )
    products = [node for node in report.nodes if "addmm" in node.op]
    assert [node.verdict.code for node in products] == ["TRT-F003", ""]


def test_sizes_and_keyword_inputs_vary() -> None:
    model = _model(_mesh())
    given = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    compiled = trt.compile(model, arg_inputs=(given,), kwarg_inputs={"scale": torch.ones(8)}, min_block_size=1)
    for rows in (1, 5, 16):
        x, scale = torch.randn(rows, 8), torch.randn(8)
        torch.testing.assert_close(compiled(x, scale=scale), model(x, scale=scale) + 0)


def test_distributed_inputs_and_results() -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = _mesh()
    model = _model(mesh, output_layouts=Shard(0), use_local_output=False)
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    wanted, found = model(x), compiled(x)
    assert isinstance(found, DTensor)
    assert (found.placements, found.shape) == (wanted.placements, wanted.shape)
    if FAKE_GROUPS_COPY:
        torch.testing.assert_close(found.to_local(), wanted.to_local())
    assert isinstance(compiled(x.to_local()), DTensor)  # a shard says as much
    with pytest.raises(InputError, match=r"(?s)lies as \(Shard.*redistribute"):
        compiled(distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]))


def test_composite_operators_leave_results_as_they_lie_in_eager_under_torch_compile() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def compute(table: Any, places: Any) -> Any:
        return torch.take_along_dim(table, places, 0)

    lying = ((torch.randn(5, 5), Shard(0)), (torch.zeros(5, 5).long(), Replicate()))
    given = [distribute_tensor(tensor, _mesh(), [how]) for tensor, how in lying]
    compiled = torch.compile(compute, backend="torch_tensorrt", options={"min_block_size": 1})
    with torch.no_grad():
        found, wanted = compiled(*given), compute(*given)
    assert (found.placements, found.shape) == (wanted.placements, wanted.shape)
    assert trt.model_report(compiled).engines == 1


def test_results_may_lie_on_a_mesh_that_no_input_lies_on_under_torch_compile() -> None:
    """PyTorch takes it from what it knows of operators on a mesh of the same processes; the graph returns it."""
    from torch.distributed.tensor import DTensor, Shard

    def compute(x: Any) -> Any:
        return torch.relu(x * 2)

    first, second = (DTensor.from_local(torch.randn(2, 4), _mesh(), [Shard(0)], run_check=False) for _ in range(2))
    compute(first)
    compiled = torch.compile(compute, backend="torch_tensorrt", options={"min_block_size": 1})
    with torch.no_grad():
        found, wanted = compiled(second), compute(second)
    assert (found.placements, found.shape) == (wanted.placements, wanted.shape)
    torch.testing.assert_close(found.to_local(), wanted.to_local())
    assert trt.model_report(compiled).engines == 1


def test_operators_on_lists_of_distributed_tensors_are_taken_apart() -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = _mesh()

    class Products(nn.Module):  # without weights
        def forward(self, x: torch.Tensor) -> Any:
            parts: Any = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
            parts = parts.redistribute(placements=[Shard(1)])
            return torch.einsum("bij,bkj->bik", parts, parts).full_tensor()

    model = Products().eval()
    given = Input(min_shape=(2, 6, 12), opt_shape=(4, 6, 12), max_shape=(8, 6, 12))
    for found in (given, torch.randn(4, 6, 12)):
        compiled = trt.compile(model, arg_inputs=(found,), min_block_size=1)
        assert compiled.meta["partition_report"].coverage == 1.0
        x = torch.randn(4, 6, 12)
        if FAKE_GROUPS_COPY:
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("way", [trt.compile, trt.explain, trt.trace])
def test_wrappers_for_training_are_refused_with_what_to_compile_in_their_place(way: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    in_copies = nn.parallel.DistributedDataParallel(Perceptron()).eval()
    in_parts = FullyShardedDataParallel(Perceptron().eval(), device_id=torch.device("cpu"))
    for model, told in ((in_copies, "compile its model, its `module`"), (in_parts, "wrap the model by fully_shard")):
        with pytest.raises(InputError, match=told):
            way(model, arg_inputs=(torch.ones(2, 8),))
        with pytest.raises(InputError, match=told):
            way(nn.Sequential(model), arg_inputs=(torch.ones(2, 8),))
    way(in_copies.module, arg_inputs=(torch.ones(2, 8),))


@pytest.mark.parametrize("placement", [0, 1, 2], ids=["rows", "even columns", "uneven columns"])
def test_distributed_results_of_sizes_that_vary_say_how_large_they_are(placement: int) -> None:
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Turned(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Any:
            found = super().forward(x)
            return found, found.transpose(1, 2)

    features, layout = [(8, Shard(0)), (8, Shard(-1)), (7, Shard(-1))][placement]
    model = Turned(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, features)).eval().requires_grad_(False)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(output_layouts=layout, use_local_output=False)}
    parallelize_module(model, _mesh(), plan)
    given = Input(min_shape=(2, 3, 8), opt_shape=(4, 3, 8), max_shape=(8, 3, 8))
    compiled = trt.compile(model, arg_inputs=(given,), min_block_size=1)
    for rows in (4, 8):
        for found, wanted in zip(compiled(torch.ones(rows, 3, 8)), model(torch.ones(rows, 3, 8)), strict=True):
            assert isinstance(found, DTensor)
            assert (found.placements, found.shape) == (wanted.placements, wanted.shape)
            assert (found.stride(), found.full_tensor().shape) == (wanted.stride(), wanted.shape)


def test_a_model_without_weights_is_explained() -> None:
    mesh = _mesh()
    with torch.device("meta"):
        model = _model(mesh)
    report = trt.explain(model, arg_inputs=(torch.ones(2, 8),))
    assert report.coverage == 1.0


def test_a_shell_is_copied_without_the_processes() -> None:
    from trt_lowering.sharded_modules import ShardedModule

    shell = ShardedModule(_model(_mesh()))
    twin = copy.deepcopy(shell)
    x = torch.randn(2, 8)
    torch.testing.assert_close(twin(x), shell(x))
    assert twin.up.weight.data_ptr() != shell.up.weight.data_ptr()


def test_loss_parallel() -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            with loss_parallel():
                loss = nn.functional.cross_entropy(self.head(x), target)
            return loss.to_local() if hasattr(loss, "to_local") else loss

    mesh = _mesh()
    model = Loss().eval().requires_grad_(False)
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    from torch.distributed.tensor import Replicate, distribute_tensor

    x = torch.randn(4, 8)
    target = distribute_tensor(torch.tensor([0, 1, 5, 3]), mesh, [Replicate()])
    compiled = trt.compile(model, arg_inputs=(x, target), min_block_size=1)
    torch.testing.assert_close(compiled(x, target), model(x, target))


class InPlace(nn.Module):
    """Communicates as scripts do: by the functions of `torch.distributed`, which write to tensors."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        summed = x * 2
        dist.all_reduce(summed)
        gathered = x.new_empty(2 * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(gathered, x)
        scattered = torch.empty_like(x)
        dist.reduce_scatter_tensor(scattered, gathered, op=dist.ReduceOp.MAX)
        exchanged = torch.empty_like(x)
        dist.all_to_all_single(exchanged, x)
        sent = x + 1
        dist.broadcast(sent, src=1)
        return summed, gathered, scattered, exchanged, sent


def test_functions_that_write_to_tensors_are_captured() -> None:
    known = dist.all_reduce
    report = trt.explain(InPlace(), arg_inputs=(torch.randn(4, 3),))
    assert dist.all_reduce is known
    assert report.coverage == 1.0
    assert [node.op.split(".")[3] for node in report.collectives] == [
        "all_reduce",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "broadcast",
    ]


class Behind(nn.Module):
    """Does something else while collectives are on their way."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        summed = x * 2
        summing = dist.all_reduce(summed, async_op=True)
        gathered = x.new_empty(2 * x.shape[0], x.shape[1])
        gathering = dist.all_gather_into_tensor(gathered, x, async_op=True)
        meanwhile = torch.relu(x)
        assert summing is not None and gathering is not None
        summing.wait()
        gathering.wait()
        assert gathering.is_completed()
        return summed + meanwhile, gathered


def test_collectives_that_go_on_by_themselves_are_captured() -> None:
    report = trt.explain(Behind(), arg_inputs=(torch.randn(4, 3),))
    assert report.coverage == 1.0
    assert [node.op.split(".")[3] for node in report.collectives] == ["all_reduce", "all_gather_into_tensor"]


@pytest.mark.parametrize("is_shown", [False, True], ids=["local result", "distributed result"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_models_that_distribute_plain_tensors_are_captured(axis: int | None, is_shown: bool) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = _mesh()

    class Distributing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            placement = Replicate() if axis is None else Shard(axis)
            found = distribute_tensor(self.product(x), mesh, [placement]).relu()
            return found if is_shown else found.to_local()

    model = Distributing().eval().requires_grad_(False)
    x = torch.randn(4, 8)
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    found, wanted = compiled(x), model(x)
    assert isinstance(found, DTensor) == is_shown
    if is_shown:
        assert (found.placements, found.shape) == (wanted.placements, wanted.shape)
        found, wanted = found.to_local(), wanted.to_local()
    if FAKE_GROUPS_COPY or axis is None:
        torch.testing.assert_close(found, wanted)
    assert trt.trace(model, arg_inputs=(x,)).state_dict.keys() == {"product.weight", "product.bias"}


def test_another_failure_of_such_a_model_is_told_as_it_is() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today")

    with pytest.raises(trt_core.ExportError, match="not today"):
        trt.explain(Failing(), arg_inputs=(torch.randn(4, 3),))


def test_sizes_that_are_whole_on_all_ranks_need_not_be_multiples_of_their_number() -> None:
    given = Input(min_shape=(1, 2, 8), opt_shape=(4, 4, 8), max_shape=(8, 8, 8))
    compiled = trt.compile(_model(_mesh()), arg_inputs=(given,), min_block_size=1)
    assert compiled.meta["partition_report"].coverage == 1.0
    assert [compiled(torch.ones(rows, length, 8)).shape for rows, length in ((1, 2), (3, 5), (8, 7))] == [
        (1, 2, 8),
        (3, 5, 8),
        (8, 7, 8),
    ]


class Exchanging(nn.Module):
    """Sums something of its input over the ranks.

    Args:
        form: How the rows, columns and features of the input show in what is summed.
    """

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self._form = form

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, S, 8)."""
        operators: Any = torch.ops._c10d_functional
        name = dist.group.WORLD.group_name  # type: ignore[union-attr]

        def summed(value: torch.Tensor) -> torch.Tensor:
            return operators.wait_tensor(operators.all_reduce(value, "sum", name))  # type: ignore[no-any-return]

        if self._form == "weights":
            return x * summed(self.weight)
        if self._form == "means":
            return x + summed(x.mean((0, 1)))
        if self._form == "rows":
            return x + summed(x.mean(1, keepdim=True))
        if self._form == "tokens":
            return summed(x.flatten(0, 1) * 2).reshape(x.shape)
        if self._form == "tokens and rows":
            return summed(x.flatten(0, 1) * 2).reshape(x.shape) + summed(x.mean(1, keepdim=True))
        return x + summed(torch.relu(x))


@pytest.mark.parametrize(
    ("form", "varying", "records"),
    [
        ("all", 2, True),
        ("rows", 1, True),
        ("rows", 2, False),
        ("tokens", 1, True),
        ("tokens", 2, False),
        ("tokens and rows", 2, True),
        ("means", 1, False),
        ("means", 0, True),
        ("weights", 1, False),
        ("weights", 0, True),
    ],
)
def test_ranks_record_calls_only_where_what_they_exchange_tells_their_sizes(
    form: str, varying: int, records: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, most = ([*sizes[:varying], *(4, 4)[varying:], 8] for sizes in ((2, 2), (8, 8)))
    given = Input(min_shape=least, opt_shape=(4, 4, 8), max_shape=most)
    compiled = trt.compile(Exchanging(form).eval(), arg_inputs=(given,), min_block_size=1)
    (engine,) = engines_of(compiled)
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    found = {layer._can_be_recorded() for layer in engine.native._state.layers if layer.type.name == "DIST_COLLECTIVE"}
    assert found == {records}


def test_a_program_of_one_rank_is_no_program_for_a_server(tmp_path: Path) -> None:
    """Each of its requests failed, for want of process groups."""
    from trt_frontends.integrations.ray import deployment
    from trt_frontends.integrations.triton import export_triton
    from trt_runtime.command_line.inspection import inspect_file, to_text

    path = tmp_path / "model.trtp"
    trt.save(trt.compile(_model(_mesh()), arg_inputs=(torch.ones(2, 8),), min_block_size=1), path)
    found = inspect_file(path)
    assert found["rank"] == 0
    assert "talks to other ranks: it is the program of rank 0" in to_text(found)
    with pytest.raises(InputError, match="talks to other ranks"):
        export_triton(path, tmp_path / "models")
    pytest.importorskip("ray.serve")
    with pytest.raises(InputError, match="talks to other ranks"):
        deployment(path)
