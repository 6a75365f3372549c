"""The command line `trtc`.

A package beside `trt_frontends`, so that `trtc --help` need not import PyTorch: each command imports what is costly
when it runs.
"""

from __future__ import annotations

import sys

try:
    from trtc.app import app, main
except KeyboardInterrupt:  # nobody has begun to run a command that could catch it
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["app", "main"]
