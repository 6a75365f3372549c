"""Calls that a type checker takes, and some that it rejects: an ignore that nothing needs is an error, too."""

from __future__ import annotations

import torch
from torch import nn

import trt_frontends
from trt_frontends import dynamo
from trt_frontends.accuracy import verify


def calls(model: nn.Module, x: torch.Tensor) -> None:
    """Is read by mypy, and never run."""
    trt_frontends.compile(model, arg_inputs=[x], min_block_size=3, precision="half", torch_executed_ops={"aten.relu"})
    trt_frontends.compile(model, inputs=[x], ir="dynamo", make_refittable=True, device="cuda:1", dryrun="report.txt")
    trt_frontends.compile(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.compile(model, arg_inputs=[x], optimization_level="high")  # type: ignore[arg-type]
    trt_frontends.explain(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.optimize(model, fullgraph=True, min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.MutableModule(model, min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.save(model, "model.trtp", inpts=[x])  # type: ignore[call-arg]
    trt_frontends.load("model.trtp", devic="cuda")  # type: ignore[call-arg]
    dynamo.trace(model, [x], min_blok_size=3)  # type: ignore[call-arg]
    verify(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
