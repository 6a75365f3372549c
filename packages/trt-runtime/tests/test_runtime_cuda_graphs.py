"""CUDA graphs over whole modules: what can be recorded, what is kept, and that they compute the same."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import double, nonzero, summed_over_ranks
from torch import fx, nn

from trt_core import ExecutionError, InputError
from trt_core.process_groups import Collective, GroupMembers
from trt_runtime import Binding, TRTModule, cuda_graphs, graphed_calls
from trt_runtime.graphed_calls import GraphCache, GraphedCalls, call_key, collectives_in, obstacles

ATEN = torch.ops.aten


class _Recording:
    """Stands for a CUDA graph, which no CPU has."""

    def __init__(self, log: list[Any], leaves: Sequence[Any]) -> None:
        self.log = log
        self.key = call_key(leaves)

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return [value + 1 for value in inputs]

    def release(self) -> None:
        self.log.append(self.key)


def _cache(capacity: int) -> tuple[GraphCache, list[Any], list[Any]]:
    recorded: list[Any] = []
    released: list[Any] = []

    def record(leaves: Sequence[Any]) -> _Recording:
        recorded.append(call_key(leaves))
        return _Recording(released, leaves)

    return GraphCache(record, capacity), recorded, released


def test_calls_of_one_kind_share_a_recording() -> None:
    cache, recorded, _ = _cache(4)
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(cache.run([torch.full((2,), value)])[0], torch.full((2,), value + 1))
    assert len(recorded) == len(cache) == 1


def test_shapes_types_and_plain_values_tell_calls_apart() -> None:
    cache, recorded, _ = _cache(10)
    x = torch.ones(2)
    for leaves in ([x], [x[:1]], [x.double()], [x, 1], [x, 1.0], [x, True], [x, None], [x, "a"], [x, x]):
        cache.run(leaves)
    assert len(recorded) == len(cache) == 9


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 5))
def test_the_least_recently_used_recordings_go(shapes: list[int], capacity: int) -> None:
    cache, recorded, released = _cache(capacity)
    kept: list[int] = []
    for extent in shapes:
        cache.run([torch.empty(extent)])
        kept = [*(other for other in kept if other != extent), extent][-capacity:]
    assert len(cache) == len(kept) <= capacity
    assert len(recorded) == len(kept) + len(released)
    before = len(recorded)
    for extent in kept:
        cache.run([torch.empty(extent)])
    assert len(recorded) == before
    cache.clear()
    assert len(released) == before


def test_a_call_that_cannot_be_recorded_leaves_no_recording() -> None:
    def refuse(leaves: Sequence[Any]) -> Any:
        raise ExecutionError("no")

    cache = GraphCache(refuse, 2)
    with pytest.raises(ExecutionError):
        cache.run([torch.ones(1)])
    assert len(cache) == 0


def test_modules_on_the_cpu_are_refused(static_engine: TRTModule) -> None:
    with pytest.raises(ExecutionError, match="cannot be recorded as CUDA graphs") as caught, cuda_graphs(static_engine):
        raise AssertionError("never entered")
    assert "engine 'block' runs on cpu" in caught.value.why


def _block(target: Any, *args: Any) -> nn.Module:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(target, (x, *args)))
    return nn.Sequential(fx.GraphModule(nn.Module(), graph))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (_block(ATEN.nonzero.default), "aten.nonzero.default in 0 has a size or value that the host must wait for"),
        (_block(ATEN._local_scalar_dense.default), "the host must wait for"),
        (_block(ATEN.add_.Scalar, 1), "aten.add_.Scalar in 0 writes to a tensor"),
        (nn.Linear(2, 2), "weights lie on cpu"),
    ],
)
def test_what_stands_against_recording(module: nn.Module, reason: str) -> None:
    assert any(reason in found for found in obstacles(module))


def test_plain_blocks_can_be_recorded() -> None:
    assert not list(obstacles(_block(ATEN.relu.default)))


def test_outputs_whose_size_depends_on_data_stand_against_recording(make_engine: Any) -> None:
    engine = make_engine(nonzero, [Binding("x", torch.bool, (3,))], [Binding("y", torch.int64, (1, None))])
    assert "the shape of 'y' of engine 'block' depends on data" in list(obstacles(engine))


@pytest.fixture
def other_rank() -> Iterator[str]:
    """A process group of two, of which the other rank answers at once; yields its name."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        yield dist.group.WORLD.group_name  # type: ignore[union-attr]
    finally:
        dist.destroy_process_group()


def test_collectives_of_a_module_are_those_of_its_engines_and_those_between_them(
    make_engine: Any, other_rank: str
) -> None:
    engine = make_engine(
        summed_over_ranks, [Binding("x", torch.float32, (4, 2))], [Binding("y", torch.float32, (4, 2))]
    )
    operators: Any = torch.ops._c10d_functional
    graph = fx.Graph()
    gathered = graph.call_function(operators.all_gather_into_tensor.default, (graph.placeholder("x"), 2, other_rank))
    graph.output(graph.call_function(operators.wait_tensor.default, (gathered,)))
    between = fx.GraphModule(nn.Module(), graph)
    found = collectives_in(nn.Sequential(engine, between, nn.ReLU()))
    assert found == [
        Collective("ALL_REDUCE", GroupMembers("", (0, 1))),
        Collective("all_gather_into_tensor", GroupMembers(other_rank, (0, 1))),
    ]
    assert not collectives_in(_block(ATEN.relu.default))


@pytest.mark.parametrize("communicates", [True, False])
def test_a_module_that_communicates_runs_once_a_call_and_is_watched(
    communicates: bool, other_rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams and graphs of a device that is not here do nothing."""
    runs: list[int] = []

    class Graph:
        def __init__(self, run: Any, leaves: Any, stream: Any, pool: Any, warms_up: bool) -> None:
            for _ in range(3 if warms_up else 0):
                run(leaves)

        def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
            return run(inputs)

    def run(leaves: Sequence[Any]) -> list[Any]:
        runs.append(len(leaves[0]))
        return [leaves[0] + 1]

    idle = SimpleNamespace(wait_stream=lambda stream: None, wait_event=lambda event: None)
    event = SimpleNamespace(record=lambda stream: None, query=lambda: True)
    monkeypatch.setattr(graphed_calls, "_CudaGraph", Graph)
    for name, found in (("device", contextlib.nullcontext()), ("stream", contextlib.nullcontext())):
        monkeypatch.setattr(torch.cuda, name, lambda _, found=found: found)
    for name, found in (("current_stream", idle), ("Stream", idle), ("Event", event), ("graph_pool_handle", 0)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=found: found)
    block = _block(torch.ops._c10d_functional.all_reduce.default, "sum", other_rank)
    module = block if communicates else _block(ATEN.relu.default)
    calls = GraphedCalls(weakref.ref(module), run, torch.device("cpu"))
    sizes = [2, 5, 2, 2, 5, 2, 5, 5, 2, 5]
    for size in sizes:
        assert torch.equal(calls([torch.ones(size)])[0], torch.full((size,), 2.0))
    if communicates:
        assert runs == sizes
        assert calls._watched is not None
        assert calls._watched.replays == len(sizes)
    else:
        assert len(runs) == len(sizes) + 2 * 3
        assert calls._watched is None
    assert len(calls) == 2


class Model(nn.Module):
    """PyTorch, an engine, PyTorch."""

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.engine = engine

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"result": self.engine(self.linear(x)) + bias}


@pytest.fixture
def model(make_cuda_engine: Any) -> Model:
    engine = make_cuda_engine(
        double,
        [Binding("x", torch.float32, ("s0", 256))],
        [Binding("y", torch.float32, ("s0", 256))],
        symbols={"s0": (0, 0)},
        ranges=[[(1, 64, 1024), (256, 256, 256)]],
    )
    return Model(engine).cuda().eval().requires_grad_(False)


def _inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 256, device="cuda"), torch.randn(256, device="cuda")


@pytest.mark.gpu
def test_graphs_compute_the_same(model: Model) -> None:
    with cuda_graphs(model) as graphed:
        kept = []
        for rows in (4, 64, 4, 1024, 64):
            x, bias = _inputs(rows)
            kept.append((graphed(x, bias=bias)["result"], model(x, bias=bias)["result"]))
        for found, wanted in kept:  # later calls do not write to earlier results
            torch.testing.assert_close(found, wanted)


@pytest.mark.gpu
def test_graphs_beyond_the_capacity_make_room(model: Model) -> None:
    with cuda_graphs(model, capacity=2) as graphed:
        for rows in (1, 2, 3, 1, 2, 3):
            x, bias = _inputs(rows)
            torch.testing.assert_close(graphed(x, bias=bias), model(x, bias=bias))
        (calls,) = [graphs for graphs, _ in (graphed._calls or {}).values()]
        assert len(calls) == 2


@pytest.mark.gpu
def test_graphs_of_several_threads_and_streams(model: Model) -> None:
    with cuda_graphs(model) as graphed:

        def work(seed: int) -> bool:
            generator = torch.Generator().manual_seed(seed)  # the device's own serves one recording at a time
            right = True
            with torch.cuda.stream(torch.cuda.Stream()):
                for rows in (8, 16) * 20:
                    x = torch.randn(rows, 256, generator=generator).cuda()
                    bias = torch.randn(256, generator=generator).cuda()
                    wanted = model(x, bias=bias)["result"]
                    right &= torch.allclose(graphed(x, bias=bias)["result"], wanted)
            return right

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))


@pytest.mark.gpu
def test_random_numbers_are_drawn_again_after_a_recording_that_failed() -> None:
    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.sum().item()

    with cuda_graphs(Waits()) as graphed, pytest.raises(ExecutionError, match="cannot be recorded"):
        graphed(torch.ones(3, device="cuda"))
    assert torch.randn(4, device="cuda").shape == (4,)


@pytest.mark.gpu
def test_graphs_end_with_their_block(model: Model) -> None:
    x, bias = _inputs(4)
    with cuda_graphs(model) as graphed:
        graphed(x, bias=bias)
    with pytest.raises(ExecutionError, match="were given back"):
        graphed(x, bias=bias)


@pytest.mark.gpu
def test_graphs_refuse_what_cannot_be_recorded_when_it_happens() -> None:
    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.sum().item()

    with cuda_graphs(Waits()) as graphed:
        with pytest.raises(ExecutionError, match="cannot be recorded as a CUDA graph"):
            graphed(torch.ones(3, device="cuda"))
        with pytest.raises(ExecutionError, match="tensor on cpu"):
            graphed(torch.ones(3, device="cuda"), torch.ones(3))
    assert torch.ones(3, device="cuda").sum().item() == 3  # the device still works


@pytest.mark.gpu
def test_inputs_are_still_checked(model: Model) -> None:
    with cuda_graphs(model) as graphed, pytest.raises(InputError, match="is 2000"):
        graphed(torch.ones(2000, 256, device="cuda"), bias=torch.ones(256, device="cuda"))
