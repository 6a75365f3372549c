"""`python -m tools.zoo run|table|list`: runs the zoo, and writes the data of its page in the documentation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from rich.console import Console

from tools.zoo.entry import Route, Shapes
from tools.zoo.record import Record, read_records
from tools.zoo.registry import cases, entries
from tools.zoo.runner import Limits, run
from tools.zoo.table import summary, write_data

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "build" / "zoo.jsonl"
DATA: Final = ROOT / "docs" / "data" / "zoo.json"


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(prog="tools.zoo", description=__doc__)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="run cases that have no record yet")
    runs.add_argument("pattern", nargs="?", default="", help="only entries whose name contains it")
    runs.add_argument("--route", choices=[route.value for route in Route])
    runs.add_argument("--shapes", choices=[shapes.value for shapes in Shapes])
    runs.add_argument("--jobs", type=int, default=1, help="processes at a time (default 1)")
    runs.add_argument("--seconds", type=float, default=Limits.seconds, help="wall-clock limit of a case")
    runs.add_argument("--gib", type=float, default=Limits.bytes / 2**30, help="memory limit of a case")
    runs.add_argument("--results", type=Path, default=RESULTS, help=f"file of records (default {RESULTS})")
    runs.set_defaults(command=_run)
    table = commands.add_parser("table", help="write the data of the documentation's page, and print the totals")
    table.add_argument("--results", type=Path, default=RESULTS)
    table.add_argument("--data", type=Path, default=DATA)
    table.set_defaults(command=_table)
    names = commands.add_parser("list", help="print the names of the entries")
    names.set_defaults(command=_list)
    arguments = parser.parse_args()
    arguments.command(arguments, Console(highlight=False, soft_wrap=True))


def _run(arguments: argparse.Namespace, console: Console) -> None:
    route = Route(arguments.route) if arguments.route else None
    shapes = Shapes(arguments.shapes) if arguments.shapes else None
    limits = Limits(arguments.seconds, int(arguments.gib * 2**30))

    def told(record: Record) -> None:
        line = f"{record.outcome.value:12} {record.coverage:4.0%} {record.seconds:6.1f} s  {' '.join(record.key)}"
        console.print(f"{line}  {record.why[:200]}", markup=False)

    run(
        cases(route, shapes, arguments.pattern),
        arguments.results,
        jobs=arguments.jobs,
        limits=limits,
        told=told,
    )


def _table(arguments: argparse.Namespace, console: Console) -> None:
    records = [record for record in read_records(arguments.results) if record.entry in entries()]
    write_data(arguments.data, records)
    console.print(summary(records), markup=False)


def _list(arguments: argparse.Namespace, console: Console) -> None:
    for name in entries():
        console.print(name, markup=False)


if __name__ == "__main__":
    main()
