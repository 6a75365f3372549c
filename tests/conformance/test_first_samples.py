"""The first float32 sample of every fourth operator of PyTorch's database: what runs with every change.

`nox -s stress` runs that of all of them, `nox -s conformance` all samples. What converters and runtime hand to the
provider meanwhile is held to the real bindings.
"""

from __future__ import annotations

import os

import pytest
import torch
from binding_calls import CallChecker
from conformance_check import check_sample
from conformance_exclusions import EXCLUSIONS
from opinfo_samples import entries, samples_of, types_of

import trt_portable

STEP = 1 if "TRT_STRESS" in os.environ else 4
SHARDS = 12


@pytest.mark.parametrize("shard", range(SHARDS))
def test_first_samples(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CallChecker(trt_portable, monkeypatch)
    failures = []
    for name in sorted(entries())[::STEP][shard::SHARDS]:
        if (name, torch.float32) in EXCLUSIONS:
            continue
        for dtype in types_of(name, (torch.float32,)):
            for sample in samples_of(name, dtype, 1):
                try:
                    check_sample(name, sample)
                except Exception as error:  # whatever it is, the sample failed
                    failures.append(f"{name}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)
    assert len(calls.seen) > 10
    assert not calls.wrong, "\n".join(calls.wrong)
