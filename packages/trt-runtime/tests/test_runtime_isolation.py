"""Programs in processes of their own: what they may not, what becomes of crashes, and that they answer alike."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import gc
import itertools
import json
import logging
import mmap
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fresh_process import run_python
from fuzzing import mutate
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from trt_core import ExecutionError, InputError, PlanError, TrtError
from trt_core.files import records
from trt_core.limits import CallLimits
from trt_runtime import load, save
from trt_runtime.command_line import main
from trt_runtime.isolation import IsolatedProgram, Isolation, confinement, isolated_program, messages, worker
from trt_runtime.isolation.isolated_program import _Answered, _Running
from trt_runtime.isolation.messages import _HEADER, Arena, decode, encode, place_tensors, send
from trt_runtime.isolation.worker import _Worker
from trt_runtime.program.model_facts import Record, tuple_class

pytestmark = pytest.mark.skipif(bool(confinement.why_not_here()), reason=confinement.why_not_here() or "isolates")


class Model(nn.Module):
    """Nested inputs and outputs, numbers, an input that is written to, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, extra: dict[str, torch.Tensor], scale: float = 2.0) -> dict[str, Any]:
        self.calls.add_(1)
        extra["count"].add_(1)
        return {
            "sum": self.linear(x) * scale,
            "parts": (x.transpose(0, 1), [extra["count"] + 1]),
            "calls": self.calls + 0,
        }


def _inputs(rows: int = 4) -> tuple[Any, ...]:
    return torch.randn(rows, 3), {"count": torch.zeros(2, dtype=torch.int64)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("isolated") / "model.trtp"
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    shapes = {"x": batch, "extra": {"count": None}}
    save(Model().eval().requires_grad_(False), path, arg_inputs=_inputs(), dynamic_shapes=shapes)
    return path


class _Fork:
    """A process that serves a caller as a new one would, and imports nothing for that.

    Args:
        channel: Descriptor of what it answers.
        said: Descriptor of its standard error.
    """

    def __init__(self, channel: int, said: int) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            os.chdir("/")
            null = os.open(os.devnull, os.O_RDWR)
            for number, descriptor in enumerate((null, null, said)):
                os.dup2(descriptor, number)
            kept = os.dup2(channel, 3) if channel != 3 else channel
            os.closerange(kept + 1, 1 << 12)
            sys.stderr = os.fdopen(2, "w")
            sys.argv[:] = [str(kept)]
            worker.main()
            code = 0
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a fork", timeout)
            time.sleep(1e-3)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start are forks of this one: only that of `isolated` and those of scripts import PyTorch."""

    def begin(command: list[str], channel: int, said: int) -> _Fork:
        with isolated_program._spawner_lock:
            if isolated_program._spawner is None:
                isolated_program._spawner = ThreadPoolExecutor(1)
            return isolated_program._spawner.submit(_Fork, channel, said).result()

    monkeypatch.setattr(isolated_program, "_begin", begin)


@pytest.fixture(scope="module")
def isolated(path: Path) -> Iterator[IsolatedProgram]:
    """A program that a thread has loaded which is gone, beside a secret in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "hunter2")
        with ThreadPoolExecutor(1) as pool:
            program = pool.submit(load, path, isolated=Isolation(call_seconds=60.0, cpu_seconds=600)).result()
        with program:
            yield program


def _process(program: IsolatedProgram) -> int:
    assert program._running is not None
    return program._running._process.pid


def test_it_answers_as_the_loaded_program_does(path: Path, isolated: IsolatedProgram) -> None:
    program = load(path)
    for rows in (1, 4, 8, 3):
        x, extra = _inputs(rows)
        twin = {"count": extra["count"].clone()}
        with torch.no_grad():
            found, wanted = isolated(x, extra), program(x, twin)
        assert found.keys() == wanted.keys()
        torch.testing.assert_close(found["sum"], wanted["sum"], rtol=0, atol=0)
        assert type(found["parts"]) is tuple and type(found["parts"][1]) is list
        assert found["parts"][0].stride() == wanted["parts"][0].stride()
        assert torch.equal(found["parts"][0], x.T) and torch.equal(found["parts"][1][0], wanted["parts"][1][0])
        assert extra["count"].tolist() == [1, 1] == twin["count"].tolist()  # what it writes to its inputs is seen
        assert found["calls"] == wanted["calls"]
    assert isolated.inputs == program.inputs and isolated.outputs == program.outputs
    assert isolated.meta == program.meta and isolated.device == program.device
    assert program.extra_repr() in repr(isolated) and "seccomp" in isolated.confined


class Named(nn.Module):
    """Its parts are called as a program calls what it says of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs, self.device, self.config = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.config(self.device(self.outputs(self.inputs(x))))


def test_a_model_whose_parts_are_called_as_what_a_program_says(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    model = Named().eval().requires_grad_(False)
    save(model, tmp_path / "model.trtp", arg_inputs=(x,))
    with load(tmp_path / "model.trtp", isolated=True) as program:
        assert [spec.name for spec in program.inputs] == ["x"]
        assert program.device == torch.device("cpu")
        torch.testing.assert_close(program(x), model(x))


def test_it_outlives_the_thread_that_loaded_it(isolated: IsolatedProgram) -> None:
    time.sleep(0.2)
    before = _process(isolated)
    assert isolated(*_inputs()) and _process(isolated) == before


def test_inputs_are_made_up_of_the_shapes_that_are_given(isolated: IsolatedProgram) -> None:
    assert isolated.example_call(None, 0, {"x": (7, 3)})[0][0].shape == (7, 3)
    with pytest.raises(InputError, match="'x' has 2 dimensions"):
        isolated.example_call(None, 0, {"x": (7,)})


def test_results_are_no_memory_of_the_process(isolated: IsolatedProgram) -> None:
    first = isolated(torch.ones(2, 3), {"count": torch.zeros(2, dtype=torch.int64)})["sum"]
    kept = first.clone()
    isolated(torch.zeros(2, 3), {"count": torch.zeros(2, dtype=torch.int64)})
    assert torch.equal(first, kept)


def test_errors_are_those_of_the_program(path: Path, isolated: IsolatedProgram) -> None:
    program = load(path)
    for args in ((torch.ones(9, 3), _inputs()[1]), (torch.ones(2, 3),), (torch.ones(2, 3).double(), _inputs()[1])):
        texts = []
        for one in (program, isolated):
            with pytest.raises(InputError) as caught, torch.no_grad():
                one(*args)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
    before = _process(isolated)
    isolated(*_inputs())
    assert _process(isolated) == before  # an error does not end it


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), torch.ones(2).to_sparse(), 1 << 70, nn.Parameter(torch.ones(2, 3))]
)
def test_what_cannot_be_sent_is_told(isolated: IsolatedProgram, value: Any) -> None:
    with pytest.raises(InputError):
        isolated(value, _inputs()[1])
    assert isolated(*_inputs())


def test_files_that_are_refused_are_refused(tmp_path: Path, path: Path) -> None:
    (tmp_path / "bad.trtp").write_bytes(path.read_bytes()[:-1])
    (tmp_path / "foreign").write_bytes(b"x" * 100)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged.trtp").write_bytes(damaged)
    for name in ("bad.trtp", "foreign", "damaged.trtp"):
        texts = []
        for options in ({}, {"isolated": True}):
            with pytest.raises(PlanError) as caught:
                load(tmp_path / name, **options)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
    with pytest.raises(InputError, match="isolated is True"):
        load(path, isolated="yes")


CRASHES = {"before": [signal.SIGKILL], "during": [signal.SIGSEGV]}
if "TRT_STRESS" in os.environ:
    CRASHES = {when: [signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGKILL] for when in CRASHES}


@pytest.mark.parametrize(("when", "number"), [(when, number) for when in CRASHES for number in CRASHES[when]])
def test_a_crash_is_an_error_and_the_next_call_has_a_new_process(path: Path, when: str, number: int) -> None:
    isolated = load(path, isolated=True)
    isolated(*_inputs())
    before = _process(isolated)

    def crash() -> None:
        time.sleep(0.3)
        os.kill(before, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, signal.SIGCONT)

    thread = threading.Thread(target=crash)
    if when == "during":
        os.kill(before, signal.SIGSTOP)
    thread.start()
    if when == "before":
        thread.join()
    with pytest.raises(ExecutionError, match=signal.Signals(number).name):
        isolated(*_inputs())
    thread.join()
    assert isolated(*_inputs())["calls"] == 1  # state begins anew
    assert _process(isolated) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)  # it is waited for
    isolated.close()


def test_what_a_process_answers_last_is_followed_by_a_new_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolated = load(path, isolated=True)
    isolated(*_inputs())
    before = _process(isolated)
    answered = isolated_program.receive

    def last(*args: Any, **options: Any) -> Any:
        reply, descriptors = answered(*args, **options)
        return {**reply, "error": {"class": "ExecutionError", "what": "an assertion"}, "ends": True}, descriptors

    with monkeypatch.context() as patch, pytest.raises(ExecutionError, match="an assertion"):
        patch.setattr(isolated_program, "receive", last)
        isolated(*_inputs())
    assert isolated(*_inputs())["calls"] == 1
    assert _process(isolated) != before
    isolated.close()


_DEATHS = [(message, when) for message in range(7) for when in ("before", "after")]
if "TRT_STRESS" not in os.environ:
    _DEATHS = [_DEATHS[number] for number in (4, 11)]
"""Messages of loading (options, what it is) and of a first call (memory, call, room, memory, results), in order."""


def _descriptors() -> list[str]:
    found = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(os.readlink(place) for place in found if os.path.islink(place))


@pytest.mark.parametrize(("message", "when"), _DEATHS)
def test_a_process_that_dies_at_a_message_is_one_error_and_leaves_nothing(
    path: Path, message: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    turns = itertools.count()
    gc.collect()
    before = _descriptors()
    begin = isolated_program._begin
    monkeypatch.setattr(isolated_program, "_begin", lambda *args: started.append(begin(*args)) or started[-1])

    def dying(act: Any) -> Any:
        def acted(*args: Any, **options: Any) -> Any:
            here = when if next(turns) == message else ""
            if here == "before":
                _end_at_once(started[-1].pid)
            done = act(*args, **options)
            if here == "after":
                _end_at_once(started[-1].pid)
            return done

        return acted

    for name in ("send", "receive"):
        monkeypatch.setattr(isolated_program, name, dying(getattr(isolated_program, name)))
    program, ends = None, []
    for _ in range(4):
        try:
            program = program or load(path, isolated=True)
            ends.append(program(*_inputs())["calls"].item())
        except ExecutionError as error:
            ends.append(str(error))
    assert len(started) == 2
    assert ends[-1] in (2, 3)
    (told,) = (end for end in ends if isinstance(end, str))
    assert "SIGKILL" in told and "next call begins with a new process" in told
    assert program is not None
    _end_at_once(started[-1].pid)
    program.close()
    program.close()
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
    del program  # it keeps the file's content as long as it may be called
    gc.collect()
    assert _descriptors() == before


def _end_at_once(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def test_memory_that_grows_takes_the_place_of_what_was_there() -> None:
    mine, theirs = socket.socketpair()
    worker = _Worker(theirs)
    counts = []
    for size in range(1, 5):
        for what in ("inputs", "results"):
            arena = Arena.make(size << 12)
            send(mine, {"do": "memory", "for": what, "size": arena.size}, [arena.descriptor])
            worker.answer()
            arena.close()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1
    for channel in (mine, theirs):
        channel.close()


def test_a_call_that_hangs_is_ended(path: Path) -> None:
    with load(path, isolated=Isolation(call_seconds=1.0)) as program:
        os.kill(_process(program), signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(ExecutionError, match=r"longer than 1 seconds"):
            program(*_inputs())
        assert time.monotonic() - begin < 20
        program._isolation = Isolation()
        assert program(*_inputs())


def test_processor_time_is_bounded(isolated: IsolatedProgram) -> None:
    isolated(*_inputs())
    limits = Path(f"/proc/{_process(isolated)}/limits").read_text()
    (line,) = (line for line in limits.splitlines() if line.startswith("Max cpu time"))
    assert line.split()[3:5] == ["600", "600"]


def test_memory_is_bounded_and_too_much_is_an_error(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze(0).repeat(1024, 1, 1).cumsum(0).sum()

    path = tmp_path / "wide.trtp"
    save(Wide(), path, arg_inputs=(torch.ones(1024, 1024),))
    with load(path, isolated=Isolation(memory_bytes=1 << 30)) as program:
        for _ in range(2):
            with pytest.raises(ExecutionError, match=r"memory"):
                program(torch.ones(1024, 1024))


def test_limits_of_calls_hold_in_the_process(path: Path) -> None:
    for options in ({}, {"isolated": True}):
        program = load(path, limits=CallLimits(steps=1.0), **options)
        with pytest.raises(ExecutionError, match="operators"), torch.no_grad():
            program(*_inputs())


def test_threads_take_turns(isolated: IsolatedProgram, path: Path) -> None:
    linear = load(path).linear

    def work(seed: int) -> bool:
        x = torch.full((1 + seed % 8, 3), float(seed))
        found = isolated(x, {"count": torch.full((2,), seed)})
        return torch.equal(found["parts"][0], x.T) and found["parts"][1][0].tolist() == [seed + 2] * 2

    assert linear is not None
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_logs_of_the_process_are_logged_here_and_a_closed_program_is_closed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(path, isolated=True) as program:
        process = _process(program)
        program._running._send({"do": "call"})
        with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="isolated program failed"):
            program._running._receive()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(ExecutionError, match="closed"):
        program(*_inputs())
    program.close()


def test_a_program_that_is_dropped_leaves_no_process(path: Path) -> None:
    program = load(path, isolated=True)
    process = _process(program)
    open_before = len(os.listdir("/proc/self/fd"))
    del program
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert len(os.listdir("/proc/self/fd")) < open_before


def test_it_is_not_copied_moved_or_pickled(isolated: IsolatedProgram) -> None:
    with pytest.raises(InputError, match="load its file again"):
        pickle.dumps(isolated)
    for change in (isolated.half, isolated.double, lambda: isolated.to("meta")):
        with pytest.raises(InputError, match=r"an isolated program stays what it was compiled for: .* cannot become"):
            change()


def test_what_changes_nothing_is_taken(isolated: IsolatedProgram) -> None:
    for same in (isolated.cpu(), isolated.float(), isolated.to("cpu", torch.float32), isolated.share_memory()):
        assert same is isolated


def test_it_is_neither_traced_nor_transformed(isolated: IsolatedProgram) -> None:
    x, extra = _inputs()
    for change in (
        lambda: torch.vmap(lambda row: isolated(row[None], extra)["sum"])(x),
        lambda: torch.func.grad(lambda x: isolated(x, extra)["sum"].sum())(x),
        lambda: torch.jit.trace(lambda x: isolated(x, extra)["sum"], (x,)),
    ):
        with pytest.raises(InputError, match="an isolated program cannot be traced, nor mapped"):
            change()


def test_notebooks_show_what_it_takes_and_returns(isolated: IsolatedProgram) -> None:
    shown = isolated._repr_html_()
    assert shown.startswith("<pre>IsolatedProgram(x, extra)") and shown.count("<") == 2, shown
    assert "\ntakes\n  x: float32[" in shown and "confined by seccomp" in shown, shown


def test_callers_that_are_bound_themselves_isolate(path: Path, tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, resource, sys
        import torch
        import trt_runtime
        from trt_runtime.isolation import Isolation
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        resource.setrlimit(resource.RLIMIT_CPU, (200, 200))
        with trt_runtime.load(sys.argv[1], isolated=Isolation(cpu_seconds=500)) as program:
            made = program(torch.ones(4, 3), {"count": torch.zeros(2, dtype=torch.int64)})
        with open(sys.argv[2], "w") as file:
            file.write(str(made["parts"][1][0].tolist()))
    """)
    result = run_python(script, str(path), str(tmp_path / "made"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "made").read_text() == "[2, 2]"


def test_a_forked_process_has_a_process_of_its_own(isolated: IsolatedProgram) -> None:
    isolated(*_inputs())
    before = _process(isolated)
    child = os.fork()
    if not child:
        try:
            right = isolated(*_inputs())["calls"] == 1 and _process(isolated) != before
            isolated.close()
            os._exit(0 if right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert isolated(*_inputs()) and _process(isolated) == before


def test_a_process_that_is_forked_while_a_thread_calls_waits_for_nobody(isolated: IsolatedProgram) -> None:
    """The thread that had its turn is not in the child, which waited for it for ever."""
    isolated(*_inputs())
    has_turn, over = threading.Event(), threading.Event()

    def call() -> None:
        with isolated._turn:
            has_turn.set()
            over.wait()

    thread = threading.Thread(target=call)
    thread.start()
    has_turn.wait()
    child = os.fork()
    if not child:
        isolated._running = None  # the program in it is another test's
        os._exit(0 if isolated._turn.depth == 0 else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert isolated(*_inputs())


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", *["sys.exit()"] * ("TRT_STRESS" in os.environ)])
def test_no_process_is_left_when_the_caller_dies(path: Path, how: str) -> None:
    script = textwrap.dedent(f"""
        import os, sys
        import trt_runtime
        program = trt_runtime.load(sys.argv[1], isolated=True)
        print(program._running._process.pid, flush=True)
        {how}
    """)
    result = run_python(script, str(path))
    process = int(result.stdout)
    for _ in range(100):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except FileNotFoundError:
            return
        if "State:\tZ" in status:  # whoever inherits it may be slow to look
            return
        time.sleep(0.1)
    pytest.fail("the process lives on")


def test_the_process_may_do_nothing_but_compute(tmp_path: Path) -> None:
    """What it is denied is tried by Python that runs where the program would."""
    (tmp_path / "secret").write_text("secret")
    script = textwrap.dedent("""
        import ctypes, json, os, resource, signal, socket, subprocess, sys, threading
        from trt_runtime.isolation import isolated_program, worker
        from trt_runtime.isolation import confinement
        folder, parent, bystander = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        if child := os.fork():  # it has Landlock, and its parent does without afterwards
            if os.waitpid(child, 0)[1]:
                sys.exit("the child failed")
            confinement.restrict_files = lambda *_: False
        mode = "without landlock" if child else "landlock"
        held = open(f"{folder}/held", "w")
        held.write("held"); held.flush()
        options = {"parent": os.getppid(), "uses_gpu": False, "provider": "portable", "device": None,
                   "readable": isolated_program._code_folders([]), "memory_bytes": 1 << 30, "cpu_seconds": None}
        print(json.dumps(worker._confine(options)))
        libc = ctypes.CDLL(None, use_errno=True)
        def call(*arguments):
            found = libc.syscall(*arguments)
            if found < 0:
                raise OSError(ctypes.get_errno(), "refused")
            return found
        tries = {
            "write": lambda: open(f"{folder}/new", "w"),
            "append": lambda: open(f"{folder}/secret", "a"),
            "write shared memory": lambda: open("/dev/shm/new", "w"),
            "truncate by name": lambda: os.truncate(f"{folder}/secret", 0),
            "remove": lambda: os.unlink(f"{folder}/secret"),
            "rename": lambda: os.rename(f"{folder}/secret", f"{folder}/other"),
            "folder": lambda: os.mkdir(f"{folder}/folder"),
            "link": lambda: os.symlink("/", f"{folder}/link"),
            "pipe": lambda: os.mkfifo(f"{folder}/pipe"),
            "mode": lambda: os.chmod(f"{folder}/secret", 0o777),
            "owner": lambda: os.chown(f"{folder}/secret", 1, 1),
            "times": lambda: os.utime(f"{folder}/secret"),
            "openat2": lambda: call(437, -100, b"/tmp", b"\\0" * 24, 24),
            "internet": lambda: socket.socket(socket.AF_INET),
            "internet 6": lambda: socket.socket(socket.AF_INET6),
            "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "local sockets": lambda: socket.socket(socket.AF_UNIX),
            "kernel sockets": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
            "pairs": socket.socketpair,
            "fork": os.fork,
            "vfork": lambda: call(58),
            "clone3": lambda: call(435, b"\\0" * 88, 88),
            "program": lambda: os.execv("/bin/true", ["true"]),
            "spawn": lambda: subprocess.run(["/bin/true"]),
            "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
            "ptrace": lambda: call(101, 16, bystander, 0, 0),
            "memory of others": lambda: open(f"/proc/{bystander}/mem", "rb"),
            "process_vm_readv": lambda: call(310, bystander, 0, 0, 0, 0, 0),
            "kill": lambda: os.kill(bystander, signal.SIGKILL),
            "kill a group": lambda: os.kill(0, signal.SIGURG),
            "kill the parent": lambda: os.kill(parent, 0),
            "tgkill": lambda: call(234, bystander, bystander, 9),
            "pidfd": lambda: os.pidfd_open(bystander),
            "signals of others": lambda: __import__("fcntl").fcntl(0, 8, bystander),
            "limits of others": lambda: resource.prlimit(bystander, resource.RLIMIT_CPU, (1, 1)),
            "its own limits": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
            "namespaces": lambda: call(272, 0x10000000),
            "mount": lambda: call(165, b"none", b"/mnt", b"tmpfs", 0, None),
            "chroot": lambda: os.chroot("/"),
            "io_uring": lambda: call(425, 1, b"\\0" * 120),
            "bpf": lambda: call(321, 0, b"\\0" * 64, 64),
            "userfaultfd": lambda: call(323, 0),
            "keyring": lambda: call(250, 0, -3, 0),
            "memfd": lambda: os.memfd_create("x"),
            "shared segments": lambda: call(29, 0, 1 << 20, 0o1600),
            "calls of the future": lambda: call(470),
            "memory": lambda: bytearray(2 << 30),
        }
        if mode == "landlock":
            tries["read"] = lambda: open(f"{folder}/secret").read()
            tries["list"] = lambda: os.listdir(folder)
            tries["passwords"] = lambda: open("/etc/passwd").read()
            tries["environment of others"] = lambda: open(f"/proc/{parent}/environ", "rb").read()
        for name, attempt in tries.items():
            try:
                attempt()
            except (OSError, MemoryError, ValueError):
                continue
            print("allowed:", name)
        thread = threading.Thread(target=print, args=("threads",))
        thread.start(); thread.join()
        import torch
        print(torch.randn(64, 64).matmul(torch.randn(64, 64)).shape[0])
        print("bystander", libc.syscall(39) > 0 and os.path.exists(f"/proc/self"), flush=True)
    """)
    bystander = subprocess.Popen(["sleep", "300"])
    result = run_python(script, str(tmp_path), str(os.getpid()), str(bystander.pid))
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["held", "secret"]
    assert (tmp_path / "secret").read_text() == "secret"
    lines = result.stdout.splitlines()
    for confined, *tried in (lines[:4], lines[4:]):
        if confined == lines[0] and "landlock" not in json.loads(confined):
            pytest.skip("the kernel has no Landlock")
        assert tried == ["threads", "64", "bystander True"], (lines, result.stderr)


def test_the_process_gets_no_secrets_of_its_environment(isolated: IsolatedProgram) -> None:
    isolated(*_inputs())
    environment = Path(f"/proc/{_process(isolated)}/environ").read_bytes()
    descriptors = [os.readlink(found) for found in Path(f"/proc/{_process(isolated)}/fd").iterdir()]
    assert os.environ["SECRET_TOKEN"] == "hunter2" and b"hunter2" not in environment
    kinds = [name.partition(":")[0] for name in descriptors]
    assert set(kinds) <= {"socket", "/dev/null", "/memfd"}, descriptors


def _facing(seconds: float = 20.0) -> tuple[Any, socket.socket, socket.socket]:
    """A caller's side, and the socket that a process which was taken over writes to."""
    mine, theirs = socket.socketpair()
    running: Any = object.__new__(_Running)
    running._channel, running._arenas, running._limits = mine, {}, Isolation(call_seconds=seconds)
    running._name, running._most = "model.trtp", 1 << 30
    running._source = SimpleNamespace(written=lambda message, count: frozenset(range(count)))
    running._until(seconds)
    return running, mine, theirs


def test_a_process_whose_gpu_has_failed_answers_once_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    running, mine, theirs = _facing()
    worker = _Worker(theirs)

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(worker, "_call", fail)
    ends = {}
    for failing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", fail if failing else lambda *_: None)
        running._send({"do": "call"})
        with contextlib.ExitStack() as held:
            if failing:
                held.enter_context(pytest.raises(SystemExit))
            worker.answer()
        with pytest.raises((ExecutionError, _Answered), match="device-side assert") as caught:
            running._receive()
        ends[failing] = caught.value
    assert isinstance(ends[False], _Answered)
    assert isinstance(ends[True], ExecutionError)  # the caller ends it, and begins another
    assert "the next call begins with a new one" in str(ends[True])
    mine.close()
    theirs.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"{}",
        b"[]",
        b"nonsense",
        b'{"result":["tensor",5],"tensors":[],"count":0,"written":[]}',
        b'{"result":["none"],"tensors":[["float32",[1099511627776],[1],0,"cpu"]],"count":1,"written":[]}',
        b'{"result":["none"],"tensors":[["float32",[2],[-1],0,"cpu"]],"count":1,"written":[]}',
        b'{"result":["none"],"tensors":[["float32",[2],[1],3,"cpu"]],"count":1,"written":[]}',
        b'{"result":["none"],"tensors":[["object",[2],[1],0,"cpu"]],"count":1,"written":[]}',
        b'{"result":["none"],"tensors":[],"count":0,"written":[3]}',
        b'{"room":1000000000000000}',
        b'{"error":{"class":"SystemExit","what":"x"}}',
        b'{"error":5}',
        b'{"result":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"result":["none"],"tensors":[["int8",[1099511627776],[0],0,"cpu"]],"count":1,"written":[]}',
        b'{"result":["none"],"tensors":[%s["int8",[8],[1],0,"cpu"]],"count":1,"written":[]}'
        % (b'["int8",[4096],[1],0,"cpu"],' * 100),
        b'{"result":["none"],"tensors":[["int8",[2],[1],0,"cpu"]],"count":0,"written":[0]}',
        b'{"result":["none"],"tensors":[["float32",[1],[1],0,"cpu"]],"count":0,"written":[0]}',
        b'{"result":["dict",[["complex","0x1p0","0x1p0"],["none"]]],"tensors":[],"count":0,"written":[]}',
        b'{"result":["dict",[["tuple"],["none"]]],"tensors":[],"count":0,"written":[]}',
        b'{"result":["float","0x1p99999"],"tensors":[],"count":0,"written":[]}',
        b'{"error":{"class":"ExecutionError","what":"%s"}}' % (b"x" * 10_000),
    ],
)
def test_a_process_that_was_taken_over_is_not_believed(reply: bytes) -> None:
    running, mine, theirs = _facing()
    theirs.sendall((_HEADER.pack(len(reply), 0) + reply) * 3)
    x = torch.ones(2)
    with pytest.raises((ExecutionError, _Answered)) as caught:
        running.call({"do": "call"}, [x], torch.device("cpu"))
    if isinstance(caught.value, _Answered):
        assert type(caught.value.error) is ExecutionError
    assert x.tolist() == [1, 1]
    mine.close()
    theirs.close()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_process_that_was_taken_over_writes_to_no_other_inputs(isolated: IsolatedProgram, by_name: bool) -> None:
    """What a program writes to is in its file: the process that runs it is not asked."""
    x, extra = torch.ones(2, 3), {"count": torch.ones(2, dtype=torch.int64)}
    args, kwargs = ((), {"extra": extra, "x": x}) if by_name else ((x, extra), {})
    for tensor, name, extents in ((x, "float32", [2, 3]), (extra["count"], "int64", [2])):
        running, mine, theirs = _facing()
        running._source = isolated._source
        tensors: list[torch.Tensor] = []
        asked = {"do": "call", "args": encode(args, tensors), "kwargs": encode(kwargs, tensors)}
        number = next(at for at, one in enumerate(tensors) if one.data_ptr() == tensor.data_ptr())
        steps = [3, 1][-len(extents) :]
        reply = {"result": ["none"], "tensors": [[name, extents, steps, 0, "cpu"]], "count": 0, "written": [number]}
        running._provide("results", 64)
        send(theirs, reply)
        if tensor is x:
            with pytest.raises(ExecutionError, match=f"the program does not write to input {number}"):
                running.call(asked, tensors, torch.device("cpu"))
            with pytest.raises(ExecutionError, match=f"the program does not write to input {number}"):
                send(theirs, reply)
                running.call({**asked, "do": "example"}, tensors, torch.device("cpu"))
        else:
            running.call(asked, tensors, torch.device("cpu"))
        running.end = None
        for channel in (mine, theirs):
            channel.close()
        for arena in running._arenas.values():
            arena.close()
    assert x.eq(1).all() and extra["count"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "change", [{"device": "meta"}, {"device": "cuda:x"}, {"meta": ["list"]}, {"inputs": [{"kind": "fixed"}]}]
)
def test_what_a_process_says_of_its_program_is_not_believed(change: dict[str, Any]) -> None:
    running, mine, theirs = _facing()
    send(theirs, {**_TOLD, "ready": {**_TOLD["ready"], **change}})
    with pytest.raises(ExecutionError, match="nonsense"):
        running._introduced()
    mine.close()
    theirs.close()


def test_methods_of_python_are_not_what_a_process_says(isolated: IsolatedProgram, monkeypatch: Any) -> None:
    monkeypatch.setattr(isolated, "_attributes", {"__deepcopy__": "text", "_hf_hook": 3, "dtype": torch.float32})
    assert isolated.dtype is torch.float32
    assert not hasattr(isolated, "_hf_hook")
    with pytest.raises(InputError, match="cannot be copied"):
        copy.deepcopy(isolated)


def test_more_values_than_a_message_may_have_are_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    value = encode([1] * 1000, [])
    mine, theirs = socket.socketpair()
    send(theirs, {"result": value})
    monkeypatch.setattr(messages, "MOST_VALUES", 1000)
    with pytest.raises(ValueError, match="more than 1000 values"):
        messages.receive(mine)
    with pytest.raises(InputError, match="as tensors"):
        send(mine, {"args": value})
    mine.close()
    theirs.close()


def test_a_process_that_answers_byte_by_byte_is_late() -> None:
    """Each byte is in time, and all of them are not."""
    running, mine, theirs = _facing(0.3)
    stopped = threading.Event()

    def drip() -> None:
        theirs.sendall(_HEADER.pack(1000, 0))
        while not stopped.wait(0.05):
            theirs.send(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    started = time.monotonic()
    try:
        with pytest.raises(ExecutionError, match="longer than"):
            running.call({"do": "call"}, [], torch.device("cpu"))
    finally:
        stopped.set()
        thread.join()
    assert time.monotonic() - started < 20
    mine.close()
    theirs.close()


_RESULT = {
    "result": [
        "record",
        [["text", "sum"], ["tensor", 0]],
        [["int", 3], ["named", ["P", "a", "b"], ["float", "0x1p0"], ["none"]]],
    ],
    "tensors": [["float32", [2, 3], [3, 1], 0, "cpu"], ["float32", [2], [1], 64, "cpu"]],
    "count": 1,
    "written": [0],
    "logs": [[30, "a warning"]],
}
_TOLD = {
    "ready": {
        "confined": ["seccomp"],
        "device": "cpu",
        "inputs": [
            {"kind": "tensor", "name": "x", "dtype": "float32", "shape": [["s0", 1, 2, 8], 3], "device": "cpu"},
            {"kind": "number", "name": "n", "type": "int"},
        ],
        "outputs": [
            {"kind": "tensor", "name": "y", "dtype": "float32", "shape": [4], "device": "cpu"},
            {"kind": "fixed", "name": "z", "value": "always"},
        ],
        "meta": {"author": "nobody"},
        "facts": {"dimensions": {}, "results": {}, "attributes": {"main_input_name": "x"}, "plugins": []},
        "shown": "inputs: x",
        "warnings": ["careful"],
    },
    "logs": [],
}
_WRONG = {"error": {"class": "InputError", "what": "a", "where": "b", "why": "c", "hint": "d"}, "logs": []}


def test_mutated_answers_of_a_process_end_well(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a process says, its caller has a result or an error of ours, soon."""
    source = random.Random(int(os.environ.get("TRT_FUZZ_SEED", "0")))
    ends = {"answered": 0, "refused": 0}
    for number in range(20_000 if "TRT_STRESS" in os.environ else 600):
        reply = copy.deepcopy(source.choice((_RESULT, _RESULT, _TOLD, _WRONG)))
        for _ in range(source.randrange(4)):
            with contextlib.suppress(IndexError):  # nothing is left
                mutate(reply, source)
        text = json.dumps(reply).encode()
        if source.random() < 0.1:
            at = source.randrange(len(text))
            text = text[:at] + bytes([source.randrange(256)]) + text[at + source.randrange(3) :]
        running, mine, theirs = _facing()
        theirs.sendall(_HEADER.pack(len(text), 0) + text)
        theirs.shutdown(socket.SHUT_WR)
        running._said, running._process = os.memfd_create("stderr"), _Gone()
        x = torch.ones(2)
        try:
            if "ready" in reply:
                running._introduced()
            else:
                running.call({"do": "call"}, [x], torch.device("cpu"))
            ends["answered"] += 1
        except (TrtError, _Answered) as error:
            assert str(error), number
            ends["refused"] += 1
        finally:
            mine.close()
            theirs.close()
            os.close(running._said)
            for arena in running._arenas.values():
                arena.close()
        assert x.shape == (2,) and x.dtype is torch.float32
    assert min(ends.values()) > 30, ends


class _Gone:
    """A process that has ended by a signal without a name."""

    def wait(self, timeout: float) -> int:
        return -40

    def poll(self) -> int:
        return -40


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.sampled_from([torch.float32, torch.int8]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4).map(Record),
        st.lists(inner, max_size=4).map(lambda parts: tuple_class("Parts", tuple("abcd"[: len(parts)]))(*parts)),
    ),
    max_leaves=20,
)


@given(TREES)
def test_values_survive_messages(value: Any) -> None:
    tensors: list[torch.Tensor] = []
    text = json.dumps(encode(value, tensors), allow_nan=False)
    found = decode(json.loads(text), tensors)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(list, a=[1]),
        defaultdict(None, a=1),
        OrderedDict(b=1, a=2),
        deque([1, 2], 2),
        deque([1]),
        deque(maxlen=0),
        torch.Size([2, 3]),
    ],
    ids=repr,
)
def test_classes_of_containers_survive_messages(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, []))), [])
    assert found == value and type(found) is type(value)
    for name in ("default_factory", "maxlen"):
        assert getattr(found, name, None) == getattr(value, name, None)


def test_a_factory_that_is_not_known_is_left_out() -> None:
    assert decode(encode(defaultdict(lambda: 3, a=1), []), []).default_factory is None


@pytest.mark.parametrize(
    "value", [["default", "eval"], ["default", 3], ["default"], ["deque", -1], ["deque", "2"], ["deque"]], ids=repr
)
def test_containers_that_nobody_makes_are_malformed(value: Any) -> None:
    with pytest.raises(ValueError):
        decode(value, [])


@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from(
        [torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.uint16]
    ),
    order=st.permutations(range(4)),
    step=st.booleans(),
)
def test_tensors_survive_shared_memory(shape: list[int], dtype: torch.dtype, order: list[int], step: bool) -> None:
    tensor = torch.arange(max(torch.tensor(shape).prod().item() if shape else 1, 1)).to(torch.uint8)
    tensor = tensor[: int(torch.tensor(shape).prod())] if shape else tensor[0]
    tensor = tensor.reshape(shape).to(torch.float32).to(dtype)
    tensor = tensor.permute([axis for axis in order if axis < len(shape)])
    tensor = tensor[::2] if step and shape else tensor
    places, size = place_tensors([torch.ones(3), tensor])
    arena = Arena.make(size)
    for value, place in zip([torch.ones(3), tensor], places, strict=True):
        (told,) = messages.read_places(json.loads(json.dumps([records.write(place)])))
        arena.at(told).copy_(value)
    found = arena.at(places[1])
    assert found.shape == tensor.shape and found.dtype == tensor.dtype
    assert torch.equal(found.to(torch.complex64), tensor.to(torch.complex64))
    del found
    arena.close()


def test_memory_that_is_read_is_written_by_nobody_else() -> None:
    """Inputs, and files that a process is started with: not even whoever opens the memory anew writes to it."""
    arena = Arena.make(2 << 12, is_read=True)
    arena.bytes.fill_(1)
    ways = (os.O_RDONLY, os.O_RDWR, os.O_WRONLY)
    again = [os.dup(arena.descriptor), *(os.open(f"/proc/self/fd/{arena.descriptor}", way) for way in ways)]
    for descriptor in again:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 1 << 12, mmap.MAP_SHARED)
        for change in (
            lambda one: os.pwrite(one, b"x", 0),
            lambda one: os.ftruncate(one, 0),
            lambda one: os.posix_fallocate(one, 0, 3 << 12),
            lambda one: fcntl.fcntl(one, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        ):
            with pytest.raises(OSError):
                change(descriptor)
    theirs = Arena(again[0], arena.size, is_private=True)
    theirs.bytes[:8].fill_(2)
    assert arena.bytes.eq(1).all()
    arena.bytes.fill_(3)
    assert theirs.bytes[:8].eq(2).all() and theirs.bytes[1 << 12 :].eq(3).all()
    theirs.forget()
    assert theirs.bytes.eq(3).all()
    arena.close()
    theirs.close()
    for descriptor in again[1:]:
        os.close(descriptor)


def test_inputs_that_are_written_to_are_those_of_each_call(isolated: IsolatedProgram) -> None:
    """What a call has written is gone in the next one, which has its inputs in the same memory."""
    for number in (5, 7, 7, 1):
        x, extra = torch.full((2, 3), float(number)), {"count": torch.full((2,), number)}
        found = isolated(x, extra)
        assert extra["count"].tolist() == [number + 1] * 2 and x.eq(number).all()
        assert found["parts"][1][0].tolist() == [number + 2] * 2 and found["parts"][0].eq(number).all()


def test_inputs_that_are_written_to_have_places_of_their_own(path: Path, isolated: IsolatedProgram) -> None:
    """What the process writes lies apart, and comes back to where it must not: it was said to answer nonsense."""
    process, both = _process(isolated), torch.zeros(1, dtype=torch.int64).expand(2)
    wide = torch.zeros(6, dtype=torch.int64)
    for program in (load(path), isolated):
        with pytest.raises(InputError, match=r"several elements of input .* lie in one place of memory"):
            program(torch.ones(2, 3), {"count": both})
    with pytest.raises(InputError, match=r"shares memory with input .*, which the model writes to"):
        isolated(wide.view(torch.float32)[:6].reshape(2, 3), {"count": wide[:2]})
    assert both.tolist() == [0, 0]
    assert _process(isolated) == process


def test_shared_memory_stays_while_a_tensor_in_it_is_alive() -> None:
    places, size = place_tensors([torch.ones(3)])
    arena = Arena.make(size)
    found = arena.at(places[0])
    arena.close()
    assert not arena._memory.closed
    assert found.fill_(2).tolist() == [2, 2, 2]


def test_dynamo_leaves_it_alone(isolated: IsolatedProgram) -> None:
    x, extra = torch.ones(4, 3), {"count": torch.zeros(2, dtype=torch.int64)}
    compiled = torch.compile(lambda x, extra: isolated(x * 2, extra)["parts"][0] * 2, backend="eager")
    assert torch.equal(compiled(x, extra), isolated(x * 2, extra)["parts"][0] * 2)


def test_the_command_line_isolates(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for flags in ([], ["--isolated"]):
        assert main(["run", str(path), "--seed", "3", *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "output['sum']" in texts[0]
    assert main(["bench", str(path), "--isolated", "--calls", "3", "--warm-up", "1"]) == 0


@pytest.mark.parametrize("why", ["this is win32", "no seccomp"])
def test_where_nothing_confines_there_is_no_isolation(path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "why_not_here", lambda: why)
    with pytest.raises(InputError, match=why):
        load(path, isolated=True)
