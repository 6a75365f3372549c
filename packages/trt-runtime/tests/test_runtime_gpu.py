"""Engines on a CUDA device: streams, alignment, devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from side_by_side import in_threads
from small_networks import double, nonzero
from torch import nn

from trt_core import InputError
from trt_runtime import ENGINES, Binding, TRTModule, load, save
from trt_runtime.context_pool import MOST_IDLE

pytestmark = pytest.mark.gpu


@pytest.fixture
def doubling(make_cuda_engine: Any) -> TRTModule:
    """y = x + x, (1 to 4096, 256) float32."""
    return make_cuda_engine(
        double,
        [Binding("x", torch.float32, ("s0", 256))],
        [Binding("y", torch.float32, ("s0", 256))],
        symbols={"s0": (0, 0)},
        ranges=[[(1, 1024, 4096), (256, 256, 256)]],
    )


def test_default_stream(doubling: TRTModule) -> None:
    for rows in (1, 7, 4096, 4096):
        x = torch.randn(rows, 256, device="cuda")
        y = doubling(x)
        assert y.device == x.device
        assert torch.equal(y, x + x)


def test_the_engine_runs_in_order_with_the_current_stream(doubling: TRTModule) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for value in range(20):
            torch.cuda._sleep(1_000_000)  # whoever does not wait reads old values
            x = torch.full((4096, 256), float(value), device="cuda")
            y = doubling(x) + 1
            assert torch.equal(y, torch.full_like(y, 2 * value + 1))


def test_contexts_belong_to_streams(doubling: TRTModule) -> None:
    x = torch.randn(8, 256, device="cuda")
    side = torch.cuda.Stream()
    for _ in range(2):
        doubling(x)
        with torch.cuda.stream(side):
            doubling(x)
    loaded = ENGINES.engine_for(doubling.plan, doubling.header.text, x.device)
    assert len(loaded.contexts) == 2


def test_many_streams_share_few_contexts_in_order(doubling: TRTModule) -> None:
    x = torch.randn(64, 256, device="cuda")
    results = []
    for _ in range(40):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            results.append(doubling(x))
    torch.cuda.synchronize()
    assert all(torch.equal(y, x + x) for y in results)
    assert len(ENGINES.engine_for(doubling.plan, doubling.header.text, x.device).contexts) <= MOST_IDLE


def test_streams_of_the_application(doubling: TRTModule) -> None:
    owner = torch.cuda.Stream()
    x = torch.randn(64, 256, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        foreign = torch.cuda.ExternalStream(owner.cuda_stream)
        assert foreign.stream_id == foreign.cuda_stream  # how a foreign stream is told from PyTorch's own
        with torch.cuda.stream(foreign):
            torch.cuda._sleep(1_000_000)
            y = doubling(x)
        doubling(x)  # the next context waits for nobody, or in order
        foreign.synchronize()
        assert torch.equal(y, x + x)
    own = torch.cuda.Stream()
    assert own.stream_id != own.cuda_stream


def test_given_outputs_on_cuda(doubling: TRTModule) -> None:
    x = torch.randn(64, 256, device="cuda")
    y = torch.empty(128, 256, device="cuda")
    for half in (y[:64], y[64:]):
        doubling.run_into([x], [half])
        assert torch.equal(half, x + x)
    with pytest.raises(InputError, match="does not begin at a multiple of 256 bytes"):
        doubling.run_into([x], [torch.empty(64 * 256 + 1, device="cuda")[1:].view(64, 256)])


def test_threads_on_streams(doubling: TRTModule) -> None:
    failures = []

    def work(seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for rows in (1 + seed, 100 + seed, 4096) * 10:
                x = torch.randn(rows, 256, device="cuda", generator=generator)
                if not torch.equal(doubling(x), x + x):
                    failures.append((seed, rows))

    in_threads(work, range(4))
    assert not failures


def test_views_at_any_offset(doubling: TRTModule) -> None:
    base = torch.randn(257 * 256 + 1, device="cuda")
    x = base[1:].view(257, 256)
    assert x.data_ptr() % 256
    for value in (x, x[3:9], x.t().contiguous().t()):
        assert torch.equal(doubling(value), value + value)


def test_host_tensors_are_refused(doubling: TRTModule) -> None:
    with pytest.raises(InputError, match="was built for cuda, its inputs lie on cpu"):
        doubling(torch.ones(2, 256))


def test_a_cpu_engine_refuses_cuda_tensors(static_engine: TRTModule) -> None:
    with pytest.raises(InputError, match="was built for cpu, its inputs lie on cuda"):
        static_engine(torch.ones(2, 3, device="cuda"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_plan_on_two_devices(doubling: TRTModule) -> None:
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        x = torch.randn(3, 256, device=device)
        y = doubling(x)
        assert y.device == torch.device(device)
        assert torch.equal(y, x + x)


def test_data_dependent_output(make_cuda_engine: Any) -> None:
    engine = make_cuda_engine(nonzero, [Binding("x", torch.bool, (64, 64))], [Binding("y", torch.int64, (2, None))])
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.rand(64, 64, device="cuda") > 0.5
            assert torch.equal(engine(x), x.nonzero().t())


def test_saved_and_loaded(doubling: TRTModule, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256).cuda(), doubling)
    x = torch.randn(16, 256, device="cuda")
    batch: Any = torch.export.Dim("batch", min=1, max=4096)
    save(model, tmp_path / "model.pt2", arg_inputs=(x,), dynamic_shapes=({0: batch},))
    loaded = load(tmp_path / "model.pt2")
    with torch.no_grad():
        for rows in (1, 300):
            x = torch.randn(rows, 256, device="cuda")
            assert torch.equal(loaded(x), model(x))


def test_a_program_whose_buffers_were_moved_still_runs(doubling: TRTModule) -> None:
    x = torch.randn(16, 256, device="cuda")
    batch: Any = torch.export.Dim("batch", min=1, max=4096)
    module = torch.export.export(doubling, (x,), dynamic_shapes=(({0: batch},),)).module().to("cuda")
    assert module.plan.is_cuda
    for _ in range(2):
        assert torch.equal(module(x), x + x)


def test_warm_calls_do_not_synchronize(doubling: TRTModule) -> None:
    x = torch.randn(16, 256, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        doubling(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                doubling(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_calls_can_be_captured_in_a_graph(doubling: TRTModule) -> None:
    x = torch.randn(16, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        doubling(x)  # creates the context
    with torch.cuda.graph(graph, stream=stream):
        y = doubling(x)
    x.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 6.0))
