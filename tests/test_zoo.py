"""A slice of the model zoo: small models of every library agree with eager; and the zoo's own machinery."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import trt_frontends
from tools.zoo import registry, runner
from tools.zoo.check import check
from tools.zoo.comparison import Mismatch, agrees, error
from tools.zoo.entry import Case, Entry, Route, Shapes
from tools.zoo.inputs import BATCH, tensor
from tools.zoo.phases import described, owner_of, watched
from tools.zoo.record import Outcome, Record, read_records
from tools.zoo.runner import Limits
from tools.zoo.settle import settle
from tools.zoo.speed import BACKENDS, LIBRARIES, measure, sample, speed_cases
from tools.zoo.table import summary, write_data
from tools.zoo.tracing import explained, measure_tracing, tracing_cases
from trt_converters import DYNAMO_CONVERTERS
from trt_converters.layers import binary
from trt_converters.registry import Converter
from trt_core import InputError
from trt_frontends.torch_compile.compiled_graph import CompiledGraph

DATA = Path(__file__).parents[1] / "docs" / "data" / "zoo.json"

SLICE = (
    ("timm/test_vit", Shapes.STATIC),
    ("torch/transformer_encoder_pre_norm", Shapes.STATIC),
    ("torchvision/squeezenet1_1", Shapes.DYNAMIC),
    ("transformers/BertModel", Shapes.STATIC),
    ("transformers/LlamaForCausalLM", Shapes.DYNAMIC),
    ("transformers/T5Model", Shapes.STATIC),
)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor if torch.compiler.is_compiling() else x


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


@pytest.mark.parametrize(("name", "shapes"), SLICE, ids=[f"{name}-{shapes.value}" for name, shapes in SLICE])
def test_a_slice_runs_whole(name: str, shapes: Shapes) -> None:
    record = check(registry.entries()[name], Case(name, Route.COMPILE, shapes))
    assert record.outcome is Outcome.WHOLE, record
    assert record.engines == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_floats_may_be_of_half_precision(device: str) -> None:
    record = check(
        registry.entries()["torch/rnn"], Case("torch/rnn", Route.COMPILE, Shapes.DYNAMIC), device, torch.float16
    )
    assert record.outcome is Outcome.WHOLE, record
    assert record.own_error is not None and record.own_error > 1e-6


def test_the_fused_encoder_layer_runs_whole_through_torch_compile() -> None:
    name = "torch/transformer_encoder"
    try:
        record = check(registry.entries()[name], Case(name, Route.TORCH_COMPILE, Shapes.STATIC))
    finally:
        mock.patch.stopall()  # the check records the graphs of its process, which is a child of its own elsewhere
        torch._dynamo.reset()
    assert record.outcome is Outcome.WHOLE, record


def test_there_are_hundreds_of_entries_of_every_library() -> None:
    entries = registry.entries()
    assert len(entries) >= 300
    assert {entry.library for entry in entries.values()} == {
        "diffusers",
        "timm",
        "torch",
        "torchvision",
        "transformers",
    }


def test_the_published_table_is_about_entries_that_exist() -> None:
    records = json.loads(DATA.read_text(encoding="utf-8"))["records"]
    assert {record["entry"] for record in records} <= set(registry.entries())


def test_a_wrong_result_is_called_wrong() -> None:
    def twice(ctx: Any, self: Any) -> Any:
        return binary(ctx, "SUM", self, self)

    mistaken = Converter(torch.ops.aten.sin.default, twice, priority=100)
    DYNAMO_CONVERTERS.register(mistaken)
    try:
        entry = Entry("test/sine", lambda: nn.Sequential(Sine(), *[nn.ReLU() for _ in range(5)]), (tensor(BATCH, 4),))
        assert check(entry, Case(entry.name, Route.COMPILE, Shapes.STATIC)).outcome is Outcome.WRONG
    finally:
        DYNAMO_CONVERTERS.unregister(mistaken)


def test_a_model_that_export_changes_is_not_captured() -> None:
    entry = Entry("test/scaled", lambda: Scaled(1.01), (tensor(BATCH, 4),))
    record = check(entry, Case(entry.name, Route.COMPILE, Shapes.STATIC))
    assert record.outcome is Outcome.NOT_CAPTURED
    assert "other results" in record.why


def test_what_cannot_be_exported_is_no_failure() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    entry = Entry("test/branching", Branching, (tensor(BATCH, 4),))
    record = check(entry, Case(entry.name, Route.COMPILE, Shapes.STATIC))
    assert record.outcome is Outcome.NOT_CAPTURED
    assert "cannot be exported" in record.why


@pytest.mark.parametrize("route", registry.ROUTES)
def test_an_engine_that_refuses_a_call_has_failed(route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InputError("engine cannot compute its output shapes")

    monkeypatch.setattr(CompiledGraph, "__call__", refuse)
    monkeypatch.setattr(trt_frontends, "compile", lambda *args, **kwargs: refuse)
    entry = Entry("test/refused", lambda: nn.Linear(4, 4), (tensor(BATCH, 4),))
    try:
        record = check(entry, Case(entry.name, route, Shapes.DYNAMIC))
    finally:
        torch._dynamo.reset()
    assert record.outcome is Outcome.FAILED
    assert "cannot compute its output shapes" in record.why


def test_an_entry_made_for_one_shape_has_no_dynamic_case() -> None:
    entry = Entry("test/fixed", nn.ReLU, (tensor(BATCH, 4),), fixed_shapes="one picture")
    record = check(entry, Case(entry.name, Route.COMPILE, Shapes.DYNAMIC))
    assert (record.outcome, record.why) == (Outcome.EXCLUDED, "one picture")


def test_results_of_other_shapes_or_numbers_do_not_match() -> None:
    with pytest.raises(Mismatch, match="shape"):
        error(torch.zeros(2), torch.zeros(3))
    with pytest.raises(Mismatch, match="2 results"):
        error([torch.zeros(2)] * 2, torch.zeros(2))
    with pytest.raises(Mismatch, match=r"torch\.int64"):
        error(torch.zeros(2, dtype=torch.int64), torch.zeros(2))


def test_distances_are_relative_to_the_largest_magnitude() -> None:
    assert error(torch.tensor([101.0, 0.0]), torch.tensor([100.0, 0.0])) == pytest.approx(0.01)
    assert error(torch.tensor([float("nan")]), torch.tensor([float("nan")])) == 0
    assert error(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")
    assert error(torch.tensor([1]), torch.tensor([2])) == float("inf")
    assert agrees(1e-3, 2e-4)
    assert not agrees(1e-3, None)


def test_settling_leaves_nothing_constant() -> None:
    model = settle(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.LayerNorm(4)).train())
    assert not model.training
    for tensor_ in model.state_dict().values():
        assert tensor_.numel() == 1 or len(tensor_.unique()) > 1


def test_records_survive_json_and_a_line_cut_short(tmp_path: Path) -> None:
    case = Case("a/b", Route.TORCH_COMPILE, Shapes.DYNAMIC)
    old = Record.of(case, Outcome.FAILED, why="first try")
    new = Record.of(case, Outcome.PARTLY, coverage=0.5, engines=2, error=1e-6, reasons={"TRT-F001": "no"})
    path = tmp_path / "records.jsonl"
    path.write_text(f"{old.to_json()}\n{new.to_json()}\n{new.to_json()[:20]}")
    assert list(read_records(path)) == [new]
    write_data(tmp_path / "data.json", [new])
    (written,) = json.loads((tmp_path / "data.json").read_text())["records"]
    assert written["outcome"] == "partly"
    assert "1 partly" in summary([new])


def test_the_part_at_work_is_the_innermost_that_is_known() -> None:
    assert owner_of(sys._getframe()) == "eager"
    seen: list[str] = []

    def backend(gm: Any, inputs: Any) -> Any:
        seen.append(owner_of(sys._getframe()))
        return gm.forward

    torch.compile(nn.ReLU(), backend=backend)(torch.ones(2))
    torch._dynamo.reset()
    assert seen == ["Dynamo"]


def test_seconds_are_counted_by_who_was_at_work() -> None:
    told: list[Any] = []
    with watched(told.append) as phases:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass
    assert set(phases) == {"eager"}
    assert told[-1] == phases
    assert described({"build": 0.4, "Dynamo": 20.2, "lowering": 31.0}) == "31 s in lowering, 20 s in Dynamo"


def test_the_sample_takes_the_same_number_of_each_library() -> None:
    names = list(sample(3))
    assert len(set(names)) == 3 * len(LIBRARIES)
    assert [name.partition("/")[0] for name in names[: len(LIBRARIES)]] == list(LIBRARIES)
    assert {case.route for case in speed_cases(1)} == set(BACKENDS)


def test_what_compiling_costs_is_measured_at_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("test/layers", lambda: nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]), (tensor(BATCH, 4),))
    monkeypatch.setattr("tools.zoo.speed.entries", lambda: {entry.name: entry})
    threads = torch.get_num_threads()
    try:
        record = measure(Case(entry.name, Route.TORCH_COMPILE, Shapes.STATIC))
    finally:
        torch.set_num_threads(threads)
        mock.patch.stopall()
        torch._dynamo.reset()
    assert record.outcome is Outcome.WHOLE, record
    assert set(record.speed) == {"eager", "first", "first_processor", "call", "again", "again_processor"}
    assert all(value > 0 for value in record.speed.values())


def test_what_ran_out_of_time_is_measured_without_us_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("test/layers", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (tensor(BATCH, 4),))
    names = (entry.name, "test/longer", "test/unknown")
    monkeypatch.setattr("tools.zoo.tracing.entries", lambda: dict.fromkeys(names[:2], entry))
    slow = [
        Record.of(Case(name, Route.TORCH_COMPILE, Shapes.DYNAMIC), Outcome.TIMEOUT, why="took more than 150 s")
        for name in names
    ]
    right = Record.of(Case(entry.name, Route.COMPILE, Shapes.DYNAMIC), Outcome.WHOLE)
    cases = list(tracing_cases([*slow, right]))
    assert [case.key for case in cases] == [(name, "aot_eager", "dynamic") for name in names[:2]]
    threads = torch.get_num_threads()
    try:
        record = measure_tracing(cases[0])
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
    assert set(record.speed) == {"opt", "min", "max"}
    longer = Record.of(cases[1], Outcome.TIMEOUT, why="took more than 90 s: 80 s in Dynamo")
    path = tmp_path / "tracing.jsonl"
    path.write_text(f"{record.to_json()}\n{longer.to_json()}\n")
    told = explained([*slow, right], path)
    assert told[0].why.startswith('took more than 150 s; backend="aot_eager" takes ')
    assert told[1].why == 'took more than 150 s; backend="aot_eager" took more than 90 s for the same calls'
    assert told[2:] == [slow[2], right]


def _report(case: Case) -> Record:
    """Stands in for a model: its name says what it does."""
    if case.entry.startswith("test/sleeps"):
        time.sleep(60)
    if case.entry == "test/dies":
        os._exit(3)
    return Record.of(case, Outcome.WHOLE)


@pytest.fixture
def _light_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PRELOADED", ("tools.zoo.runner",))


def _cases(*names: str) -> list[Case]:
    return [Case(name, Route.COMPILE, Shapes.STATIC) for name in names]


@pytest.mark.usefixtures("_light_children")
def test_children_are_limited_and_runs_resume(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    told: list[Record] = []
    names = ("test/sleeps", "test/dies", "test/good")
    limits = Limits(seconds=300)
    runner.run(_cases(*names[1:]), path, jobs=2, limits=limits, told=told.append, work=_report)
    outcomes = {record.entry: record for record in read_records(path)}
    assert outcomes["test/good"].outcome is Outcome.WHOLE
    assert outcomes["test/dies"].outcome is Outcome.FAILED
    assert "status 3" in outcomes["test/dies"].why
    runner.run(_cases(*names), path, limits=Limits(seconds=0.5), told=told.append, work=_report)
    assert [record.entry for record in told][2:] == ["test/sleeps"]
    assert told[-1].outcome is Outcome.TIMEOUT
    runner.run(_cases("test/sleeps long"), path, budget=0.5, told=told.append, work=_report)
    assert len(told) == 3
    runner.run(_cases("test/sleeps and eats"), path, limits=Limits(bytes=1), told=told.append, work=_report)
    assert told[-1].outcome is Outcome.MEMORY
