"""Programs in a process of their own, which can do nothing but compute: for files that are trusted even less.

Read `isolated_program` (what the caller has), `worker` (the process), `confinement` (what it may not), `messages` (what
passes between them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from trt_runtime.isolation.isolated_program import IsolatedProgram, Isolation

__all__ = ["IsolatedProgram", "Isolation"]

# what the caller has, and the process never imports: with it comes all of `torch._dynamo`
__getattr__, __dir__ = lazy_names(__name__, {f"{__name__}.isolated_program": ", ".join(__all__)})
