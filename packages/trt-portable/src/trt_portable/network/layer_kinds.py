"""Where the class of each kind of layer lives: an engine imports those that its plan names, and no others."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from trt_portable.network.layer import LAYER_CLASSES, ILayer

HOMES: Final[dict[str, tuple[str, ...]]] = {
    "trt_portable.layers.assertion": ("ASSERTION", "DIST_COLLECTIVE"),
    "trt_portable.layers.attention_ends": ("ATTENTION_INPUT", "ATTENTION_OUTPUT"),
    "trt_portable.layers.convolution": ("CONVOLUTION", "DECONVOLUTION"),
    "trt_portable.layers.detection": ("NMS",),
    "trt_portable.layers.gather": ("GATHER",),
    "trt_portable.layers.indexing": ("SCATTER", "ONE_HOT", "NON_ZERO", "REVERSE_SEQUENCE"),
    "trt_portable.layers.low_precision": ("PREPARED_MATRIX", "LOW_PRECISION_PRODUCT"),
    "trt_portable.layers.low_precision_convolution": ("PREPARED_KERNEL", "LOW_PRECISION_CONVOLUTION"),
    "trt_portable.layers.movement": ("SHUFFLE", "CONCATENATION", "SQUEEZE", "UNSQUEEZE"),
    "trt_portable.layers.normalization": ("NORMALIZATION", "LRN", "SCALE"),
    "trt_portable.layers.plugins": ("PLUGIN_V3", "PLUGIN_V2"),
    "trt_portable.layers.pointwise": ("ACTIVATION", "UNARY", "ELEMENTWISE", "SELECT", "PARAMETRIC_RELU"),
    "trt_portable.layers.pooling": ("POOLING", "PADDING"),
    "trt_portable.layers.products": ("MATRIX_MULTIPLY", "EINSUM"),
    "trt_portable.layers.quantization": ("QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"),
    "trt_portable.layers.reduction": ("REDUCE", "SOFTMAX", "RAGGED_SOFTMAX", "TOPK", "CUMULATIVE"),
    "trt_portable.layers.resampling": ("RESIZE", "GRID_SAMPLE"),
    "trt_portable.layers.scaled_attention": ("SCALED_ATTENTION",),
    "trt_portable.layers.slicing": ("SLICE",),
    "trt_portable.layers.sources": ("CONSTANT", "IDENTITY", "CAST", "SHAPE", "FILL"),
    "trt_portable.layers.transformer": ("ROTARY_EMBEDDING", "KV_CACHE_UPDATE", "MOE"),
    "trt_portable.network.conditional_boundary": ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"),
    "trt_portable.network.conditional_region": ("CONDITIONAL",),
    "trt_portable.network.loop_boundary": ("RECURRENCE", "TRIP_LIMIT", "ITERATOR", "LOOP_OUTPUT"),
    "trt_portable.network.loop_region": ("LOOP",),
}
"""Kinds of layers by module."""

_HOME_OF: Final = {kind: module for module, kinds in HOMES.items() for kind in kinds}


def layer_class(kind: str) -> type[ILayer] | None:
    """The class of a kind of layer, None where there is none of that name."""
    if kind not in LAYER_CLASSES and kind in _HOME_OF:
        import_module(_HOME_OF[kind])
    return LAYER_CLASSES.get(kind)
