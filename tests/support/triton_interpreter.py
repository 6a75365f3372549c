"""Runs kernels of Triton without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_interpreted(file: str) -> Any:
    """Runs a script whose kernels Triton interprets, and returns what its last line says in JSON.

    It gets an interpreter of its own: Triton looks once, when it is imported, and others of this process compile.

    Args:
        file: The script.
    """
    here = str(Path(__file__).parent)  # the script imports this module, too
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    run = subprocess.run(
        [sys.executable, file],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])
