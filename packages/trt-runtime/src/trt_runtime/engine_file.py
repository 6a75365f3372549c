"""The plan container: one engine as one file of two sections, the header as JSON and the provider's plan.

The plan is used where it lies: files are mapped into memory, not read. Nothing in the format is executable.
"""

from __future__ import annotations

import functools
import io
from enum import IntEnum
from typing import Any, Final

import torch

from trt_core.errors import PlanError
from trt_core.files.container import Container
from trt_core.files.folder import Folder
from trt_core.files.opening import map_file
from trt_core.files.replacing import Path as Path
from trt_core.files.replacing import file_name
from trt_core.files.replacing import replacing as replacing
from trt_core.held_arguments import held_to_signature
from trt_runtime.compatibility import check_compatible
from trt_runtime.header import PlanHeader
from trt_runtime.plan_notes import Bounds, is_vouched, note_bounds, plan_bytes, plan_digest, vouch


class SectionKind(IntEnum):
    """What a section holds; a file has one of each, in this order."""

    HEADER = 1
    PLAN = 2


PLAN: Final = Container(
    magic=b"TRTPLAN\n",
    version=2,
    kinds=SectionKind,
    alignment=256,
    noun="plan file",
    reader="trt-runtime",
    writer="trt_runtime.write_plan",
    again="compile the model again",
)
"""The file of one engine."""


@held_to_signature
def write_plan(path: Path, header: PlanHeader, plan: torch.Tensor, folder: Folder | None = None) -> None:
    """Writes an engine to a file; the file appears complete or not at all.

    Args:
        path: The file; an existing one is replaced.
        header: Header of the engine.
        plan: (bytes,), uint8: the serialized engine.
        folder: See `trt_core.files.replacing.replacing`.

    Raises:
        PlanError: The plan is not the one that the header describes.
        OSError: The file cannot be written.
    """
    sections = _sections(header, plan)
    with replacing(path, folder) as file:
        PLAN.write(file, sections)


@held_to_signature
def plan_to_bytes(header: PlanHeader, plan: torch.Tensor) -> bytes:
    """Returns the container as bytes; see `write_plan`.

    Raises:
        PlanError: The plan is not the one that the header describes.
    """
    file = io.BytesIO()
    PLAN.write(file, _sections(header, plan))
    return file.getvalue()


@held_to_signature
def read_plan(path: Path, *, check: bool = True, copy: bool | None = None) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from a file.

    Args:
        path: A file that `write_plan` wrote.
        check: Also check that this process can run the engine. Without it, engines for other targets can be
            inspected.
        copy: See `trt_runtime.load`.

    Returns:
        The header, and the plan: (bytes,), uint8. Where it is mapped from the file, that must not be changed in place
        while the tensor lives; `write_plan` replaces files, which is safe.

    Raises:
        InputError: `path` names no file.
        PlanError: The file is truncated, corrupt, foreign, or for another target; the message says which.
        OSError: The file cannot be read.
    """
    name = file_name(path)
    content = map_file(name, "a plan file", "trt_runtime.write_plan", copy=copy)
    return plan_from_memory(content, where=name, check=check)


@held_to_signature
def plan_from_bytes(data: bytes, *, check: bool = True) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from bytes; see `read_plan`. The bytes are copied once."""
    return plan_from_memory(bytearray(data), where="", check=check)


def _sections(header: PlanHeader, plan: torch.Tensor) -> list[tuple[SectionKind, list[memoryview | bytes]]]:
    check_payload(header, plan)
    return [(SectionKind.HEADER, [header.text.encode()]), (SectionKind.PLAN, [plan_bytes(plan)])]


def check_payload(header: PlanHeader, plan: torch.Tensor, where: str = "") -> None:
    """Checks that a plan is the one that a header describes.

    The content of a plan that was vouched for is not read again.

    Raises:
        PlanError: Size or content differ.
    """
    if plan.numel() != header.payload_bytes:
        raise PlanError(
            f"the plan of {header.title} has {plan.numel()} bytes, its header says {header.payload_bytes}",
            where=where,
            hint=PLAN.copy_again,
        )
    if not is_vouched(plan) and not header.surely_describes(plan) and plan_digest(plan) != header.payload_sha256:
        raise PlanError(
            f"the plan of {header.title} is not the one that its header describes",
            where=where,
            why="the SHA-256 of the plan differs from the header's",
            hint=PLAN.copy_again,
        )


def plan_from_memory(content: Any, *, where: str, check: bool) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from memory that nobody else writes to, and uses it where it is; see `read_plan`.

    Args:
        content: A private map of a file, or a bytearray.
        where: The file's name for messages.
        check: See `read_plan`.

    Raises:
        PlanError: See `read_plan`.
    """
    data = memoryview(content)
    try:
        sections = PLAN.read(data)
        if [section.kind for section in sections] != list(SectionKind):
            raise PLAN.damaged("it must have a header and a plan")
        for section in sections:
            PLAN.verify(data, section)
        text, payload = sections
        header = PlanHeader.from_text(bytes(text.of(data)))
    except PlanError as error:
        raise PlanError(error.what, where=where, why=error.why, hint=error.hint) from error
    plan = torch.frombuffer(data, dtype=torch.uint8, offset=payload.offset, count=payload.size)
    vouch(plan)  # its bytes were just verified
    note_bounds(plan, _bounds())
    check_payload(header, plan, where)
    if check:
        check_compatible(header, where=where)
    return header, plan


@functools.cache
def _bounds() -> Bounds:
    """What calls of an engine may use that was read from a file of its own."""
    from trt_core.limits import CallLimits  # which engines that are built here never need

    return Bounds(CallLimits(), lambda: False)
