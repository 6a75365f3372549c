"""The command line under the package's own name; it lives in `trtc`, which starts without importing PyTorch."""

from __future__ import annotations

from trtc import app, main

__all__ = ["app", "main"]
