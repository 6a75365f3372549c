"""The command line of an inference machine, where `trtc` is not installed; `trtc` has the same commands."""

from __future__ import annotations

from trt_runtime.command_line.commands import main, run_command

__all__ = ["main", "run_command"]
