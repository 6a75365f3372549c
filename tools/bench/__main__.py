"""`python -m tools.bench [NAME...] [--json FILE]`: runs benchmarks and prints their tables."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch
from rich.console import Console

from tools.bench.report import show, write_json

BENCHMARKS = (
    "import_time",
    "start_up",
    "isolation",
    "explain_time",
    "compile_cost",
    "cache_and_refit",
    "call_overhead",
    "portable_scaling",
    "partition_scaling",
    "conversion_scaling",
    "low_precision",
    "weight_streaming",
    "generation",
    "latency",
)


def main() -> None:
    """Runs the chosen benchmarks, all of them by default."""
    parser = argparse.ArgumentParser(prog="tools.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    console = Console()
    results = {}
    for name in arguments.names or BENCHMARKS:
        results[name] = importlib.import_module(f"tools.bench.{name}").rows()
        show(console, name.replace("_", " "), results[name])
    if arguments.json:
        write_json(arguments.json, results)


if __name__ == "__main__":
    main()
