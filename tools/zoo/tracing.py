"""What PyTorch alone takes for a case that ran out of time or memory: the same calls, through `backend="aot_eager"`.

Dynamo and AOTAutograd trace before this project's backend sees a graph. Where they alone take as long, nothing here
could have made the case faster.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from tools.zoo.check import SEED, SIZES, call, sample_values
from tools.zoo.entry import Case, Route, Shapes
from tools.zoo.record import Outcome, Record, read_records
from tools.zoo.registry import entries
from tools.zoo.settle import settle

EXPLAINED: Final = (Outcome.TIMEOUT, Outcome.MEMORY)
"""Outcomes that say nothing of who is at fault."""


def tracing_cases(records: Sequence[Record], pattern: str = "") -> Iterator[Case]:
    """Yields a case of PyTorch's own for each record of `torch.compile` that ran out of time or memory.

    Args:
        records: What became of cases.
        pattern: Only entries whose name contains it.
    """
    for record in records:
        if _is_explained(record) and pattern in record.entry and record.entry in entries():
            yield Case(record.entry, Route.AOT_EAGER, Shapes(record.shapes))


def measure_tracing(case: Case) -> Record:
    """Makes the calls of a case through `backend="aot_eager"`, on one thread.

    Returns:
        A record whose `speed` has the wall-clock seconds of each call, by the name of its sizes.
    """
    torch.set_num_threads(1)
    entry = entries()[case.entry]
    torch.manual_seed(SEED)
    speed: dict[str, float] = {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        optimized = torch.compile(settle(entry.make()), backend="aot_eager", dynamic=case.shapes is Shapes.DYNAMIC)
        for size in SIZES[case.shapes]:
            start = time.perf_counter()
            call(optimized, sample_values(entry, size))
            speed[size] = time.perf_counter() - start
    return Record.of(case, Outcome.WHOLE, seconds=sum(speed.values()), speed=speed)


def explained(records: Sequence[Record], path: Path) -> list[Record]:
    """Returns records, those that ran out of time or memory with what PyTorch alone takes for their calls.

    Args:
        records: What became of cases.
        path: Records of `measure_tracing`; there may be none.
    """
    alone = {(record.entry, record.shapes): record for record in read_records(path)}
    return [_explained(record, alone) for record in records]


def _explained(record: Record, alone: Mapping[tuple[str, str], Record]) -> Record:
    other = alone.get((record.entry, record.shapes)) if _is_explained(record) else None
    if other is None or other.outcome not in (Outcome.WHOLE, *EXPLAINED):
        return record
    limit = other.why.partition(":")[0]  # "took more than 150 s: 140 s in Dynamo"
    took = f"takes {other.seconds:.0f} s" if other.outcome is Outcome.WHOLE else limit
    return dataclasses.replace(record, why=f'{record.why}; backend="aot_eager" {took} for the same calls')


def _is_explained(record: Record) -> bool:
    return record.route == Route.TORCH_COMPILE.value and record.outcome in EXPLAINED
