"""How things are measured: best of several, peak memory of a piece of work, work in a fresh process."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).parents[2]


def best_seconds(action: Callable[[], Any], repeats: int = 3) -> float:
    """Returns the shortest of several runs in seconds: the one that others disturbed least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def wait_for_device() -> None:
    """Waits until the GPU has done what it was given, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waited_milliseconds(action: Callable[[], Any], least_calls: int = 20, least_seconds: float = 1.0) -> list[float]:
    """Returns the times of calls that are waited for, each begun on an idle device."""
    for _ in range(3):
        action()
    times: list[float] = []
    until = time.perf_counter() + least_seconds
    while len(times) < least_calls or time.perf_counter() < until:
        wait_for_device()
        started = time.perf_counter()
        action()
        wait_for_device()
        times.append((time.perf_counter() - started) * 1e3)
    return times


def first_tensor(result: Any) -> torch.Tensor:
    """The first tensor of what a model returns."""
    return next(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


def forget_peak() -> int | None:
    """Begins to watch the memory of the GPU, and returns the bytes that are allocated; None where there is none."""
    if not torch.cuda.is_available():
        return None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def gpu_peak() -> int | None:
    """The most bytes that were allocated on the GPU since `forget_peak`; None where there is none."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


@contextlib.contextmanager
def among_others(operation: int) -> Iterator[None]:
    """Processes of the benchmark build together (``LOCK_SH``), and time their calls one by one (``LOCK_EX``)."""
    with open(Path(tempfile.gettempdir()) / "tools-bench-latency.lock", "w") as file:
        fcntl.flock(file, operation)
        yield


def peak_bytes(action: Callable[[], Any]) -> int:
    """Returns by how many bytes the resident memory of this process peaked above its level before (Linux)."""
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    action()
    return resident_bytes("VmHWM") - before


def peak_anonymous_bytes(action: Callable[[], Any], every_seconds: float = 0.005) -> int:
    """As `peak_bytes`, of memory that no file stands behind, which is looked at many times a second (Linux)."""
    before = most = resident_bytes("RssAnon")
    is_done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_done.wait(every_seconds):
            most = max(most, resident_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        action()
    finally:
        is_done.set()
        watcher.join()
    return max(most, resident_bytes("RssAnon")) - before


def in_fresh_process(module: str, *arguments: str, seconds: float | None = None) -> dict[str, Any]:
    """Runs a module that prints JSON as its last line in another process, and returns it.

    Raises:
        RuntimeError: It failed; the message ends with the error.
        TimeoutError: It was not done within the seconds given, and was ended with all that it started.
    """
    command = [sys.executable, "-m", module, *arguments]
    has_limit = seconds is not None  # then it leads a group, which holds what it starts in turn
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=has_limit
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if has_limit else process.kill()
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"{module} {' '.join(arguments)} took longer than {seconds} s") from error
        raise
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{errors}")
    found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return found


def mapped_bytes(path: str) -> int:
    """Returns how much of a mapped file is resident in this process (Linux)."""
    found = 0
    is_of_file = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            is_of_file = bool(rest) and rest[-1] == os.path.realpath(path)
        elif is_of_file and first == "Rss:":
            found += int(rest[0]) * 1024
    return found


def resident_bytes(field: str) -> int:
    """Returns a size that `/proc/self/status` tells (Linux).

    Args:
        field: `VmRSS`, or of it `RssAnon` or `RssFile`; `VmHWM` for the highest `VmRSS`.

    Raises:
        RuntimeError: There is no such field.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
