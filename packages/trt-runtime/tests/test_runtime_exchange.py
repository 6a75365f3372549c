"""PyTorch's own format: written for exchange, read only where the caller trusts it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trt_core import ExportError, PlanError
from trt_runtime import TRTModule, load, save

X = torch.ones(2, 3)


@pytest.fixture
def exchanged(static_engine: TRTModule, tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    save(static_engine, path, arg_inputs=(X,), format="exported_program")
    return path


def test_pytorch_reads_it(exchanged: Path) -> None:
    assert torch.equal(torch.export.load(str(exchanged)).module()(-X), torch.zeros(2, 3))


def test_it_is_read_only_with_trust(exchanged: Path) -> None:
    with pytest.raises(PlanError, match="can run code when it is read") as caught:
        load(exchanged)
    assert caught.value.where == str(exchanged)
    assert "trust=True" in caught.value.hint
    assert torch.equal(load(exchanged, trust=True)(-X), torch.zeros(2, 3))


def test_programs_of_torch_export_save_are_read_with_trust(static_engine: TRTModule, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(static_engine, (X,)), tmp_path / "model.pt2")
    assert torch.equal(load(tmp_path / "model.pt2", trust=True)(-X), torch.zeros(2, 3))


def test_what_pytorch_cannot_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("model/archive_format", "pt2")
    with pytest.raises(PlanError, match="PyTorch cannot read the saved program"):
        load(tmp_path / "model.pt2", trust=True)


@pytest.mark.parametrize("trust", [False, True])
def test_weights_are_no_program(tmp_path: Path, trust: bool) -> None:
    torch.save({"weights": X}, tmp_path / "model.pt2")
    with pytest.raises(PlanError, match="it is weights, or a pickled model"):
        load(tmp_path / "model.pt2", trust=trust)


def test_tensor_subclasses_are_refused(static_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(nn.Sequential(static_engine), (X,))
    program.state_dict["0.strange"] = torch.masked.masked_tensor(torch.ones(2), torch.ones(2) > 0)
    with pytest.raises(ExportError, match=r"'0\.strange' is a MaskedTensor, which can only be saved with pickle"):
        save(program, tmp_path / "model.pt2", format="exported_program")


def test_nothing_stays_of_a_save_that_fails(
    static_engine: TRTModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(program: Any, file: Any, **keywords: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch.export, "save", fail)
    (tmp_path / "model.pt2").write_bytes(b"before")
    with pytest.raises(OSError, match="no space left"):
        save(static_engine, tmp_path / "model.pt2", arg_inputs=(X,), format="exported_program")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("model.pt2", b"before")]


class _Keyed(nn.Module):
    """Keeps its parts under names that are no identifiers."""

    def __init__(self, engine: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"bert-base": nn.Linear(3, 3), 'a", print("ran"), "b': nn.Linear(3, 3)})
        self.engine = engine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts.values():
            x = part(x)
        result: torch.Tensor = self.engine(x)
        return result


def test_names_that_are_no_identifiers_become_no_code(
    static_engine: TRTModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FX prints names of weights into the code of what is exported again, quotes and all."""
    model = _Keyed(static_engine).eval().requires_grad_(False)
    x = torch.randn(2, 3)
    save(model, tmp_path / "model.trtp", arg_inputs=(x,))
    loaded = load(tmp_path / "model.trtp")
    names = [name for name, _ in loaded.named_parameters()]
    assert "parts.bert-base.weight" in names and not any('"' in name for name in names)
    again = torch.export.export(loaded, (x,)).module()
    assert torch.equal(again(x), model(x))
    assert "ran" not in capsys.readouterr().out
