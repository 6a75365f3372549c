"""Models without weights are explained exactly like models with weights, and nothing is allocated for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import trt_frontends
from trt_core import Input, InputError
from trt_frontends.capture import is_weightless, with_fake_weights
from trt_partition import diff_reports

LIMIT_BYTES = 1 << 20
"""More than any constant that the models below compute, less than any of their weights."""


class _Largest(TorchDispatchMode):
    """Notes the largest real tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor) and not is_weightless(value):
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return result


class Block(nn.Module):
    """A transformer block with a table of its own, as language models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2048, width)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))
        self.head = nn.Linear(width, 2048, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: (N, L) int64; returns (N, L, 2048)."""
        positions = torch.arange(ids.shape[1], dtype=torch.float32)
        hidden = self.embedding(ids) * self.scale + torch.sin(positions)[:, None]
        for _ in range(3):
            hidden = hidden + torch.relu(self.mix(self.norm(hidden)))
        return self.head(hidden)


@contextmanager
def _no_weights_made() -> Iterator[None]:
    gc.collect()
    with _Largest() as largest:
        yield
    assert largest.bytes < LIMIT_BYTES


STATIC = Input((2, 8), dtype=torch.int64, tensor_domain=(0, 2048))
DYNAMIC = Input(min_shape=(1, 2), opt_shape=(2, 8), max_shape=(4, 16), dtype=torch.int64, tensor_domain=(0, 2048))


@pytest.mark.sampled
@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "settings", [{}, {"precision": torch.float16}, {"torch_executed_ops": {"aten.relu"}, "min_block_size": 1}]
)
def test_meta_models_are_explained_like_real_ones(spec: Input, settings: Any) -> None:
    real = trt_frontends.explain(Block(512).eval(), arg_inputs=(spec,), **settings)
    with torch.device("meta"):
        model = Block(512).eval()
    with _no_weights_made():
        found = trt_frontends.explain(model, arg_inputs=(spec,), **settings)
    assert not diff_reports(real, found)
    assert found.to_text() == real.to_text()
    assert found.engines[0].parameter_bytes > 0


def test_models_too_large_for_memory_are_explained() -> None:
    with torch.device("meta"):
        model = Block(1 << 20).eval()  # 4 TiB
    with _no_weights_made():
        report = trt_frontends.explain(model, arg_inputs=(Input((1, 8), dtype=torch.int64),))
    assert report.coverage == 1.0
    assert sum(engine.parameter_bytes for engine in report.engines) > 1 << 42


def test_tensors_on_the_meta_device_and_real_ones_are_inputs_alike() -> None:
    with torch.device("meta"):
        model = Block(512).eval()
    for ids in (torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, dtype=torch.int64, device="meta")):
        assert trt_frontends.explain(model, arg_inputs=(ids,)).coverage == 1.0


def test_models_partly_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Block(512).eval()
    model.scale = torch.ones(512)
    real = trt_frontends.explain(Block(512).eval(), arg_inputs=(STATIC,))
    assert not diff_reports(real, trt_frontends.explain(model, arg_inputs=(STATIC,)))


def test_fake_models_with_fake_inputs() -> None:
    real = trt_frontends.explain(Block(512).eval(), arg_inputs=(STATIC,))
    with FakeTensorMode():
        model, ids = Block(512).eval(), torch.zeros(2, 8, dtype=torch.int64)
    with _no_weights_made():
        found = trt_frontends.explain(model, arg_inputs=(ids,))
    assert not diff_reports(real, found)


def test_programs_exported_from_the_meta_device() -> None:
    with torch.device("meta"):
        program = torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), (torch.ones(2, 8),))
    assert trt_frontends.explain(program).coverage == 1.0


def test_a_dry_run_needs_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    with torch.device("meta"):
        model = Block(512).eval()
    trt_frontends.compile(model, arg_inputs=(STATIC,), dryrun=True)
    assert "100.00% coverage" in capsys.readouterr().out


def test_compiling_without_weights_is_refused() -> None:
    with torch.device("meta"):
        model = Block(512).eval()
    with pytest.raises(InputError, match="no weights to build engines from") as caught:
        trt_frontends.compile(model, arg_inputs=(STATIC,))
    assert "embedding.weight" in caught.value.where
    assert "dryrun=True" in caught.value.hint


def test_stand_ins_are_fake_tied_and_leave_the_model_alone() -> None:
    with torch.device("meta"):
        model = Block(512)
    stand_in = with_fake_weights(model)
    assert all(isinstance(value, FakeTensor) for value in stand_in.state_dict().values())
    assert stand_in.head.weight is stand_in.embedding.weight
    assert all(value.is_meta for value in model.state_dict().values())
    assert with_fake_weights(nn.Linear(2, 2)).weight.device.type == "cpu"
    real = nn.Linear(2, 2)
    assert with_fake_weights(real) is real
