"""Trained models lose next to nothing when they are quantized, calibrated on data that they were trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trt_frontends
from trt_core import Input, trt
from trt_frontends.quantization import quantization_report, sensitivity
from trt_runtime import TRTModule

pytestmark = pytest.mark.sampled(4)

_POINTS = 0.5


def batches_of(trained: Any) -> Input:
    shape = tuple(trained.images.shape[1:])
    return Input(min_shape=(1, *shape), opt_shape=(64, *shape), max_shape=(256, *shape))


def compiled(model: Any, trained: Any) -> torch.nn.Module:
    return trt_frontends.compile(model, arg_inputs=(batches_of(trained),), optimization_level=0, min_block_size=1)


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3"])
@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer"])
def test_accuracy_is_kept(name: str, dtype: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    trained: Any = request.getfixturevalue(name)
    program = trt_frontends.quantize(trained.model, trained.calibration, dtype, arg_inputs=(batches_of(trained),))
    engine = compiled(program, trained)
    assert engine.meta["partition_report"].coverage == 1.0
    exact = trained.accuracy(trained.model)
    assert exact > 95
    assert trained.accuracy(engine) > exact - _POINTS
    quantizing = [layer for layer in _layers(engine) if "quantize" in layer.lower()]
    assert len(quantizing) >= 3 * len(quantization_report(program).quantized)
    sizes = {}
    for kind, model in (("float", compiled(trained.model, trained)), ("quantized", engine)):
        trt_frontends.save(model, tmp_path / kind)
        sizes[kind] = (tmp_path / kind).stat().st_size
    weights = sum(value.nbytes for value in trained.model.parameters())
    assert sizes["quantized"] < sizes["float"] - weights // 2


def _layers(model: torch.nn.Module) -> list[str]:
    """What the engine inspector shows of the layers of all engines."""
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    texts = []
    for child in model.modules():
        if isinstance(child, TRTModule):
            engine = runtime.deserialize_cuda_engine(child.plan.cpu().numpy().tobytes())
            texts.append(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    return [str(layer) for text in texts for layer in json.loads(text)["Layers"]]


@pytest.mark.slow
def test_sensitivity_orders_layers(digits_transformer: Any) -> None:
    report = sensitivity(digits_transformer.model, digits_transformer.calibration[:2], "int8", compare=1)
    assert len(report.layers) == 10
    errors = [layer.scaled for layer in report.layers]
    assert errors == sorted(errors, reverse=True) and 0 < errors[-1] <= errors[0] < 0.1
    assert json.loads(report.to_json())["layers"][0]["location"] == report.layers[0].location
    assert report.layers[0].location in report.to_text()
    # the most sensitive layer alone is further off than the model without it
    worst = report.layers[0].location.partition("/")[0]
    x = digits_transformer.calibration[0]
    model = digits_transformer.model
    spared = trt_frontends.quantize(model, digits_transformer.calibration[:2], {"exclude": worst})
    whole = trt_frontends.quantize(model, digits_transformer.calibration[:2])
    with torch.no_grad():
        errors = [float((program.module()(x) - model(x)).abs().max()) for program in (spared, whole)]
    assert errors[0] < errors[1]
