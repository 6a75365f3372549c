"""What benchmarks wrote: a line of JSON for each result, by the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]


def by_machine(path: Path) -> list[list[Result]]:
    """Returns the results of each machine, both in the order of the file."""
    machines: dict[str, list[Result]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        machines.setdefault(json.dumps(result["machine"], sort_keys=True), []).append(result)
    return list(machines.values())
