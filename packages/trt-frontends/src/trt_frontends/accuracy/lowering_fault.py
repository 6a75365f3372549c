"""Finds the lowering passes after which a graph no longer computes what it did before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from trt_frontends.accuracy.subject import Subject
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.result_tensors import tensors_of


def find_lowering_passes(
    subject: Subject, case: SampleInputs, expected: Sequence[torch.Tensor], allowed: float
) -> tuple[str, ...]:
    """Lowers a model again, running the graph in PyTorch after every pass.

    Returns:
        The names of the passes that move the result by more than `allowed`, `capture` for what is wrong before any.
        Where no single one does, the first after which the result is beyond it.
    """
    jumps: list[str] = []
    beyond: list[str] = []
    last = expected

    def observe(name: str, gm: fx.GraphModule) -> None:
        nonlocal last
        gm.recompile()
        with torch.no_grad():
            found = tensors_of(case.call(gm))
        if _distance(found, last) > allowed:
            jumps.append(name)
        if _distance(found, expected) > allowed:
            beyond.append(name)
        last = found

    subject.capture(observe=observe).lower()
    return tuple(jumps or beyond[:1])


def _distance(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max((measure_error(left, right).scaled for left, right in pairs), default=0.0)
