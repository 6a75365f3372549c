"""Extents and padding of sliding windows, as convolution, deconvolution and pooling share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from trt_portable.dims import Dims
from trt_portable.enums import PaddingMode
from trt_portable.errors import Refusal
from trt_portable.layer_properties import Attribute, dims, optional_dims
from trt_portable.network.layer import ILayer
from trt_portable.network.rules import require
from trt_portable.size_arithmetic import is_unknown


class Padding(NamedTuple):
    """Padding of one axis.

    Attributes:
        before: Elements put before the first.
        after: Elements put after the last.
        extra: Elements beyond `after` that only rounding up needs.
    """

    before: Any
    after: Any
    extra: Any


def window_padding(extent: Any, mode: PaddingMode, before: int, after: int, stride: int, span: int) -> Padding:
    """Padding that makes a window without rounding give TensorRT's output extent.

    Args:
        extent: Input extent of the axis.
        mode: Where the padding comes from.
        before: Explicit padding before.
        after: Explicit padding after.
        stride: Distance between windows.
        span: Elements from the first to the last of a dilated window.
    """
    if mode is PaddingMode.EXPLICIT_ROUND_DOWN:
        return Padding(before, after, 0)
    if mode is PaddingMode.EXPLICIT_ROUND_UP:
        padded = extent + before + after
        windows = (padded - span + stride - 1) // stride
        return Padding(before, after, windows * stride + span - padded)
    total = (extent - 1) // stride * stride + span - extent
    if isinstance(total, int):
        total = max(total, 0)
    small = total // 2
    if mode is PaddingMode.SAME_UPPER:
        return Padding(small, total - small, 0)
    return Padding(total - small, small, 0)


def require_fit(padded: Any, span: int) -> None:
    """Refuses a window that is surely larger than its padded axis.

    Raises:
        Refusal: It is.
    """
    require(not isinstance(padded, int) or padded >= span, f"a window of {span} does not fit in {padded} elements")


def count_windows(
    extents: Sequence[Any], paddings: Sequence[Padding], strides: Sequence[int], spans: Sequence[int]
) -> list[Any]:
    """How many windows slide over each axis whose padding is known.

    PyTorch's own shape inference asks whether symbolic extents divide, and some releases refuse where nobody knows.

    Raises:
        Refusal: A window surely does not fit.
    """
    counts = []
    for extent, padding, stride, span in zip(extents, paddings, strides, spans, strict=True):
        padded = extent + sum(padding)
        require_fit(padded, span)
        counts.append((padded - span) // stride + 1)
    return counts


def convolved_extents(
    extents: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Any]:
    """Spatial extents of a convolution's result, as PyTorch's operators are asked for it.

    Args:
        extents: Spatial extents of the input.
        kernel: Spatial extents of the kernel.
        stride: Distance between windows.
        padding: On either side.
        dilation: Distance between kernel elements.

    Raises:
        Refusal: A window surely does not fit.
    """
    spans = [1 + step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    return count_windows(extents, [Padding(amount, amount, 0) for amount in padding], stride, spans)


def symmetric(paddings: Sequence[Padding]) -> list[int] | None:
    """Padding that is the same before and after on every axis; None if it is not."""
    known = all(isinstance(amount, int) for padding in paddings for amount in padding)
    if known and all(p.before == p.after and not p.extra for p in paddings):
        return [p.before for p in paddings]
    return None


def pad(x: torch.Tensor, paddings: Sequence[Padding], value: float = 0.0) -> torch.Tensor:
    """Pads the trailing axes, the extra elements included; negative amounts crop."""
    flat: list[Any] = []
    for padding in reversed(paddings):
        flat += [padding.before, padding.after + padding.extra]
    if all(isinstance(amount, int) for amount in flat) and not any(flat):
        return x
    if x.device.type != "meta" or not any(is_unknown(number) for number in (*flat, *x.shape)):
        return F.pad(x, flat, value=value)
    # Inference meets extents without numbers, and only the new extents matter to it.
    shape = [*x.shape]
    for axis, padding in enumerate(paddings, start=x.ndim - len(paddings)):
        shape[axis] = shape[axis] + padding.before + padding.after + padding.extra
    return x.new_empty(shape)


class _Symmetric(Attribute[Dims]):
    """Padding of both sides at once; reading it gives the padding before."""

    def __get__(self, layer: Any, owner: type) -> Any:
        return self if layer is None else layer.pre_padding

    def __set__(self, layer: ILayer, value: Any) -> None:
        converted = self.convert(value)
        layer.pre_padding = converted  # type: ignore[attr-defined]
        layer.post_padding = converted  # type: ignore[attr-defined]


class _PerAxis(Attribute[Dims | None]):
    """A number per spatial axis; before any assignment the same default for all of them."""

    def __init__(self, fill: int, doc: str) -> None:
        plain = optional_dims()
        super().__init__(plain.convert, None, plain.encode, plain.decode, doc)
        self.fill = fill

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is None:
            return self
        stored = super().__get__(layer, owner)
        return Dims((self.fill,) * layer._spatial_rank) if stored is None else stored


def per_axis(fill: int, doc: str) -> Any:
    """An attribute with a number per spatial axis."""
    return _PerAxis(fill, doc)


def both_paddings(doc: str) -> Any:
    """The attribute that sets the padding of both sides."""
    plain = dims(Dims())
    attribute = _Symmetric(plain.convert, plain.default, plain.encode, plain.decode, doc)
    return _Property(attribute)


class _Property:
    """A property that is no part of a plan, because others hold its value."""

    def __init__(self, attribute: Attribute[Dims]) -> None:
        self.attribute = attribute
        self.__doc__ = attribute.__doc__

    def __set_name__(self, owner: type[ILayer], name: str) -> None:
        self.attribute.__set_name__(owner, name)

    def __get__(self, layer: Any, owner: type) -> Any:
        return self if layer is None else self.attribute.__get__(layer, owner)

    def __set__(self, layer: ILayer, value: Any) -> None:
        self.attribute.__set__(layer, value)


def check_lengths(layer: ILayer, rank: int, names: Sequence[str]) -> None:
    """Refuses attributes that have another number of elements than there are spatial axes.

    Raises:
        Refusal: A wrong number of elements.
    """
    for name in names:
        found = getattr(layer, name)
        if len(found) != rank:
            raise Refusal(f"{name} {found} has {len(found)} elements for {rank} spatial axes")
