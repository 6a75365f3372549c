"""`python -m tools.zoo run|tracing|speed|table|list`: runs the zoo, and writes the data of its page in the docs."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rich.console import Console

from tools.bench.latency_results import machine, today
from tools.zoo.entry import Case, Route, Shapes
from tools.zoo.record import Record, read_records
from tools.zoo.registry import ROUTES, cases, entries
from tools.zoo.runner import Limits, check_case, run
from tools.zoo.speed import BACKENDS, measure, speed_cases
from tools.zoo.table import summary, write_data
from tools.zoo.tracing import explained, measure_tracing, tracing_cases

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "build" / "zoo.jsonl"
DATA: Final = ROOT / "docs" / "data" / "zoo.json"
TRACING: Final = ROOT / "build" / "zoo_tracing.jsonl"
SPEED_RESULTS: Final = ROOT / "build" / "zoo_speed.jsonl"
SPEED_DATA: Final = ROOT / "docs" / "data" / "zoo_speed.json"


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(prog="tools.zoo", description=__doc__)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="run cases that have no record yet")
    runs.add_argument("patterns", nargs="*", help="only entries whose name contains one of them")
    runs.add_argument("--route", choices=[route.value for route in ROUTES])
    runs.add_argument("--shapes", choices=[shapes.value for shapes in Shapes])
    runs.add_argument("--device", default="cpu", help="where models run (default cpu)")
    runs.add_argument("--dtype", default="", help="what their floats are, float16 for example (default: as they come)")
    runs.set_defaults(command=_run, results=RESULTS)
    speed = commands.add_parser("speed", help="measure a sample beside Inductor, what has no record yet, and write it")
    speed.add_argument("pattern", nargs="?", default="", help="only entries whose name contains it")
    speed.add_argument("--route", choices=[peer.value for peer in BACKENDS])
    speed.add_argument("--each", type=int, default=10, help="how many entries of each library (default 10)")
    speed.add_argument("--data", type=Path, default=SPEED_DATA)
    speed.set_defaults(command=_speed, results=SPEED_RESULTS)
    tracing = commands.add_parser(
        "tracing", help="measure what PyTorch alone takes where torch.compile ran out of time"
    )
    tracing.add_argument("pattern", nargs="?", default="", help="only entries whose name contains it")
    tracing.add_argument("--of", type=Path, default=RESULTS, help="the records of cases")
    tracing.set_defaults(command=_tracing, results=TRACING)
    for command in (runs, speed, tracing):
        command.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
        command.add_argument("--seconds", type=float, default=Limits.seconds, help="wall-clock limit of a case")
        command.add_argument("--gib", type=float, default=Limits.bytes / 2**30, help="memory limit of a case")
        command.add_argument("--results", type=Path, help="file of records")
        command.add_argument("--budget", type=float, default=math.inf, help="seconds for all; what is left is not run")
    table = commands.add_parser("table", help="write the data of the documentation's page, and print the totals")
    table.add_argument("--results", type=Path, default=RESULTS)
    table.add_argument("--tracing", type=Path, default=TRACING, help="what `tracing` measured")
    table.add_argument("--data", type=Path, default=DATA)
    table.set_defaults(command=_table)
    names = commands.add_parser("list", help="print the names of the entries")
    names.set_defaults(command=_list)
    arguments = parser.parse_args()
    arguments.command(arguments, Console(highlight=False, soft_wrap=True))


def _run(arguments: argparse.Namespace, console: Console) -> None:
    route = Route(arguments.route) if arguments.route else None
    shapes = Shapes(arguments.shapes) if arguments.shapes else None
    work = functools.partial(check_case, device=arguments.device, dtype=arguments.dtype)
    _run_cases(cases(route, shapes, arguments.patterns), work, arguments, console)


def _tracing(arguments: argparse.Namespace, console: Console) -> None:
    slow = tracing_cases(list(read_records(arguments.of)), arguments.pattern)
    _run_cases(slow, measure_tracing, arguments, console)


def _run_cases(
    chosen: Iterable[Case], work: Callable[[Case], Record], arguments: argparse.Namespace, console: Console
) -> None:
    def told(record: Record) -> None:
        line = f"{record.outcome.value:12} {record.coverage:4.0%} {record.seconds:6.1f} s  {' '.join(record.key)}"
        console.print(f"{line}  {record.why[:200]}", markup=False)

    run(
        chosen,
        arguments.results,
        jobs=arguments.jobs,
        limits=_limits(arguments),
        told=told,
        work=work,
        budget=arguments.budget,
    )


def _speed(arguments: argparse.Namespace, console: Console) -> None:
    def told(record: Record) -> None:
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in record.speed.items())
        console.print(
            f"{record.outcome.value:8} {record.entry} {record.route}  {numbers}  {record.why[:200]}", markup=False
        )

    run(
        speed_cases(arguments.each, arguments.pattern, Route(arguments.route) if arguments.route else None),
        arguments.results,
        jobs=arguments.jobs,
        limits=_limits(arguments),
        told=told,
        work=measure,
        budget=arguments.budget,
    )
    chosen = {case.key for case in speed_cases(arguments.each)}
    records = [record for record in read_records(arguments.results) if record.key in chosen]
    write_data(arguments.data, records, machine() | {"date": today()})


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(arguments.seconds, int(arguments.gib * 2**30))


def _table(arguments: argparse.Namespace, console: Console) -> None:
    records = [record for record in read_records(arguments.results) if record.entry in entries()]
    write_data(arguments.data, explained(records, arguments.tracing))
    console.print(summary(records), markup=False)


def _list(arguments: argparse.Namespace, console: Console) -> None:
    for name in entries():
        console.print(name, markup=False)


if __name__ == "__main__":
    main()
