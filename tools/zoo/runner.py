"""Runs cases in processes of their own, several at a time, within limits of time and memory.

Children are forked from a server that has imported the libraries, so that a case costs what it does itself.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import psutil

from tools.zoo.entry import Case
from tools.zoo.phases import described, watched
from tools.zoo.record import Outcome, Record, read_records

PRELOADED: Final = ("tools.zoo.preload",)
_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True)
class Limits:
    """What a case may use.

    Attributes:
        seconds: Wall-clock time.
        bytes: Resident memory of the process.
    """

    seconds: float = 300.0
    bytes: int = 8 << 30


@dataclass
class _Child:
    case: Case
    process: Any
    results: Connection
    started: float = field(default_factory=time.monotonic)
    phases: Mapping[str, float] = field(default_factory=dict)

    def stop(self, outcome: Outcome, why: str) -> Record:
        self.process.kill()
        self.process.join()
        where = described(self.phases)
        return self._record(outcome, f"{why}: {where}" if where else why)

    def _record(self, outcome: Outcome, why: str) -> Record:
        seconds = time.monotonic() - self.started
        return Record.of(self.case, outcome, why=why, seconds=seconds, phases=self.phases)

    def take(self) -> Record | None:
        """Returns what the child sent, or what its silence means; None where it only told how far it is."""
        try:
            sent: Record | Mapping[str, float] = self.results.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            why = f"the process ended with signal {-code}" if code < 0 else f"the process ended with status {code}"
            return self._record(Outcome.FAILED, why)
        if not isinstance(sent, Record):
            self.phases = sent
            return None
        self.process.join()
        return sent

    def exceeds(self, limits: Limits) -> Record | None:
        """Stops the child and returns its record when it uses more than it may."""
        if time.monotonic() - self.started > limits.seconds:
            return self.stop(Outcome.TIMEOUT, f"took more than {limits.seconds:.0f} s")
        try:
            used = psutil.Process(self.process.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return None
        if used > limits.bytes:
            return self.stop(Outcome.MEMORY, f"used more than {limits.bytes / 2**30:.1f} GiB")
        return None


def run(
    cases: Iterable[Case],
    results: Path,
    *,
    jobs: int = 1,
    limits: Limits | None = None,
    told: Callable[[Record], None] = lambda record: None,
    work: Callable[[Case], Record] | None = None,
    budget: float = math.inf,
) -> None:
    """Runs cases, and appends a line of JSON for each to a file.

    Cases that the file has a record of are not run again, so an interrupted run goes on where it stopped.

    Args:
        cases: What to run, in order.
        results: The file of records; made when missing.
        jobs: How many processes at a time.
        limits: What each may use.
        told: Called with each record once it is written.
        work: What a child does with its case, a function of a module; by default it checks the entry.
        budget: Wall-clock seconds for all of it; cases that are not finished then get no record.
    """
    until = time.monotonic() + budget
    allowed = limits or Limits()
    done = {record.key for record in read_records(results)}
    waiting = iter([case for case in cases if case.key not in done])
    running: list[_Child] = []
    results.parent.mkdir(parents=True, exist_ok=True)
    context = _context()
    with results.open("a", encoding="utf-8") as file:
        try:
            while True:
                while len(running) < jobs and (case := next(waiting, None)) is not None:
                    running.append(_start(context, case, work or check_case))
                if not running or time.monotonic() > until:
                    return
                for child, record in _finished(running, allowed):
                    running.remove(child)
                    file.write(record.to_json() + "\n")
                    file.flush()
                    told(record)
        finally:
            for child in running:
                child.process.kill()


def _finished(running: list[_Child], limits: Limits) -> list[tuple[_Child, Record]]:
    ready = wait([child.results for child in running], timeout=_POLL_SECONDS)
    found = []
    for child in running:
        record = child.take() if child.results in ready else None
        record = record or child.exceeds(limits)
        if record is not None:
            found.append((child, record))
    return found


def _context() -> Any:
    """Processes forked from a warm server where the platform can; fresh ones elsewhere."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a server that starts CUDA has no children that can
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _start(context: Any, case: Case, work: Callable[[Case], Record]) -> _Child:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, case, sender), daemon=True)
    process.start()
    sender.close()
    return _Child(case, process, receiver)


def _child(work: Callable[[Case], Record], case: Case, sender: Connection) -> None:
    """What a child process does: one case. Libraries may print; that goes nowhere."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    with watched(sender.send) as phases:
        try:
            record = work(case)
        except BaseException as failure:  # a model that cannot be made or run in eager is a fault of its entry
            record = Record.of(case, Outcome.FAILED, why=f"eager: {type(failure).__name__}: {failure}"[:600])
    sender.send(dataclasses.replace(record, phases=phases))
    sender.close()


def check_case(case: Case, device: str = "cpu", dtype: str = "") -> Record:
    """Checks a case of the registry on one thread; see `tools.zoo.check`. A type is given by its name in PyTorch."""
    import torch

    from tools.zoo.check import check
    from tools.zoo.registry import entries

    torch.set_num_threads(1)
    return check(entries()[case.entry], case, device, getattr(torch, dtype) if dtype else None)
