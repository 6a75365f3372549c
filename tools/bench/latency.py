"""Time of a call on one machine: portable engines beside eager, `torch.compile` and ONNX Runtime.

`python -m tools.bench.latency [--models NAME...] [--batches N...] [--peers NAME...] [--jobs N] [--json FILE]`

Each peer runs in a process of its own with empty compiler caches. float16 on a GPU, float32 on the CPU with one
thread. Times are medians of calls that are waited for, with the 10th and 90th percentile beside them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tools.bench.latency_peer import PEERS
from tools.bench.measure import in_fresh_process
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


def measure(
    models: Sequence[str],
    batches: Sequence[int],
    peers: Sequence[str],
    jobs: int = 1,
    report: Callable[[dict[str, Any]], None] = lambda found: None,
) -> list[dict[str, Any]]:
    """Measures every model, batch and peer; a peer that fails says why under ``error``.

    Args:
        models: Names out of `tools.bench.models`.
        batches: Batch sizes.
        peers: Names out of `PEERS`.
        jobs: Processes at once. Calls are timed one process at a time, but builds slow each other down.
        report: Receives each result when it is there.
    """
    work = [(model, str(batch), peer) for model in models for batch in batches for peer in peers]

    def one(job: tuple[str, str, str]) -> dict[str, Any]:
        model, batch, peer = job
        try:
            found = in_fresh_process("tools.bench.latency_peer", *job)
        except RuntimeError as error:
            found = {"error": str(error).strip().splitlines()[-1]}
        result = {"model": model, "batch": int(batch), "peer": peer, **found}
        report(result)
        return result

    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(one, work))


def rows(names: Sequence[str] = ("resnet50", "bert_base")) -> list[Row]:
    """A short run, as rows like those of other benchmarks: batch 1, beside eager."""
    found = measure(names, [1], ["eager", OURS])
    times = {(each["model"], each["peer"]): each["milliseconds"] / 1e3 for each in found if "milliseconds" in each}
    return [Row(f"{name}, compiled", times[name, OURS], times[name, "eager"], "eager") for name in names]


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "dtype": "float16" if cuda else "float32",
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    """Milliseconds by model and peer."""
    peers = list(dict.fromkeys(each["peer"] for each in results))
    shown = Table("model", "batch", *peers, title="milliseconds per call (build seconds)", title_justify="left")
    for model, batch in dict.fromkeys((each["model"], each["batch"]) for each in results):
        found = {e["peer"]: e for e in results if (e["model"], e["batch"]) == (model, batch)}
        shown.add_row(model, str(batch), *(_cell(found.get(peer)) for peer in peers))
    return shown


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    if "milliseconds" not in found:
        return "failed"
    return f"{found['milliseconds']:.3f} ({found['build_seconds']:.1f})"


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools.bench.latency", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64] if torch.cuda.is_available() else [1])
    parser.add_argument("--peers", nargs="+", default=[name for name, peer in PEERS.items() if peer.is_available()])
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    arguments = parser.parse_args()
    console = Console()

    def report(found: dict[str, Any]) -> None:
        console.print(json.dumps(found), markup=False, highlight=False, soft_wrap=True)

    results = measure(arguments.models, arguments.batches, arguments.peers, arguments.jobs, report)
    console.print(table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
