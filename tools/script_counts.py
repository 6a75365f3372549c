"""Runs scripts that are written for torch-tensorrt under the alias, and counts: unchanged, with one line, failing.

    python -m tools.script_counts FOLDER

`FOLDER/edits.json` says for scripts by name which line is to be replaced by which, where that is needed. Without a GPU
the scripts run on the CPU: `.cuda()` and `"cuda"` in them are taken to mean that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNCHANGED: Final = "unchanged"
ONE_LINE: Final = "one line"
FAILING: Final = "failing"


@dataclass(frozen=True)
class Outcome:
    """What became of a script.

    Attributes:
        script: Its name.
        outcome: `UNCHANGED`, `ONE_LINE` or `FAILING`.
        why: The error of a failing one, in one line.
    """

    script: str
    outcome: str
    why: str = ""


def run_scripts(folder: Path) -> list[Outcome]:
    """Runs every script of a folder, in the order of their names."""
    edits_file = folder / "edits.json"
    edits: Mapping[str, tuple[str, str]] = json.loads(edits_file.read_text()) if edits_file.is_file() else {}
    return [_outcome(path, edits.get(path.name)) for path in sorted(folder.glob("*.py"))]


def _outcome(path: Path, edit: tuple[str, str] | None) -> Outcome:
    source = path.read_text(encoding="utf-8")
    why = _failure(source, path)
    if not why:
        return Outcome(path.name, UNCHANGED)
    if edit is not None:
        before, after = edit
        lines = source.splitlines()
        if lines.count(before) != 1 or "\n" in after:
            return Outcome(path.name, FAILING, "its edit is not of one line that is there once")
        lines[lines.index(before)] = after
        why = _failure("\n".join(lines), path)
        if not why:
            return Outcome(path.name, ONE_LINE)
    return Outcome(path.name, FAILING, why)


def _failure(source: str, path: Path) -> str:
    """Runs a script; returns how it fails, nothing where it does not."""
    import torch

    import trt_frontends

    torch._dynamo.reset()
    if not torch.cuda.is_available():
        source = source.replace(".cuda()", "").replace('"cuda"', '"cpu"').replace('"cuda:0"', '"cpu"')
    before = set(sys.modules)
    trt_frontends.install_alias()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, str(path), "exec"), {"__name__": "__main__"})
    except (Exception, SystemExit) as error:
        return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "torch_tensorrt":
                del sys.modules[name]
    return ""


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """Returns how many scripts had each outcome."""
    counted = Counter(outcome.outcome for outcome in outcomes)
    return {outcome: counted[outcome] for outcome in (UNCHANGED, ONE_LINE, FAILING)}


def main() -> None:
    """Prints a line for each script, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    outcomes = run_scripts(parser.parse_args().folder)
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.outcome:10} {outcome.script}{f': {outcome.why}' if outcome.why else ''}\n")
    sys.stdout.write(", ".join(f"{count} {outcome}" for outcome, count in counts(outcomes).items()) + "\n")


if __name__ == "__main__":
    main()
