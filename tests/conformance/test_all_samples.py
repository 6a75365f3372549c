"""Every sample of PyTorch's operator database goes through the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conformance_check import Outcome, check_sample, summarize
from conformance_exclusions import EXCLUSIONS
from opinfo_samples import entries, samples_of, types_of

WHOLE = (torch.float32, torch.int64)
SAMPLED = (torch.float16, torch.bfloat16, torch.int32, torch.bool)
SAMPLES = 4
SHOWN = 5


def _cases() -> list[object]:
    cases = []
    for name in sorted(entries()):
        for dtype in types_of(name, (*WHOLE, *SAMPLED)):
            reason = EXCLUSIONS.get((name, dtype))
            marks = () if reason is None else (pytest.mark.xfail(reason=reason, strict=True),)
            cases.append(pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return cases


@pytest.mark.conformance
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "dtype"), _cases())
def test_samples_give_what_eager_gives(
    name: str, dtype: torch.dtype, sample_limit: int | None, record_property: Callable[[str, object], None]
) -> None:
    outcomes: list[Outcome] = []
    failures: list[str] = []
    for sample in samples_of(name, dtype, sample_limit if dtype in WHOLE else SAMPLES):
        try:
            outcomes.append(check_sample(name, sample))
        except Exception as error:  # whatever it is, the sample failed
            failures.append(f"{type(error).__name__}: {error}\n  {sample.describe()}")
    summary = {"operator": name, "type": str(dtype).removeprefix("torch."), **summarize(outcomes)}
    record_property("conformance", summary)
    assert not failures, f"{len(failures)} samples failed:\n" + "\n".join(failures[:SHOWN])
