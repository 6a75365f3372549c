"""The command line `trtc`."""

from __future__ import annotations

from trt_frontends.cli.app import app, main

__all__ = ["app", "main"]
