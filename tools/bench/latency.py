"""Time of a call on one machine: portable engines beside eager, `torch.compile` and ONNX Runtime.

`python -m tools.bench.latency [--models NAME...] [--batches N...] [--peers NAME...] [--jobs N] [--budget SECONDS]
[--no-load] [--results FILE]`

Each peer runs in a process of its own with empty compiler caches. float16 on a GPU, float32 on the CPU with
``OMP_NUM_THREADS`` threads, by default one. Times are medians of calls that are waited for, with the 10th and 90th
percentile beside them. With ``--results``, each result is appended to a file as soon as it is there, and what the file
already holds for this machine is not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tools.bench.latency_peers import PEERS
from tools.bench.latency_results import Job, append, machine, measured, read, today
from tools.bench.measure import in_fresh_process
from tools.bench.models import MODELS
from tools.bench.report import Row

NAMES = (
    "resnet50",
    "mobilenet_v3",
    "vit_b16",
    "swin_t",
    "convnext_tiny",
    "bert_base",
    "gpt2",
    "llama_block",
    "unet",
)
OURS = "portable"

Result = dict[str, Any]


def measure(
    work: Sequence[Job],
    *,
    jobs: int = 1,
    budget_seconds: float = math.inf,
    report: Callable[[Result], None] = lambda found: None,
    run: Callable[[Job, float], Result] | None = None,
) -> list[Result]:
    """Measures one job after the other; a peer that fails says why under ``error``.

    Args:
        work: What to measure, in order.
        jobs: Processes at once: so many are started, and the next when all are done. They build together, which slows
            builds, and time their calls one by one when all have built.
        budget_seconds: Nothing is begun after that time, and what is not done by then is left out.
        report: Receives each result when it is there.
        run: Measures a job within a number of seconds; by default a process of its own.

    Returns:
        The results that are there when the time is spent, in the order of the work.
    """
    until = time.monotonic() + budget_seconds
    run = run or in_process

    def one(job: Job) -> Result | None:
        left = until - time.monotonic()
        if left <= 0:
            return None
        try:
            found = run(job, left)
        except TimeoutError:
            return None
        except RuntimeError as error:
            found = {"error": str(error).strip().splitlines()[-1]}
        result = {**job._asdict(), **found}
        report(result)
        return result

    with ThreadPoolExecutor(jobs) as threads:
        waves = [work[begin : begin + jobs] for begin in range(0, len(work), jobs)]
        return [result for wave in waves for result in threads.map(one, wave) if result is not None]


def in_process(job: Job, seconds: float, *flags: str) -> Result:
    """Measures a job in a process of its own, which is ended after so many seconds."""
    limit = None if math.isinf(seconds) else seconds
    return in_fresh_process("tools.bench.latency_peer", job.model, str(job.batch), job.peer, *flags, seconds=limit)


def plan(
    models: Sequence[str], batches: Sequence[int], peers: Sequence[str], done: Collection[Job] = frozenset()
) -> list[Job]:
    """What is left to measure: the smallest batch of every model first."""
    everything = [Job(model, batch, peer) for batch in batches for model in models for peer in peers]
    return [job for job in everything if job not in done]


def rows(names: Sequence[str] = ("resnet50", "bert_base")) -> list[Row]:
    """A short run, as rows like those of other benchmarks: batch 1, beside eager."""
    found = measure(plan(names, [1], ["eager", OURS]))
    times = {(each["model"], each["peer"]): each["milliseconds"] / 1e3 for each in found if "milliseconds" in each}
    return [Row(f"{name}, compiled", times[name, OURS], times[name, "eager"], "eager") for name in names]


def table(results: Sequence[Result]) -> Table:
    """Milliseconds by model and peer."""
    peers = list(dict.fromkeys(each["peer"] for each in results))
    shown = Table(
        "model", "batch", *peers, "floor", title="milliseconds per call (build seconds)", title_justify="left"
    )
    for model, batch in dict.fromkeys((each["model"], each["batch"]) for each in results):
        found = {e["peer"]: e for e in results if (e["model"], e["batch"]) == (model, batch)}
        floors = [e["floor_milliseconds"] for e in found.values() if e.get("floor_milliseconds") is not None]
        floor = f"{floors[0]:.3f}" if floors else ""
        shown.add_row(model, str(batch), *(_cell(found.get(peer)) for peer in peers), floor)
    return shown


def _cell(found: Result | None) -> str:
    if found is None:
        return ""
    if "milliseconds" not in found:
        return "failed"
    return f"{found['milliseconds']:.3f} ({found['build_seconds']:.1f})"


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools.bench.latency", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64] if torch.cuda.is_available() else [1])
    available = [name for name, peer in PEERS.items() if peer.is_available()]
    parser.add_argument("--peers", nargs="+", default=available, choices=list(PEERS))
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--no-load", action="store_true", help="do not time loading")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which the run ends")
    parser.add_argument("--results", type=Path, help="append to this file, and leave out what it holds")
    arguments = parser.parse_args()
    console = Console()
    here = machine()
    known = [] if arguments.results is None else [each for each in read(arguments.results) if each["machine"] == here]

    def report(found: Result) -> None:
        line = {**found, "jobs": arguments.jobs, "date": today(), "machine": here}
        if arguments.results is not None:
            append(arguments.results, line)
        console.print(json.dumps(found), markup=False, highlight=False, soft_wrap=True)

    def run(job: Job, seconds: float) -> Result:
        return in_process(job, seconds, *(["--no-load"] if arguments.no_load else []))

    work = plan(arguments.models, arguments.batches, arguments.peers, measured(known, here))
    fresh = measure(work, jobs=arguments.jobs, budget_seconds=arguments.budget, report=report, run=run)
    console.print(table([*known, *fresh]))
    if len(fresh) < len(work):
        console.print(f"{len(work) - len(fresh)} of {len(work)} are left; the same command goes on with them")


if __name__ == "__main__":
    main()
