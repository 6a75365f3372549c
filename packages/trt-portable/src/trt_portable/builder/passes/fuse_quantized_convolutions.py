"""Convolutions with dequantized constant kernels as convolutions of few bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trt_portable.attributes import Attribute
from trt_portable.builder.passes.quantized_patterns import Tail, dequantized
from trt_portable.dims import Dims
from trt_portable.dtypes import volume
from trt_portable.enums import DataType, LayerType, PaddingMode
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.low_precision import LowPrecisionConvolutionLayer, PreparedKernelLayer
from trt_portable.plan.nodes import Node, NodeFusion, PlanGraph, PlanPattern

_MULTIPLIED: Final = frozenset({DataType.INT8, DataType.FP8})


class FuseQuantizedConvolutions(PlanPattern):
    """Replaces convolutions in two dimensions by preparations of their kernels and convolutions of codes.

    Padding is explicit and equal on both sides; a kernel has one scale, or one per output channel. Sums are exact or in
    float32 where Q/DQ would round operands to the float type, so results differ by rounding.
    """

    name = "fuse_quantized_convolutions"
    kinds = frozenset({LayerType.CONVOLUTION})

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """Preparation and convolution, where the last layer stood that joins the convolution."""
        x, kernel, given_bias = (*operation.inputs, None, None)[:3]
        if kernel is None or not _is_plain(operation):
            return None
        found = dequantized(graph, kernel)
        if found is None or found.movement or found.has_zero_point:
            return None
        if not graph.is_constant(found.codes) or not graph.is_constant(found.scale):
            return None
        shape, scales = graph.shape(found.codes), volume(graph.shape(found.scale))
        is_per_channel = scales == shape[0] and len(graph.shape(found.scale)) == 1 and found.axis == 0
        if -1 in shape or not (scales == 1 or is_per_channel):
            return None
        if given_bias is not None and not graph.is_constant(given_bias):
            return None
        codes = graph.dtype(found.codes)
        x, left_scale = _left(graph, x, codes)
        is_static = left_scale is not None and graph.is_constant(left_scale)
        has_bias = "BIAS" in operation.weights or given_bias is not None
        tail = Tail(graph, operation, shape[0], 0 if has_bias else -3)
        name = tail.name if graph.is_fixed(operation) else operation.name  # a refit finds the bias by this name
        layer = LowPrecisionConvolutionLayer
        form: dict[Attribute[Any], Any] = {
            layer.kernel_shape: Dims(shape),
            layer.stride: operation[IConvolutionLayer.stride_nd],
            layer.padding: operation[IConvolutionLayer.pre_padding],
            layer.dilation: operation[IConvolutionLayer.dilation_nd],
            layer.groups: operation[IConvolutionLayer.num_groups],
            layer.code_type: codes,
            layer.left_type: graph.dtype(x),
            layer.result_type: tail.result,
            layer.scales: scales,
            layer.is_scaled: left_scale is not None and not is_static,
        }
        outputs = (
            graph.new_tensor(f"{name} kernel", codes, shape),
            graph.new_tensor(f"{name} kernel scale", DataType.FLOAT, (scales,)),
        )
        statics = (left_scale,) if is_static else ()
        prepared = Node(
            PreparedKernelLayer, f"{name} [kernel]", (found.codes, found.scale, *statics), outputs, values=form
        )
        fused = replace(
            operation,
            layer=layer,
            name=name,
            inputs=(
                x,
                None if is_static else left_scale,
                given_bias if tail.bias is None else tail.bias,
                tail.scale,
                *outputs,
            ),
            outputs=(tail.output,),
            values={**form, layer.output_type: tail.dtype, layer.rectify: tail.rectifies},
            weights={role: use for role, use in operation.weights.items() if role == "BIAS"},
        )
        return tail.replaced_by([prepared, fused])


def _left(graph: PlanGraph, tensor: int | None, codes: DataType) -> tuple[int | None, int | None]:
    """The input as codes with their scale, or as it is where only the kernel is quantized."""
    found = dequantized(graph, tensor)
    if found is None or found.movement or found.has_zero_point or graph.dtype(found.codes) is not codes:
        return tensor, None
    if codes not in _MULTIPLIED or volume(graph.shape(found.scale)) != 1:
        return tensor, None
    return found.codes, found.scale


def _is_plain(convolution: Node) -> bool:
    return (
        len(convolution[IConvolutionLayer.kernel_size_nd]) == 2
        and convolution[IConvolutionLayer.padding_mode] is PaddingMode.EXPLICIT_ROUND_DOWN
        and list(convolution[IConvolutionLayer.pre_padding]) == list(convolution[IConvolutionLayer.post_padding])
    )
