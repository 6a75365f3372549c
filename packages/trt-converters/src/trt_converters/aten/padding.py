"""Padding: constant, reflection, replication, circular."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_converters.call import Call
from trt_converters.checks import refuses
from trt_converters.context import ConversionContext, Operand, Size, rank_of
from trt_converters.converter import Check
from trt_converters.layers import crop_and_pad, pad_by_sampling
from trt_converters.layers.padding import sampling_takes
from trt_converters.registry import converter
from trt_core import Reason, Verdict

aten = torch.ops.aten
SAMPLE_MODES: Final = {"reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}


def takes_amounts(parameter: str) -> Check:
    """Refuses amounts that depend on a shape where the way to pad depends on their sign."""

    @refuses(f"`{parameter}` that depends on a shape, of int64 or circular")
    def check(call: Call) -> Verdict | None:
        if all(isinstance(amount, int) for amount in call[parameter]):
            return None
        if call.arguments.get("mode", "") == "circular" or call.tensor("self").dtype is torch.int64:
            return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"{parameter} is symbolic")
        return None

    return check


def known_amounts(call: Call) -> Verdict | None:
    """Refuses amounts that depend on a shape."""
    if all(isinstance(amount, int) for amount in call["pad"]):
        return None
    return Verdict.refuse(Reason.DYNAMIC_SHAPE, "pad is symbolic")


def sampled_type(call: Call) -> Verdict | None:
    """Refuses to extend int64 tensors by their own elements: the layer has no such type, and no other one holds it."""
    if call.arguments.get("mode", "reflect") in ("constant", "circular") or sampling_takes(call.tensor("self").dtype):
        return None
    return Verdict.refuse(
        Reason.UNSUPPORTED_DTYPE, f"a slice that samples outside takes no {call.tensor('self').dtype}"
    )


def wraps_whole(call: Call) -> Verdict | None:
    """Refuses circular padding that crops: PyTorch then wraps around inside of what remains."""
    if call.arguments.get("mode", "circular") == "circular" and any(
        isinstance(amount, int) and amount < 0 for amount in call["pad"]
    ):
        return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"pad={call['pad']}: circular padding that crops")
    return None


def amounts(pad: Sequence[Size], rank: int) -> tuple[list[Size], list[Size]]:
    """Returns what is added before and behind each axis; PyTorch lists pairs from the last axis to the first."""
    before: list[Size] = [0] * rank
    after: list[Size] = [0] * rank
    for pair in range(len(pad) // 2):
        before[rank - 1 - pair], after[rank - 1 - pair] = pad[2 * pair], pad[2 * pair + 1]
    return before, after


@converter(aten.constant_pad_nd.default, checks=takes_amounts("pad"))
def aten_constant_pad_nd(ctx: ConversionContext, self: Operand, pad: Sequence[Size], value: float) -> Any:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor"""
    return crop_and_pad(ctx, self, *amounts(pad, rank_of(self)), value)


@converter(aten.pad.default, checks=(takes_amounts("pad"), sampled_type, wraps_whole))
def aten_pad(ctx: ConversionContext, self: Operand, pad: Sequence[Size], mode: str, value: float | None) -> Any:
    """pad(Tensor self, SymInt[] pad, str mode="constant", float? value=None) -> Tensor"""
    before, after = amounts(pad, rank_of(self))
    if mode == "constant":
        return crop_and_pad(ctx, self, before, after, 0 if value is None else value)
    return pad_by_sampling(ctx, self, before, after, SAMPLE_MODES[mode])


@converter(aten._pad_circular.default, checks=(known_amounts, wraps_whole))
def aten__pad_circular(ctx: ConversionContext, self: Operand, pad: Sequence[int]) -> Any:
    """_pad_circular(Tensor self, SymInt[] pad) -> Tensor"""
    return pad_by_sampling(ctx, self, *amounts(pad, rank_of(self)), "WRAP")


@converter(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
    checks=(takes_amounts("padding"), sampled_type),
)
def aten_reflection_pad2d(ctx: ConversionContext, self: Operand, padding: Sequence[Size]) -> Any:
    """reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
    return pad_by_sampling(ctx, self, *amounts(padding, rank_of(self)), "REFLECT")


@converter(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
    checks=(takes_amounts("padding"), sampled_type),
)
def aten_replication_pad2d(ctx: ConversionContext, self: Operand, padding: Sequence[Size]) -> Any:
    """replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
    return pad_by_sampling(ctx, self, *amounts(padding, rank_of(self)), "CLAMP")
