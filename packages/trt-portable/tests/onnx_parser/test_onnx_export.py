"""Networks as ONNX models, run by ONNX Runtime beside what they must compute."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import numpy as np
import onnx_backend_cases as backend
import onnxruntime
import pytest
import torch
from onnx_running import Refused, build, parse, run

import trt_portable as trt
from trt_portable.network.layer import LAYER_CLASSES
from trt_portable.network.serialization import FUSED
from trt_portable.onnx_export import PLAN_TYPES, ExportError, export_onnx, exported_kinds

ORT_LACKS = r"bfloat16|bf16|BFLOAT16|FLOAT8|e4m3fn|INT4|int4|FLOAT4|float4|e8m0|^(bernoulli|sequence_|optional_)"
"""Cases whose types ONNX Runtime does not take on a CPU, that are random, or whose inputs are no tensors."""


def session(model: Any) -> Any:
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def outcome_of(name: str, case: Any) -> str | None:
    """What is wrong with the network of a case after its way out and through ONNX Runtime; None if nothing is."""
    model, kept = case.model, list(range(len(case.model.graph.input)))
    try:
        network, _ = parse(model.SerializeToString())
    except Refused:
        constants = backend.with_constants(case)
        if constants is None:
            return None
        model, kept = constants
        try:
            network, _ = parse(model.SerializeToString())
        except Refused:
            return None
    try:
        exported = export_onnx(network)
    except ExportError as error:
        return str(error)
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in model.graph.input]
    feeds = {label: backend.as_array(inputs[place]) for label, place in zip(names, kept, strict=True)}
    found = session(exported).run(None, feeds)
    wrong = [backend.compared(torch.from_numpy(np.array(x)), y, case.rtol) for x, y in zip(found, outputs, strict=True)]
    return next((problem for problem in wrong if problem is not None), None)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(4))
def test_networks_of_onnx_own_cases_compute_the_same_in_onnx_runtime(share: int) -> None:
    names = [name for name in backend.names_of("first") if not re.search(ORT_LACKS, name)]
    wrong = {}
    for name in names[share::12]:
        if backend.why_excluded(name) is None:
            problem = outcome_of(name, backend.all_cases()[name])
            if problem is not None:
                wrong[name] = problem
    assert not wrong, wrong


def test_every_layer_that_neighbours_are_fused_to_has_a_form() -> None:
    """Libraries on the CPU take no plan with a layer that has none."""
    import_module(FUSED)
    fused = {name for name, kind in LAYER_CLASSES.items() if kind.__module__ == FUSED}
    assert len(fused) > 2 and fused <= PLAN_TYPES


def test_most_kinds_of_layers_have_a_form() -> None:
    without = set(trt.LayerType) - set(exported_kinds())
    assert without == {
        trt.LayerType[name]
        for name in [
            "PLUGIN",
            "PLUGIN_V2",
            "PLUGIN_V3",
            "ASSERTION",
            "DYNAMIC_QUANTIZE",
            "MOE",
            "DIST_COLLECTIVE",
        ]
    }


def test_a_layer_without_a_form_is_refused_by_name(network: trt.INetworkDefinition) -> None:
    x = network.add_input("x", trt.float32, (1, 2, 32))
    layer = network.add_dynamic_quantize(x, 2, 16, trt.fp4, trt.fp8)
    layer.name = "by_blocks"
    back = network.add_dequantize(
        layer.get_output(1), network.add_constant((), np.float32(1)).get_output(0), trt.float32
    )
    network.mark_output(back.get_output(0))
    with pytest.raises(ExportError, match=r"'by_blocks'.*DYNAMIC_QUANTIZE") as caught:
        export_onnx(network)
    assert caught.value.layer == "by_blocks"


def test_a_network_without_outputs_is_refused(network: trt.INetworkDefinition) -> None:
    network.add_input("x", trt.float32, (1,))
    with pytest.raises(ExportError, match="no outputs"):
        export_onnx(network)


def test_dynamic_dimensions_keep_their_names(network: trt.INetworkDefinition) -> None:
    x = network.add_input("x", trt.float32, (-1, 3, -1))
    x.set_dimension_name(0, "batch")
    layer = network.add_activation(x, trt.ActivationType.RELU)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    model = export_onnx(network)
    (first,) = model.graph.input
    assert [dim.dim_param or dim.dim_value for dim in first.type.tensor_type.shape.dim] == ["batch", 3, "x_2"]
    data = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(session(model).run(None, {"x": data})[0], data.clip(0))


def test_inputs_set_after_a_layer_was_added_come_first(network: trt.INetworkDefinition) -> None:
    x = network.add_input("x", trt.float32, (-1, 4))
    shuffle = network.add_shuffle(x)
    half = network.add_elementwise(
        network.add_shape(x).get_output(0),
        network.add_constant((2,), np.array([2, 2])).get_output(0),
        trt.ElementWiseOperation.FLOOR_DIV,
    )
    double = network.add_constant((2,), np.array([1, 4]))
    shuffle.set_input(
        1,
        network.add_elementwise(half.get_output(0), double.get_output(0), trt.ElementWiseOperation.PROD).get_output(0),
    )
    shuffle.get_output(0).name = "y"
    network.mark_output(shuffle.get_output(0))
    data = np.arange(16, dtype=np.float32).reshape(4, 4)
    (found,) = session(export_onnx(network)).run(None, {"x": data})
    np.testing.assert_array_equal(found, data.reshape(2, 8))
    (again,) = run(build(network, {"x": (4, 4)}), {"x": data})
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("dtype", [trt.int32, trt.int64])
def test_quotients_of_the_largest_integers_are_rounded_down(
    network: trt.INetworkDefinition, dtype: trt.DataType
) -> None:
    left, right = network.add_input("x", dtype, (-1,)), network.add_input("y", dtype, (-1,))
    layer = network.add_elementwise(left, right, trt.ElementWiseOperation.FLOOR_DIV)
    network.mark_output(layer.get_output(0))
    kind = np.dtype(trt.nptype(dtype))
    ends = np.iinfo(kind)
    numbers = [ends.min, ends.min + 1, -7, -1, 0, 1, 7, ends.max - 1, ends.max]
    pairs = [(x, y) for x in numbers for y in numbers if y and (x, y) != (ends.min, -1)]
    x, y = np.array(pairs, dtype=kind).T.copy()
    (found,) = session(export_onnx(network)).run(None, {"x": x, "y": y})
    np.testing.assert_array_equal(found, x // y)
