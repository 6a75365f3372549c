"""The archive of a saved program, checked before PyTorch opens it.

PyTorch's archive may hold pickled objects and compiled libraries, which run code when they are read. Programs that
`trt_runtime.save` writes hold neither, so an archive that does is refused.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import Any, Final

from trt_core.errors import PlanError
from trt_runtime.container import MAGIC as PLAN_MAGIC

MANIFEST: Final = "trt_runtime.json"
"""Name of the manifest among the extra files of the archive."""

_COPY_AGAIN: Final = "copy the file again from where it was written, or save the model again"
_SAMPLE_INPUTS: Final = "data/sample_inputs/"
_FOLDERS: Final = ("models/", "extra/", "data/weights/", "data/constants/", _SAMPLE_INPUTS, ".data/")
_PAYLOADS: Final = ("weight_", "tensor_")  # every other kind of payload is a pickled object
_UNREADABLE: Final = (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, OSError)


def read_manifest(name: str) -> bytes:
    """Checks the archive of a saved program and returns its manifest.

    Args:
        name: Path of the file.

    Raises:
        PlanError: The file is truncated, corrupt or foreign, or holds what only code can read.
        OSError: The file cannot be read.
    """
    with open(name, "rb") as file:
        start = file.read(len(PLAN_MAGIC))
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, name)
                manifest = members.get(f"extra/{MANIFEST}")
                if manifest is None:
                    raise PlanError(
                        "this file was not written by trt_runtime.save",
                        where=name,
                        hint="programs of torch.export.save may contain pickled objects: load one with "
                        "torch.export.load (after importing trt_runtime) if you trust where it comes from",
                    )
                _check_content(archive, name)
                _refuse_code(archive, members, name)
                return archive.read(manifest)
        except PlanError:
            raise
        except _UNREADABLE as error:
            raise _unreadable(name, start, error) from error


def _members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """Members by their path inside the one folder that holds everything."""
    members: dict[str, zipfile.ZipInfo] = {}
    roots = set()
    for info in archive.infolist():
        root, _, path = info.filename.partition("/")
        roots.add(root)
        if path in members or len(roots) > 1:
            raise PlanError("the saved program is corrupt", where=name, why=f"unexpected member {info.filename}")
        members[path] = info
    return members


def _check_content(archive: zipfile.ZipFile, name: str) -> None:
    broken = archive.testzip()
    if broken is not None:
        raise PlanError(
            "the saved program is corrupt",
            where=name,
            why=f"the checksum of {broken} does not match",
            hint=_COPY_AGAIN,
        )


def _refuse_code(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> None:
    """Refuses members that PyTorch would unpickle or load as a library."""
    for path, info in members.items():
        if path.startswith("data/") and path.endswith("_config.json"):
            culprit = _pickled_payload(json.loads(archive.read(info)))
        elif path.startswith("data/") and path.endswith(".pt"):
            culprit = path if info.file_size else None
        elif "/" in path and not path.startswith(_FOLDERS):
            culprit = path
        else:
            continue
        if culprit is not None:
            raise PlanError(
                f"the saved program contains {culprit!r}, which can run code when it is read",
                where=name,
                hint="trt_runtime.save writes no such thing: the file was changed; save the model again",
            )


def _pickled_payload(config: Any) -> str | None:
    """Name of a payload that PyTorch would unpickle."""
    try:
        for name, payload in config["config"].items():
            if payload["use_pickle"] or not payload["path_name"].startswith(_PAYLOADS):
                return str(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the table of tensors is malformed: {error!r}") from error
    return None


def _unreadable(name: str, start: bytes, error: Exception) -> PlanError:
    if start == PLAN_MAGIC:
        return PlanError(
            "this is the plan of one engine, not a saved program",
            where=name,
            hint="read it with trt_runtime.read_plan",
        )
    if start[:2] == b"PK":
        return PlanError(
            "the saved program is truncated or corrupt",
            where=name,
            why=str(error),
            hint=_COPY_AGAIN,
        )
    return PlanError(
        "this is not a saved program",
        where=name,
        why=f"it starts with {start!r}" if start else "the file is empty",
        hint="give a file written by trt_runtime.save",
    )
