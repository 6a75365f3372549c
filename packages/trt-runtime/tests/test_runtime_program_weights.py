"""Weights in saved programs: stored once, shared again, of every type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from trt_runtime import load, save
from trt_runtime.program.fields import DTYPES
from trt_runtime.program.loading import program_from_memory


class Shared(nn.Module):
    """Tied weights, a buffer that is a view of another one, and one that is a transposed view."""

    whole: torch.Tensor
    part: torch.Tensor
    turned: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.second = nn.Linear(16, 16, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("whole", torch.randn(64, 16))
        self.register_buffer("part", self.whole[16:32])
        self.register_buffer("turned", self.whole[:16].t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) @ self.turned + self.part[0] + self.whole.sum()


def test_shared_storage_is_stored_once_and_shared_again(tmp_path: Path) -> None:
    model = Shared().eval()
    program = torch.export.export(model, (torch.ones(2, 16),))
    save(program, tmp_path / "model.trtp")
    loaded = load(tmp_path / "model.trtp")
    x = torch.randn(2, 16)
    torch.testing.assert_close(loaded(x), model(x))
    state = loaded.state_dict()
    assert state["part"].data_ptr() == state["whole"][16:32].data_ptr()
    assert state["turned"].stride() == (1, 16)
    weights = 4 * (16 * 16 + 64 * 16)
    assert (tmp_path / "model.trtp").stat().st_size < weights + 3 * 4096 + 8192


def test_tied_weights_keep_both_names(tmp_path: Path) -> None:
    program = torch.export.export(Shared().eval(), (torch.ones(2, 16),))
    save(program, tmp_path / "model.trtp")
    loaded = load(tmp_path / "model.trtp")
    assert loaded.get_parameter("first.weight") is loaded.get_parameter("second.weight")


def test_a_part_of_a_large_tensor_is_stored_alone(tmp_path: Path) -> None:
    class Part(nn.Module):
        row: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("row", torch.randn(1 << 20)[1000:1010])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.row

    model = Part()
    save(torch.export.export(model, (torch.ones(10),)), tmp_path / "model.trtp")
    assert (tmp_path / "model.trtp").stat().st_size < 1 << 16
    assert torch.equal(load(tmp_path / "model.trtp")(torch.zeros(10)), model.row)


def test_every_type_of_tensor_survives(tmp_path: Path) -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, dtype in DTYPES.items():
                bits = torch.arange(32, dtype=torch.uint8) % (2 if dtype is torch.bool else 100)
                self.register_buffer(f"of_{name}", bits.clone().view(dtype) if dtype is not torch.bool else bits.bool())
            self.register_buffer("nothing", torch.empty(0, 3))
            self.register_buffer("scalar", torch.tensor(2.5))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"x": x + 1, **dict(self.named_buffers())}

    model = Typed()
    save(torch.export.export(model, (torch.ones(1),)), tmp_path / "model.trtp")
    results = load(tmp_path / "model.trtp")(torch.ones(1))
    for name, buffer in model.named_buffers():
        assert results[name].dtype is buffer.dtype, name
        assert results[name].shape == buffer.shape, name
        assert results[name].reshape(-1).view(torch.uint8).tolist() == buffer.reshape(-1).view(torch.uint8).tolist(), (
            name
        )


def test_memory_of_a_program_stays_while_its_weights_do(tmp_path: Path) -> None:
    model = nn.Linear(4, 4).eval()
    save(torch.export.export(model, (torch.ones(2, 4),)), tmp_path / "model.trtp")
    content = bytearray((tmp_path / "model.trtp").read_bytes())
    loaded = program_from_memory(content)
    with pytest.raises(BufferError):
        content.clear()
    torch.testing.assert_close(loaded(torch.ones(2, 4)), model(torch.ones(2, 4)))
