"""Convolutions of few bits: found in networks with Q/DQ, computed as Q/DQ says, by any kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from low_precision_networks import constant, layers_of, rounded, through

import trt_portable as trt
from trt_portable.builder.autotune.low_precision_choice import Case
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_KERNELS, CONVOLUTION_REFERENCE, ConvolutionForm
from trt_portable.kernels.low_precision_products import int_mm_is_exact, onednn_is_exact

CHANNELS, MAPS = 8, 12
CASES = {
    "code_type": st.sampled_from([trt.int8, trt.fp8]),
    "extent": st.sampled_from([1, 3]),
    "stride": st.sampled_from([1, 2]),
    "padding": st.integers(0, 1),
    "dilation": st.integers(1, 2),
    "groups": st.sampled_from([1, 2]),
    "is_per_channel": st.booleans(),
    "bias": st.sampled_from(["none", "weights", "sum"]),
    "relu": st.booleans(),
    "requantize": st.booleans(),
    "weight_only": st.booleans(),
}


def _build(builder: Any, load: Any, case: dict[str, Any], codes: Any, scale: Any, bias: Any, flags: Any = ()) -> Any:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, CHANNELS, 6, 5))
    kernel = network.add_dequantize(constant(network, codes, case["code_type"]), constant(network, scale), trt.float32)
    kernel.axis = 0
    left = x if case["weight_only"] else through(network, x, 0.05, case["code_type"])
    given = bias.numpy() if case["bias"] == "weights" else None
    empty = trt.Weights(trt.float32)
    layer = network.add_convolution_nd(left, MAPS, (case["extent"],) * 2, empty, given)
    layer.set_input(1, kernel.get_output(0))
    layer.name = "conv"
    layer.stride_nd = (case["stride"],) * 2
    layer.padding_nd = (case["padding"],) * 2
    layer.dilation_nd = (case["dilation"],) * 2
    layer.num_groups = case["groups"]
    y = layer.get_output(0)
    if case["bias"] == "sum":
        added = constant(network, bias.reshape(1, MAPS, 1, 1))
        y = network.add_elementwise(y, added, trt.ElementWiseOperation.SUM).get_output(0)
    if case["relu"]:
        y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
    if case["requantize"]:
        y = through(network, y, 0.1, case["code_type"])
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    ranges = {"x": tuple((batch, CHANNELS, 6, 5) for batch in (1, 2, 4))}
    return load(network, ranges, flags=flags, config=config)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries(CASES), st.integers(0, 2**16))
def test_a_convolution_of_codes_is_what_q_and_dq_say(
    builder: Any, load: Any, execute: Any, case: dict[str, Any], seed: int
) -> None:
    torch.manual_seed(seed)
    extents = (MAPS, CHANNELS // case["groups"], case["extent"], case["extent"])
    is_int8 = case["code_type"] is trt.int8
    codes = (
        torch.randint(-127, 128, extents, dtype=torch.int8) if is_int8 else torch.randn(extents).to(torch.float8_e4m3fn)
    )
    scale = torch.rand(MAPS if case["is_per_channel"] else 1) / 50 + 0.001
    bias = torch.randn(MAPS)
    engine = _build(builder, load, case, codes, scale, bias)
    kinds = [layer["LayerType"] for layer in layers_of(engine)]
    assert kinds.count("LOW_PRECISION_CONVOLUTION") == 1 and not {"CONVOLUTION", "ELEMENTWISE", "ACTIVATION"} & set(
        kinds
    )
    x = torch.randn(3, CHANNELS, 6, 5)
    left = x if case["weight_only"] else rounded(x, 0.05, case["code_type"])
    geometry = (case["stride"], case["padding"], case["dilation"], case["groups"])
    y = F.conv2d(left, codes.float() * scale.reshape(-1, 1, 1, 1), None if case["bias"] == "none" else bias, *geometry)
    y = torch.relu(y) if case["relu"] else y
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    if not case["requantize"]:
        torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-4 * (1 + y.abs().max().item()))
        return
    y = rounded(y, 0.1, case["code_type"])
    assert ((found - y).abs() <= 0.101 + 0.15 * y.abs()).all()
    assert (found - y).norm() <= 0.04 * y.norm() + 1e-6


def test_a_refit_finds_bias_and_codes(builder: Any, load: Any, execute: Any, logger: Any) -> None:
    plain = {"code_type": trt.int8, "extent": 3, "stride": 1, "padding": 1, "dilation": 1, "groups": 1}
    case = {**plain, "bias": "weights", "relu": True, "requantize": False, "weight_only": False}
    codes, scale = torch.randint(-127, 128, (MAPS, CHANNELS, 3, 3), dtype=torch.int8), torch.rand(MAPS) / 50
    engine = _build(builder, load, case, codes, scale, torch.zeros(MAPS), flags=[trt.BuilderFlag.REFIT])
    context, x = engine.create_execution_context(), torch.randn(2, CHANNELS, 6, 5)
    fresh = np.arange(MAPS, dtype=np.float32)
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights("conv", trt.WeightsRole.BIAS, trt.Weights(fresh)), logger.errors
    (slot,) = [slot for slot in engine._state.info.weight_slots if slot.dtype is trt.int8]
    assert refitter.set_weights(slot.layer_name, trt.WeightsRole.CONSTANT, trt.Weights((-codes).numpy()))
    assert refitter.refit_cuda_engine()
    kernel = -codes.float() * scale.reshape(-1, 1, 1, 1)
    wanted = torch.relu(F.conv2d(rounded(x, 0.05, trt.int8), kernel, torch.from_numpy(fresh), 1, 1))
    torch.testing.assert_close(execute(context, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kernel", CONVOLUTION_KERNELS.values(), ids=lambda kernel: kernel.name)
def test_every_kernel_computes_what_floats_do(kernel: Any) -> None:
    cpu, tried = torch.device("cpu"), 0
    for codes in (trt.int8, trt.fp8):
        for shape, padding, groups in (((MAPS, CHANNELS, 1, 1), 0, 1), ((MAPS, CHANNELS // 2, 3, 3), 1, 2)):
            form = ConvolutionForm(shape, (1, 1), (padding,) * 2, (1, 1), groups, codes, codes, trt.float32, MAPS)
            if not kernel.accepts(form, cpu):
                continue
            for output in (None, trt.int8):
                try:
                    assert Case(form, (2, 5, 6), True, True, output).trial(cpu).difference(kernel) is None
                    tried += 1
                except (RuntimeError, NotImplementedError) as error:
                    if kernel is CONVOLUTION_REFERENCE:
                        raise
                    pytest.skip(f"PyTorch lacks it here: {error}")
    needs = {"scaled_mm_fast": False, "onednn": onednn_is_exact(), "int_mm": int_mm_is_exact()}
    assert tried or not needs.get(kernel.name, True)
