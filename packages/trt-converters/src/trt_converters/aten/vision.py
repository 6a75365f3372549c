"""Operators of torchvision, registered once it has been imported: it defines them."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import dtypes, never
from trt_converters.context import ConversionContext, Operand
from trt_converters.layers import dimension, slice_axis, squeeze, unsqueeze
from trt_converters.registry import converter
from trt_core import Reason, Verdict, trt

BOX_LIMIT: Final = 5000
"""Most boxes that the NMS layer looks at."""


def box_limit(call: Call) -> Verdict | None:
    """Refuses more boxes than the layer looks at."""
    count = call.tensor("dets").shape[0]
    if not isinstance(count, int):
        return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{count} boxes may be more than {BOX_LIMIT}")
    if count > BOX_LIMIT:
        return Verdict.refuse(Reason.TENSORRT_LIMIT, f"{count} boxes; the layer looks at {BOX_LIMIT}")
    return None


def torchvision_nms(ctx: ConversionContext, dets: Operand, scores: Operand, iou_threshold: float) -> Any:
    """nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"""
    boxes, weights = unsqueeze(ctx, dets, (0,)), unsqueeze(ctx, scores, (0, 2))
    count = dimension(ctx, dets, 0)
    layer = ctx.own(
        ctx.network.add_nms(
            ctx.tensor(boxes),
            ctx.tensor(weights),
            ctx.tensor(torch.tensor(count, dtype=torch.int32)),
            trt.DataType.INT64,
        )
    )
    layer.bounding_box_format = trt.BoundingBoxFormat.CORNER_PAIRS
    layer.topk_box_limit = count
    layer.set_input(3, ctx.tensor(torch.tensor(float(iou_threshold))))
    layer.set_input(4, ctx.tensor(torch.tensor(torch.finfo(torch.float32).min)))  # scores of any sign take part
    chosen = layer.get_output(0)  # (n, 3): batch, class, box
    return squeeze(ctx, slice_axis(ctx, chosen, 1, 2, 1), (1,))


def torchvision_roi_align(
    ctx: ConversionContext,
    input: Operand,
    rois: Operand,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    """roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"""  # noqa: E501
    raise ctx.fail("no layer averages samples of regions")


_registered = False


def is_waiting() -> bool:
    """Whether torchvision has been imported since converters were last loaded."""
    return not _registered and "torchvision" in sys.modules


def register() -> None:
    """Registers the converters once torchvision, which defines the operators, has been imported."""
    global _registered
    if not is_waiting():
        return
    _registered = True
    operators = torch.ops.torchvision
    converter(
        operators.nms.default,
        checks=(dtypes("dets", (torch.float32, torch.float16)), box_limit),
        data_dependent=True,
    )(torchvision_nms)
    converter(
        operators.roi_align.default,
        checks=never(Reason.UNSUPPORTED_ARGUMENT, "no layer averages samples of regions whose size depends on data"),
    )(torchvision_roi_align)
