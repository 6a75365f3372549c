"""Runs kernels of Triton without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fresh_process import run_python


def run_interpreted(script: str | Path) -> Any:
    """Runs a script whose kernels Triton interprets, and returns what its last line says in JSON, if it says anything.

    It gets a process that has not imported Triton, which looks once, then; others of this process compile.

    Args:
        script: Python source, or the path of a file of it.
    """
    here = str(Path(__file__).parent)  # a script that is a test imports this module, too
    run = run_python(script, env={"TRITON_INTERPRET": "1", "PYTHONPATH": here}, bare=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1]) if run.stdout else None
