"""Products on CUDA in half precision with what follows them in one kernel, as cuDNN and cuBLASLt have it.

PyTorch's ordinary convolution adds its bias in a kernel of its own, and a ReLU is another: at batch 1 they take longer
than the convolution, and at batch 64 three times as long. Measured on a Hopper GPU: a convolution with bias and ReLU in
1.0 to 1.4 times the time of the convolution alone, against 1.3 to 6 times layer by layer. Not so with groups: there
cuDNN's fused kernels are 2 to 10 times slower. A convolution that cuts an image of 3 channels into patches of 16 by 16
takes cuDNN 70 microseconds at batch 1; copying the patches and one product take a tenth. A deconvolution whose windows
touch is a product, too, whose results lie side by side; cuDNN has a slower kernel for it, which clears memory first.

Kernels for tensor cores write rows that begin at multiples of 16 bytes. Rows of an odd extent, as the logits of many
vocabularies have it, do not, and the kernel that is left takes three to eight times as long (docs/speed.md). There are
two ways around it:

- `write_joined`: most columns are one product, the rest another, and a copy joins both.
- `write_interleaved`: every eighth row begins at the same place within 16 bytes. So each eighth of the rows is a
  product of its own, from the first column at a multiple of 16 bytes on, and is written where it belongs. The few
  columns at both ends are another product. Nothing is copied, but the matrix is read eight times.

Compilers are given an operator for such products that are outputs of an engine, and the builder measures ways for it
(`trt_portable.builder.inductor.unaligned_products`). Others they are given as two tables to choose from, and fuse that
with what reads them; parts to join they would write into rows at odd places again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Final, TypeAlias

import torch
import torch.nn.functional as F

from trt_portable.enums import DataType, LayerType, PaddingMode
from trt_portable.errors import present
from trt_portable.execution.program import Compute, LayerCall, PlacedCompute
from trt_portable.fusion.call_graph import rewrite
from trt_portable.fusion.epilogues import (
    Epilogue,
    Kernels,
    LinearForm,
    OneByOne,
    ProductWithEpilogue,
    is_linear,
    is_plain_convolution,
    linear_form,
)
from trt_portable.fusion.packed_products import convolved_shape
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.shape_tensors import Value, as_tensor, usual_size

ALIGNED: Final = 8
"""Numbers of half precision in 16 bytes."""


def write_joined(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    """Writes ``x @ matrix.T + bias``.

    Args:
        x: (M, K) in half precision; K a multiple of 8.
        matrix: (N, K); N no multiple of 8.
        bias: (N,), or None.
        result: (M, N), dense.
    """
    torch.cat(aligned_and_rest(x, matrix, bias), -1, out=result)


def aligned_and_rest(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x @ matrix.T + bias`` as two tensors: as many columns as are aligned, and the others."""
    sizes = [len(matrix) - len(matrix) % ALIGNED, len(matrix) % ALIGNED]
    biases = [None, None] if bias is None else bias.split(sizes)
    most, rest = (F.linear(x, *operands) for operands in zip(matrix.split(sizes), biases, strict=True))
    return most, rest


def write_interleaved(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, result: torch.Tensor) -> None:
    """Writes the same; a bias costs another pass over the result. It begins at a multiple of 16 bytes."""
    rows, columns = result.shape
    period = period_of(columns)
    ends = torch.cat((matrix[:ALIGNED], matrix[-ALIGNED:]))
    at_ends = F.linear(x, ends)
    result[:, :ALIGNED] = at_ends[:, :ALIGNED]
    result[:, -ALIGNED:] = at_ends[:, ALIGNED:]
    for first in range(min(period, rows)):
        begin = -(first * columns) % ALIGNED
        end = begin + (columns - begin) // ALIGNED * ALIGNED
        torch.mm(x[first::period], matrix[begin:end].mT, out=result[first::period, begin:end])
    if bias is not None:
        result += bias


def period_of(columns: int) -> int:
    """After how many dense rows one begins at the same place within 16 bytes again."""
    return ALIGNED // math.gcd(columns, ALIGNED)


_CHANNELS_OF_TENSOR_CORES: Final = 8
_FEW_ELEMENTS: Final = 1 << 20
_MOST_TAPS: Final = 49  # more take long to compile
_DEPTHWISE_ACTIVATIONS: Final = ("none", "relu", "hardswish", "swish")


def fuse_cuda_products(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
    """Replaces products in float16 with constant weights by fused ones, each with what only its result goes through.

    Args:
        calls: Layers in executable order, linear maps fused.
        visible: Ids of tensors that something besides the layers reads.
    """
    return rewrite(calls, visible, [ProductWithEpilogue(_CudaKernels())])


def fuse_traced_products(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
    """The same for calls that a compiler is to see."""
    return rewrite(calls, visible, [ProductWithEpilogue(_TracedKernels())])


class _CudaKernels(Kernels):
    """cuDNN's convolution with bias, sum and ReLU; cuBLASLt's product with bias, ReLU or the tanh form of GELU."""

    def takes(self, call: LayerCall) -> bool:
        layer = call.layer
        if isinstance(layer, IDeconvolutionLayer):
            return _spreads_patches(call)
        if isinstance(layer, IConvolutionLayer):
            if _slides_long_windows(call):
                return True
            is_flat = layer.num_groups == 1 and len(layer.kernel_size_nd) == 2
            return (is_flat or is_depthwise(layer)) and is_plain_convolution(call, DataType.HALF)
        form = linear_form(call)
        return form is not None and form.has_bias and is_linear(call, DataType.HALF)

    def fuses(self, product: LayerCall, epilogue: Epilogue) -> bool:
        layer, is_plain = product.layer, epilogue == Epilogue()
        if isinstance(layer, IDeconvolutionLayer):
            return is_plain
        if isinstance(layer, IConvolutionLayer):
            if layer.num_groups > 1:
                return is_plain
            return epilogue.unary == "relu" or (is_plain and (_is_pointwise(layer) or _cuts_patches(layer)))
        is_gelu = epilogue.unary == "gelu" and epilogue.algorithm == "tanh"
        return not epilogue.adds and (is_gelu or epilogue.unary == "relu")

    def make(self, product: LayerCall, epilogue: Epilogue, plain: OneByOne) -> Compute:
        layer = product.layer
        if isinstance(layer, IDeconvolutionLayer):
            return _Fused(partial(_patch_deconvolution, layer), plain)
        if isinstance(layer, IConvolutionLayer):
            return _Fused(self._convolution(layer, epilogue), plain)
        form = present(linear_form(product))
        return _Fused(partial(_linear, form, epilogue.unary == "gelu"), plain)

    def _convolution(self, layer: IConvolutionLayer, epilogue: Epilogue) -> _Kernel:
        if is_depthwise(layer):
            return partial(_small_depthwise_convolution, layer, list(layer.kernel_size_nd), _geometry(layer))
        if layer.num_groups > 1:
            return partial(_window_products, layer)
        if epilogue != Epilogue():
            return partial(_convolution, layer, _geometry(layer), epilogue.adds)
        return partial(_patch_convolution if _cuts_patches(layer) else _pointwise_convolution, layer)


class _TracedKernels(_CudaKernels):
    """The same for graphs that are compiled, but products of channels: compilers fuse what follows these by themselves.

    They put an activation behind a linear map into a kernel of its own, which reads and writes what cuBLASLt has at
    hand: for GPT-2 at batch 64 on an H200 401 microseconds more of 4400, against 120 in cuBLASLt.
    """

    def takes(self, call: LayerCall) -> bool:
        layer = call.layer
        if isinstance(layer, IConvolutionLayer) and layer.num_groups > 1 and not is_compiled_depthwise(layer):
            return _slides_long_windows(call)
        return super().takes(call)

    def fuses(self, product: LayerCall, epilogue: Epilogue) -> bool:
        layer = product.layer
        if not isinstance(layer, IConvolutionLayer):
            return super().fuses(product, epilogue)
        if layer.num_groups > 1 and not is_depthwise(layer):
            return epilogue == Epilogue()
        if layer.num_groups > 1:
            return not epilogue.adds and epilogue.unary in _DEPTHWISE_ACTIVATIONS
        return epilogue.unary == "relu" or (epilogue == Epilogue() and _cuts_patches(layer))

    def _convolution(self, layer: IConvolutionLayer, epilogue: Epilogue) -> _Kernel:
        if is_depthwise(layer):
            return partial(_compiled_depthwise_convolution, layer, _geometry(layer), epilogue.unary)
        if layer.num_groups > 1 and _has_aligned_groups(layer):
            return partial(_compiled_grouped_convolution, layer)
        return super()._convolution(layer, epilogue)


def is_depthwise(layer: IConvolutionLayer) -> bool:
    """Whether each channel is convolved by itself, into one."""
    if not layer._has_weights("KERNEL") or len(layer.kernel_size_nd) != 2:
        return False
    channels, windows = layer.num_output_maps, layer.kernel_size_nd
    count = layer._weight_spec("KERNEL")[1]
    return layer.num_groups == channels > 1 and count == channels * windows[0] * windows[1]


def is_compiled_depthwise(layer: IConvolutionLayer) -> bool:
    """Whether `trt_portable.builder.inductor.depthwise` has a kernel for a depthwise convolution in float16."""
    if not is_depthwise(layer) or layer._weight_spec("KERNEL")[0] is not DataType.HALF:
        return False
    windows = layer.kernel_size_nd
    return layer.num_groups % _CHANNELS_OF_TENSOR_CORES == 0 and windows[0] * windows[1] <= _MOST_TAPS


def _cuts_patches(layer: IConvolutionLayer) -> bool:
    """Whether windows are disjoint and channels too few for cuDNN's kernels on tensor cores, as where images begin."""
    windows = tuple(layer.kernel_size_nd)
    channels = layer._weight_spec("KERNEL")[1] // (layer.num_output_maps * windows[0] * windows[1])
    is_disjoint = windows == tuple(layer.stride_nd) and set(layer.pre_padding) == {0} and set(layer.dilation_nd) == {1}
    return is_disjoint and windows != (1, 1) and channels % _CHANNELS_OF_TENSOR_CORES != 0


def _slides_long_windows(call: LayerCall) -> bool:
    """Whether groups of channels are convolved by long windows along a line, as positions of Wav2Vec2 are.

    There cuDNN takes 13 ms where a product of each group with its windows reads and writes a tenth of a gigabyte.
    """
    layer = call.layer
    if not isinstance(layer, IConvolutionLayer) or len(layer.kernel_size_nd) != 2:
        return False
    windows = tuple(layer.kernel_size_nd)
    return (
        1 in windows
        and max(windows) >= _LONG_WINDOW
        and 1 < layer.num_groups < layer.num_output_maps
        and {*layer.stride_nd, *layer.dilation_nd} == {1}
        and any(is_plain_convolution(call, dtype) for dtype in (DataType.FLOAT, *_HALVES))
    )


def _has_aligned_groups(layer: IConvolutionLayer) -> bool:
    """Whether `trt_portable.builder.inductor.convolutions` has a kernel for a convolution of groups."""
    dtype, count = layer._weight_spec("KERNEL")
    inner = count // (layer.num_output_maps * math.prod(layer.kernel_size_nd))
    return dtype in _HALVES and inner % _CHANNELS_OF_TENSOR_CORES == 0


def _spreads_patches(call: LayerCall) -> bool:
    """Whether windows of a deconvolution in float16, with weights of its own, touch and neither overlap nor are cut."""
    layer = call.layer
    if not isinstance(layer, IDeconvolutionLayer) or len(call.inputs) != 1 or not layer._has_weights("KERNEL"):
        return False
    windows = tuple(layer.kernel_size_nd)
    return (
        len(windows) == 2
        and windows == tuple(layer.stride_nd)
        and layer.num_groups == 1
        and layer._weight_spec("KERNEL")[0] is DataType.HALF
        and layer.padding_mode is PaddingMode.EXPLICIT_ROUND_DOWN
        and not any((*layer.pre_padding, *layer.post_padding))
        and set(layer.dilation_nd) == {1}
    )


def _is_pointwise(layer: IConvolutionLayer) -> bool:
    """Whether a convolution is a product of channels, with a bias, at each place."""
    ones = (*layer.kernel_size_nd, *layer.stride_nd)
    return layer._has_weights("BIAS") and set(ones) == {1} and set(layer.pre_padding) == {0}


_Operands: TypeAlias = "Sequence[Value | None]"
_Kernel: TypeAlias = Callable[[torch.Tensor, _Operands], "torch.Tensor | None"]
"""Computes a result for a first input on CUDA that has elements; None where it cannot for these operands."""
_Geometry: TypeAlias = tuple[list[int], list[int], list[int]]


def _geometry(layer: IConvolutionLayer) -> _Geometry:
    """Stride, padding and dilation."""
    return list(layer.stride_nd), list(layer.pre_padding), list(layer.dilation_nd)


class _Fused:
    """A fused kernel, or the layers one by one: off CUDA, for operands that do not suit, and once the kernel refused.

    Args:
        kernel: The kernel.
        plain: The layers.
    """

    def __init__(self, kernel: _Kernel, plain: Compute) -> None:
        self._kernel = kernel
        self._plain = plain
        self._is_refused = False

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        x = as_tensor(inputs[0])
        if self._is_refused or not x.is_cuda or not x.numel():
            return self._plain(inputs)
        try:
            result = self._kernel(x, inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # cuDNN has no engine for it
            self._is_refused = True
            result = None
        return self._plain(inputs) if result is None else (result,)


def _convolution(
    layer: IConvolutionLayer, geometry: _Geometry, adds: bool, x: torch.Tensor, inputs: _Operands
) -> torch.Tensor | None:
    """A convolution with bias and ReLU, and a sum in between."""
    kernel, bias = layer._own_weights(x)
    if not adds:
        return torch.cudnn_convolution_relu(x, kernel, bias, *geometry, 1)
    other = as_tensor(inputs[-1])
    if other.shape != convolved_shape(layer, x.shape):
        return None
    other = other.contiguous(memory_format=torch.channels_last)
    return torch.cudnn_convolution_add_relu(x, kernel, other, 1.0, bias, *geometry, 1)


def _pointwise_convolution(layer: IConvolutionLayer, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """A product of channels with its bias, where channels vary fastest."""
    if not x.is_contiguous(memory_format=torch.channels_last):
        return None
    kernel, bias = layer._own_weights(x)
    return F.linear(x.permute(0, 2, 3, 1), kernel.flatten(1), bias).permute(0, 3, 1, 2)


def _small_depthwise_convolution(
    layer: IConvolutionLayer, window: list[int], geometry: _Geometry, x: torch.Tensor, inputs: _Operands
) -> torch.Tensor | None:
    """A convolution of each channel by itself, of few elements, by PyTorch's own kernel.

    cuDNN compiles its kernel for each shape at the first run, for 0.14 s. PyTorch's wants channels apart, and takes the
    bias along; with the copies around it, it is as fast where there are few elements.
    """
    if x.numel() > _FEW_ELEMENTS:
        return None
    kernel, bias = layer._own_weights(x)
    apart = torch.ops.aten._conv_depthwise2d(x.contiguous(), kernel.contiguous(), window, bias, *geometry)
    last: torch.Tensor = apart.contiguous(memory_format=torch.channels_last)
    return last


def _compiled_depthwise_convolution(
    layer: IConvolutionLayer, geometry: _Geometry, activation: str, x: torch.Tensor, inputs: _Operands
) -> torch.Tensor | None:
    """A convolution of each channel by itself, with bias and activation; only traces run it."""
    kernel, bias = layer._own_weights(x)
    operator = torch.ops.trt_portable.depthwise_convolution  # of trt_portable.builder.inductor.depthwise
    x = x.contiguous(memory_format=torch.channels_last)
    found: torch.Tensor = operator(x, kernel, bias, *geometry, activation)
    return found


def _patch_convolution(layer: IConvolutionLayer, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """A convolution of disjoint windows, as a product of the patches that they cut."""
    kernel, bias = layer._own_weights(x)
    batch, channels, *extents = x.shape
    height, width = kernel.shape[2:]
    if extents[0] % height or extents[1] % width:
        return None
    rows, columns = extents[0] // height, extents[1] // width
    patches = x.reshape(batch, channels, rows, height, columns, width)
    if kernel.is_contiguous():
        patches, matrix = patches.permute(0, 2, 4, 1, 3, 5), kernel.flatten(1)
    else:  # channels vary fastest
        patches, matrix = patches.permute(0, 2, 4, 3, 5, 1), kernel.permute(0, 2, 3, 1).flatten(1)
    flat = patches.reshape(batch, rows, columns, height * width * channels)
    return F.linear(flat, matrix, bias).permute(0, 3, 1, 2)


def _window_products(layer: IConvolutionLayer, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """A convolution of groups of channels by long windows, as a product of each group's matrix with its windows."""
    kernel, bias = layer._own_weights(x)
    groups, (rows, columns) = layer.num_groups, tuple(layer.pre_padding)
    maps, inner, height, width = kernel.shape
    windows = F.pad(x, (columns, columns, rows, rows)).unfold(2, height, 1).unfold(3, width, 1)
    count, _, down, across = windows.shape[:4]
    if count > 1 and x.dtype is torch.float32:
        return None  # cuDNN is faster there (1.1 ms for 8 texts of 499, where products take 3.4)
    if count > 1 and windows.numel() > _MOST_WINDOWED:
        parts = [_window_products(layer, image, inputs) for image in x.split(1)]
        return torch.cat([part for part in parts if part is not None])
    flat = windows.reshape(count, groups, inner, down, across, height, width).permute(1, 2, 5, 6, 0, 3, 4)
    table = kernel.reshape(groups, maps // groups, inner * height * width)
    made = torch.bmm(table, flat.reshape(groups, inner * height * width, count * down * across))
    found = made.reshape(maps, count, down, across).transpose(0, 1)
    return found if bias is None else found + bias[:, None, None]


def _compiled_grouped_convolution(layer: IConvolutionLayer, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """The same, by a kernel that reads windows where they lie; only traces run it."""
    kernel, bias = layer._own_weights(x)
    operator = torch.ops.trt_portable.grouped_convolution  # of trt_portable.builder.inductor.convolutions
    x = x.contiguous(memory_format=torch.channels_last)
    pixels = math.prod(map(usual_size, (x.shape[0], *x.shape[2:])))
    parts = _parts_of_taps(pixels, layer.num_groups)
    sums = operator(x, kernel, list(layer.pre_padding), layer.num_groups, parts).unbind(0)
    found: torch.Tensor = reduce(torch.add, sums)  # where it is read, and no kernel of its own as a sum is
    found = found if bias is None else found + bias[:, None, None]
    return found.to(x.dtype)


def _parts_of_taps(pixels: int, groups: int) -> int:
    """How many sums the taps of long windows are shared out to: one block after another leaves most of a GPU idle.

    Each sum takes memory, so there are no more of them than blocks that a GPU has room for.
    """
    blocks = math.ceil(pixels / _PIXELS_OF_BLOCKS) * groups
    return min(_MOST_PARTS, 1 << (_MANY_BLOCKS // blocks).bit_length() >> 1 or 1)


def _patch_deconvolution(layer: IDeconvolutionLayer, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """A deconvolution whose windows touch, as a product that makes each window, and a movement to its place."""
    kernel, bias = layer._own_weights(x)
    channels, maps, height, width = kernel.shape
    batch, _, rows, columns = x.shape
    matrix = kernel.permute(0, 2, 3, 1)  # what varies fastest then varies fastest in the result
    made = x.permute(0, 2, 3, 1).reshape(-1, channels) @ matrix.reshape(channels, -1)
    windows = made.view(batch, rows, columns, height, width, maps).transpose(2, 3)
    found = windows.reshape(batch, rows * height, columns * width, maps)
    return (found if bias is None else found + bias).permute(0, 3, 1, 2)


def _linear(form: LinearForm, is_gelu: bool, x: torch.Tensor, inputs: _Operands) -> torch.Tensor | None:
    """A linear map with bias, and ReLU or the tanh form of GELU."""
    matrix, bias = map(as_tensor, inputs[1:])
    matrix = matrix.reshape(matrix.shape[-2:])
    matrix = matrix.mT if form.is_transposed else matrix
    found = torch._addmm_activation(bias.reshape(-1), x.reshape(-1, x.shape[-1]), matrix, use_gelu=is_gelu)
    return found.view(*x.shape[:-1], matrix.shape[-1])


_LONG_WINDOW: Final = 32
_PIXELS_OF_BLOCKS: Final = 128
_MANY_BLOCKS: Final = 1024
_MOST_PARTS: Final = 8
_MOST_WINDOWED: Final = 1 << 28
"""Elements of windows that are laid out at once."""
_MANY_COLUMNS: Final = 1024  # fewer take no time worth a copy
_MANY_ROWS: Final = 16  # fewer are bound by reading the matrix
_INTERLEAVED_ROWS: Final = 2048  # so many make up for reading the matrix eight times
_HALVES: Final = (DataType.HALF, DataType.BF16)


def split_unaligned_products(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Splits linear maps in half precision whose constant matrix (N, K) has many rows, but no multiple of 8.

    Args:
        calls: Layers in executable order, linear maps fused.
    """
    return _replaced(calls, lambda call: UnalignedProduct())


def split_traced_unaligned_products(calls: Sequence[LayerCall], outputs: Collection[int] = ()) -> list[LayerCall]:
    """The same for calls that a compiler is to see.

    Args:
        calls: Layers in executable order, linear maps fused.
        outputs: Ids of tensors that have to be written as they are.
    """
    return _replaced(calls, lambda call: _operator if call.outputs[0] in outputs else _chosen_product)


def _replaced(calls: Sequence[LayerCall], make: Callable[[LayerCall], Compute]) -> list[LayerCall]:
    constants = {call.outputs[0]: call.layer for call in calls if call.layer.type is LayerType.CONSTANT}
    found = []
    for call in calls:
        form, matrix = linear_form(call), constants.get(call.inputs[1]) if len(call.inputs) > 1 else None  # type: ignore[arg-type]
        if form is not None and form.is_transposed and matrix is not None:
            rows, columns = matrix.shape[-2:]  # type: ignore[attr-defined]
            is_half = matrix._weight_spec("CONSTANT")[0] in _HALVES
            if is_half and rows >= _MANY_COLUMNS and rows % ALIGNED and columns and columns % ALIGNED == 0:
                call = replace(call, compute=make(call))
        found.append(call)
    return found


def _operands(inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """``x`` (..., K), the matrix (N, K), and the bias (N,)."""
    x, matrix, *rest = (as_tensor(value) for value in inputs if value is not None)
    return x, matrix.reshape(matrix.shape[-2:]), rest[0].reshape(-1) if rest else None


def _has_few_rows(x: torch.Tensor) -> bool:
    return x.numel() < _MANY_ROWS * x.shape[-1]


class UnalignedProduct(PlacedCompute):
    """``x @ matrix.T + bias`` for a matrix (1, ..., 1, N, K)."""

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result (..., N), dense."""
        return self._run(inputs, None)

    def place(self, inputs: Sequence[Value | None], target: torch.Tensor) -> Sequence[Value]:
        """The same, into memory that is given."""
        return self._run(inputs, target)

    def _run(self, inputs: Sequence[Value | None], target: torch.Tensor | None) -> Sequence[Value]:
        x, matrix, bias = _operands(inputs)
        if _has_few_rows(x):
            return (F.linear(x, matrix, bias),)
        shape = (*x.shape[:-1], len(matrix))
        if target is None or target.shape != shape or target.dtype is not x.dtype or not target.is_contiguous():
            target = x.new_empty(shape)
        flat, result = x.reshape(-1, x.shape[-1]), target.view(-1, len(matrix))
        pays = bias is None and x.is_cuda and len(flat) >= _INTERLEAVED_ROWS
        (write_interleaved if pays else write_joined)(flat, matrix, bias, result)
        return (target,)


def _chosen_product(inputs: Sequence[Value | None]) -> Sequence[Value]:
    """The same as one choice for each element, which compilers make one kernel of, with what reads it."""
    x, matrix, bias = _operands(inputs)
    if _has_few_rows(x):
        return (F.linear(x, matrix, bias),)
    most, rest = aligned_and_rest(x, matrix, bias)
    is_most = torch.arange(len(matrix), device=x.device) < most.shape[-1]
    return (torch.where(is_most, F.pad(most, (0, rest.shape[-1])), F.pad(rest, (most.shape[-1], 0))),)


def _operator(inputs: Sequence[Value | None]) -> Sequence[Value]:
    """The same as one operator, of `trt_portable.builder.inductor.unaligned_products`."""
    x, matrix, bias = _operands(inputs)
    if _has_few_rows(x):
        return (F.linear(x, matrix, bias),)
    flat = torch.ops.trt_portable.unaligned_linear(x.reshape(-1, x.shape[-1]), matrix, bias)
    return (flat.view(*x.shape[:-1], len(matrix)),)
