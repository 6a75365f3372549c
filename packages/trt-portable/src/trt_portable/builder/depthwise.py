"""Depthwise convolutions in half precision with channels last, as a Triton kernel of our own.

cuDNN compiles a kernel for each shape at its first run, which takes 0.14 s. This one is compiled once for a window,
whatever the extents, and takes bias and activation along. All of its loads are written out, so that they overlap: for
7 by 7 that is three times as fast as a loop over rows. It takes seconds to compile, so a thread does that while
Inductor works on the rest of a graph.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton  # type: ignore[import-untyped]
from torch import fx
from triton import language as tl

from trt_portable.runtime.device_kernels import POINTER

OPERATOR: Final = "trt_portable::depthwise_convolution"
_PIXELS: Final = 16
_CHANNELS: Final = 32
_WARPS: Final = 4
_ACTIVATIONS: Final = {"none": 0, "relu": 1, "hardswish": 2, "swish": 3}
_NUMBERS: Final = ("pixels", "height", "width", "rows", "columns", "eighths")
_MOST_ELEMENTS: Final = 2**31  # places are 32-bit numbers


@triton.jit(do_not_specialize=list(_NUMBERS))  # type: ignore[untyped-decorator]
def _depthwise(  # type: ignore[no-untyped-def]
    x,
    taps,
    bias,
    y,
    pixels,
    height,
    width,
    rows,
    columns,
    eighths,
    STRIDE_ROWS: tl.constexpr,
    STRIDE_COLUMNS: tl.constexpr,
    PADDING_ROWS: tl.constexpr,
    PADDING_COLUMNS: tl.constexpr,
    DILATION_ROWS: tl.constexpr,
    DILATION_COLUMNS: tl.constexpr,
    WINDOW_ROWS: tl.constexpr,
    WINDOW_COLUMNS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes some channels of some pixels; channels come in eighths, so that they are read eight at a time."""
    channels = eighths * 8
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    column = pixel % columns
    row = (pixel // columns) % rows
    image = pixel // (columns * rows)
    is_channel = channel < channels
    is_pixel = pixel < pixels
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    for tap_row in tl.static_range(WINDOW_ROWS):
        at_row = row * STRIDE_ROWS - PADDING_ROWS + tap_row * DILATION_ROWS
        in_rows = is_pixel & (at_row >= 0) & (at_row < height)
        begin = (image * height + at_row) * width
        for tap_column in tl.static_range(WINDOW_COLUMNS):
            at_column = column * STRIDE_COLUMNS - PADDING_COLUMNS + tap_column * DILATION_COLUMNS
            is_inside = in_rows & (at_column >= 0) & (at_column < width)
            place = ((begin + at_column) * channels)[:, None] + channel[None, :]
            value = tl.load(x + place, mask=is_inside[:, None] & is_channel[None, :], other=0.0)
            tap = tl.load(
                taps + (tap_row * WINDOW_COLUMNS + tap_column) * channels + channel, mask=is_channel, other=0.0
            )
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = total * tl.minimum(tl.maximum(total + 3.0, 0.0), 6.0) / 6.0
    if ACTIVATION == 3:
        total = total / (1.0 + tl.exp(-total))
    place = (pixel * channels)[:, None] + channel[None, :]
    tl.store(y + place, total.to(tl.float16), mask=is_pixel[:, None] & is_channel[None, :])


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel that was started.

    Attributes:
        compiled: Triton's compiled kernel.
        grid: Three extents, in blocks.
        arguments: A tensor or a number for each parameter that the kernel's source names.
    """

    compiled: Any
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]

    @property
    def types(self) -> str:
        """A letter per parameter of the machine code, which may have more than the source: scratch memory."""
        named = "".join(POINTER if isinstance(argument, torch.Tensor) else "i" for argument in self.arguments)
        found = re.search(r"\.entry\s+\w+\s*\((.*?)\)", self.compiled.asm["ptx"], re.DOTALL)
        if found is None:
            raise RuntimeError("a kernel without an entry")
        return named + POINTER * (found[1].count(".param") - len(named))


def convolve(
    x: torch.Tensor,
    kernel: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
) -> tuple[torch.Tensor, KernelLaunch]:
    """Starts the kernel on the current stream.

    Args:
        x: (N, C, H, W) in float16, channels varying fastest; C a multiple of 8.
        kernel: (C, 1, R, S) in memory as (R, S, C).
        bias: (C,), or None.
        stride: Of rows and columns.
        padding: Of rows and columns, on both sides.
        dilation: Of rows and columns.
        activation: ``none``, ``relu``, ``hardswish`` or ``swish``.

    Returns:
        The result, with channels varying fastest, and what was started.

    Raises:
        RuntimeError: The operands lie in another way, or are too large.
    """
    taps = kernel.permute(2, 3, 0, 1)
    result = like_result(x, kernel, stride, padding, dilation)
    if not x.is_contiguous(memory_format=torch.channels_last) or not taps.is_contiguous() or x.shape[1] % 8:
        raise RuntimeError("operands of a depthwise convolution lie in another way")
    if max(x.numel(), result.numel()) >= _MOST_ELEMENTS:
        raise RuntimeError("a depthwise convolution is too large")
    batch, channels, height, width = x.shape
    rows, columns = result.shape[2:]
    pixels = batch * rows * columns
    grid = (-(-pixels // _PIXELS), -(-channels // _CHANNELS), 1)
    arguments = (x, taps, x if bias is None else bias, result, pixels, height, width, rows, columns, channels // 8)
    compiled = _depthwise[grid](
        *arguments,
        STRIDE_ROWS=stride[0],
        STRIDE_COLUMNS=stride[1],
        PADDING_ROWS=padding[0],
        PADDING_COLUMNS=padding[1],
        DILATION_ROWS=dilation[0],
        DILATION_COLUMNS=dilation[1],
        WINDOW_ROWS=taps.shape[0],
        WINDOW_COLUMNS=taps.shape[1],
        HAS_BIAS=bias is not None,
        ACTIVATION=_ACTIVATIONS[activation],
        PIXELS=_PIXELS,
        CHANNELS=_CHANNELS,
        num_warps=_WARPS,
    )
    return result, KernelLaunch(compiled, grid, (arguments[0], kernel, *arguments[2:]))


def like_result(
    x: torch.Tensor, kernel: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    """Memory for the result."""
    extents = [
        (extent + 2 * before - step * (window - 1) - 1) // jump + 1
        for extent, window, jump, before, step in zip(
            x.shape[2:], kernel.shape[2:], stride, padding, dilation, strict=True
        )
    ]
    shape = (x.shape[0], kernel.shape[0], *extents)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def compile_ahead(graph: fx.GraphModule, device: torch.device) -> threading.Thread:
    """Starts a thread that compiles the kernels of a graph; whoever runs the graph waits for it.

    Args:
        graph: Calls the operator.
        device: Where it will run.
    """
    kinds = {
        (tuple(kernel.meta["val"].shape[2:]), bias is not None, *map(tuple, geometry), activation)
        for node in graph.graph.nodes
        if node.op == "call_function" and getattr(node.target, "_schema", None) and node.target._schema.name == OPERATOR
        for _, kernel, bias, *geometry, activation in (node.args,)
    }

    def run() -> None:
        with contextlib.suppress(Exception), torch.cuda.device(device), torch.no_grad():  # the graph's own run tells
            for window, has_bias, stride, padding, dilation, activation in sorted(kinds):
                spans = [step * extent for step, extent in zip(dilation, window, strict=True)]
                x = torch.zeros(1, 8, *spans, dtype=torch.float16, device=device)
                kernel = torch.zeros(*window, 8, 1, dtype=torch.float16, device=device).permute(2, 3, 0, 1)
                bias = torch.zeros(8, dtype=torch.float16, device=device) if has_bias else None
                last = x.contiguous(memory_format=torch.channels_last)
                convolve(last, kernel, bias, stride, padding, dilation, activation)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@functools.cache
def teach_depthwise_operator() -> Any:
    """Makes the operator known to PyTorch, to traces without data, and to Inductor; once per process.

    Returns:
        The operator, with the arguments of `convolve`, as `LaunchRecorder` meets it.
    """
    from torch._inductor.lowering import constrain_to_fx_strides, make_fallback

    arguments = "Tensor x, Tensor kernel, Tensor? bias, int[] stride, int[] padding, int[] dilation, str activation"
    define: Any = torch.library.custom_op
    made = define(OPERATOR, lambda *given: convolve(*given)[0], mutates_args=(), schema=f"({arguments}) -> Tensor")
    made.register_fake(lambda x, kernel, bias, *geometry: like_result(x, kernel, *geometry[:3]))
    namespace, name = OPERATOR.split("::")
    operator = getattr(getattr(torch.ops, namespace), name).default
    make_fallback(operator, constrain_to_fx_strides, warn=False)
    return operator
