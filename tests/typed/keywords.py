"""Calls that a type checker takes, and some that it rejects: an ignore that nothing needs is an error, too."""

from __future__ import annotations

import torch
from torch import nn

import trt_frontends
from trt_converters import ConversionContext, layers
from trt_frontends import dynamo
from trt_frontends.accuracy import bisect, verify
from trt_frontends.integrations.ray import BatchInference, deployment
from trt_runtime import TextGenerator
from trt_runtime.diffusion import load_pipeline, save_pipeline


def calls(model: nn.Module, x: torch.Tensor) -> None:
    """Is read by mypy, and never run."""
    trt_frontends.compile(model, arg_inputs=[x], min_block_size=3, precision="half", torch_executed_ops={"aten.relu"})
    trt_frontends.compile(model, inputs=[x], ir="dynamo", make_refittable=True, device="cuda:1", dryrun="report.txt")
    trt_frontends.compile(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.compile(model, arg_inputs=[x], optimization_level="high")  # type: ignore[arg-type]
    trt_frontends.explain(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-overload]
    trt_frontends.optimize(model, fullgraph=True, min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.MutableModule(model, min_blok_size=3)  # type: ignore[call-arg]
    dynamo.trace(model, [x], min_blok_size=3)  # type: ignore[call-arg]
    verify(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
    bisect(model, arg_inputs=[x], min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.compile_generation(model, max_lenth=8)  # type: ignore[call-arg]
    trt_frontends.compile_pipeline(model, min_blok_size=3)  # type: ignore[call-arg]
    trt_frontends.Input((1, 3), dtyp=torch.half)  # type: ignore[call-arg]
    trt_frontends.Device(gpu_id="1")  # type: ignore[arg-type]


def files(model: nn.Module) -> None:
    """Saving and loading; options that one door hands on to another are typed at both."""
    TextGenerator.load("model.trtp", trust=True, operators=["torchvision"])
    trt_frontends.save(model, "model.trtp", inpts=[])  # type: ignore[call-arg]
    trt_frontends.load("model.trtp", devic="cuda")  # type: ignore[call-overload]
    trt_frontends.load("model.trtp", device=1)  # type: ignore[call-overload]
    trt_frontends.MutableModule.load("model.trtp", model, trust=True, min_block_size=2)
    trt_frontends.MutableModule.load("model.trtp", model, trst=True)  # type: ignore[call-arg]
    TextGenerator.load("model.trtp", devic="cuda")  # type: ignore[call-arg]
    save_pipeline(model, "folder", sgn=True)  # type: ignore[call-arg]
    load_pipeline("folder", trust="yes")  # type: ignore[arg-type]
    BatchInference("model.trtp", columns={}, devic="cuda")  # type: ignore[call-arg]
    deployment("model.trtp", max_batch_sise=8)  # type: ignore[call-arg]


def results(model: nn.GRU) -> None:
    """What doors return has a type: attributes of programs, and the kind of model that was given."""
    names: list[str] = [spec.name for spec in trt_frontends.load("model.trtp").inputs]
    isolated: list[str] = [spec.name for spec in trt_frontends.load("model.trtp", isolated=True).outputs]
    hidden: int = trt_frontends.optimize(model).hidden_size
    wrong: str = trt_frontends.optimize(model).hidden_size  # type: ignore[assignment]
    del names, isolated, hidden, wrong


def authors(ctx: ConversionContext, x: torch.Tensor) -> None:
    """What converters are written in."""
    layers.permute(ctx, x, [1, 0])
    layers.permute(ctx, x, ordr=[1, 0])  # type: ignore[call-arg]
    layers.reduce(ctx, "MAX", x, axis=-1)  # type: ignore[call-arg]
    layers.slice_axis(ctx, x, "0", 1, 2)  # type: ignore[arg-type]
