"""`explain` beside `torch.export.export` on the same model."""

from __future__ import annotations

import functools

import torch

from tools.bench.measure import best_seconds
from tools.bench.models import make
from tools.bench.report import Row

NAMES = ("resnet50", "vit_b16", "bert_base", "gpt2", "swin_t")


def rows(names: tuple[str, ...] = NAMES) -> list[Row]:
    """Measures explaining an exported program, so that export is not counted twice."""
    import trt_frontends

    found = []
    for name in names:
        model, inputs = make(name)
        tensors = tuple(spec.example() for spec in inputs)
        trt_frontends.explain(torch.export.export(model, tensors), arg_inputs=inputs)  # imports, first-use tables
        exported = best_seconds(functools.partial(torch.export.export, model, tensors))
        program = torch.export.export(model, tensors)
        explained = best_seconds(functools.partial(trt_frontends.explain, program, arg_inputs=inputs))
        report = trt_frontends.explain(program, arg_inputs=inputs)
        note = f"{report.total_operators} operators, {report.coverage:.0%}, {len(report.engines)} engine(s)"
        found.append(Row(f"explain {name}", explained, exported, "torch.export.export", note=note))
    return found
