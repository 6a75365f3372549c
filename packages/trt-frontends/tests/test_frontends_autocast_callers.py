"""Compiled models compute the same inside of a caller's autocast as outside of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "products": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (4, 16)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (1, 3, 9, 9)),
    "recurrent layers": (lambda: nn.LSTM(16, 70), (5, 2, 16)),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", MODELS)
def test_autocast_of_a_caller_changes_nothing(name: str, device: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval().to(device), torch.randn(shape, device=device)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, device=device)
    with torch.no_grad():
        wanted = compiled(x)
        for _ in range(3):  # on a GPU the second run is recorded, and the third one replayed
            with torch.autocast(device, dtype=torch.bfloat16):
                found = compiled(x)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


class _Mixed(nn.Module):
    """A convolution in an engine, and a product that PyTorch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.product = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(torch.relu(self.convolution(x)).mean((2, 3)))


SETTINGS = {"min_block_size": 1, "torch_executed_ops": {"aten.linear.default"}}


def test_what_is_compiled_inside_of_an_autocast_is_what_is_compiled_outside_of_it() -> None:
    model, x = _Mixed().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        wanted = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="enable_autocast=True"):
        report = trt_frontends.explain(model, arg_inputs=(x,), min_block_size=1)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="autocast") as caught:
        compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    assert len(caught) == 1
    assert compiled.meta["partition_report"].coverage == report.coverage == 1.0
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="autocast"):
        program = trt_frontends.trace(model, arg_inputs=(x,))
    assert {node.meta["val"].dtype for node in program.graph.nodes if "val" in node.meta} == {torch.float32}


def test_reduced_types_that_were_asked_for_need_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    model, x = _Mixed().eval(), torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trt_frontends.explain(model, arg_inputs=(x,), enable_autocast=True, autocast_dtype=torch.bfloat16)
    assert not [item for item in recwarn if "autocast" in str(item.message)]


@pytest.mark.parametrize("is_loaded", [False, True], ids=["compiled", "loaded"])
def test_blocks_in_pytorch_compute_in_their_own_types(is_loaded: bool, tmp_path: Path) -> None:
    model, x = _Mixed().eval(), torch.randn(2, 3, 8, 8)
    compiled: nn.Module = trt_frontends.compile(model, arg_inputs=(x,), **SETTINGS)
    if is_loaded:
        trt_frontends.save(compiled, tmp_path / "model.trtp")
        compiled = trt_frontends.load(tmp_path / "model.trtp")
    with torch.no_grad():
        wanted = compiled(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = compiled(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_a_model_is_verified_in_its_own_types() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(UserWarning, match="autocast"):
        report = trt_frontends.verify(_Mixed().eval(), arg_inputs=(torch.randn(2, 3, 8, 8),), samples=1, exact=False)
    assert report.passed and report.outputs[0].dtype == "float32"
