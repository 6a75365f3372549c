"""Saved programs: a compiled model with its engines as one file that anyone may load.

Read the modules in this order: `graph` (what a program is), `layout` (its bytes), `document` with `tables`, `fields`
and `literals` (its JSON), `operators` (what it may call), `agreement` (whether its parts agree), `weights`,
`graph_signature`, `capture` and `saving`, `input_reader`, `executor`, `module` and `loading`. What it
asks of sizes is in `trt_core.sizes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trt_runtime.program.loading import load, reduce_to_program, register
from trt_runtime.program.module import LoadedProgram

if TYPE_CHECKING:
    from trt_runtime.program.saving import save

__all__ = ["LoadedProgram", "load", "reduce_to_program", "save"]

register()


def __getattr__(name: str) -> Any:
    if name != "save":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trt_runtime.program.saving import save  # with what captures graphs, which loading never needs

    return save
