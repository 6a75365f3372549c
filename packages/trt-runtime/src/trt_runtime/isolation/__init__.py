"""Programs in a process of their own, which can do nothing but compute: for files that are trusted even less.

Read `program` (what the caller has), `worker` (the process), `confinement` (what it may not), `messages` (what passes
between them).
"""

from __future__ import annotations

from trt_runtime.isolation.program import IsolatedProgram, Isolation

__all__ = ["IsolatedProgram", "Isolation"]
