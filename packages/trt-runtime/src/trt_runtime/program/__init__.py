"""Saved programs: a compiled model with its engines as one file that anyone may load.

Read the modules in this order: `graph` (what a program is), `trt_runtime.program_file` (its bytes), `document` with
`tables`, `fields` and `literals` (its JSON), `allowed_operators` (what it may call), `agreement` (whether its parts
agree), `weights`, `graph_signature`, `emitter` and `saving`, `input_reader` and `model_call`, `executor`,
`loaded_program` and `loading`. What it asks of sizes is in `trt_core.sizes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_core.lazy_names import lazy_names
from trt_runtime.program.loaded_program import LoadedProgram
from trt_runtime.program.loading import load, reduce_to_program, register

if TYPE_CHECKING:
    from trt_runtime.program.saving import save

__all__ = ["LoadedProgram", "load", "reduce_to_program", "save"]

register()


if not TYPE_CHECKING:  # `saving` comes with what captures graphs, which loading never needs
    __getattr__, __dir__ = lazy_names(__name__, {"trt_runtime.program.saving": "save"})
