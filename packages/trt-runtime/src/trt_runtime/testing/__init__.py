"""For tests of readers: saved programs taken apart, changed, and put together again with right checksums."""

from __future__ import annotations

from trt_runtime.testing.program_file import ProgramFile

__all__ = ["ProgramFile"]
