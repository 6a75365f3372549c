"""Pickles loaded programs as the bytes of their files: for `torch.save`, and for workers that are spawned."""

from __future__ import annotations

import copyreg
import io
from typing import Any

from trt_runtime.program.loading import program_from_memory
from trt_runtime.program.module import LoadedProgram, captured_from
from trt_runtime.program.saving import write_program


def _reduce(loaded: LoadedProgram) -> tuple[Any, ...]:
    captured = captured_from(loaded)
    file = io.BytesIO()
    write_program(file, captured)
    return _restore, (file.getvalue(), captured.program.libraries)


def _restore(data: bytes, libraries: tuple[str, ...]) -> LoadedProgram:
    return program_from_memory(bytearray(data), operators=libraries)


def register() -> None:
    """Tells pickle how."""
    copyreg.pickle(LoadedProgram, _reduce)
