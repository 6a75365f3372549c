"""What another tool's file is told to be; what nobody knows, or cannot read, is told to be nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from trt_core.files.foreign import EXPORTED_PROGRAM, foreign_file


def test_programs_of_either_format_are_told_from_weights(tmp_path: Path) -> None:
    for name in ("model/archive_format", "serialized_exported_program.json"):
        with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
            archive.writestr(name, "pt2")
        assert foreign_file(tmp_path / "model.pt2") is EXPORTED_PROGRAM
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt2")
    found = foreign_file(tmp_path / "model.pt2")
    assert found is not None and "as torch.save writes them" in found.what


@pytest.mark.parametrize("content", [b"", b"P", b"PK\x03\x04" + bytes(100), b"no model", b"\xff" * 8 + b"{"])
def test_what_nobody_knows_is_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    assert foreign_file(tmp_path / "model") is None


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    assert foreign_file(tmp_path / "missing.onnx") is None
    assert foreign_file(tmp_path) is None
