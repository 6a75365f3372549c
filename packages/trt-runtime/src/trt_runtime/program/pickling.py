"""Pickles compiled models and loaded programs as the bytes of their files: for `torch.save` and for spawned workers."""

from __future__ import annotations

import copyreg
import io
from typing import Any

from torch import nn

from trt_runtime.program.fields import MAX_EXTENT
from trt_runtime.program.loading import program_from_memory
from trt_runtime.program.module import LoadedProgram, most_untold


def reduce_to_program(compiled: nn.Module) -> tuple[Any, ...]:
    """Returns what pickle keeps of a compiled model; what comes back is a `LoadedProgram`.

    Raises:
        ExportError: The module holds something that has no place in a program.
    """
    from trt_runtime.program.saving import program_of, write_program  # processes that only run programs never need it

    captured = program_of(compiled)
    file = io.BytesIO()
    write_program(file, captured)
    # what was compiled here has no limit, nor has its copy
    untold = most_untold(compiled) if isinstance(compiled, LoadedProgram) else MAX_EXTENT
    return _restore, (file.getvalue(), captured.program.libraries, untold)


def _restore(data: bytes, libraries: tuple[str, ...], untold: int) -> LoadedProgram:
    return program_from_memory(bytearray(data), operators=libraries, data_dependent_elements=untold)


def register() -> None:
    """Tells pickle how."""
    copyreg.pickle(LoadedProgram, reduce_to_program)
