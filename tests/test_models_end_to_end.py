"""Real architectures compile to one engine that agrees with eager, with static and dynamic shapes, in three types."""

from __future__ import annotations

import os

import pytest
import torch
from small_models import MODELS

import trt_frontends
from trt_core import Input

pytestmark = pytest.mark.sampled(4)

# float32 sums in another order; half precision rounds every intermediate, in other places than eager does
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def _agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.isfinite(expected).all()
    scale = expected.float().abs().max().clamp(min=1.0).item()
    difference = (found.float() - expected.float()).abs().max().item()
    assert difference <= TOLERANCE[expected.dtype] * scale


def _inputs(specs: tuple[Input, ...], which: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    tensors = [spec.example(which) for spec in specs]
    for spec, tensor in zip(specs, tensors, strict=True):
        if spec.name == "attention_mask":
            tensor[:, 0] = 1  # a row that attends to nothing has no defined result
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def _one_engine(compiled: torch.fx.GraphModule) -> None:
    report = compiled.meta["partition_report"]
    assert report.coverage == 1.0, report.to_text()
    assert len(report.engines) == 1, report.to_text()


VARYING = ("llama", "mobilenet_v3", "swin")
"""Those whose sizes vary in the suite, one of each kind; `nox -s stress` compiles all in both ways."""
CASES = [
    (name, shapes)
    for name in MODELS
    for shapes in ("static", "dynamic")
    if "TRT_STRESS" in os.environ or (shapes == "dynamic") is (name in VARYING)
]


@pytest.mark.parametrize(("name", "shapes"), CASES)
def test_one_engine_computes_what_eager_does(name: str, shapes: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name].make()
    if shapes == "dynamic":
        specs, sizes = MODELS[name].dynamic, ("min", "opt", "max")
        compiled = trt_frontends.compile(trt_frontends.trace(model, arg_inputs=specs), arg_inputs=specs)
    else:
        specs, sizes = MODELS[name].static, ("opt",)
        compiled = trt_frontends.compile(model, arg_inputs=_inputs(specs, "opt", torch.float32))
    _one_engine(compiled)
    for which in sizes:
        inputs = _inputs(specs, which, torch.float32)
        with torch.no_grad():
            _agree(compiled(*inputs), model(*inputs))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["resnet18", "vit", "bert", "llama"])
def test_reduced_precision(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MODELS[name].make().to(dtype)
    inputs = _inputs(MODELS[name].static, "opt", dtype)
    compiled = trt_frontends.compile(model, arg_inputs=inputs)
    _one_engine(compiled)
    with torch.no_grad():
        _agree(compiled(*inputs), model(*inputs))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MODELS[name].make().to("cuda", dtype)
    inputs = tuple(tensor.cuda() for tensor in _inputs(MODELS[name].static, "opt", dtype))
    compiled = trt_frontends.compile(model, arg_inputs=inputs, disable_tf32=True)
    _one_engine(compiled)
    with torch.no_grad():
        _agree(compiled(*inputs), model(*inputs))
