"""The latency benchmark: what it measures of a small model, how a run goes on, and what the docs make of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from tools.bench.floor import floor_milliseconds, work
from tools.bench.latency import measure, plan
from tools.bench.latency_peer import run
from tools.bench.latency_peers import PEERS
from tools.bench.latency_results import Job, append, machine, measured, read
from tools.bench.measure import in_fresh_process
from tools.bench.models import make

_DOCS = Path(__file__).parents[1] / "docs" / "_ext"


def test_a_peer_is_built_timed_and_held_to_float32() -> None:
    found = run("mlp", 2, "eager")
    assert 0 < found["low"] <= found["milliseconds"] <= found["high"]
    assert found["build_seconds"] > 0 and found["host_bytes"] >= 0
    assert found["error_float32"] == 0 and found["load_seconds"] is None  # nothing is kept


def test_a_portable_peer_is_loaded_from_what_its_build_left(tmp_path: Path) -> None:
    model, inputs = make("mlp")
    tensors = tuple(spec.example() for spec in inputs)
    peer = PEERS["portable"]
    assert peer.load is not None and peer.save is not None
    with torch.inference_mode():
        built = peer.build(model, tensors, tmp_path)
        peer.save(built, tmp_path)
        loaded = peer.load(nn.Module(), tensors, tmp_path)  # needs no model
        torch.testing.assert_close(loaded(*tensors), model(*tensors))


def test_every_mode_of_torch_compile_is_a_peer() -> None:
    assert {"torch.compile", "torch.compile reduce-overhead", "torch.compile max-autotune"} <= PEERS.keys()
    assert {"eager", "eager + CUDA graph", "onnxruntime", "portable", "portable, level 0"} <= PEERS.keys()


def test_the_floor_counts_weights_inputs_and_outputs_once() -> None:
    found = work(nn.Linear(8, 4), [torch.ones(2, 8)])
    assert found == {"bytes": 4 * (8 * 4 + 4 + 2 * 8 + 2 * 4), "operations": 2 * 2 * 8 * 4}
    assert floor_milliseconds({"bytes": 4_800_000_000, "operations": 0}, "NVIDIA H200", "float16") == pytest.approx(1.0)
    assert floor_milliseconds({"bytes": 0, "operations": 989}, "NVIDIA H200", "float16") == pytest.approx(1e-9)
    assert floor_milliseconds(found, "a device that nobody knows", "float16") is None


def test_small_batches_come_first_and_what_is_done_is_left_out() -> None:
    done = {Job("unet", 1, "eager")}
    assert plan(["unet", "gpt2"], [1, 8], ["eager"], done) == [
        Job("gpt2", 1, "eager"),
        Job("unet", 8, "eager"),
        Job("gpt2", 8, "eager"),
    ]


def test_a_killed_run_keeps_what_it_has(tmp_path: Path) -> None:
    path, here = tmp_path / "results.jsonl", machine()
    jobs = plan(["a", "b"], [1], ["eager", "portable"])

    def one(job: Job, seconds: float) -> dict[str, Any]:
        if job == jobs[1]:
            raise RuntimeError("a long story\nOutOfMemoryError: no room")
        if job == jobs[3]:
            raise KeyboardInterrupt
        return {"milliseconds": 1.0}

    with pytest.raises(KeyboardInterrupt):
        measure(jobs, run=one, report=lambda found: append(path, {**found, "machine": here}))
    path.write_text(path.read_text() + '{"model": "b", "batch": 1, "peer": "port')  # killed while it wrote
    results = read(path)
    assert [each.get("error") for each in results] == [None, "OutOfMemoryError: no room", None]
    assert measured(results, here) == {jobs[0], jobs[2]}  # what failed is tried again
    assert not measured(results, {**here, "torch": "another"})


def test_nothing_is_begun_when_the_budget_is_spent() -> None:
    asked: list[float] = []

    def one(job: Job, seconds: float) -> dict[str, Any]:
        asked.append(seconds)
        if len(asked) == 2:
            raise TimeoutError
        return {"milliseconds": 1.0}

    jobs = plan(["a", "b"], [1], ["eager"])
    assert [each["model"] for each in measure(jobs, run=one, budget_seconds=60)] == ["a"]
    assert all(0 < seconds <= 60 for seconds in asked)
    assert measure(jobs, run=one, budget_seconds=0) == [] and len(asked) == 2


def test_processes_that_build_together_have_all_built_before_the_next_begin() -> None:
    running: list[str] = []
    seen: list[set[str]] = []
    both = Barrier(2)

    def one(job: Job, seconds: float) -> dict[str, Any]:
        running.append(job.model)
        both.wait(10)  # the second of a pair is begun before the first is done
        seen.append(set(running))
        both.wait(10)
        running.remove(job.model)
        return {"milliseconds": 1.0}

    names = ["a", "b", "c", "d"]
    assert [each["model"] for each in measure(plan(names, [1], ["eager"]), jobs=2, run=one)] == names
    assert seen == [{"a", "b"}] * 2 + [{"c", "d"}] * 2


def test_a_process_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"http\.server"):
        in_fresh_process("http.server", "--bind", "127.0.0.1", "0", seconds=0.5)


def test_docs_show_the_last_result_of_each_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_DOCS))
    monkeypatch.delitem(sys.modules, "latency_table", raising=False)
    from latency_table import latency

    path = tmp_path / "results.jsonl"
    common = {"batch": 1, "model": "mlp", "jobs": 1, "date": "2026-01-02", "machine": machine()}
    cost = {"load_seconds": 0.25, "host_bytes": 3 << 20, "build_bytes": None, "run_bytes": None, "error_float32": 1e-6}
    for peer, time, more in (
        ("portable", 9.0, {}),
        ("portable", 2.0, {**cost, "floor_milliseconds": 0.5}),
        ("torch.compile", 4.0, {}),
    ):
        append(path, {"peer": peer, "milliseconds": time, "build_seconds": 1.5, **more, **common})
    append(path, {"peer": "onnxruntime", "error": "no", **common})
    shown = latency(path)
    assert "| mlp | 1 | **2.000** (1.5) | 4.000 (1.5) | failed | 0.500 |" in shown
    assert "| mlp | 1.5 | 0.25 | 3 |  |  | 1.0e-06 |" in shown
    assert ">2.00</text>" in shown  # twice as fast as torch.compile


def test_results_in_the_docs_are_complete_lines() -> None:
    lines = (_DOCS.parent / "data" / "latency.jsonl").read_text(encoding="utf-8").splitlines()
    needed = {"model", "batch", "peer", "jobs", "date", "machine"}
    assert lines and all(needed <= json.loads(line).keys() for line in lines)
