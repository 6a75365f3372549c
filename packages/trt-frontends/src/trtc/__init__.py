"""The command line `trtc`.

A package beside `trt_frontends`, so that `trtc --help` need not import PyTorch: each command imports what is costly
when it runs.
"""

from __future__ import annotations

from trtc.app import app, main

__all__ = ["app", "main"]
