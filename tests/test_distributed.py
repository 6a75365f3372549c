"""Models on several processes: collectives in engines, sharded models, and what happens where a rank fails.

A rank throws, hangs, or gets SIGKILL, SIGTERM, SIGINT or SIGSTOP. The others end with one error within the time limit
of their group, no process stays, and a folder is the old one, the new one, or not there. By what the rank is in the
midst of:

- a build, one that others wait for, a save, a load, a call, the exchange of digests at the first call and that of a
  graph which is captured again: `test_a_rank_that_fails_ends_the_others`, the first rank or another of 2, one of 4;
- a step of a save, an exchange with others, a renaming, any change of a file:
  `test_ranks_say_truly_whether_a_model_was_saved`,
  `test_a_folder_is_the_old_one_or_the_new_one_whenever_a_rank_is_killed`, which has the steps of a load, too;
- a call, of collectives in an engine or in PyTorch, compiled, loaded or under `torch.compile`:
  `test_a_collective_that_fails_is_named_with_the_rank_that_says_so`;
- a save, with all other ranks: `test_what_killed_ranks_left_goes_when_the_model_is_saved_again`;
- a build, a save, a call, under launchers: `test_launchers_end_with_a_rank_that_fails`;
- a recording, a replay, on GPUs: `tests/test_nccl.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import threading
from datetime import timedelta
from pathlib import Path

import collective_forms
import pytest
import rank_programs
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from ranks import run_failing_ranks, run_ranks, start_forking, start_process
from torch import nn

import trt_frontends as trt
import trt_runtime
from trt_core import ExecutionError, FileError, InputError, PlanError
from trt_core.files.folder import Folder, take_lock
from trt_core.files.staging import is_being_made
from trt_runtime import sharded
from trt_runtime.sharded import MANIFEST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200, func_only=True)]

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 4.0 if "TRT_STRESS" in os.environ else 2.0
"""Seconds after which a process group gives up, where a rank is meant to fail; more ranks compile more at once."""


@pytest.fixture(scope="module", autouse=True)
def _forks() -> None:
    """What all ranks are forked from takes as long as it takes on a machine that is busy, and in no test."""
    start_forking()


STRESSED = pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="takes many seconds; nox -s stress runs it")


@pytest.mark.parametrize(
    ("world", "groups"),
    [pytest.param(2, [[0, 1]], marks=STRESSED), (1, [[0]]), (4, [[0, 2], [1, 3]])],
    ids=["pair", "alone", "sub-groups"],
)
def test_collectives_run_in_engines(world: int, groups: list[list[int]], tmp_path: Path) -> None:
    for found in run_ranks(world, tmp_path, rank_programs.compile_collectives, groups):
        assert found == {"engines": 1, "coverage": 1.0}


def test_every_form_of_communication_has_eagers_values(tmp_path: Path) -> None:
    forms = [[*collective_forms.IN_ENGINES], [*collective_forms.PARTLY_IN_TORCH]]
    found = run_ranks(2, tmp_path, collective_forms.compile_forms, forms, "compile", str(tmp_path / "model"))
    whole, partly = zip(*found, strict=True)
    assert whole == ({"coverage": 1.0, "codes": []},) * 2
    assert all({"TRT-F030", "TRT-F052"} <= set(found["codes"]) for found in partly)


@STRESSED
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("way", ["compile", "torch.compile"])
def test_each_form_of_communication_has_eagers_values(way: str, world: int, tmp_path: Path) -> None:
    forms = [[name] for name in collective_forms.IN_ENGINES | collective_forms.PARTLY_IN_TORCH]
    run_ranks(world, tmp_path, collective_forms.compile_forms, forms, way, str(tmp_path / "model"))


def test_what_no_graph_can_hold_is_refused_before_it_is_lost(tmp_path: Path) -> None:
    for found in run_ranks(2, tmp_path, collective_forms.refuse_forms):
        assert re.search(r"torch.distributed.(send|recv) has no form that a graph can hold", found["pairs"])
        assert "exchange objects before" in found["objects"]
        assert "PREMUL_SUM" in found["factor"]
        assert all("collective_forms.py:" in told for told in found.values())  # the place in the model


@pytest.mark.parametrize(
    ("world", "way", "kinds", "batches"),
    [
        (2, "compile", ["uneven", "sequence", "distributed output"], [4, 3, 16]),
        (2, "torch.compile", ["sequence"], [4]),
        pytest.param(2, "torch.compile", ["sequence"], [4, 16], marks=STRESSED),
        pytest.param(4, "compile", ["tensor", "uneven", "sequence", "distributed output"], [4, 3, 16], marks=STRESSED),
    ],
    ids=["compile", "torch.compile", "torch.compile again", "compile for 4"],
)
def test_sharded_models_compile_in_both_ways(
    world: int, way: str, kinds: list[str], batches: list[int], tmp_path: Path
) -> None:
    for found in run_ranks(world, tmp_path, rank_programs.compile_parallel, kinds, way, batches):
        assert found == {kind: {"engines": 1, "coverage": 1.0} for kind in kinds}


@pytest.mark.parametrize(
    "ways", [("compile", "left to PyTorch"), pytest.param(("traced", "gathered"), marks=STRESSED)], ids=str
)
def test_losses_of_sharded_logits_have_the_value_of_whole_ones(ways: tuple[str, ...], tmp_path: Path) -> None:
    for engines in run_ranks(2, tmp_path, rank_programs.compile_losses, ways):
        assert engines.keys() == {*ways}
        assert min(engines.values()) > 0, engines


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=STRESSED)])
def test_each_rank_communicates_once_a_call_whatever_it_built_and_of_whatever_size(world: int, tmp_path: Path) -> None:
    calls = dict.fromkeys(("compiled", "loaded", "trusted"), [2] * 20)
    wanted = {"build": [0], "save and load": [0], **calls}
    assert run_ranks(world, tmp_path, rank_programs.count_runs, str(tmp_path / "model")) == [wanted] * world


def test_a_sharded_model_is_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for rank, told in enumerate(run_ranks(4, tmp_path, rank_programs.save_and_load, str(folder))):
        assert "saved with the mesh 2x2 (data, model) of ranks 0 to 3, and here is the mesh 4" in told["mesh"]
        assert rank > 1 or told["world"] == "the model was compiled for 4 processes, and here are 2"
        assert told["gone"].startswith("this process has no process group ")
        mine, theirs = ("0, 1", "2, 3") if rank < 2 else ("2, 3", "0, 1")
        assert told["others"] == f"the model communicates as the ranks {theirs}, and here are {mine}"
        assert f"rank {rank or 1} was told to save another folder than rank 0" in told["folders"]
        assert told["outside"] == f"the model communicates with the ranks {rank ^ 1}, which do not save it"
    assert not list(tmp_path.glob(".*"))
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", *(f"rank-{n}.trtp" for n in range(4))]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(manifest["groups"].values()) == [[0, 1], [2, 3]]


CHANGED = {
    "unchanged": ("it ran", "it ran"),
    "swapped": ("it was saved for rank 1 of 2 with", "it was saved for rank 0 of 2 with"),
    "collectives": ("it was saved for rank 0 of 2 with", "it was saved for rank 1 of 2 with"),
    "another save": ("rank 1 runs another program than rank 0", "rank 0 runs another program than rank 1"),
    "an earlier release": ("it ran", "it ran"),
}


def test_signed_files_are_held_to_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    found = run_ranks(2, tmp_path, rank_programs.load_changed, str(tmp_path), [*CHANGED])
    for said, rank in zip(found, (0, 1), strict=True):
        for way, wanted in CHANGED.items():
            assert wanted[rank] in said[way], way


@pytest.mark.parametrize("way", ["compile", pytest.param("torch.compile", marks=STRESSED)])
def test_ranks_that_run_different_programs_say_so_before_they_communicate(way: str, tmp_path: Path) -> None:
    assert run_ranks(2, tmp_path, rank_programs.differ, way) == [
        "rank 1 runs another program than rank 0",
        "rank 0 runs another program than rank 1",
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kinds", "rows", "told"),
    [
        (("", ""), (6, 8), ("rank 1 runs another program than rank 0", "rank 0 runs another program than rank 1")),
        pytest.param(
            *(("", ""), (4, 8), ("Timed out", "rank 0 did not come to the same call of the model")), marks=STRESSED
        ),
        (("", "gather"), (4, 4), ("Timed out", "rank 0 did not come to the same call of the model")),
        (("mean", "mean"), (4, 8), ("eager's values", "eager's values")),
        pytest.param(("gather", "gather"), (6, 6), ("eager's values", "eager's values"), marks=STRESSED),
    ],
    ids=["both with other sizes", "one with another size", "another branch", "right with sizes of its own", "right"],
)
def test_what_is_captured_again_is_compared_too(
    kinds: tuple[str, str], rows: tuple[int, int], told: tuple[str, str], tmp_path: Path
) -> None:
    outcomes = run_failing_ranks(2, tmp_path, rank_programs.differ_later, kinds, rows, group_seconds=LIMIT)
    for found, wanted in zip(outcomes, told, strict=True):
        assert wanted in (found.error or found.value)
        assert not found.error or found.error.startswith("ExecutionError: ")


def test_ranks_that_run_a_graph_in_pytorch_are_compared_too(tmp_path: Path) -> None:
    """Others waited for them until the time limit of the process group."""
    ways = ["gradients", "refused", "breaks", "too often", "between", "fails", "not captured"]
    outcomes = run_failing_ranks(2, tmp_path, rank_programs.fall_back, ways)
    first, last = (found.value for found in outcomes)
    assert first[:4] == last[:4] == ["eager's values"] * 4
    for found, other in ((first[4], "rank 1 runs another program"), (last[4], "rank 0 runs another program")):
        assert other in found
        assert re.search(r"rank 1's graph ends at a graph break at .*rank_programs\.py:\d+: Call to", found)
    assert "rank 1 failed in the same call of the model" in first[5]
    assert "why: OSError: the disk is gone" in first[5]
    assert last[5] == "the disk is gone"
    assert re.match(r"PyTorch has not captured rank_programs\.py:\d+ on rank 1, and has on others", first[6])
    assert "why: Unsupported: Call to `torch._dynamo.graph_break()`" in first[6]


@pytest.mark.parametrize("network", [False, True], ids=["", "network"])
def test_what_killed_ranks_left_goes_when_the_model_is_saved_again(
    network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    lock = fcntl.flock

    def lock_as_nfs(descriptor: int, how: int) -> None:
        """Linux has only files that are open for writing locked there (flock(2))."""
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, how)

    if network:
        monkeypatch.setattr(fcntl, "flock", lock_as_nfs)
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    killed, alive, other = (tmp_path / f".{name}" for name in ("m.saving-1", "m.saving-2", "n.saving-1"))
    for folder in (killed, alive, other):
        folder.mkdir()
        (folder / "rank-0.trtp").write_bytes(b"half")
    with (alive / "manifest.json").open("wb") as file:
        assert take_lock(file.fileno())
        trt_runtime.save_sharded(compiled, tmp_path / "m")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "m").iterdir()}
    assert len(modes) == 1, "who may read programs may read what says whose they are"
    assert {path.name for path in tmp_path.iterdir()} == {"m", alive.name, other.name}
    (tmp_path / "m").rename(tmp_path / ".m.saving-2-old")  # as a saver leaves it that is killed between two names
    (alive / "manifest.json").unlink()
    (alive / "manifest.json").mkdir()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        patch.setattr("trt_runtime.program.saving.save", rank_programs.no_disk)
        trt_runtime.save_sharded(compiled, tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"m", other.name}
    torch.testing.assert_close(trt.load(tmp_path / "m")(torch.ones(2, 4)), compiled(torch.ones(2, 4)))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a sharded model is a folder"):
        trt_runtime.save_sharded(compiled, tmp_path / "file")


def test_a_program_with_all_the_metadata_that_it_may_have_is_saved_for_ranks(tmp_path: Path) -> None:
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    said = {f"entry {number}": "text" for number in range(64)}
    trt_runtime.save(compiled, tmp_path / "one.trtp", metadata=said)
    for folder in ("first", "again"):
        found = trt.load(tmp_path / "one.trtp" if folder == "first" else tmp_path / "first")
        trt_runtime.save_sharded(found, tmp_path / folder)
        meta = trt.load(tmp_path / folder).meta
        assert said.items() <= meta.items()


def test_a_process_without_groups_is_told_that_it_counts_as_one(tmp_path: Path) -> None:
    """Who starts processes by other means than a launcher, as with actors of Ray, has made none yet."""
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    trt_runtime.save_sharded(compiled, tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / MANIFEST).read_text())
    manifest.update(world_size=2, programs=manifest["programs"] * 2)
    (tmp_path / "model" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(PlanError, match="for 2 processes, and here are 1") as raised:
        trt.load(tmp_path / "model")
    assert "no process groups" in str(raised.value) and "init_process_group in each" in str(raised.value)


@pytest.mark.parametrize("at", ["flock", "open_file"])
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO, errno.EMFILE, errno.ESTALE])
def test_a_folder_of_which_nobody_can_say_whether_it_is_being_saved_stays(
    at: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be writing to it."""
    fcntl = pytest.importorskip("fcntl")
    alive = tmp_path / ".m.saving-1"
    alive.mkdir()
    (alive / "rank-0.trtp").write_bytes(b"half")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(*((fcntl, "flock") if at == "flock" else (Folder, "open_file")), refuse)
        assert is_being_made(alive, MANIFEST)
    assert not is_being_made(alive, MANIFEST)


def test_savers_of_one_folder_leave_each_other_what_they_have_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    (tmp_path / ".m.new-1").mkdir()  # as a saver leaves it that is killed at once
    locked = Folder.locked

    def meanwhile(*args: object) -> object:
        """Another process saves between the making of a folder and its lock."""
        monkeypatch.setattr(Folder, "locked", locked)
        trt_runtime.save_sharded(compiled, tmp_path / "m")
        return locked(*args)

    monkeypatch.setattr(Folder, "locked", meanwhile)
    trt_runtime.save_sharded(compiled, tmp_path / "m")
    torch.testing.assert_close(trt.load(tmp_path / "m")(torch.ones(2, 4)), compiled(torch.ones(2, 4)))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("step", ["mkdir", "write_text", "rename"])
def test_a_full_disk_leaves_the_old_folder_and_says_which_cannot_be_written(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    trt_runtime.save_sharded(compiled, tmp_path / "m")
    work, is_full = getattr(Path, step), True

    def refuse(path: Path, *args: object, **options: object) -> object:
        nonlocal is_full
        if is_full and path.name != "m" and (step != "rename" or ".saving-" in path.name):
            is_full = False  # what clears up needs no room
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return work(path, *args, **options)

    monkeypatch.setattr(Path, step, refuse)
    with pytest.raises(FileError, match=r"the model cannot be written(.|\n)*/m\n.*No space left") as told:
        trt_runtime.save_sharded(compiled, tmp_path / "m")
    assert told.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    torch.testing.assert_close(trt.load(tmp_path / "m")(torch.ones(2, 4)), compiled(torch.ones(2, 4)))


def test_a_folder_that_cannot_be_locked_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)

    def refuse(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FileError, match=r"a file cannot be locked(.|\n)*\.m\.new-") as told:
        trt_runtime.save_sharded(compiled, tmp_path / "m")
    assert told.value.errno == errno.ESTALE
    assert not list(tmp_path.iterdir())


FAILED_COLLECTIVES = [
    pytest.param(*case, marks=() if case in (("engine", "compile"), ("PyTorch", "torch.compile")) else STRESSED)
    for case in itertools.product(("engine", "PyTorch"), ("compile", "load", "torch.compile"))
]


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals")
@pytest.mark.parametrize(("where", "way"), FAILED_COLLECTIVES)
def test_a_collective_that_fails_is_named_with_the_rank_that_says_so(where: str, way: str, tmp_path: Path) -> None:
    told, dead = run_failing_ranks(
        2, tmp_path, rank_programs.call_alone, where, way, str(tmp_path / "model"), group_seconds=LIMIT
    )
    assert dead.is_dead
    assert told.error.startswith("ExecutionError: ")
    assert "see what the other ranks say: one has failed, is gone" in told.error
    named = {
        "engine": "ALL_REDUCE of the ranks 0, 1 failed on rank 0",
        "PyTorch": r"all_to_all_single(\.default| failed) on rank 0",
    }
    assert re.search(named[where], told.error)


SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")
QUICK = {("build", "throws", 1), ("build", "SIGSTOP", 0), ("load", "hangs", 1), ("call", "throws", 1)}
QUICK |= {
    ("shared build", "SIGKILL", 1),
    ("save", "throws", 1),
    ("save", "SIGTERM", 0),
    ("save", "SIGINT", 1),
    ("exchange", "SIGKILL", 1),
}
WHEN = ("build", "shared build", "save", "load", "call", "exchange", "recompile")
WAYS = ("throws", "hangs", *SIGNALS)
FAILURES = [
    pytest.param(2, *place, marks=() if place in QUICK else STRESSED) for place in itertools.product(WHEN, WAYS, (0, 1))
]
FAILURES += [
    pytest.param(4, when, way, failing, marks=STRESSED)
    for failing, (when, way) in enumerate(itertools.product(WHEN, WAYS))
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("world", "when", "way", "failing"), FAILURES)
def test_a_rank_that_fails_ends_the_others(world: int, when: str, way: str, failing: int, tmp_path: Path) -> None:
    failing %= world
    (tmp_path / "meet").mkdir()
    folder = tmp_path / "models" / "model"
    others = [rank for rank in range(world) if rank != failing]
    given = (when, way, failing, str(folder))
    awaited = range(world) if way in ("throws", "SIGINT") else others  # it, too, removes what was not saved
    outcomes = run_failing_ranks(
        world, tmp_path / "meet", rank_programs.fail_somewhere, *given, group_seconds=LIMIT, only=awaited
    )
    for rank in others:
        told = outcomes[rank]
        assert told.seconds < LIMIT + (30 if when == "recompile" else 10)
        assert told.error.startswith("FileError: " if when == "save" else "ExecutionError: "), told.error
        if when in ("build", "shared build", "load") and failing > 0:
            assert f"rank {failing} did not come to the same call of the model" in told.error
        if failing == 0:  # the first rank keeps the store: nobody else is blamed
            assert not re.search(r"rank [1-9] did not come", told.error), told.error
        if (when, way) == ("save", "throws"):
            assert "ValueError: this rank has had enough" in told.error
    assert when != "save" or not list(folder.parent.iterdir())
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}  # of a cache


@pytest.mark.parametrize("comes", [True, False])
def test_the_first_rank_leaves_the_store_when_the_others_have_given_up(
    comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may keep the store: who asks later hears that the store is gone, and not which rank is missing."""
    monkeypatch.setattr(sharded, "_SECONDS_TO_GIVE_UP", 60.0 if comes else 0.2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    store = torch.distributed.HashStore()
    late = threading.Timer(0.2, store.set, ("call/2 gives up", b""))
    if comes:
        late.start()
    sharded._leave_last(store, "call", (0, 2))
    assert store.check(["call/0 gives up"])
    assert store.check(["call/2 gives up"]) == comes


FAULTS = [(3, 0, "dies", step) for step in range(1, 10)] + [(3, 2, "dies", step) for step in range(1, 5)]
FAULTS += [
    (world, rank, way, step)
    for world, way, rank, step in itertools.product((2, 3), ("at once", "late"), (0, 1), (1, 2, 3))
]
QUICK_FAULTS = {(3, 0, "dies", 6), (3, 0, "dies", 7), (3, 2, "dies", 3), (2, 1, "late", 2), (2, 0, "at once", 3)}


@pytest.mark.sampled(2)
@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals")
@pytest.mark.parametrize(
    ("world", "failing", "way", "step"),
    [pytest.param(*fault, marks=() if fault in QUICK_FAULTS else STRESSED) for fault in FAULTS],
)
def test_ranks_say_truly_whether_a_model_was_saved(
    world: int, failing: int, way: str, step: int, tmp_path: Path
) -> None:
    source, target = tmp_path / "source.trtp", tmp_path / "models" / "model"
    compiled = trt.compile(nn.Linear(4, 2).eval(), arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    trt_runtime.save(compiled, source)
    trt_runtime.save_sharded(compiled, target)
    given = (failing, way, step, str(source), str(target))
    run = rank_programs.save_with_a_fault
    outcomes = run_failing_ranks(world, tmp_path, run, *given, group_seconds=LIMIT)
    is_saved = json.loads((target / "manifest.json").read_text())["world_size"] == world
    assert way != "dies" or is_saved == (step > (6 if failing == 0 else 2))
    for rank, found in enumerate(outcomes):
        assert found.is_dead == (way == "dies" and rank == failing)
        assert found.is_dead or found.error.startswith("FileError: ") != is_saved, (rank, found.error)
    trt_runtime.save_sharded(compiled, target)
    assert list(target.parent.iterdir()) == [target]


KILLS = [
    pytest.param(when, failing, marks=() if (when, failing) == ("save", 0) else STRESSED)
    for when, failing in itertools.product(("save", "save anew", "load"), (0, 1))
]


@pytest.mark.skipif(os.name != "posix", reason="kills processes by signals")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("when", "failing"), KILLS)
def test_a_folder_is_the_old_one_or_the_new_one_whenever_a_rank_is_killed(
    when: str, failing: int, tmp_path: Path
) -> None:
    old, new, target = tmp_path / "old", tmp_path / "new", tmp_path / "models" / "model"
    run = rank_programs.die_at_a_step

    def begin_anew() -> tuple[str, str, str]:
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        if when != "save anew":
            shutil.copytree(old, target)
        return when.split()[0], str(new), str(target)

    saves = [(rank_programs.save_model, str(folder), factor) for folder, factor in ((old, 1.0), (new, 3.0))]
    values = run_ranks(2, tmp_path, rank_programs.in_turn, saves)
    steps = run_ranks(2, tmp_path, run, failing, 0, *begin_anew())[failing]
    assert ({"open", "set", "check"} if when == "load" else {"write", "fsync", "replace", "allgather"}) <= {*steps}
    renames = [number for number, step in enumerate(steps, 1) if step in ("rename", "allgather", "check")]
    for fatal in range(1, len(steps) + 1) if "TRT_STRESS" in os.environ else renames[-2:]:
        place = f"killed before step {fatal} of {steps}"
        outcomes = run_failing_ranks(2, tmp_path, run, failing, fatal, *begin_anew(), group_seconds=LIMIT)
        other = outcomes[1 - failing]
        assert not other.is_dead and other.seconds < LIMIT + 5, place
        # A rank that looked for others less often this time took fewer steps than that.
        assert outcomes[failing].is_dead or len(outcomes[failing].value) < fatal, place
        if when == "load":
            assert not other.error or other.error.startswith("ExecutionError: "), (place, other.error)
        is_saved = when != "load" and not other.error.startswith("FileError: ")
        is_there = when != "save anew" or is_saved
        assert target.exists() == is_there, place
        loads = [(rank_programs.load_and_call, str(target))] * is_there
        again = (run, failing, 0, "save", str(new), str(target))
        for (*told, _), saved in zip(
            run_ranks(2, tmp_path, rank_programs.in_turn, [*loads, again]), values, strict=True
        ):
            assert told == [saved[is_saved]] * is_there, place
        assert list(target.parent.iterdir()) == [target], place


def test_a_comparison_to_which_a_rank_did_not_come_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that went on after such an error compared each model with the one before it."""
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    for place, name, value in (
        (trt_runtime.internals, "default_store", store),
        (torch.distributed, "is_initialized", True),
        (torch.distributed, "get_rank", 0),
        (sharded, "_is_played", False),
    ):
        monkeypatch.setattr(place, name, lambda *_, value=value: value)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="rank 1 did not come to the same call"):
            sharded.require_same_programs((0, 1), "of both")
    assert not store.check(["trt/0-1/1/0"])
    store.set("trt/0-1/1/1", "of both\n\n")
    assert sharded.require_same_programs((0, 1), "of both")


def test_models_outlive_their_process_groups(tmp_path: Path) -> None:
    for told in run_ranks(2, tmp_path, rank_programs.destroy_groups):
        assert "runs in a process without process groups: call torch.distributed.init_process_group" in told


@pytest.mark.parametrize(
    "name",
    [
        "ScheduleGPipe",
        *(
            pytest.param(f"Schedule{kind}", marks=STRESSED)
            for kind in ("1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
        ),
    ],
)
def test_stages_run_under_every_schedule(name: str, tmp_path: Path) -> None:
    run_ranks(2, tmp_path, rank_programs.run_schedule, name)


@pytest.mark.parametrize(
    ("world", "kind"),
    [
        (2, "mixed precision"),
        *(pytest.param(*case, marks=STRESSED) for case in ((2, "plain"), (4, "plain"), (4, "two dimensions"))),
    ],
)
def test_fully_sharded_models_keep_their_weights_in_parts(world: int, kind: str, tmp_path: Path) -> None:
    for found in run_ranks(world, tmp_path, rank_programs.compile_fully_sharded, kind):
        assert found == {"engines": 1, "gathers": 12, "in parts": True}


def test_equal_engines_are_built_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    found = run_ranks(4, tmp_path, rank_programs.build_once, str(cache))
    built = {kind: [told[kind] for told in found] for kind in found[0]}
    assert sum(built["sharded"]) == sum(built["whole"]) == sum(built["gone from the cache"]) == 1
    assert [sum(built["stages"][:2]), sum(built["stages"][2:])] == [1, 1]


@pytest.mark.parametrize(
    "worlds", [(2, 1), pytest.param((1, 2, 4), marks=STRESSED), pytest.param((4, 2), marks=STRESSED)], ids=str
)
def test_whole_weights_are_sharded_again_for_other_numbers_of_ranks(worlds: tuple[int, ...], tmp_path: Path) -> None:
    before: set[int] = set()
    for world in worlds:
        for told in run_ranks(world, tmp_path, rank_programs.reshard, str(tmp_path / "whole.pt"), str(tmp_path)):
            assert before <= told.keys()
            for other, said in told.items():
                refused = f"the model was compiled for {other} processes, and here are {world}"
                assert said == (refused if other in before else "nothing was saved")
        before.add(world)


SAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/distributed.md").read_text(encoding="utf-8"), re.S)
NAMES = ["tensor", "pipeline", "data"]


# that of tensor parallelism runs under torchrun, below
@pytest.mark.parametrize("sample", [pytest.param(SAMPLES[0], marks=STRESSED), *SAMPLES[1:]], ids=NAMES)
def test_scripts_of_the_documentation_run(sample: str, tmp_path: Path) -> None:
    if "from accelerate" in sample:
        pytest.importorskip("accelerate")
    run_ranks(2, tmp_path, rank_programs.run_sample, sample, str(tmp_path))


def _torchrun(hosts: int, each: int, script: str, directory: Path) -> list[int | None]:
    """Runs a script under one agent of torchrun for each host; returns how they ended, and leaves no process behind.

    Ranks are forks of the agents, which have imported PyTorch.
    """
    (directory / "script.py").write_text(script)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = [f"--nnodes={hosts}", f"--nproc-per-node={each}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    run += ["--run-path", "--start-method=fork"]
    agents = [
        start_process(rank_programs.run_agent, [*run, f"--node-rank={host}", "script.py"], str(directory))
        for host in range(hosts)
    ]
    try:
        for agent in agents:
            agent.join(150)
        ended = [agent.exitcode for agent in agents]
        assert not _running_in(directory)
    finally:
        for process in _running_in(directory):
            os.kill(process, signal.SIGKILL)
    return ended


def _running_in(directory: Path) -> set[int]:
    """The processes that have not ended whose folder is this one."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cwd").readlink() == directory:
                found.add(int(folder.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux tells of them")
@pytest.mark.parametrize(("hosts", "each"), [(2, 1), *(pytest.param(*way, marks=STRESSED) for way in ((1, 2), (2, 2)))])
def test_ranks_of_several_hosts_build_save_and_load(hosts: int, each: int, tmp_path: Path) -> None:
    assert _torchrun(hosts, each, SAMPLES[0], tmp_path) == [0] * hosts
    count = hosts * each
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "manifest.json",
        *(f"rank-{rank}.trtp" for rank in range(count)),
    }


FAILING = """
import os, sys
from datetime import timedelta
import torch.distributed as dist
import rank_programs
dist.init_process_group("gloo", timeout=timedelta(seconds={limit}))
rank_programs.fail_somewhere(dist.get_rank(), {when!r}, {way!r}, {failing}, "models/model")
"""


@STRESSED
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes as Linux tells of them")
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("when", "way"), [("build", "throws"), ("save", "SIGKILL"), ("save", "SIGTERM"), ("call", "SIGINT")]
)
def test_launchers_end_with_a_rank_that_fails(when: str, way: str, failing: int, tmp_path: Path) -> None:
    script = FAILING.format(limit=LIMIT, when=when, way=way, failing=failing)
    assert all(_torchrun(2, 1, script, tmp_path))
    assert not list((tmp_path / "models").glob("*")) + list((tmp_path / "models").glob(".*"))


@STRESSED
@pytest.mark.parametrize("way", ["compile", "torch.compile"])
def test_meshes_of_two_dimensions(way: str, tmp_path: Path) -> None:
    run_ranks(4, tmp_path, rank_programs.compile_on_two_dimensions, way)


def test_padding_and_cuts_to_a_size_that_no_shard_tells_run_in_pytorch(tmp_path: Path) -> None:
    for told in run_ranks(2, tmp_path, rank_programs.gather_varying_rows):
        assert {*told} == {"torch.ops.aten.pad.default", "torch.ops.aten.slice.Tensor"}


def _placed(mesh: list[int]) -> st.SearchStrategy[dict[str, object]]:
    """What `hold_placements_to_eager` takes, with rows and features that a mesh divides or not."""

    def lie(names: str) -> st.SearchStrategy[list[str]]:
        return st.lists(st.sampled_from(names), min_size=len(mesh), max_size=len(mesh))

    return st.fixed_dictionaries(
        {
            "mesh": st.just(mesh),
            "operation": st.sampled_from(["product", "sums", "softmax"]),
            "rows": st.integers(1, 6),
            "features": st.integers(1, 6),
            "input": lie("01RP"),
            "weight": lie("01R"),
            "result": lie("01R"),
        }
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mesh", "way"),
    [
        pytest.param([2], "compile"),
        *(pytest.param(mesh, "compile", marks=STRESSED) for mesh in ([4], [2, 2])),
        *(pytest.param(mesh, "torch.compile", marks=STRESSED) for mesh in ([2], [4], [2, 2])),
    ],
)
def test_tensors_that_lie_in_any_way_have_eagers_values(
    mesh: list[int], way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ran = 0

    @settings(max_examples=10 if "TRT_STRESS" in os.environ else 2, deadline=None, database=None)
    @seed(5)
    @given(st.lists(_placed(mesh), min_size=8, max_size=8))
    def hold(cases: list[dict[str, object]]) -> None:
        nonlocal ran
        world = mesh[0] * mesh[-1] if len(mesh) > 1 else mesh[0]
        run, others = rank_programs.hold_placements_to_eager, [*{str(case): case for case in cases}.values()]
        found = run_ranks(world, tmp_path_factory.mktemp("meet"), run, others, way)
        ran += found[0]

    hold()
    assert ran > 5


LAID_OUT = {"largest of an axis", "rows of a table", "covariance", "resized"}
LAID_OUT |= {"attention by head", "attention with a mask"}
ALSO_LAID_OUT = {"largest of all", "outer product", "differences"}
ALSO_LAID_OUT |= {"attention by batch", "attention by row", "attention of groups", "attention by whatever"}


@pytest.mark.parametrize("names", [LAID_OUT, pytest.param(ALSO_LAID_OUT, marks=STRESSED)], ids=["first", "others"])
def test_operators_on_distributed_tensors_have_the_values_of_whole_ones(names: set[str], tmp_path: Path) -> None:
    attentions = sum(name.startswith("attention") for name in names) + 1  # one has any number of rows
    for ran in run_ranks(2, tmp_path, rank_programs.hold_operators_to_whole, names):
        assert ran.count("torch.ops.aten.scaled_dot_product_attention.default") == attentions


def test_sharded_models_look_at_numbers_of_one_row(tmp_path: Path) -> None:
    """As masks of transformers do, which the comparison at that size did not let them."""
    run_ranks(2, tmp_path, rank_programs.look_at_one_row)


def test_ranks_share_a_data_set(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, rank_programs.share_a_data_set)


def test_a_group_may_be_made_again_after_compiling(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, rank_programs.compile_for_a_group_made_later)


@pytest.mark.parametrize("way", ["compile", pytest.param("torch.compile", marks=STRESSED)])
def test_processes_that_come_later_are_compared_with_those_that_stayed(way: str, tmp_path: Path) -> None:
    run_ranks(3, tmp_path, rank_programs.call_with_newcomers, way, group_seconds=20)


def test_sharded_models_generate_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # transformers loads by a `tp_plan` with it
    run_ranks(2, tmp_path, rank_programs.generate_text, str(tmp_path / "model"))


@STRESSED
def test_sharded_models_of_transformers_take_one_row(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    run_ranks(2, tmp_path, rank_programs.compile_transformers, "llama", "compile", str(tmp_path / "model"), 1)


PLANNED = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "gpt_oss"]
PLANNED += ["mixtral", "experts"]
ALSO_PLANNED = ["qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "phi", "gpt_neox", "glm4", "olmo2", "cohere"]
ALSO_PLANNED += ["cohere2", "granite", "smollm3", "starcoder2"]


@STRESSED
@pytest.mark.parametrize(
    ("kind", "way"),
    [*itertools.product(PLANNED, ("compile", "torch.compile")), *((kind, "compile") for kind in ALSO_PLANNED)],
)
def test_plans_of_transformers(kind: str, way: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_ranks(2, tmp_path, rank_programs.compile_transformers, kind, way, str(tmp_path / "model"))
