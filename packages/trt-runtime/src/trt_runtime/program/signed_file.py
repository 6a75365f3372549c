"""Signatures of program files as they lie on disk: who has signed one, and signing it anew."""

from __future__ import annotations

import os

from trt_core.errors import InputError, PlanError
from trt_core.files.container import Section
from trt_core.files.opening import map_file
from trt_core.files.replacing import Path, file_name, replacing
from trt_runtime.program.layout import PROGRAM, SectionKind, read_sections
from trt_runtime.signatures import INSTALL, PublicKey, Signer, can_sign, signer_of, signing_key, verify


def signer(path: Path) -> PublicKey:
    """Who says that they signed a program; `verified_signer` finds out whether they did.

    Raises:
        PlanError: It is no saved program, or has no signature.
        OSError: It cannot be read.
    """
    data, _, signature = _open(path)
    return signer_of(_required(signature, path).of(data))


def verified_signer(path: Path) -> PublicKey:
    """Who has signed a program.

    Raises:
        InputError: Signatures cannot be verified here.
        PlanError: It is no saved program, has no signature, or was changed since.
        OSError: It cannot be read.
    """
    _require_cryptography()
    data, sections, signature = _open(path)
    found = _required(signature, path)
    if not verify(data, sections, found):
        raise PlanError(
            f"the program is not what {signer_of(found.of(data))} has signed",
            where=os.fspath(path),
            hint="copy the file again from where it was written, or ask whoever signed it",
        )
    return signer_of(found.of(data))


def sign(path: Path) -> PublicKey:
    """Signs a program with this user's key, in the place of a signature that it has.

    Whoever trusts this user trusts what is in the file then, compiled code included.

    Raises:
        InputError: Programs cannot be signed here.
        PlanError: It is no saved program, or is damaged.
        CacheError: The key cannot be made or read.
        OSError: It cannot be read or written.
    """
    _require_cryptography()
    data, sections, _ = _open(path)
    for section in sections:
        PROGRAM.verify(data, section)
    key = signing_key()
    pen = Signer(key)
    parts = [(SectionKind(item.kind), pen.passing(item.kind, [item.of(data)])) for item in sections]
    with replacing(path) as file:
        PROGRAM.write(file, [*parts, (SectionKind.SIGNATURE, pen.signature())])
    return PublicKey(key.public_key().public_bytes_raw())


def _open(path: Path) -> tuple[memoryview, list[Section], Section | None]:
    data = memoryview(map_file(file_name(path), "a saved program", "trt_runtime.save"))
    sections = read_sections(data)
    signature = next((item for item in sections if item.kind is SectionKind.SIGNATURE), None)
    return data, [item for item in sections if item is not signature], signature


def _required(signature: Section | None, path: Path) -> Section:
    if signature is None:
        raise PlanError(
            "the program is not signed", where=os.fspath(path), hint="trtc sign signs it, if you trust what is in it"
        )
    return signature


def _require_cryptography() -> None:
    if not can_sign():
        raise InputError("signatures need cryptography, which is not installed", hint=INSTALL)
