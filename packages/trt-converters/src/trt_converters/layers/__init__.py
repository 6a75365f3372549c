"""A small vocabulary of network helpers that converters are written in.

Each function takes the conversion context first and values after it (`trt.ITensor`, or `torch.Tensor` for what is known
while building), adds as few layers as it can, and returns an `ITensor`, or a `torch.Tensor` when everything was known.
"""

from __future__ import annotations

from trt_converters.context import combine, dimension, shape_vector, sizes_of
from trt_converters.layers.casts import cast, result_type
from trt_converters.layers.gathering import (
    gather,
    gather_elements,
    index_range,
    scatter_elements,
    scatter_nd,
    wrap_negative,
)
from trt_converters.layers.movement import (
    concatenate,
    crop_and_pad,
    expand,
    pad_by_sampling,
    permute,
    reshape,
    slice_axis,
    slice_tensor,
    squeeze,
    unsqueeze,
    with_rank,
)
from trt_converters.layers.pointwise import (
    activation,
    binary,
    greater_equal,
    less_equal,
    logical_not,
    promote,
    select,
    unary,
)
from trt_converters.layers.reductions import mean_square, reduce, softmax, topk
from trt_converters.layers.spatial import take_windows, window_indices

__all__ = [
    "activation",
    "binary",
    "cast",
    "combine",
    "concatenate",
    "crop_and_pad",
    "dimension",
    "expand",
    "gather",
    "gather_elements",
    "greater_equal",
    "index_range",
    "less_equal",
    "logical_not",
    "mean_square",
    "pad_by_sampling",
    "permute",
    "promote",
    "reduce",
    "reshape",
    "result_type",
    "scatter_elements",
    "scatter_nd",
    "select",
    "shape_vector",
    "sizes_of",
    "slice_axis",
    "slice_tensor",
    "softmax",
    "squeeze",
    "take_windows",
    "topk",
    "unary",
    "unsqueeze",
    "window_indices",
    "with_rank",
    "wrap_negative",
]
