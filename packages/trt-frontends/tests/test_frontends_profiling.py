"""Times of layers: as data, as a trace, from the command line; and ranges of blocks in PyTorch's profiler."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends
import trt_portable
import trt_runtime
from trt_core import InputError, trt
from trt_runtime.command_line import main

X = torch.ones(4, 8)


class Interrupted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.special.bessel_j0(self.first(x).relu()))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    compiled = trt_frontends.compile(Interrupted().eval(), arg_inputs=(X,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    return tmp_path / "model.trtp"


def test_layers_of_all_engines_are_timed(saved: Path) -> None:
    program = trt_runtime.load(saved)
    wanted = program(X)
    profile = trt_runtime.profile_layers(program, (X,), calls=3, warm_up=1)
    assert profile.calls == 3 and len({layer.engine for layer in profile.layers}) == 2
    assert any("linear" in layer.layer for layer in profile.layers)
    assert profile.milliseconds == pytest.approx(sum(layer.milliseconds for layer in profile.layers)) and profile.layers
    again = trt_runtime.profile_layers(program, (X,), calls=1)
    assert [layer.layer for layer in again.layers] == [layer.layer for layer in profile.layers]
    assert torch.equal(program(X), wanted)
    for engine in (module for module in program.modules() if isinstance(module, trt_runtime.TRTModule)):
        loaded = trt_runtime.ENGINES.engine_for(engine.plan, engine.header.text, torch.device("cpu"))
        loaded.allocate_ahead(True)  # such calls have contexts
        assert torch.equal(program(X), wanted)
        context = loaded.contexts.take(0)
        assert context is not None and context._native.profiler is None
        loaded.contexts.give_back(context)


def test_a_trace_has_a_track_for_each_engine_and_layers_in_order(saved: Path) -> None:
    profile = trt_runtime.profile_layers(trt_runtime.load(saved), (X,), calls=1)
    events = profile.to_chrome_trace()["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == [layer.layer for layer in profile.layers]
    assert {event["tid"] for event in spans} == {0, 1}
    for before, after in itertools.pairwise(spans):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])


def test_the_command_line_tells_times_and_writes_traces(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = saved.with_name("trace.json")
    assert main(["profile", str(saved), "--calls", "2", "--most", "1", "--trace", str(trace)]) == 0
    first, slowest = capsys.readouterr().out.splitlines()
    assert "mean of 2 calls" in first and "%" in slowest
    assert json.loads(trace.read_text())["traceEvents"]
    assert main(["profile", str(saved), "--trace", str(trace)]) == 2  # it exists
    capsys.readouterr()
    assert main(["profile", str(saved), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) >= 2


def test_programs_without_engines_have_no_layers() -> None:
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(X,), dryrun=True)
    with pytest.raises(InputError, match="no engines"):
        trt_runtime.profile_layers(compiled, (X,))


def test_profilers_of_pytorch_show_blocks_by_name(saved: Path) -> None:
    program = trt_runtime.load(saved)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, torch.no_grad():
        program(X)
    names = {event.key for event in profiler.key_averages()}
    titles = {module.header.title for module in program.modules() if isinstance(module, trt_runtime.TRTModule)}
    assert len(titles) == 2 and titles <= names


def test_profilers_of_pytorch_show_layers_by_the_names_of_profiles(saved: Path) -> None:
    program = trt_runtime.load(saved)
    wanted = {layer.layer for layer in trt_runtime.profile_layers(program, (X,), calls=1, warm_up=0).layers}
    assert wanted
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, torch.no_grad():
        program(X)
    spans = {event.name: event.time_range for event in profiler.events()}
    assert wanted <= spans.keys()
    block = next(name for name in spans if name.startswith("engine ") and "_acc_0" in name)
    linear = next(name for name in wanted if name.startswith("linear/"))
    assert spans[block].start <= spans[linear].start <= spans[linear].end <= spans[block].end


def test_engines_that_are_built_under_a_profiler_hold_no_ranges() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    engine = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1)._run_on_acc_0
    native = trt.Runtime(trt.Logger()).deserialize_cuda_engine(bytes(engine.plan.numpy()))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        graph = trt_portable.trace_engine(native)
    assert not [node for node in graph.graph.nodes if "record_function" in str(node.target)]


@pytest.mark.parametrize("counts", [{"calls": 0}, {"calls": -3}, {"warm_up": -1}])
def test_no_calls_cannot_be_timed(counts: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot be timed"):
        trt_runtime.profile_layers(nn.ReLU(), (X,), **counts)
