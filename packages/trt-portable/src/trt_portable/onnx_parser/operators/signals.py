"""Windows and Fourier transforms as products with matrices of cosines."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from trt_portable.enums import DataType, ElementWiseOperation, ErrorCode, UnaryOperation
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, Initializer, dtype_of
from trt_portable.onnx_parser.operators.sources import ramp
from trt_portable.onnx_parser.registry import operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand

_PROD: Final = ElementWiseOperation.PROD
_SUM: Final = ElementWiseOperation.SUM
_SUB: Final = ElementWiseOperation.SUB
_DIV: Final = ElementWiseOperation.DIV

_COSINES: Final = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@operator(*_COSINES, since=17)
def window(net: NetworkWriter, size: Operand, *, output_datatype: int = 1, periodic: int = 1) -> Operand:
    """HannWindow(size; output_datatype, periodic) -> output: a sum of cosines"""
    kind = DataType.FLOAT if output_datatype == DOUBLE else dtype_of(output_datatype, "the window")
    factors = _COSINES[net.node.operator]
    known = net.numbers(size)
    if known is not None:
        count = int(known[0])
        if count < 0:
            raise Unsupported(f"a window of {count} elements", ErrorCode.INVALID_NODE)
        net.take_room(8 * count, "a window")  # doubles, some times over
        turn = 2 * np.pi * np.arange(count) / max(count if periodic else count - 1, 1)
        values = sum(factor * np.cos(order * turn) for order, factor in enumerate(factors))
        return net.constant(np.asarray(values), kind)
    extent = net.index_vector(size)
    span = net.cast(extent if periodic else net.with_number(extent, -1, _SUM), DataType.FLOAT)
    turn_tensor = net.binary(
        net.with_number(net.cast(ramp(net, extent), DataType.FLOAT), 2 * math.pi, _PROD), span, _DIV
    )
    total = net.scalar_like(factors[0], turn_tensor)
    for order, factor in enumerate(factors[1:], start=1):
        wave = net.unary(net.with_number(turn_tensor, order, _PROD), UnaryOperation.COS)
        total = net.binary(total, net.with_number(wave, factor, _PROD), _SUM)
    return net.cast(total, kind)


def _waves(rows: int, columns: int, length: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts of exp(-2 pi i r c / length), (rows, columns)."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = 2 * np.pi * turns / length
    scale = 1 / length if inverse else 1.0
    return np.cos(angles) * scale, np.sin(angles) * (scale if inverse else -scale)


@operator("DFT", since=17)
def dft_17(
    net: NetworkWriter,
    x: ITensor,
    dft_length: Operand | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
) -> ITensor:
    """DFT(input, dft_length; axis, inverse, onesided) -> output"""
    return dft(net, x, dft_length, net.constant(axis, DataType.INT64), inverse=inverse, onesided=onesided)


@operator("DFT", since=20)
def dft(
    net: NetworkWriter,
    x: ITensor,
    dft_length: Operand | None = None,
    axis: Operand | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> ITensor:
    """DFT(input, dft_length, axis; inverse, onesided) -> output"""
    rank = net.rank(x)
    place = net.axis(-2 if axis is None else net.integers(axis, "the axis of DFT")[0], rank)
    have = x.shape[place]
    default = 2 * (have - 1) if inverse and onesided else have
    length = default if dft_length is None else net.integers(dft_length, "dft_length")[0]
    if have < 1 or length < 1 or have > 1 << 14 or length > 1 << 14 or place == rank - 1:
        raise Unsupported(f"DFT of {have} elements to {length} on axis {place}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    kind = x.dtype
    wide = net.cast(x, DataType.FLOAT)
    order = [*(axis for axis in range(rank) if axis not in (place, rank - 1)), rank - 1, place]
    moved = net.transpose(wide, order)  # (..., parts, have)
    is_real = x.shape[-1] == 1
    if inverse and onesided and is_real:
        raise Unsupported("an inverse onesided DFT of real numbers", ErrorCode.UNSUPPORTED_NODE_ATTR)
    real, imaginary = (
        (net.narrow(moved, rank - 2, 0, 1), None)
        if is_real
        else tuple(net.narrow(moved, rank - 2, part, 1) for part in (0, 1))
    )
    if inverse and onesided:
        result = _inverse_onesided(net, real, imaginary, have, length)
    else:
        result = _transformed(net, real, imaginary, have, length, bool(inverse), bool(onesided))
    back = [order.index(axis) for axis in range(rank)]
    return net.cast(net.transpose(result, back), kind)


def _transformed(
    net: NetworkWriter,
    real: ITensor,
    imaginary: ITensor | None,
    have: int,
    length: int,
    inverse: bool,
    onesided: bool,
) -> ITensor:
    """(..., 2, bins) of parts (..., 1, have)."""
    bins = length // 2 + 1 if onesided else length
    used = min(have, length)
    net.take_room(2 * have * bins, "a Fourier transform")
    cosines, sines = (np.pad(m, ((0, have - used), (0, 0))) for m in _waves(used, bins, length, inverse))
    cosine, sine = (net.constant(m, DataType.FLOAT) for m in (cosines, sines))
    out_real, out_imaginary = net.matmul(real, cosine), net.matmul(real, sine)
    if imaginary is not None:
        out_real = net.binary(out_real, net.matmul(imaginary, sine), _SUB)
        out_imaginary = net.binary(out_imaginary, net.matmul(imaginary, cosine), _SUM)
    return net.concat([out_real, out_imaginary], net.rank(real) - 2)


def _inverse_onesided(net: NetworkWriter, real: ITensor, imaginary: ITensor | None, have: int, length: int) -> ITensor:
    """(..., 1, length): the real signal behind half of a spectrum."""
    used = min(have, length // 2 + 1)
    net.take_room(2 * have * length, "a Fourier transform")
    cosines, sines = (np.pad(m, ((0, have - used), (0, 0))) for m in _waves(used, length, length, True))
    twice = np.full((have, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and used == length // 2 + 1:
        twice[used - 1] = 1.0
    result = net.matmul(real, net.constant(cosines * twice, DataType.FLOAT))
    if imaginary is None:
        return result
    return net.binary(result, net.matmul(imaginary, net.constant(sines * twice, DataType.FLOAT)), _SUB)


@operator("STFT", since=17)
def stft(
    net: NetworkWriter,
    signal: ITensor,
    frame_step: Operand,
    window: Operand | None = None,
    frame_length: Operand | None = None,
    *,
    onesided: int = 1,
) -> ITensor:
    """STFT(signal, frame_step, window, frame_length; onesided) -> output, (N, frames, bins, 2)"""
    (step,) = net.integers(frame_step, "frame_step")
    if frame_length is not None:
        (length,) = net.integers(frame_length, "frame_length")
    elif window is not None:
        length = window.shape[0]
    else:
        raise Unsupported("STFT without a window and frame_length", ErrorCode.INVALID_NODE)
    samples = signal.shape[1]
    if samples < length or step < 1 or not 1 <= length <= 1 << 14:
        raise Unsupported(f"STFT of {samples} samples in frames of {length}", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    kind, rank = signal.dtype, net.rank(signal)
    wide = net.cast(signal, DataType.FLOAT)
    frames = (samples - length) // step + 1
    net.take_room(frames * length, "STFT")
    places = np.arange(frames)[:, None] * step + np.arange(length)[None]
    at = net.constant(places, DataType.INT64)
    parts = 1 if rank == 2 else signal.shape[2]
    columns = [net.narrow(wide, 2, part, 1) if rank == 3 else wide for part in range(parts)]
    pieces = []
    for column in columns:
        flat = net.squeeze(column, [2]) if rank == 3 else column
        framed = net.gather(flat, at, 1)  # (N, frames, length)
        if window is not None:
            framed = net.binary(framed, net.cast(net.tensor(window), DataType.FLOAT), _PROD)
        pieces.append(net.unsqueeze(framed, [2]))
    result = _transformed(net, pieces[0], pieces[1] if parts == 2 else None, length, length, False, bool(onesided))
    return net.cast(net.transpose(result, (0, 1, 3, 2)), kind)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(
    net: NetworkWriter,
    num_mel_bins: Operand,
    dft_length: Operand,
    sample_rate: Operand,
    lower_edge_hertz: Operand,
    upper_edge_hertz: Operand,
    *,
    output_datatype: int = 1,
) -> Operand:
    """MelWeightMatrix(num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz) -> output"""
    (bins,), (length,), (rate,) = (
        net.integers(operand, "a number of MelWeightMatrix") for operand in (num_mel_bins, dft_length, sample_rate)
    )
    low, high = (net.number(operand, 0.0, "an edge") for operand in (lower_edge_hertz, upper_edge_hertz))
    if not (0 < bins <= 1 << 16 and 0 < length <= 1 << 20 and rate > 0):
        raise Unsupported(f"a mel matrix of {bins} bins", ErrorCode.INVALID_NODE)
    spectrum = length // 2 + 1
    net.take_room(spectrum * bins, "a mel matrix")
    low_mel, high_mel = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    hertz = 700 * (10 ** ((low_mel + np.arange(bins + 2) * (high_mel - low_mel) / (bins + 2)) / 2595) - 1)
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((spectrum, bins), np.float32)
    for column in range(bins):
        left, centre, right = edges[column : column + 3]
        if left == centre:
            matrix[min(centre, spectrum - 1), column] = 1
        for row in range(left, min(centre + 1, spectrum) if centre > left else left):
            matrix[row, column] = (row - left) / (centre - left)
        for row in range(centre, min(right, spectrum)):
            matrix[row, column] = (right - row) / (right - centre)
    kind = DataType.FLOAT if output_datatype == DOUBLE else dtype_of(output_datatype, "the matrix")
    return Initializer("", matrix.shape, 1, matrix) if kind is DataType.FLOAT else net.constant(matrix, kind)
