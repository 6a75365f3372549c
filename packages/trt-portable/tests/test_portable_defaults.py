"""What every attribute of every layer is before it is set, and what a network computes then, by PyTorch.

`DEFAULTS` names, for each kind of layer, the attributes that nothing sets while the layer is added. Those that neither
TensorRT's headers and bindings nor its operators' pages give a default for are in `CHOSEN`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt
from trt_portable.layer_properties import Attribute, WeightsAttribute

FLOAT, HALF, INT32, INT64, INT8 = trt.float32, trt.float16, trt.int32, trt.int64, trt.int8
ONES: Final = np.ones((2, 2, 1, 1), np.float32)
SCALE_MODE: Final = trt.ScaleMode.UNIFORM


class _Inputs:
    """Inputs of a network, made where they are used."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self._count = 0

    def __call__(self, *shape: int, dtype: Any = FLOAT) -> Any:
        self._count += 1
        return self.network.add_input(f"in{self._count}", dtype, shape)

    def constant(self, value: Any, dtype: Any = np.int64) -> Any:
        array = np.array(value, dtype)
        return self.network.add_constant(array.shape, trt.Weights(array)).get_output(0)


def _loop_layer(network: Any, x: _Inputs, kind: str) -> Any:
    loop = network.add_loop()
    count = x.constant(2, np.int32)
    limit = loop.add_trip_limit(count, trt.TripLimit.COUNT)
    if kind == "limit":
        return limit
    if kind == "iterator":
        return loop.add_iterator(x(2, 3))
    state = loop.add_recurrence(x(3))
    if kind == "recurrence":
        return state
    return loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE)


def _conditional_layer(network: Any, x: _Inputs, kind: str) -> Any:
    conditional = network.add_if_conditional()
    condition = conditional.set_condition(x(dtype=trt.bool))
    if kind == "condition":
        return condition
    passed = conditional.add_input(x(3))
    if kind == "input":
        return passed
    return conditional.add_output(passed.get_output(0), x(3))


Make = Callable[[Any, _Inputs], Any]
WINDOW: Final = {
    "stride_nd": (1, 1),
    "pre_padding": (0, 0),
    "post_padding": (0, 0),
    "padding_nd": (0, 0),
    "padding_mode": trt.PaddingMode.EXPLICIT_ROUND_DOWN,
}
SCALES: Final = {"axis": -1, "block_shape": ()}
ATTENTION: Final = {
    "decomposable": False,
    "query_form": trt.AttentionIOForm.PADDED_BHND,
    "key_value_form": trt.AttentionIOForm.PADDED_BHND,
    "normalization_quantize_to_type": FLOAT,
}

DEFAULTS: Final[dict[str, tuple[Make, dict[str, Any], set[str]]]] = {
    "IActivationLayer": (
        lambda n, x: n.add_activation(x(3), trt.ActivationType.RELU),
        {"alpha": 0.0, "beta": 0.0},  # of the functions that have coefficients: see the pointwise layers' tests
        {"type"},
    ),
    "IAssertionLayer": (lambda n, x: n.add_assertion(x(dtype=trt.bool), "no"), {}, {"message"}),
    "ICastLayer": (lambda n, x: n.add_cast(x(3), HALF), {}, {"to_type"}),
    "IConcatenationLayer": (lambda n, x: n.add_concatenation([x(1, 2, 3, 4)]), {"axis": 1}, set()),
    "IConditionLayer": (lambda n, x: _conditional_layer(n, x, "condition"), {}, set()),
    "IConstantLayer": (lambda n, x: n.add_constant((2, 2, 1, 1), ONES), {}, {"shape", "weights"}),
    "IConvolutionLayer": (
        lambda n, x: n.add_convolution_nd(x(1, 2, 5, 5), 2, (1, 1), ONES),
        {**WINDOW, "dilation_nd": (1, 1), "num_groups": 1, "bias": []},
        {"num_output_maps", "kernel_size_nd", "kernel"},
    ),
    "ICumulativeLayer": (
        lambda n, x: n.add_cumulative(x(3), x.constant(0), trt.CumulativeOperation.SUM, False, False),
        {},
        {"op", "exclusive", "reverse"},
    ),
    "IDeconvolutionLayer": (
        lambda n, x: n.add_deconvolution_nd(x(1, 2, 5, 5), 2, (1, 1), ONES),
        {**WINDOW, "dilation_nd": (1, 1), "num_groups": 1, "bias": []},
        {"num_output_maps", "kernel_size_nd", "kernel"},
    ),
    "IDequantizeLayer": (lambda n, x: n.add_dequantize(x(3, dtype=INT8), x(), FLOAT), SCALES, {"to_type"}),
    "IDistCollectiveLayer": (
        lambda n, x: n.add_dist_collective(x(4), trt.CollectiveOperation.ALL_REDUCE, trt.ReduceOperation.SUM, -1, None),
        {},
        set(),
    ),
    "IDynamicQuantizeLayer": (
        lambda n, x: n.add_dynamic_quantize_v2(x(2, 32), (1, 16), trt.fp4, trt.fp8),
        {"axis": -1, "block_size": 0},
        {"block_shape", "to_type", "scale_type"},
    ),
    "IEinsumLayer": (lambda n, x: n.add_einsum([x(2, 3)], "ij->ji"), {}, {"equation"}),
    "IElementWiseLayer": (lambda n, x: n.add_elementwise(x(3), x(3), trt.ElementWiseOperation.SUM), {}, {"op"}),
    "IFillLayer": (
        lambda n, x: n.add_fill((3,), trt.FillOperation.LINSPACE),
        {"alpha": 0.0, "beta": 1.0, "to_type": FLOAT},
        {"shape", "operation"},
    ),
    "IGatherLayer": (
        lambda n, x: n.add_gather_v2(x(2, 3), x(2, dtype=INT32), trt.GatherMode.DEFAULT),
        {"axis": 0, "num_elementwise_dims": 0},
        {"mode"},
    ),
    "IGridSampleLayer": (
        lambda n, x: n.add_grid_sample(x(1, 2, 3, 3), x(1, 4, 4, 2)),
        {
            "interpolation_mode": trt.InterpolationMode.LINEAR,
            "align_corners": False,
            "sample_mode": trt.SampleMode.FILL,
        },
        set(),
    ),
    "IIdentityLayer": (lambda n, x: n.add_identity(x(3)), {}, set()),
    "IIfConditionalInputLayer": (lambda n, x: _conditional_layer(n, x, "input"), {}, set()),
    "IIfConditionalOutputLayer": (lambda n, x: _conditional_layer(n, x, "output"), {}, set()),
    "IIteratorLayer": (lambda n, x: _loop_layer(n, x, "iterator"), {"axis": 0, "reverse": False}, set()),
    "IKVCacheUpdateLayer": (
        lambda n, x: n.add_kv_cache_update(x(1, 2, 8, 4), x(1, 2, 1, 4), x(1, dtype=INT32), trt.KVCacheMode.LINEAR),
        {"update_form": trt.AttentionIOForm.PADDED_BHND, "update_lengths": None},
        {"cache_mode"},
    ),
    "ILRNLayer": (
        lambda n, x: n.add_lrn(x(1, 4, 3, 3), 3, 1.0, 0.75, 2.0),
        {},
        {"window_size", "alpha", "beta", "k"},
    ),
    "ILoopOutputLayer": (lambda n, x: _loop_layer(n, x, "output"), {"axis": 0}, set()),
    "IMatrixMultiplyLayer": (
        lambda n, x: n.add_matrix_multiply(x(2, 3), trt.MatrixOperation.NONE, x(3, 2), trt.MatrixOperation.NONE),
        {},
        {"op0", "op1"},
    ),
    "IMoELayer": (
        lambda n, x: n.add_moe(x(1, 2, 4), x(1, 2, 1, dtype=INT32), x(1, 2, 1)),
        {
            "activation_type": trt.MoEActType.SILU,
            "quantization_to_type": FLOAT,
            "quantization_block_shape": (),
            "dyn_q_output_scale_type": FLOAT,
            "swiglu_param_limit": math.inf,
            "swiglu_param_alpha": 1.0,
            "swiglu_param_beta": 0.0,
        },
        set(),
    ),
    "INMSLayer": (
        lambda n, x: n.add_nms(x(1, 4, 4), x(1, 4, 2), x(dtype=INT32)),
        {
            "bounding_box_format": trt.BoundingBoxFormat.CORNER_PAIRS,
            "topk_box_limit": 5000,
            "indices_type": INT32,
        },
        set(),
    ),
    "INonZeroLayer": (lambda n, x: n.add_non_zero(x(3)), {"indices_type": INT32}, set()),
    "INormalizationLayer": (
        lambda n, x: n.add_normalization_v2(x(2, 3), x(1, 3), x(1, 3), 2),
        {"epsilon": 1e-5, "num_groups": 1},
        {"axes", "is_v2"},
    ),
    "IOneHotLayer": (lambda n, x: n.add_one_hot(x(3, dtype=INT32), x(2), x.constant(4, np.int32), -1), {}, {"axis"}),
    "IPaddingLayer": (
        lambda n, x: n.add_padding_nd(x(1, 1, 3, 3), (1, 1), (0, 0)),
        {},
        {"pre_padding_nd", "post_padding_nd"},
    ),
    "IParametricReLULayer": (lambda n, x: n.add_parametric_relu(x(3), x(1)), {}, set()),
    "IPoolingLayer": (
        lambda n, x: n.add_pooling_nd(x(1, 2, 5, 5), trt.PoolingType.MAX, (2, 2)),
        {**WINDOW, "blend_factor": 0.0, "average_count_excludes_padding": True},
        {"type", "window_size_nd"},
    ),
    "IQuantizeLayer": (lambda n, x: n.add_quantize(x(3), x(), INT8), SCALES, {"to_type"}),
    "IRaggedSoftMaxLayer": (lambda n, x: n.add_ragged_softmax(x(1, 2, 3), x(1, 2, 1, dtype=INT32)), {}, set()),
    "IRecurrenceLayer": (lambda n, x: _loop_layer(n, x, "recurrence"), {}, set()),
    "IReduceLayer": (
        lambda n, x: n.add_reduce(x(2, 3), trt.ReduceOperation.SUM, 1, False),
        {},
        {"op", "axes", "keep_dims"},
    ),
    "IResizeLayer": (
        lambda n, x: n.add_resize(x(1, 1, 4, 4)),
        {
            "shape": None,
            "scales": (),
            "resize_mode": trt.InterpolationMode.NEAREST,
            "coordinate_transformation": trt.ResizeCoordinateTransformation.ASYMMETRIC,
            "selector_for_single_pixel": trt.ResizeSelector.FORMULA,
            "nearest_rounding": trt.ResizeRoundMode.FLOOR,
            "cubic_coeff": -0.75,
            "exclude_outside": False,
        },
        set(),
    ),
    "IReverseSequenceLayer": (
        lambda n, x: n.add_reverse_sequence(x(4, 2), x(2, dtype=INT32)),
        {"batch_axis": 1, "sequence_axis": 0},
        set(),
    ),
    "IRotaryEmbeddingLayer": (
        lambda n, x: n.add_rotary_embedding(x(1, 2, 3, 4), x(1, 3, 2), x(1, 3, 2), False, 0),
        {},
        {"interleaved", "rotary_embedding_dim"},
    ),
    "IScaleLayer": (
        lambda n, x: n.add_scale(x(1, 2, 3, 3), SCALE_MODE),
        {"shift": [], "scale": [], "power": [], "channel_axis": 1},
        {"mode"},
    ),
    "IScatterLayer": (
        lambda n, x: n.add_scatter(x(3, 2), x(1, 2, dtype=INT32), x(1, 2), trt.ScatterMode.ELEMENT),
        {"axis": 0},
        {"mode"},
    ),
    "ISelectLayer": (lambda n, x: n.add_select(x(3, dtype=trt.bool), x(3), x(3)), {}, set()),
    "IShapeLayer": (lambda n, x: n.add_shape(x(3)), {}, set()),
    "IShuffleLayer": (
        lambda n, x: n.add_shuffle(x(2, 3)),
        {
            "first_transpose": tuple(range(8)),
            "reshape_dims": None,
            "second_transpose": tuple(range(8)),
            "zero_is_placeholder": True,
        },
        set(),
    ),
    "ISliceLayer": (
        lambda n, x: n.add_slice(x(4), (0,), (2,), (1,)),
        {"mode": trt.SampleMode.STRICT_BOUNDS, "axes": None},
        {"start", "shape", "stride"},
    ),
    "ISoftMaxLayer": (lambda n, x: n.add_softmax(x(1, 2, 3, 4)), {"axes": 1 << 1}, set()),
    "ISqueezeLayer": (lambda n, x: n.add_squeeze(x(1, 3)), {}, set()),
    "ITopKLayer": (
        lambda n, x: n.add_topk(x(2, 3), trt.TopKOperation.MAX, 1, 2),
        {"indices_type": INT32},
        {"op", "k", "axes"},
    ),
    "ITripLimitLayer": (lambda n, x: _loop_layer(n, x, "limit"), {}, set()),
    "IUnaryLayer": (lambda n, x: n.add_unary(x(3), trt.UnaryOperation.EXP), {}, {"op"}),
    "IUnsqueezeLayer": (lambda n, x: n.add_unsqueeze(x(3), x.constant([0])), {}, set()),
    "IAttention": (
        lambda n, x: n.add_attention_v2(
            x(1, 2, 3, 4),
            x(1, 2, 3, 4),
            x(1, 2, 3, 4),
            trt.AttentionNormalizationOp.SOFTMAX,
            trt.CausalMaskKind.NONE,
        ),
        {
            **ATTENTION,
            "causal": False,
            "mask": None,
            "normalization_quantize_scale": None,
            "query_lengths": None,
            "key_value_lengths": None,
        },
        {"norm_op", "causal_kind"},
    ),
}

CHOSEN: Final = {
    ("IActivationLayer", "alpha"): "0 where the function has none, else ONNX's",
    ("IActivationLayer", "beta"): "0 where the function has none, else ONNX's",
    ("IDynamicQuantizeLayer", "axis"): "that of the first version of the layer; -1 as with Quantize, no axis",
    ("IDynamicQuantizeLayer", "block_size"): "that of the first version of the layer; 0, no block",
    ("IAttention", "normalization_quantize_to_type"): "no quantization, as documented for a mixture of experts",
    ("IMoELayer", "activation_type"): "`set_gated_weights`, which must be called, sets it",
    ("IMoELayer", "quantization_block_shape"): "read only with a quantization, whose setters set it",
    ("IMoELayer", "dyn_q_output_scale_type"): "read only with a quantization, whose setter sets it",
}
"""Defaults that are documented nowhere, and why they are what they are here."""

NOT_ADDED: Final = {
    "ILayer", "IAttentionBoundaryLayer", "IIfConditionalBoundaryLayer", "ILoopBoundaryLayer",  # bases
    "IAttentionInputLayer", "IAttentionOutputLayer",  # set through IAttention
    "IPluginV2Layer", "IPluginV3Layer",  # have nothing to set
}  # fmt: skip


def _settable(kind: type) -> set[str]:
    """What can be assigned on a layer of a kind, apart from what every layer has."""
    common = {"name", "metadata", "num_ranks"}
    return {
        name
        for base in kind.__mro__
        for name, value in vars(base).items()
        if not name.startswith("_")
        and name not in common
        and (isinstance(value, (Attribute, WeightsAttribute)) or hasattr(type(value), "__set__"))
        and not (isinstance(value, property) and value.fset is None)
    }


def _plain(value: Any) -> Any:
    is_sequence = isinstance(value, (tuple, trt.Dims, trt.Permutation, np.ndarray))
    return list(value) if is_sequence else value


def test_the_table_holds_everything_that_can_be_left_unset() -> None:
    kinds = {
        name
        for name in dir(trt)
        if isinstance(kind := getattr(trt, name), type) and issubclass(kind, trt.ILayer) and name not in NOT_ADDED
    }
    assert kinds | {"IAttention"} == set(DEFAULTS)
    for name, (_, unset, given) in DEFAULTS.items():
        assert not given & set(unset), name
        assert _settable(getattr(trt, name)) == given | set(unset), name
    assert all(attribute in DEFAULTS[name][1] for name, attribute in CHOSEN)


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_default(network: Any, logger: Any, name: str) -> None:
    make, unset, _ = DEFAULTS[name]
    layer = make(network, _Inputs(network))
    assert type(layer) is getattr(trt, name), logger.errors
    found = {attribute: _plain(getattr(layer, attribute)) for attribute in unset}
    assert found == {attribute: _plain(value) for attribute, value in unset.items()}
    assert (layer.metadata, layer.num_ranks) == ("", 1)


# --- what networks compute with them ------------------------------------------------------------


def _set(layer: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(layer, name, value)
    return layer


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


IMAGE, KERNEL = _random(2, 4, 7, 6), _random(4, 4, 3, 3)
BLEND, AVERAGE, MAX = trt.PoolingType.MAX_AVERAGE_BLEND, trt.PoolingType.AVERAGE, trt.PoolingType.MAX
MODE, MAPPING = trt.InterpolationMode, trt.ResizeCoordinateTransformation
ROWS, PLACES = _random(4, 3), torch.tensor([[2, 0, 1], [0, 3, 1]])
GRID = _random(2, 5, 5, 2)
FLAT = 1e-3 * _random(3, 8)
"""So little variance that epsilon is part of the result."""


def _ones(n: Any, *shape: int) -> Any:
    return n.add_constant(shape, np.ones(shape, np.float32)).get_output(0)


def _zeros(n: Any, *shape: int) -> Any:
    return n.add_constant(shape, np.zeros(shape, np.float32)).get_output(0)


def _number(n: Any, value: Any) -> Any:
    return n.add_constant((), np.array(value, np.float32)).get_output(0)


def _shuffle(n: Any, x: Any) -> Any:
    return _set(n.add_shuffle(x), reshape_dims=(0, -1))


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...], torch.Tensor]
NUMBERS: Final[dict[str, Case]] = {
    "convolution": (
        lambda n, x: n.add_convolution_nd(x, 4, (3, 3), KERNEL.numpy()), (IMAGE,), F.conv2d(IMAGE, KERNEL),
    ),
    "deconvolution": (
        lambda n, x: n.add_deconvolution_nd(x, 4, (3, 3), KERNEL.numpy()), (IMAGE,), F.conv_transpose2d(IMAGE, KERNEL),
    ),
    "stride that leaves a rest": (
        lambda n, x: _set(n.add_pooling_nd(x, MAX, (2, 3)), stride_nd=(2, 2)), (IMAGE,), F.max_pool2d(IMAGE, (2, 3), 2),
    ),
    "pooling's stride": (lambda n, x: n.add_pooling_nd(x, MAX, (2, 2)), (IMAGE,), F.max_pool2d(IMAGE, 2, 1)),
    "pooling's padding is not counted": (
        lambda n, x: _set(n.add_pooling_nd(x, AVERAGE, (3, 3)), padding_nd=(1, 1)),
        (IMAGE,),
        F.avg_pool2d(IMAGE, 3, 1, 1, count_include_pad=False),
    ),
    "blend": (lambda n, x: n.add_pooling_nd(x, BLEND, (2, 2)), (IMAGE,), F.max_pool2d(IMAGE, 2, 1)),
    "scale by nothing": (lambda n, x: n.add_scale(x, SCALE_MODE), (IMAGE,), IMAGE),
    "scale by channel": (
        lambda n, x: n.add_scale(x, trt.ScaleMode.CHANNEL, shift=np.arange(4, dtype=np.float32)),
        (IMAGE,),
        IMAGE + torch.arange(4.0).reshape(1, 4, 1, 1),
    ),
    **{
        f"softmax of rank {rank}": (
            lambda n, x: n.add_softmax(x),
            (x := _random(*range(2, 2 + rank)),),
            F.softmax(x, max(rank - 3, 0)),
        )
        for rank in range(1, 6)
    },
    **{
        f"concatenation of rank {rank}": (
            lambda n, x: n.add_concatenation([x, x]),
            (x := _random(*range(2, 2 + rank)),),
            torch.cat([x, x], max(rank - 3, 0)),
        )
        for rank in range(1, 6)
    },
    "indices of top-k": (
        lambda n, x: n.add_topk(x, trt.TopKOperation.MAX, 2, 2).get_output(1),
        (ROWS,),
        torch.topk(ROWS, 2, 1).indices.to(torch.int32),
    ),
    "indices of non-zero": (
        lambda n, x: n.add_non_zero(x), (ROWS > 0,), torch.nonzero(ROWS > 0).T.to(torch.int32),
    ),
    "gather": (lambda n, x, i: n.add_gather_v2(x, i, trt.GatherMode.DEFAULT), (ROWS, PLACES), ROWS[PLACES]),
    "gather elements": (
        lambda n, x, i: n.add_gather_v2(x, i, trt.GatherMode.ELEMENT), (ROWS, PLACES), torch.gather(ROWS, 0, PLACES),
    ),
    "gather by coordinates": (
        lambda n, x, i: n.add_gather_v2(x, i, trt.GatherMode.ND),
        (ROWS, PLACES[:, :2].clamp(max=2)),
        ROWS[tuple(PLACES[:, :2].clamp(max=2).T)],
    ),
    "scatter elements": (
        lambda n, x, i, u: n.add_scatter(x, i, u, trt.ScatterMode.ELEMENT),
        (ROWS, PLACES, -ROWS[:2]),
        ROWS.scatter(0, PLACES, -ROWS[:2]),
    ),
    "resize": (
        lambda n, x: _set(n.add_resize(x), shape=(2, 4, 10, 4)),
        (IMAGE,),
        F.interpolate(IMAGE, (10, 4), mode="nearest"),
    ),
    "resize between samples": (
        lambda n, x: _set(n.add_resize(x), shape=(1, 1, 10), resize_mode=MODE.LINEAR),
        (torch.arange(4.0).reshape(1, 1, 4),),
        (torch.arange(10.0) * 4 / 10).clamp(max=3).reshape(1, 1, 10),  # of a ramp: the places themselves
    ),
    "resize by cubes": (
        lambda n, x: _set(
            n.add_resize(x), shape=(2, 4, 9, 11), resize_mode=MODE.CUBIC, coordinate_transformation=MAPPING.HALF_PIXEL
        ),
        (IMAGE,),
        F.interpolate(IMAGE, (9, 11), mode="bicubic", align_corners=False),
    ),
    "resize to one pixel": (
        lambda n, x: _set(
            n.add_resize(x), shape=(2, 4, 1, 1), resize_mode=MODE.LINEAR, coordinate_transformation=MAPPING.HALF_PIXEL
        ),
        (IMAGE,),
        F.interpolate(IMAGE, (1, 1), mode="bilinear", align_corners=False),
    ),
    "grid sample": (
        lambda n, x, grid: n.add_grid_sample(x, grid),
        (IMAGE, GRID),
        F.grid_sample(IMAGE, GRID, "bilinear", "zeros", align_corners=False),
    ),
    "layer norm": (
        lambda n, x: n.add_normalization_v2(x, _ones(n, 1, 8), _zeros(n, 1, 8), 2), (FLAT,), F.layer_norm(FLAT, (8,)),
    ),
    "group norm of one group": (
        lambda n, x: n.add_normalization_v2(x, _ones(n, 1, 4, 1, 1), _zeros(n, 1, 4, 1, 1), 0b1110),
        (IMAGE,),
        F.group_norm(IMAGE, 1),
    ),
    "ramp": (lambda n: n.add_fill((5,), trt.FillOperation.LINSPACE), (), torch.arange(5.0)),
    "ramp of integers": (
        lambda n: n.add_fill((5,), trt.FillOperation.LINSPACE, INT64), (), torch.arange(5),
    ),
    "ramp of integers beyond float32": (
        lambda n: _set(n.add_fill((3,), trt.FillOperation.LINSPACE, INT64), alpha=float(2**40)),
        (),
        torch.arange(2**40, 2**40 + 3),
    ),
    "shuffle of nothing": (lambda n, x: n.add_shuffle(x), (ROWS,), ROWS),
    "zero in a shuffle": (_shuffle, (IMAGE,), IMAGE.reshape(2, -1)),
    "slice outside, with nothing to fill in": (  # which TensorRT does not document: 0 is chosen
        lambda n, x: _set(n.add_slice(x, (-1, -1), (6, 6), (1, 1)), mode=trt.SampleMode.FILL),
        (ROWS,),
        F.pad(ROWS, (1, 2, 1, 1)),
    ),
    "reverse sequence": (
        lambda n, x, lengths: n.add_reverse_sequence(x, lengths),
        (ROWS, torch.tensor([4, 1, 2])),
        torch.stack([ROWS[[3, 2, 1, 0], 0], ROWS[:, 1], ROWS[[1, 0, 2, 3], 2]], 1),
    ),
    "quantize": (
        lambda n, x: n.add_dequantize(n.add_quantize(x, s := _number(n, 0.05), INT8).get_output(0), s, FLOAT),
        (ROWS,),
        torch.fake_quantize_per_tensor_affine(ROWS, 0.05, 0, -128, 127),
    ),
    "attention": (
        lambda n, q, k: n.add_attention_v2(
            q, k, k, trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE
        ).get_output(0),
        (_random(1, 2, 3, 4), _random(1, 2, 5, 4)),
        F.scaled_dot_product_attention(_random(1, 2, 3, 4), _random(1, 2, 5, 4), _random(1, 2, 5, 4), scale=1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(NUMBERS))
def test_numbers(run_network: Any, name: str) -> None:
    define, inputs, wanted = NUMBERS[name]
    (found,) = run_network(define, *inputs)
    assert found.dtype is wanted.dtype
    tolerance = 1e-5 if wanted.is_floating_point() else 0.0
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_random_fills_start_from_the_unit_laws(run_network: Any) -> None:
    def define(network: Any) -> Any:
        return [network.add_fill((4000,), trt.FillOperation[law]) for law in ("RANDOM_UNIFORM", "RANDOM_NORMAL")]

    uniform, normal = run_network(define)
    assert 0 <= uniform.min() < 0.01 and 0.99 < uniform.max() <= 1
    assert abs(normal.mean()) < 0.1 and abs(normal.std() - 1) < 0.1  # six standard errors and more


def test_boxes_are_corners_and_thresholds_are_zero(run_network: Any) -> None:
    # The second overlaps the first a little, the third not at all, and the fourth has no score.
    boxes = torch.tensor([[[0, 0, 4, 4], [3, 3, 7, 7], [4, 4, 8, 8], [20, 20, 21, 21]]], dtype=torch.float32)
    scores = torch.tensor([[[0.9], [0.8], [0.7], [0.0]]])
    most = torch.tensor(4, dtype=torch.int32)
    (found,) = run_network(lambda n, *tensors: n.add_nms(*tensors), boxes, scores, most)
    assert found.dtype is torch.int32
    assert found.tolist() == [[0, 0, 0], [0, 0, 2]]


def test_experts_are_gated_without_limits_or_quantization(run_network: Any) -> None:
    hidden, gate, up, down = 30 * _random(1, 2, 4), _random(1, 4, 6), _random(1, 4, 6) + 1, _random(1, 6, 4)

    def define(network: Any, x: Any, experts: Any, scores: Any, *weights: Any) -> Any:
        layer = network.add_moe(x, experts, scores)
        layer.set_gated_weights(*weights, trt.MoEActType.SILU)
        return layer

    experts, scores = torch.zeros(1, 2, 1, dtype=torch.int32), torch.ones(1, 2, 1)
    (found,) = run_network(define, hidden, experts, scores, gate, up, down)
    wanted = (F.silu(hidden @ gate[0]) * (hidden @ up[0])) @ down[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-2)


def test_loops_walk_along_the_first_axis_and_stack_there(network: Any, load: Any, execute: Any) -> None:
    x = network.add_input("x", FLOAT, (3, 2))
    loop = network.add_loop()
    count = network.add_constant((), np.array(3, np.int32)).get_output(0)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    row = loop.add_iterator(x).get_output(0)
    rows = loop.add_loop_output(row, trt.LoopOutput.CONCATENATE)
    rows.set_input(1, count)
    network.mark_output(rows.get_output(0))
    given = _random(3, 2)
    (found,) = execute(load(network).create_execution_context(), {"x": given}).values()
    assert torch.equal(found, given)


def test_plans_hold_null_for_what_is_unset(network: Any) -> None:
    fill = network.add_fill((3,), trt.FillOperation.LINSPACE)
    resize = network.add_resize(_Inputs(network)(1, 1, 4, 4))
    assert (fill._attributes()["alpha"], fill._attributes()["beta"], resize._attributes()["scales"]) == (None,) * 3
    fill_again, resize_again = trt.IFillLayer._create(), trt.IResizeLayer._create()
    fill_again._restore(fill._attributes(), {})
    resize_again._restore(resize._attributes(), {})
    assert (fill_again.alpha, fill_again.beta, resize_again.scales) == (0.0, 1.0, ())
    fill.alpha, fill.beta = 0, 1  # which are int64
    assert (fill._attributes()["alpha"], fill._attributes()["beta"]) == (0, 1)
