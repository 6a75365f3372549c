"""The engine cache: found by key, bounded, private, whole, and right across processes."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import run_python
from hypothesis import given
from hypothesis import strategies as st

from trt_core import CacheError, FileError
from trt_runtime import Binding, PlanHeader
from trt_runtime.engine_cache import EngineCache, EngineKey, default_directory

KEY = EngineKey({"graph": "a", "settings.refit": "False"})


def _engine(content: int = 0, size: int = 1000) -> tuple[PlanHeader, torch.Tensor]:
    plan = torch.full((size,), content, dtype=torch.uint8)
    binding = Binding("x", torch.float32, (2, 3))
    header = PlanHeader.describe(plan, inputs=[binding], outputs=[Binding("y", torch.float32, (2, 3))], device="cpu")
    return header, plan


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines")


def test_what_was_stored_is_found_by_an_equal_key_only(cache: EngineCache) -> None:
    header, plan = _engine(7)
    assert cache.find(KEY) is None
    assert cache.insert(KEY, header, plan)
    found = EngineCache(cache.directory).find(EngineKey(dict(reversed(KEY.components.items()))))
    assert found is not None
    assert found[0] == header
    assert torch.equal(found[1], plan)
    assert cache.find(EngineKey({**KEY.components, "graph": "b"})) is None


@given(
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=4),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1, max_size=4),
)
def test_keys_are_equal_when_their_components_are(one: dict[str, str], other: dict[str, str]) -> None:
    assert (EngineKey(one).digest == EngineKey(other).digest) == (one == other)
    assert (not EngineKey(one).differences(EngineKey(other))) == (one == other)


@pytest.mark.parametrize("components", [{}, {"graph": 1}, {1: "graph"}, [], None])
def test_a_key_is_texts_by_name(components: Any) -> None:
    with pytest.raises(CacheError):
        EngineKey(components)


# privacy


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    directory = EngineCache(tmp_path / "deep" / "engines").directory
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="modes say nothing there")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_directory_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines").chmod(mode)
    with pytest.raises(CacheError, match="not private"):
        EngineCache(tmp_path / "engines")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no user numbers there")
def test_a_directory_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(CacheError, match="belongs to user"):
        EngineCache(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        EngineCache(tmp_path / "engines")


def test_the_environment_moves_the_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRT_ENGINE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory().name == "engines"
    monkeypatch.setenv("TRT_ENGINE_CACHE_DIR", str(tmp_path / "mine"))
    assert default_directory() == tmp_path / "mine"


# damage


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _nonsense(path: Path) -> None:
    path.write_text("[[[")


@pytest.mark.parametrize("damage", [_truncate, _flip, _empty, _nonsense])
@pytest.mark.parametrize("ending", ["plan", "key"])
def test_a_damaged_entry_is_a_miss_and_goes(cache: EngineCache, damage: Any, ending: str) -> None:
    cache.insert(KEY, *_engine())
    damage(cache.directory / f"{KEY.digest}.{ending}")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.find(KEY) is None
    assert not list(cache.directory.glob(f"{KEY.digest}*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.find(KEY) is None
        cache.insert(KEY, *_engine())
        assert cache.find(KEY) is not None


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _full_folder(path: Path) -> None:
    _folder(path)
    (path / "thesis.txt").write_text("mine")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _unreadable(path: Path) -> None:
    path.chmod(0)
    if os.geteuid() == 0:
        path.write_bytes(b"")  # whom nothing keeps from reading


@pytest.mark.skipif(sys.platform == "win32", reason="files of POSIX")
@pytest.mark.parametrize("damage", [_folder, _full_folder, _pipe, _link, _unreadable])
@pytest.mark.parametrize("ending", ["plan", "key"])
def test_what_is_no_file_in_the_place_of_an_entry_is_healed(cache: EngineCache, damage: Any, ending: str) -> None:
    """A folder stayed for ever, and each compilation said that it was removed."""
    place = cache.directory / f"{KEY.digest}.{ending}"
    cache.insert(KEY, *_engine())
    damage(place)
    with pytest.warns(RuntimeWarning, match="folder lay in the place" if "folder" in damage.__name__ else "damaged"):
        assert cache.find(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.find(KEY) is None
        assert cache.insert(KEY, *_engine())
        damage(place)
        assert cache.insert(KEY, *_engine())
        assert cache.find(KEY) is not None
    kept = [path.read_text() for path in cache.directory.rglob("thesis.txt")]
    assert kept == ["mine"] * (2 * (damage is _full_folder))


@pytest.mark.skipif(sys.platform == "win32", reason="files of POSIX")
def test_a_folder_in_the_place_of_the_lock_is_told(cache: EngineCache) -> None:
    (cache.directory / ".lock").mkdir()
    with pytest.warns(RuntimeWarning, match=r"(?s)has no lock.*move what lies there away"):
        assert not cache.insert(KEY, *_engine())


def test_an_entry_under_the_name_of_another_is_never_handed_out(cache: EngineCache) -> None:
    other = EngineKey({"graph": "other"})
    cache.insert(KEY, *_engine(1))
    for ending in ("plan", "key"):
        os.rename(cache.directory / f"{KEY.digest}.{ending}", cache.directory / f"{other.digest}.{ending}")
    with pytest.warns(RuntimeWarning, match="the key of another engine"):
        assert cache.find(other) is None


def test_a_plan_beside_the_key_of_another_is_never_handed_out(cache: EngineCache) -> None:
    other = EngineKey({"graph": "other"})
    cache.insert(KEY, *_engine(1))
    cache.insert(other, *_engine(2))
    os.replace(cache.directory / f"{other.digest}.plan", cache.directory / f"{KEY.digest}.plan")
    with pytest.warns(RuntimeWarning, match="not the one that was stored"):
        assert cache.find(KEY) is None


def test_leftovers_of_killed_writers_go_with_the_next_write(cache: EngineCache) -> None:
    leftovers = [cache.directory / f".{KEY.digest}-0a.plan", cache.directory / f"{'0' * 64}.key"]
    for path in leftovers:
        path.write_text("half")
    cache.insert(KEY, *_engine())
    assert not any(path.exists() for path in leftovers)
    assert len(cache.entries()) == 1


def test_a_cache_that_cannot_be_written_is_a_warning(cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trt_runtime.engine_cache.write_plan", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert not cache.insert(KEY, *_engine())
    assert cache.find(KEY) is None


# size


def _keys(count: int) -> list[EngineKey]:
    return [EngineKey({"graph": str(index)}) for index in range(count)]


def test_the_entry_unused_for_longest_goes_first(tmp_path: Path) -> None:
    first, second, third = _keys(3)
    cache = EngineCache(tmp_path / "engines")
    for age, key in ((300, first), (200, second)):
        cache.insert(key, *_engine())
        moment = time.time() - age
        os.utime(cache.directory / f"{key.digest}.plan", (moment, moment))
    assert cache.find(first) is not None  # now the second one is the older
    used = sum(entry.bytes for entry in cache.entries())
    EngineCache(cache.directory, used + 10).insert(third, *_engine())
    assert {entry.digest for entry in cache.entries()} == {first.digest, third.digest}


def test_an_entry_of_the_future_goes_before_those_of_today(tmp_path: Path) -> None:
    """Once a clock that was ahead is right again, what it dated never left, and all else did."""
    ahead, old, new = _keys(3)
    cache = EngineCache(tmp_path / "engines")
    for days, key in ((400, ahead), (-3, old)):
        cache.insert(key, *_engine())
        moment = time.time() + days * 86_400
        os.utime(cache.directory / f"{key.digest}.plan", (moment, moment))
    used = sum(entry.bytes for entry in cache.entries())
    EngineCache(cache.directory, used + 10).insert(new, *_engine())
    assert {entry.digest for entry in cache.entries()} == {old.digest, new.digest}


def test_the_limit_holds_whatever_is_stored(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", 12_000)
    for key in _keys(12):
        assert cache.insert(key, *_engine())
        assert cache.find(key) is not None
        assert sum(entry.bytes for entry in cache.entries()) <= 12_000
    assert len(cache.entries()) > 1


def test_what_is_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "engines", 999)
    with pytest.warns(RuntimeWarning, match="is not cached"):
        assert not cache.insert(KEY, *_engine(size=1000))


def test_pruning_and_clearing(cache: EngineCache) -> None:
    keys = _keys(4)
    for key in keys:
        cache.insert(key, *_engine())
    one = cache.entries()[0].bytes
    assert cache.prune(2 * one + 10) == 2
    assert {entry.digest for entry in cache.entries()} == {key.digest for key in keys[2:]}
    assert cache.clear() == 2
    assert cache.entries() == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders are refused otherwise there")
@pytest.mark.parametrize("ending", [".plan", ".key"])
def test_a_folder_in_the_place_of_an_entry_keeps_no_other_from_leaving(cache: EngineCache, ending: str) -> None:
    """Clearing and pruning ended there, with some entries gone and others not."""
    for key in _keys(4):
        cache.insert(key, *_engine())
    odd, *others = sorted(_keys(4), key=lambda key: key.digest)
    (cache.directory / f"{odd.digest}{ending}").unlink()
    (cache.directory / f"{odd.digest}{ending}").mkdir()
    cache.prune(0)
    assert not [key for key in others if (cache.directory / f"{key.digest}.plan").exists()]
    cache.clear()
    assert (cache.directory / f"{odd.digest}{ending}").is_dir()


def test_a_plan_that_is_in_use_survives_its_eviction(cache: EngineCache) -> None:
    cache.insert(KEY, *_engine(5))
    found = cache.find(KEY)
    assert found is not None
    cache.clear()
    assert bool((found[1] == 5).all())


# why


def test_the_nearest_entry_says_what_differs(cache: EngineCache) -> None:
    assert cache.why_miss(KEY) is None
    cache.insert(EngineKey({**KEY.components, "graph": "b", "torch": "1"}), *_engine())
    cache.insert(EngineKey({**KEY.components, "settings.refit": "True"}), *_engine())
    found = cache.why_miss(KEY)
    assert found is not None
    entry, differences = found
    assert [(item.component, item.wanted, item.found) for item in differences] == [("settings.refit", "False", "True")]
    assert entry.key.components["settings.refit"] == "True"
    assert str(differences[0]) == "settings.refit: False is wanted, True is there"


# processes

WORKER = """
import sys, torch
import trt_core
trt_core.set_provider("portable")
from trt_runtime import Binding, PlanHeader
from trt_runtime.engine_cache import EngineCache, EngineKey

directory, seed = sys.argv[1], int(sys.argv[2])
cache = EngineCache(directory, 40_000)
binding = Binding("x", torch.float32, (2, 3))
for step in range(40):
    number = (step * 7 + seed) % 8
    key = EngineKey({"graph": str(number)})
    found = cache.find(key)
    if found is not None:
        assert bool((found[1] == number).all()), "the engine of another key"
    else:
        plan = torch.full((6000 + seed,), number, dtype=torch.uint8)
        outputs = [Binding("y", torch.float32, (2, 3))]
        assert cache.insert(key, PlanHeader.describe(plan, inputs=[binding], outputs=outputs, device="cpu"), plan)
print("done")
"""


FORKS = """
import os, sys, warnings
import trt_runtime.engine_cache
warnings.simplefilter("error", RuntimeWarning)
workers = []
for seed in range(int(sys.argv[2])):
    worker = os.fork()
    if not worker:
        sys.argv[2] = str(seed)
        break
    workers.append(worker)
else:
    sys.exit(any([os.waitpid(worker, 0)[1] for worker in workers]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forks of one that has imported PyTorch")
@pytest.mark.parametrize("processes", [3])
def test_processes_share_a_cache_and_never_see_half_an_entry(tmp_path: Path, processes: int) -> None:
    directory = tmp_path / "engines"
    done = run_python(FORKS + WORKER, str(directory), str(processes), bare=True)
    assert (done.returncode, done.stdout) == (0, "done\n" * processes), done.stderr
    cache = EngineCache(directory)
    assert sum(entry.bytes for entry in cache.entries()) <= 40_000
    names = {path.suffix for path in directory.iterdir()}
    assert names <= {".plan", ".key", ""}


KILLED = (
    WORKER.replace("for step in range(40):", "for step in range(int(sys.argv[3])):").split("for step in", 1)[0]
    + """
import errno, fcntl, os, signal, time

def refuse(*given):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

has_locks = sys.argv[4] == "locks"
if not has_locks:  # as on NFS without its lock daemon: writers may take each other's drafts for leftovers
    fcntl.flock = refuse

def work(seed, steps):
    for step in range(steps):
        number = (step * 7 + seed) % 8
        key = EngineKey({"graph": str(number)})
        found = cache.find(key)
        if found is not None:
            assert bool((found[1] == number).all()), "the engine of another key"
        else:
            plan = torch.full((6000 + seed,), number, dtype=torch.uint8)
            outputs = [Binding("y", torch.float32, (2, 3))]
            header = PlanHeader.describe(plan, inputs=[binding], outputs=outputs, device="cpu")
            assert cache.insert(key, header, plan) or not has_locks

workers = []
for worker in range(8):
    child = os.fork()
    if child == 0:
        work(worker, 1_000_000 if worker < 4 else 60)  # the first four never end by themselves
        os._exit(0)
    workers.append(child)
for doomed in workers[:4]:
    time.sleep(0.3)
    os.kill(doomed, signal.SIGKILL)
states = [os.waitpid(child, 0)[1] for child in workers]
assert [os.WTERMSIG(state) for state in states[:4]] == [signal.SIGKILL] * 4, states
assert not any(states[4:]), states
work(9, 8)
print("done")
"""
)


@pytest.mark.slow
@pytest.mark.skipif("TRT_STRESS" not in os.environ or not hasattr(os, "fork"), reason="nox -s stress runs it")
@pytest.mark.parametrize("locks", ["locks", "none"])
def test_writers_that_are_killed_leave_nothing_torn(locks: str, tmp_path: Path) -> None:
    directory = tmp_path / "engines"
    warn = "error::RuntimeWarning" if locks == "locks" else "ignore::RuntimeWarning"
    found = subprocess.run(
        [sys.executable, "-W", warn, "-c", KILLED, str(directory), "0", "0", locks],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.stdout == "done\n", found.stderr
    assert {path.suffix for path in directory.iterdir()} <= {".plan", ".key", ""}


# what file systems of other hosts do


def test_a_handle_that_went_stale_is_opened_again(cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.insert(KEY, *_engine())
    map_file, failures = cache._folder.map, [OSError(errno.ESTALE, "Stale file handle")]

    def stale(name: str) -> Any:
        if failures:
            raise failures.pop()
        return map_file(name)

    monkeypatch.setattr(cache._folder, "map", stale)
    assert cache.find(KEY) is not None


def _fail_locks(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", refuse)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_cache_whose_lock_fails_is_read_and_not_written(
    code: int, cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.insert(KEY, *_engine())
    _fail_locks(code, monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"is not cached: a file cannot be locked(.|\n)*{os.strerror(code)}"):
        assert not cache.insert(EngineKey({"graph": "another"}), *_engine(1))
    with pytest.raises(FileError, match="a file cannot be locked"):
        cache.clear()
    assert cache.find(KEY) is not None
    assert [entry.key for entry in cache.entries()] == [KEY]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_holds_whole_entries(
    code: int, cache: EngineCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.insert(KEY, *_engine())
    _fail_locks(code, monkeypatch)
    other = EngineKey({"graph": "another"})
    assert cache.insert(other, *_engine(1))
    assert cache.find(KEY) is not None
    replace = cache._folder.replace

    def beside_another(name: str, place: str) -> None:
        cache._remove_leftovers()  # as a writer on another host does, which sees no lock
        replace(name, place)

    monkeypatch.setattr(cache._folder, "replace", beside_another)
    with pytest.warns(RuntimeWarning, match="is not cached"):
        assert not cache.insert(EngineKey({"graph": "third"}), *_engine(2))
    assert cache.find(other) is not None


@pytest.mark.parametrize("ending", [".key", ".plan"])
def test_a_file_that_other_hosts_do_not_see_yet_is_a_miss(ending: str, cache: EngineCache, tmp_path: Path) -> None:
    cache.insert(KEY, *_engine())
    place = cache.directory / f"{KEY.digest}{ending}"
    place.rename(tmp_path / "unseen")
    assert cache.find(KEY) is None
    (tmp_path / "unseen").rename(place)
    assert cache.find(KEY) is not None


def test_entries_tell_what_they_hold(cache: EngineCache) -> None:
    cache.insert(KEY, *_engine())
    (entry,) = cache.entries()
    assert entry.key == KEY
    assert set(entry.built) == {"name", "provider", "layers", "build_seconds"}
    assert json.loads((cache.directory / f"{KEY.digest}.key").read_bytes())["components"] == dict(KEY.components)
    cache.discard(KEY)
    assert cache.entries() == []


def test_an_entry_whose_time_is_no_number_is_damaged(cache: EngineCache) -> None:
    cache.insert(KEY, *_engine())
    place = cache.directory / f"{KEY.digest}.key"
    record = json.loads(place.read_bytes())
    record["built"]["build_seconds"] = "long"
    place.write_text(json.dumps(record))
    assert cache.entries() == []
