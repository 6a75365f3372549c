"""Convolutions with dequantized constant kernels as convolutions of few bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trt_portable.builder.passes.plan_graph import Entry, PlanGraph, PlanPass
from trt_portable.builder.passes.quantized_patterns import Tail, dequantized, is_constant, new_entry
from trt_portable.dtypes import volume
from trt_portable.enums import DataType, LayerType, PaddingMode
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_REFERENCE
from trt_portable.layers.low_precision import LowPrecisionConvolutionLayer, PreparedKernelLayer

_MULTIPLIED: Final = frozenset({DataType.INT8, DataType.FP8})
_OF_WEIGHTS: Final = ("weights", "weight_specs")


class FuseQuantizedConvolutions(PlanPass):
    """Replaces convolutions in two dimensions by preparations of their kernels and convolutions of codes.

    Padding is explicit and equal on both sides; a kernel has one scale, or one per output channel. Sums are exact or in
    float32 where Q/DQ would round operands to the float type, so results differ by rounding.
    """

    name = "fuse_quantized_convolutions"

    def call(self, graph: PlanGraph) -> int:
        """Goes through the convolutions in order."""
        entries = [entry for entry in graph.layers if entry["type"] == LayerType.CONVOLUTION.name]
        return sum(_fuse(graph, entry) for entry in entries)


def _fuse(graph: PlanGraph, convolution: Entry) -> bool:
    producers, attributes = graph.producers(), convolution["attributes"]
    inputs = (*convolution["inputs"], None, None)[:3]
    if inputs[1] is None or not _is_plain(convolution):
        return False
    found = dequantized(graph, producers, inputs[1])
    if found is None or found.movement or found.has_zero_point:
        return False
    if not is_constant(producers.get(found.codes)) or not is_constant(producers.get(found.scale)):
        return False
    shape, scales = graph.shape(found.codes), volume(graph.shape(found.scale))
    is_per_channel = scales == shape[0] and len(graph.shape(found.scale)) == 1 and found.axis == 0
    if -1 in shape or not (scales == 1 or is_per_channel):
        return False
    has_bias = "BIAS" in convolution["weights"] or inputs[2] is not None
    if inputs[2] is not None and not is_constant(producers.get(inputs[2])):
        return False
    codes = graph.dtype(found.codes)
    x, left_scale = _left(graph, producers, inputs[0], codes)
    left, is_static = graph.dtype(x), left_scale is not None and is_constant(producers.get(left_scale))
    tail = Tail(graph, producers, convolution, shape[0], 0 if has_bias else -3)
    is_refittable = any(not graph.is_fixed(key, role) for role, key in convolution["weights"].items())
    name = convolution["name"] if is_refittable else tail.name  # a refit finds the bias by this name
    form = {
        "implementation": CONVOLUTION_REFERENCE.name,
        "kernel_shape": list(shape),
        "stride": attributes["stride_nd"],
        "padding": attributes["pre_padding"],
        "dilation": attributes["dilation_nd"],
        "groups": attributes["num_groups"],
        "code_type": codes.name,
        "left_type": left.name,
        "result_type": tail.result.name,
        "scales": scales,
        "is_scaled": left_scale is not None and not is_static,
    }
    outputs = [
        graph.new_tensor(f"{name} kernel", codes.name, shape),
        graph.new_tensor(f"{name} kernel scale", DataType.FLOAT.name, (scales,)),
    ]
    prepared = new_entry(
        PreparedKernelLayer._plan_type(),
        f"{name} [kernel]",
        [found.codes, found.scale, *([left_scale] if is_static else [])],
        outputs,
        form,
    )
    bias = inputs[2] if tail.bias is None else tail.bias
    fused = new_entry(
        LowPrecisionConvolutionLayer._plan_type(),
        name,
        [x, None if is_static else left_scale, bias, tail.scale, *outputs],
        [tail.output],
        {**form, "output_type": tail.dtype.name, "rectify": tail.rectifies},
    )
    own = {key: {role: value for role, value in convolution[key].items() if role == "BIAS"} for key in _OF_WEIGHTS}
    tail.replace([prepared, {**fused, **own, "metadata": convolution["metadata"]}])
    return True


def _left(graph: PlanGraph, producers: Mapping[int, Entry], tensor: int, codes: DataType) -> tuple[int, int | None]:
    """The input as codes with their scale, or as it is where only the kernel is quantized."""
    found = dequantized(graph, producers, tensor)
    if found is None or found.movement or found.has_zero_point or graph.dtype(found.codes) is not codes:
        return tensor, None
    if codes not in _MULTIPLIED or volume(graph.shape(found.scale)) != 1:
        return tensor, None
    return found.codes, found.scale


def _is_plain(convolution: Entry) -> bool:
    attributes = convolution["attributes"]
    return (
        len(attributes["kernel_size_nd"]) == 2
        and attributes["padding_mode"] == PaddingMode.EXPLICIT_ROUND_DOWN.name
        and list(attributes["pre_padding"]) == list(attributes["post_padding"])
    )
