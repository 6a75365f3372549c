"""Bytes and digests of plans."""

from __future__ import annotations

import gc
import hashlib
import os
import weakref

import pytest
import torch
from side_by_side import in_fork

from trt_core import PlanError
from trt_runtime import plan_notes
from trt_runtime.plan_notes import plan_bytes, plan_digest


def test_the_view_is_the_memory_and_keeps_it() -> None:
    tensor = torch.arange(200, dtype=torch.uint8)
    view = plan_bytes(tensor)
    assert view.readonly
    tensor[0] = 77
    watch = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert watch() is None
    assert bytes(view) == bytes([77, *range(1, 200)])


def test_the_digest_is_sha256(plan: torch.Tensor) -> None:
    assert plan_digest(plan) == hashlib.sha256(bytes(plan.tolist())).hexdigest()


def test_the_digest_follows_writes(plan: torch.Tensor) -> None:
    before = plan_digest(plan)
    plan[0] += 1
    assert plan_digest(plan) != before


def test_nothing_is_remembered_of_dead_tensors() -> None:
    before = len(plan_notes._digests)
    tensor = torch.ones(3, dtype=torch.uint8)
    plan_digest(tensor)
    assert len(plan_notes._digests) == before + 1
    del tensor
    gc.collect()
    assert len(plan_notes._digests) == before


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, dtype=torch.uint8),
        torch.empty(4, dtype=torch.int8),
        torch.empty(2, 2, dtype=torch.uint8),
        torch.empty(8, dtype=torch.uint8)[::2],
        torch.empty(4, dtype=torch.uint8, device="meta"),
    ],
    ids=["empty", "int8", "matrix", "strided", "meta"],
)
def test_other_tensors_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(PlanError):
        plan_digest(tensor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_digest_that_a_thread_computes_is_there_in_a_forked_process(plan: torch.Tensor) -> None:
    digest = plan_notes.LaterDigest(plan)
    with digest._lock:
        assert in_fork(lambda: str(digest) == plan_digest(plan))
