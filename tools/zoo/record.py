"""What became of a case: one line of JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.zoo.entry import Case


class Outcome(enum.Enum):
    """What became of a case, from best to worst."""

    WHOLE = "whole"
    """Right, and every operator runs in engines."""
    PARTLY = "partly"
    """Right; some operators run in PyTorch, for the reasons given."""
    IN_TORCH = "in PyTorch"
    """Right; no engine was built, for the reasons given."""
    NOT_CAPTURED = "not captured"
    """PyTorch cannot export the model, or not with these dynamic dimensions."""
    EXCLUDED = "excluded"
    """The case can say nothing, for the reason given."""
    WRONG = "wrong"
    """The results differ from eager's by more than rounding explains."""
    FAILED = "failed"
    """The compilation or the call raised."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """Killed at its limit of time or memory."""


DEFECTS = frozenset({Outcome.WRONG, Outcome.FAILED, Outcome.TIMEOUT, Outcome.MEMORY})
"""Outcomes that are a fault of ours until shown otherwise."""


@dataclass(frozen=True)
class Record:
    """What became of a case.

    Attributes:
        entry, route, shapes: The case, as text.
        outcome: What became of it.
        why: The message of the error or the exclusion.
        coverage: Share of operators that run in engines, 0 to 1.
        operators: Number of operators.
        engines: Number of engines.
        graphs: Number of graphs the model was compiled in, more than one where `torch.compile` cut it.
        error: Largest distance from eager; see `tools.zoo.comparison`.
        own_error: Eager's own distance from its float64 result, None where it is not known.
        seconds: Wall-clock seconds to compile, export included.
        reasons: Reason codes and messages of the operators that run in PyTorch.
        phases: Wall-clock seconds of the whole case, by who was at work; see `tools.zoo.phases`.
        speed: What `tools.zoo.speed` measured.
    """

    entry: str
    route: str
    shapes: str
    outcome: Outcome
    why: str = ""
    coverage: float = 0.0
    operators: int = 0
    engines: int = 0
    graphs: int = 0
    error: float | None = None
    own_error: float | None = None
    seconds: float = 0.0
    reasons: Mapping[str, str] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, outcome: Outcome, **facts: Any) -> Record:
        """Returns the record of a case."""
        return cls(case.entry, case.route.value, case.shapes.value, outcome, **facts)

    @property
    def key(self) -> tuple[str, str, str]:
        """The case as text."""
        return (self.entry, self.route, self.shapes)

    def to_json(self) -> str:
        """Returns the record on one line."""
        return json.dumps(dataclasses.asdict(self) | {"outcome": self.outcome.value}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Reads what `to_json` wrote."""
        data = json.loads(line)
        return cls(**{**data, "outcome": Outcome(data["outcome"])})


def read_records(path: Path) -> Iterator[Record]:
    """Yields the records of a file, the last one of each case; a line cut short by a crash is passed over."""
    latest: dict[tuple[str, str, str], Record] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = Record.from_json(line)
            except (ValueError, TypeError):
                continue
            latest[record.key] = record
    yield from latest.values()
