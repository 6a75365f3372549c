"""Files of other tools that people give where ours are wanted: what one is, and how to get from it to a program."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Final

from trt_core.files.opening import Path, opened


@dataclass(frozen=True)
class ForeignFile:
    """A file that another tool wrote.

    Attributes:
        what: What it is, as it goes on after "it is".
        hint: What to do with it.
    """

    what: str
    hint: str


_WITH_CODE: Final = (
    "write a function that makes the model and loads its weights, and returns (model, inputs); compile it with "
    "trtc compile MODULE:FUNCTION -o model.trtp"
)
EXPORTED_PROGRAM: Final = ForeignFile(
    "a program of torch.export", "compile it with trtc compile FILE -o model.trtp, unless it is compiled already"
)
_SAVED: Final = ForeignFile("weights, or a pickled model, as torch.save writes them", _WITH_CODE)
_SCRIPT: Final = ForeignFile(
    "an archive of TorchScript", f"take the module that it was made from: {_WITH_CODE.replace(' and loads', ', loads')}"
)
_ENGINE: Final = ForeignFile(
    "an engine without what ours are saved with",
    "run it through the API of the provider that built it, or compile the model that it was built from",
)
_MUTABLE_MODULE: Final = ForeignFile(
    "a mutable module in the archive that earlier versions wrote", "save it again with MutableModule.save"
)
_BEGINNINGS: Final = {
    b"\x80\x02": _SAVED,
    b"ftrt": _ENGINE,
    b"TRTPORT\n": _ENGINE,
    b"\x89HDF": ForeignFile("an HDF5 file, as Keras writes them", "give a model of PyTorch, or one in ONNX's format"),
    b"GGUF": ForeignFile("weights in the GGUF format", "give the folder of the checkpoint that they were made from"),
}
_ENDINGS: Final = {
    ".onnx": ForeignFile("a model in ONNX's format", "compile it with trtc compile FILE -o model.trtp"),
    ".py": ForeignFile(
        "Python code",
        "give MODULE:FUNCTION, a module's name without .py, and a function in it that returns (model, inputs)",
    ),
}


def foreign_file(path: Path) -> ForeignFile | None:
    """Finds out what another tool's file is, by how it begins, and what is in it where it is an archive.

    Nothing of it is decoded.

    Args:
        path: The file.

    Returns:
        What it is; None where nobody knows, and where it cannot be read.
    """
    try:
        with opened(path) as file:
            return _ENDINGS.get(os.path.splitext(os.fspath(path))[1]) or _kind(file)
    except Exception:  # it is no better known for the many ways in which an archive can be damaged
        return None


def _kind(file: BinaryIO) -> ForeignFile | None:
    start = file.read(16)
    for beginning, kind in _BEGINNINGS.items():
        if start.startswith(beginning):
            return kind
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < os.fstat(file.fileno()).st_size:
        return ForeignFile(
            "weights in the safetensors format", f"{_WITH_CODE}; or give hf:FOLDER, where they lie beside a config.json"
        )
    if not start.startswith(b"PK"):
        return None
    with zipfile.ZipFile(file) as archive:
        return _archive(archive.namelist())


def _archive(names: Iterable[str]) -> ForeignFile | None:
    ends = {name.rpartition("/")[2] for name in names}
    if ends & {"archive_format", "serialized_exported_program.json"}:
        return EXPORTED_PROGRAM
    if "constants.pkl" in ends:
        return _SCRIPT
    if "weights.json" in ends:
        return _MUTABLE_MODULE
    return _SAVED if "data.pkl" in ends else None
