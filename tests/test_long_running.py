"""Faults of long-running processes: mixed use by threads, memory that runs out, killed builds, full disks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import ExecutionError, FileError, Input, InputError, TrtError
from trt_core.limits import CallLimits
from trt_frontends import MutableModule
from trt_runtime.command_line.tensor_files import write_tensors
from trt_runtime.engine_cache import EngineCache, EngineKey

MINUTES: Final = float(os.environ.get("TRT_STRESS_MINUTES", "0.05"))
"""How long threads use programs in every way at once; `nox -s stress -- --minutes 60` takes an hour."""

THREADS: Final = 8
posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


class _Branches(nn.Module):
    """Several engines with PyTorch between them, two results, and sizes that vary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        return self.second(torch.sort(y, dim=-1).values), y.sum(-1)


ROWS: Final = Input(min_shape=(1, 32), opt_shape=(8, 32), max_shape=(64, 32))


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = _Branches() if seed % 2 else nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 8))
    return model.eval().requires_grad_(False)


class _Cancelled(BaseException):
    """Ends a call from outside, as an interrupt does."""


class _Mixed:
    """What threads do to programs that they share.

    Args:
        folder: Where files lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = [_model(seed) for seed in range(4)]
        settings: dict[str, Any] = {"min_block_size": 1, "torch_executed_ops": {"aten.sort"}}
        self.compiled = [trt_frontends.compile(one, arg_inputs=(ROWS,), **settings) for one in self.models]
        self.cache = EngineCache(folder / "cache", limit_bytes=1 << 20)
        self.programs: list[nn.Module] = []
        for number, one in enumerate(self.compiled):
            trt_runtime.save(one, self.path(number))
            self.programs.append(trt_runtime.load(self.path(number)))
        self.done: dict[str, int] = {}

    def path(self, number: int) -> Path:
        return self.folder / f"model-{number}.trtp"

    def work(self, seed: int, end: float) -> None:
        """One thread."""
        chance = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        acts: list[tuple[Callable[[int, torch.Tensor], None], int]] = [
            *((self.call, 60), (self.reload, 6), (self.replace, 2), (self.evict, 6), (self.refuse, 8)),
            *((self.limit, 4), (self.cancel, 6), (self.press, 3), (self.copy, 3)),
        ]
        while time.monotonic() < end:
            (act,) = chance.choices([one for one, _ in acts], [weight for _, weight in acts])
            number = chance.randrange(len(self.programs))
            x = torch.randn(chance.randint(1, 64), 32, generator=generator)
            act(number, x)
            self.done[act.__name__] = self.done.get(act.__name__, 0) + 1

    def check(self, program: nn.Module, number: int, x: torch.Tensor) -> None:
        found, wanted = program(x), self.models[number](x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    def call(self, number: int, x: torch.Tensor) -> None:
        self.check(self.programs[number], number, x)
        self.check(self.compiled[number], number, x)

    def reload(self, number: int, x: torch.Tensor) -> None:
        program = trt_runtime.load(self.path(number), copy=bool(number % 2))
        self.programs[number] = program
        self.check(program, number, x)

    def replace(self, number: int, x: torch.Tensor) -> None:
        trt_runtime.save(self.programs[number], self.path(number))

    def copy(self, number: int, x: torch.Tensor) -> None:
        import copy

        self.check(copy.deepcopy(self.programs[number]), number, x)

    def evict(self, number: int, x: torch.Tensor) -> None:
        engine = next(one for one in self.compiled[number].modules() if isinstance(one, trt_runtime.TRTModule))
        key = EngineKey({"number": str(number), "variant": str(len(x) % 8)})
        found = self.cache.find(key)
        if found is None:
            self.cache.insert(key, engine.header, engine.plan)
        else:
            again = trt_runtime.TRTModule(*found)
            inputs = [torch.zeros([8, *binding.shape[1:]]) for binding in again.header.inputs]
            torch.testing.assert_close(again(*inputs), engine(*inputs))
        if len(x) == 1:
            self.cache.clear()
        elif len(x) < 8:
            self.cache.prune(1 << 16)

    def refuse(self, number: int, x: torch.Tensor) -> None:
        for wrong in (x.double(), x[:, :5], torch.ones(65, 32)):
            with pytest.raises(InputError):
                self.programs[number](wrong)

    def limit(self, number: int, x: torch.Tensor) -> None:
        program = trt_runtime.load(self.path(number), limits=CallLimits(steps=0.0))
        with pytest.raises(ExecutionError):
            program(x)

    def cancel(self, number: int, x: torch.Tensor) -> None:
        """Another thread calls, and is interrupted somewhere: once, and only where it looks for that."""
        began, caught, over = threading.Event(), threading.Event(), threading.Event()

        def call() -> None:
            with contextlib.suppress(_Cancelled):  # one that comes late
                while not over.is_set():
                    try:
                        began.set()
                        while not over.is_set():
                            self.programs[number](x)
                    except _Cancelled:
                        caught.set()

        thread = threading.Thread(target=call)
        thread.start()
        began.wait()
        time.sleep(len(x) / 20_000)
        interrupt, identity = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(thread.ident or 0)
        interrupt(identity, ctypes.py_object(_Cancelled))  # not taken back: 3.11 would look for it for ever
        caught.wait(10)  # a finalizer may have swallowed it
        over.set()
        thread.join()
        self.check(self.programs[number], number, x)

    def press(self, number: int, x: torch.Tensor) -> None:
        held = [torch.ones(1 << 22) for _ in range(4)]  # 64 MiB
        self.check(self.programs[number], number, x)
        del held
        gc.collect()


@pytest.mark.timeout(600 + 120 * MINUTES)
@pytest.mark.filterwarnings(r"ignore:[\s\S]*_Cancelled:pytest.PytestUnraisableExceptionWarning")
def test_threads_use_programs_in_every_way_at_once(tmp_path: Path) -> None:
    mixed = _Mixed(tmp_path)
    process = psutil.Process()

    def run(minutes: float) -> None:
        end = time.monotonic() + 60 * minutes
        with ThreadPoolExecutor(THREADS) as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for future in [pool.submit(mixed.work, seed, end) for seed in range(THREADS)]:
                future.result()
        gc.collect()

    run(max(MINUTES / 3, 0.04))  # until threads have done everything, and the allocator holds what they want
    memory, files, threads = process.memory_info().rss, process.num_fds(), threading.active_count()
    run(2 * MINUTES / 3)
    logging.getLogger(__name__).info("%s, %d MiB more", mixed.done, (process.memory_info().rss - memory) >> 20)
    assert process.memory_info().rss - memory < 256 << 20
    assert process.num_fds() <= files + 8 and threading.active_count() <= threads
    assert len(mixed.done) == 9 or MINUTES < 1
    left = {one.name for one in tmp_path.iterdir()}
    assert left == {"cache", *(f"model-{number}.trtp" for number in range(4))}
    for number in range(4):
        mixed.reload(number, torch.ones(3, 32))
    mixed.cache.clear()
    assert [one.name for one in (tmp_path / "cache").iterdir()] == [".lock"]


_OUT_OF_MEMORY = textwrap.dedent("""
    import resource, sys
    import torch
    from torch import nn
    import trt_core, trt_frontends, trt_runtime
    from pathlib import Path

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)
        def forward(self, x):
            return torch.cumsum(self.linear(x).unsqueeze(1).repeat(1, 4096, 1), 1).sum(1)

    model = Wide().eval().requires_grad_(False)
    rows = trt_core.Input(min_shape=(1, 64), opt_shape=(2, 64), max_shape=(2048, 64))
    small, large = torch.ones(2, 64), torch.ones(2048, 64)  # 2 MiB and 2 GiB at each step
    compiled = trt_frontends.compile(model, arg_inputs=(rows,), min_block_size=1)
    wanted = compiled(small)
    trt_runtime.save(compiled, sys.argv[1])
    loaded = trt_runtime.load(sys.argv[1], limits=trt_core.limits.UNLIMITED)

    def within(megabytes, work):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), -1))
        try:
            return work()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))

    for name, program in (("compiled", compiled), ("loaded", loaded)):
        for _ in range(3):
            try:
                within(1024, lambda: program(large))
                print(name, "had enough")
            except trt_core.ExecutionError as error:
                assert "memory" in str(error).lower(), error
                print(name, "told")
            assert torch.equal(within(1024, lambda: program(small)), wanted)
    # building: weights do not fit once more; Python and PyTorch themselves crash where not even small objects fit
    heavy, row = nn.Linear(8192, 8192, bias=False).eval().requires_grad_(False), torch.ones(1, 8192)  # 256 MiB
    for megabytes in (64, 128, 192):
        try:
            within(megabytes, lambda: trt_frontends.compile(heavy, arg_inputs=(row,), min_block_size=1)(row))
            print("heavy built")
        except (trt_core.TrtError, MemoryError, RuntimeError) as error:
            assert "memory" in str(error).lower(), error
            print("heavy told")
    again = trt_frontends.compile(model, arg_inputs=(rows,), min_block_size=1)
    print("built", torch.equal(again(small), wanted), torch.equal(loaded(small), wanted))
""")


@pytest.mark.slow
@posix
def test_engines_stay_usable_when_memory_has_run_out(tmp_path: Path) -> None:
    result = run_python(_OUT_OF_MEMORY, str(tmp_path / "model.trtp"), timeout=500)
    told = [f"{name} told" for name in ("compiled", "loaded", "heavy") for _ in range(3)]
    assert result.stdout.splitlines() == [*told, "built True True"], result.stderr


@pytest.mark.gpu
def test_engines_stay_usable_when_memory_of_a_gpu_has_run_out() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # sums along two axes: no compiler makes one kernel of both, so 4 GiB lie between them
            return torch.cumsum(torch.cumsum(x.unsqueeze(1).repeat(1, 4096, 1), 1), 2).amax(1)

    rows = Input(min_shape=(1, 64), opt_shape=(2, 64), max_shape=(4096, 64))
    small, large = torch.ones(2, 64, device="cuda"), torch.ones(4096, 64, device="cuda")
    compiled = trt_frontends.compile(Wide().cuda().eval(), arg_inputs=(rows,), min_block_size=1)
    wanted = compiled(small)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
        for _ in range(3):
            with pytest.raises((TrtError, torch.OutOfMemoryError), match=r"(?i)memory"):
                compiled(large)
            assert torch.equal(compiled(small), wanted)
        with contextlib.suppress(TrtError, torch.OutOfMemoryError):
            trt_frontends.compile(nn.Linear(16384, 16384).cuda().eval(), arg_inputs=(torch.ones(1, 16384).cuda(),))
        assert torch.equal(compiled(small), wanted)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


_BUILD = textwrap.dedent("""
    import os, random, signal, sys, time
    import torch
    from torch import nn
    import trt_core, trt_frontends, trt_runtime
    folder, times = sys.argv[1], int(sys.argv[2])

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).eval().requires_grad_(False)
        compiled = trt_frontends.compile(
            model, arg_inputs=(torch.ones(2, 16),), min_block_size=1, engine_cache_dir=f"{folder}/cache",
            reuse_cached_engines=random.random() < 0.5,
        )
        trt_runtime.save(compiled, f"{folder}/model.trtp")
        return compiled

    build(); begin = time.monotonic(); build(); took = time.monotonic() - begin  # the first one imports as well
    ended = {}
    for number in range(times):
        child = os.fork()
        if not child:
            try:
                random.seed(number); build(); os._exit(0)
            except BaseException as error:
                print("foreign", type(error), error, flush=True); os._exit(1)
        random.seed(number)
        time.sleep(random.uniform(0, 1.2 * took))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        ended[status] = ended.get(status, 0) + 1
        trt_runtime.load(f"{folder}/model.trtp")  # the old one or the new one
    compiled = build()
    x = torch.ones(2, 16)
    print(torch.equal(trt_runtime.load(f"{folder}/model.trtp")(x), compiled(x)), ended.get(9, 0) > 0)
    print(ended, took, file=sys.stderr)
""")


@pytest.mark.slow
@posix
@pytest.mark.timeout(600 + 120 * MINUTES)
def test_builds_that_are_killed_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    times = str(int(12 * max(0.5, MINUTES)))
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    result = run_python(_BUILD, str(tmp_path / "out"), times, env=environment, timeout=500 + 60 * MINUTES)
    assert result.stdout == "True True\n", result.stderr
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["cache", "model.trtp"]
    cached = {one.name for one in (tmp_path / "out" / "cache").iterdir()}
    assert not [name for name in cached if ".saving" in name], cached
    plans = {name.removesuffix(".plan") for name in cached if name.endswith(".plan")}
    assert plans == {name.removesuffix(".key") for name in cached if name.endswith(".key")} != set()
    left = [str(one.relative_to(tmp_path / "tmp")) for one in (tmp_path / "tmp").rglob("*") if one.is_file()]
    assert not [name for name in left if "torchinductor" not in name], left  # PyTorch keeps its own cache there


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount file systems")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _listing(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_full_disk_leaves_no_half_of_a_file(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtc.app import write_new

    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval().requires_grad_(False)  # 1 MiB
    compiled = trt_frontends.compile(model, arg_inputs=(torch.ones(2, 512),), min_block_size=1)
    engine = next(one for one in compiled.modules() if isinstance(one, trt_runtime.TRTModule))
    mutable = MutableModule(model, min_block_size=1)
    mutable(torch.ones(2, 512))
    tensors = {"x": torch.ones(1 << 18)}
    endings = (".npz", ".npy", ".pt", ".safetensors")
    doors: dict[str, Callable[[Path], object]] = {
        "model.trtp": lambda path: trt_runtime.save(compiled, path),
        "model.pt2": lambda path: trt_runtime.save(
            compiled, path, arg_inputs=(torch.ones(2, 512),), format="exported_program"
        ),
        "engine.plan": lambda path: trt_runtime.write_plan(path, engine.header, engine.plan),
        "mutable.trtm": lambda path: MutableModule.save(mutable, path),
        **{f"out{ending}": lambda path: write_tensors(path, tensors) for ending in endings},
        "report.html": lambda path: write_new(path, "x" * (1 << 20)),
    }
    for name, write in doors.items():
        for old in (b"", b"old"):
            path = small_disk / name
            if old:
                path.write_bytes(old)
            before = _listing(small_disk)
            is_kept = old and name.startswith(("out", "report"))  # commands replace no file
            with pytest.raises(FileExistsError) if is_kept else pytest.raises(FileError, match="free space"):
                write(path)
            assert _listing(small_disk) == before, name
        path.unlink()
    cache = EngineCache(small_disk / "cache")
    with pytest.warns(RuntimeWarning, match="is not cached"):
        assert not cache.insert(EngineKey({"a": "b"}), engine.header, engine.plan)
    assert cache.find(EngineKey({"a": "b"})) is None and not cache.entries()
    assert sum(map(len, _listing(small_disk).values())) < 1 << 12


_LITTLE_ROOM = textwrap.dedent("""
    import os, resource, signal, sys, warnings
    import torch
    from pathlib import Path
    from torch import nn
    import trt_core, trt_frontends, trt_runtime
    from trt_runtime.engine_cache import EngineCache, EngineKey

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval().requires_grad_(False)  # 1 MiB
    compiled = trt_frontends.compile(model, arg_inputs=(torch.ones(2, 512),), min_block_size=1)
    engine = next(one for one in compiled.modules() if isinstance(one, trt_runtime.TRTModule))
    (folder / "model.trtp").write_bytes(b"old")
    cache = EngineCache(folder / "cache")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
    for _ in range(2):
        try:
            trt_runtime.save(compiled, folder / "model.trtp")
        except trt_core.FileError as error:
            print("told", (folder / "model.trtp").read_bytes() == b"old", len(list(folder.iterdir())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print(cache.insert(EngineKey({"a": "b"}), engine.header, engine.plan), len(caught), cache.entries())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    trt_runtime.save(compiled, folder / "model.trtp")
    x = torch.ones(2, 512)
    print(torch.equal(trt_runtime.load(folder / "model.trtp")(x), compiled(x)))
""")


@posix
@pytest.mark.slow
def test_files_that_may_not_be_long_enough_are_not_left_half_written(tmp_path: Path) -> None:
    """As on a full disk, where nobody may mount one."""
    result = run_python(_LITTLE_ROOM, str(tmp_path))
    assert result.stdout.splitlines() == ["told True 2", "told True 2", "False 1 []", "True"], result.stderr[-2000:]
