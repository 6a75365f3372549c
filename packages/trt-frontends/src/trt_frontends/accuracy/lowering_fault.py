"""Finds the lowering pass after which a graph no longer computes what the model does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trt_frontends.accuracy.subject import Subject
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.compiler import lower
from trt_frontends.result_tensors import tensors_of


def find_lowering_pass(subject: Subject, case: SampleInputs, expected: Sequence[torch.Tensor], allowed: float) -> str:
    """Lowers a model again, running the graph in PyTorch after every pass.

    Returns:
        The name of the first pass after which the error is beyond `allowed`; `capture` when it is so before any pass.
    """
    first: list[str] = []

    def observe(name: str, gm: fx.GraphModule) -> None:
        if first:
            return
        gm.recompile()
        with torch.no_grad():
            found = tensors_of(case.call(gm))
        pairs = zip(found, expected, strict=True)
        if max((measure_error(left, right).scaled for left, right in pairs), default=0.0) > allowed:
            first.append(name)

    lower(subject.begin(observe=observe))
    return first[0] if first else ""
