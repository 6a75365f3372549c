"""What a build does with the bytes of a large model: how often they are read, copied and hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core.errors import PlanError
from trt_core.files.container import Container
from trt_runtime import TRTModule, plan_notes
from trt_runtime.signatures import signer, verified_signer


@pytest.fixture(autouse=True)
def all_plans_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_notes, "_LARGE_BYTES", 1)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()


def _engine(compiled: nn.Module) -> TRTModule:
    return next(module for module in compiled.modules() if isinstance(module, TRTModule))


def test_a_build_and_its_calls_compute_no_digest_and_no_checksum_of_what_was_just_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the plan is read as a whole")

    x = torch.randn(2, 8)
    model = _model()
    with monkeypatch.context() as patched:
        patched.setattr(plan_notes.LaterDigest, "__str__", refuse)
        patched.setattr(Container, "verify", refuse)
        patched.setattr(plan_notes, "plan_digest", refuse)
        compiled = trt_frontends.compile(model, inputs=[x], min_block_size=1)
        y = compiled(x)
    torch.testing.assert_close(y, model(x))
    engine = _engine(compiled)
    assert engine.header.payload_sha256 == hashlib.sha256(plan_notes.plan_bytes(engine.plan)).hexdigest()


def test_engines_of_large_plans_are_found_by_header_and_by_text_alike(tmp_path: Path) -> None:
    x = torch.randn(2, 8)
    compiled = trt_frontends.compile(_model(), inputs=[x], min_block_size=1)
    expected = compiled(x)
    engine = _engine(compiled)
    (y,) = torch.ops.trt.execute_engine([x], engine.plan, engine.header.text)  # as exported programs call it
    assert torch.equal(y, expected) and torch.equal(compiled(x), expected)
    assert torch.equal(torch.compile(compiled, backend="eager")(x), expected)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    assert torch.equal(trt_frontends.load(tmp_path / "model.trtp")(x), expected)


def test_a_file_is_the_same_whether_digests_came_while_it_was_written_or_before(tmp_path: Path) -> None:
    compiled = trt_frontends.compile(_model(), inputs=[torch.randn(2, 8)], min_block_size=1)
    for name in ("while", "before"):
        trt_frontends.save(compiled, tmp_path / name, sign=True)
    assert (tmp_path / "while").read_bytes() == (tmp_path / "before").read_bytes()
    assert verified_signer(tmp_path / "while") == signer(tmp_path / "before")


def test_a_large_plan_that_was_written_to_is_not_the_one_of_its_header() -> None:
    x = torch.randn(2, 8)
    engine = _engine(trt_frontends.compile(_model(), inputs=[x], min_block_size=1))
    engine.plan[100] ^= 1
    with pytest.raises(PlanError, match="not the one that its header describes"):
        engine(x)
