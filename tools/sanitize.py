"""Runs forged plans on a GPU under NVIDIA's compute-sanitizer, which sees each access to memory that is nobody's.

``python -m tools.sanitize [FIRST] [LAST]`` takes the cases of these seeds; see `tests/support/plan_fuzzer.py`. It ends
with 0 where nothing was found, 1 where something was, and 2 where there is no GPU or no compute-sanitizer, which comes
with the CUDA toolkit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch

FUZZER: Final = Path(__file__).parent.parent / "tests" / "support" / "plan_fuzzer.py"
_USUAL: Final = "/usr/local/cuda/bin/compute-sanitizer"
_FOUND: Final = 9
"""How compute-sanitizer is to end where it found something."""


def main(first: str = "0", last: str = "200") -> int:
    """Runs the cases.

    Args:
        first, last: Seeds.
    """
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(_USUAL)
    if sanitizer is None or not torch.cuda.is_available():
        missing = "compute-sanitizer" if sanitizer is None else "GPU"
        sys.stderr.write(f"there is no {missing} here: nothing was run\n")
        return 2
    command = [sanitizer, "--tool", "memcheck", "--error-exitcode", str(_FOUND), "--print-limit", "20"]
    environment = {
        **os.environ,
        "TRT_FUZZ_DEVICE": "cuda",
        "TRT_PORTABLE_REPLAY": "0",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    done = subprocess.run([*command, sys.executable, str(FUZZER), first, last], env=environment, check=False)
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
