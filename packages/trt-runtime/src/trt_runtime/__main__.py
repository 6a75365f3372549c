"""`python -m trt_runtime`: inspects, runs and times saved programs."""

from __future__ import annotations

import sys

from trt_runtime.command_line import main

if __name__ == "__main__":
    sys.exit(main())
