"""A small vocabulary of network helpers that converters are written in.

Each function takes the conversion context first and values after it (`trt.ITensor`, or `torch.Tensor` for what is known
while building), adds as few layers as it can, and returns an `ITensor`, or a `torch.Tensor` when everything was known.
"""

from __future__ import annotations

from trt_converters.layers.casts import cast, promote, result_type
from trt_converters.layers.movement import (
    concatenate,
    expand,
    permute,
    reshape,
    slice_tensor,
    squeeze,
    unsqueeze,
    with_rank,
)
from trt_converters.layers.pointwise import activation, binary, greater_equal, less_equal, logical_not, select, unary
from trt_converters.layers.reductions import mean_square, reduce, softmax, topk
from trt_converters.layers.sizes import dimension, shape_vector, sizes_of

__all__ = [
    "activation",
    "binary",
    "cast",
    "concatenate",
    "dimension",
    "expand",
    "greater_equal",
    "less_equal",
    "logical_not",
    "mean_square",
    "permute",
    "promote",
    "reduce",
    "reshape",
    "result_type",
    "select",
    "shape_vector",
    "sizes_of",
    "slice_tensor",
    "softmax",
    "squeeze",
    "topk",
    "unary",
    "unsqueeze",
    "with_rank",
]
