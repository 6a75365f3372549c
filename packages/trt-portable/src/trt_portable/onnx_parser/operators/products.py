"""Products of matrices, attention, rotary embeddings; Fourier transforms as products with matrices of cosines."""

from __future__ import annotations

import math
import string
from typing import Final

import numpy as np

from trt_portable.dtypes import FLOATS
from trt_portable.enums import (
    AttentionNormalizationOp,
    CausalMaskKind,
    DataType,
    ErrorCode,
    MatrixOperation,
    ReduceOperation,
    UnaryOperation,
)
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.errors import present
from trt_portable.network.layer import ITensor
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import DOUBLE, Initializer, dtype_of
from trt_portable.onnx_parser.operators.sources import ramp, ramp_along
from trt_portable.onnx_parser.registry import UseDefinition, operator
from trt_portable.onnx_parser.writer import NetworkWriter, Operand


@operator("MatMul")
def matmul(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    """MatMul(A, B) -> Y, as numpy.matmul"""
    kind = a.dtype
    if kind not in FLOATS:
        a, b = net.cast(a, DataType.FLOAT), net.cast(b, DataType.FLOAT)
    return net.cast(_matmul(net, a, b), kind)


def _matmul(net: NetworkWriter, a: ITensor, b: ITensor) -> ITensor:
    ranks = net.rank(a), net.rank(b)
    if 0 in ranks:
        raise Unsupported("MatMul of a scalar", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    if 1 not in ranks:
        return net.matmul(a, b)
    ops = [MatrixOperation.VECTOR if rank == 1 else MatrixOperation.NONE for rank in ranks]
    leading = max(max(rank - 2, 0) for rank in ranks)  # of matrices; vectors get as many
    vectors = [net.unsqueeze(x, range(leading)) if rank == 1 else x for x, rank in zip((a, b), ranks, strict=True)]
    return net.output(net.network.add_matrix_multiply(vectors[0], ops[0], vectors[1], ops[1]))


@operator("Gemm", since=7)
def gemm(
    net: NetworkWriter,
    a: ITensor,
    b: ITensor,
    c: ITensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ITensor:
    """Gemm(A, B, C; alpha, beta, transA, transB) -> Y: alpha * A' * B' + beta * C"""
    kind = a.dtype
    computed = kind if kind in FLOATS else DataType.FLOAT
    product = net.matmul(net.cast(a, computed), net.cast(b, computed), (bool(transA), bool(transB)))
    if alpha != 1.0:
        product = net.with_number(product, alpha, Op.PROD)
    if c is not None and beta != 0.0:
        bias = net.cast(c, computed)
        product = net.binary(product, bias if beta == 1.0 else net.with_number(bias, beta, Op.PROD), Op.SUM)
    return net.cast(product, kind)


@operator("Einsum", since=12)
def einsum(net: NetworkWriter, *inputs: ITensor, equation: str) -> ITensor:
    """Einsum(Inputs; equation) -> Output"""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != len(inputs):
        raise Unsupported(f"equation {equation!r} for {len(inputs)} inputs", ErrorCode.INVALID_NODE)
    operands, result = _without_ellipsis(net, operands, inputs, result if arrow else None)
    letters = dict(zip(dict.fromkeys("".join(operands)), string.ascii_lowercase, strict=False))
    if not set("".join(operands)) | set(result) <= letters.keys() & set(string.ascii_letters):
        raise Unsupported(
            f"the equation {equation!r} has labels that are no letters, more than 26, or some in its result alone",
            ErrorCode.INVALID_NODE,
        )
    tensors = list(inputs)
    for place, term in enumerate(operands):
        if len(set(term)) != len(term):
            tensors[place], operands[place] = _diagonal(net, tensors[place], term)
    labels = ["".join(letters[c] for c in term) for term in operands]
    joined = ",".join(labels) + "->" + "".join(letters[c] for c in result)
    return net.output(net.network.add_einsum(tensors, joined))


def _without_ellipsis(
    net: NetworkWriter, operands: list[str], inputs: tuple[ITensor, ...], result: str | None
) -> tuple[list[str], str]:
    """The terms with letters in place of "...", and the result's, which is in alphabetical order by default."""
    widths = [net.rank(x) - len(term.replace("...", "")) for term, x in zip(operands, inputs, strict=True)]
    most = max(widths) if any("..." in term for term in operands) else 0
    used = set("".join(operands)) | set(result or "")
    free = [c for c in string.ascii_letters if c not in used][:most]
    if len(free) < most or any(width < 0 for width in widths):
        raise Unsupported("the equation does not fit the ranks of the inputs", ErrorCode.INVALID_NODE)
    spelled = [
        term.replace("...", "".join(free[most - width :] if width else []))
        for term, width in zip(operands, widths, strict=True)
    ]
    if result is None:
        letters = "".join(term.replace("...", "") for term in operands)
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        return spelled, "".join(free) + "".join(once)
    return spelled, result.replace("...", "".join(free))


def _diagonal(net: NetworkWriter, x: ITensor, term: str) -> tuple[ITensor, str]:
    """A tensor whose axes of the same letter have become one."""
    while len(set(term)) != len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first, second = term.index(letter), term.rindex(letter)
        same = net.binary(ramp_along(net, x, first), ramp_along(net, x, second), Op.EQUAL)
        x = net.reduce(net.select(same, x, net.scalar_like(0, x)), ReduceOperation.SUM, [second], False)
        term = term[:second] + term[second + 1 :]
    return x, term


@operator("MatMulInteger", since=10)
def matmul_integer(
    net: NetworkWriter, a: ITensor, b: ITensor, a_zero_point: ITensor | None = None, b_zero_point: ITensor | None = None
) -> ITensor:
    """MatMulInteger(A, B, a_zero_point, b_zero_point) -> Y, int32"""
    left, right = net.cast(a, DataType.FLOAT), net.cast(b, DataType.FLOAT)
    if a_zero_point is not None:
        zero = net.cast(a_zero_point, DataType.FLOAT)
        if net.rank(zero) == 1 and net.rank(left) > 1 and zero.shape[0] != 1:
            zero = net.unsqueeze(zero, [1])
        left = net.binary(left, zero, Op.SUB)
    if b_zero_point is not None:
        right = net.binary(right, net.cast(b_zero_point, DataType.FLOAT), Op.SUB)
    return net.cast(_matmul(net, left, right), DataType.INT32)


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    net: NetworkWriter,
    x: ITensor,
    cos_cache: ITensor,
    sin_cache: ITensor,
    position_ids: ITensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> ITensor:
    """RotaryEmbedding(X, cos_cache, sin_cache, position_ids; interleaved, num_heads, rotary_embedding_dim) -> Y"""
    is_flat = net.rank(x) == 3
    heads = _split_heads(net, x, num_heads) if is_flat else x
    layer = net.layer(
        net.network.add_rotary_embedding(heads, cos_cache, sin_cache, bool(interleaved), rotary_embedding_dim)
    )
    if position_ids is not None:
        layer.set_input(3, position_ids)
    result = net.output_of(layer)
    return _join_heads(net, result) if is_flat else result


def _split_heads(net: NetworkWriter, x: ITensor, heads: int) -> ITensor:
    """(N, L, H * D) as (N, H, L, D)."""
    batch, length, width = net.extents(x)
    if heads < 1 or not isinstance(width, int) or width % heads:
        raise Unsupported(f"{heads} heads of an extent {x.shape[-1]}", ErrorCode.INVALID_NODE)
    return net.transpose(net.reshape(x, [batch, length, heads, width // heads]), (0, 2, 1, 3))


def _join_heads(net: NetworkWriter, x: ITensor) -> ITensor:
    """(N, H, L, D) as (N, L, H * D)."""
    batch, heads, length, width = net.extents(x)
    return net.reshape(net.transpose(x, (0, 2, 1, 3)), [batch, length, net.combine(heads, width, Op.PROD)])


@operator("Attention", since=23)
def attention(
    net: NetworkWriter,
    q: ITensor,
    k: ITensor,
    v: ITensor,
    attn_mask: ITensor | None = None,
    past_key: ITensor | None = None,
    past_value: ITensor | None = None,
    nonpad_kv_seqlen: ITensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[ITensor, ITensor, ITensor]:
    """Attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen; ...) -> (Y, present_key, present_value)

    What the network's own layer does not do (caps, paddings, scores as outputs, a number of heads that is not known) is
    read as ONNX defines it.
    """
    wants_scores = len(net.node.wanted) > 3 and net.node.wanted[3]
    is_mixed = attn_mask is not None and (bool(is_causal) or net.rank(attn_mask) < 2)
    if softcap or wants_scores or nonpad_kv_seqlen is not None or is_mixed:
        raise UseDefinition
    for name, x in (("K", k), ("V", v)):
        net.require_rank(x, net.rank(q), name)
    is_flat = net.rank(q) == 3
    if not is_flat:
        net.require_rank(q, 4, "Q")
    if is_flat:
        q = _split_heads(net, q, q_num_heads)
        k, v = _split_heads(net, k, kv_num_heads), _split_heads(net, v, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = net.concat([past_key, k], 2), net.concat([past_value, v], 2)
    width = q.shape[-1]
    if width < 1 or any(x.shape[1] < 1 for x in (q, k, v)):
        raise UseDefinition
    factor = 1 / math.sqrt(width) if scale is None else scale  # few are of 16 bits as they are of 32
    scaled = net.cast(net.with_number(net.cast(q, DataType.FLOAT), factor, Op.PROD), q.dtype)
    kind = CausalMaskKind.NONE
    if is_causal:  # after a past the last query still sees the last key
        kind = CausalMaskKind.UPPER_LEFT if past_key is None else CausalMaskKind.LOWER_RIGHT
    layer = net.network.add_attention_v2(scaled, k, v, AttentionNormalizationOp.SOFTMAX, kind)
    if layer is None:
        raise UseDefinition
    layer.name = net.node.name
    layer.decomposable = True
    if attn_mask is not None:
        layer.mask = _whole_mask(net, attn_mask, scaled, k)
    y = present(layer.get_output(0))
    return _join_heads(net, y) if is_flat else y, k, v


def _whole_mask(net: NetworkWriter, mask: ITensor, q: ITensor, k: ITensor) -> ITensor:
    """A mask of rank 4 with the extents of queries and keys; where it is too short for the keys they are hidden."""
    full = net.unsqueeze(mask, range(4 - net.rank(mask)))
    if full.dtype is not DataType.BOOL:
        full = net.cast(full, q.dtype)
    extents = net.extents(full)
    columns = net.extents(k)[2]
    if isinstance(columns, int) and isinstance(extents[3], int) and 1 < extents[3] < columns:
        raise UseDefinition
    return net.expand(full, [extents[0], extents[1], net.extents(q)[2], columns])


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
    span = net.cast(extent if periodic else net.with_number(extent, -1, Op.SUM), DataType.FLOAT)
    turn_tensor = net.binary(
        net.with_number(net.cast(ramp(net, extent), DataType.FLOAT), 2 * math.pi, Op.PROD), span, Op.DIV
    )
    total = net.scalar_like(factors[0], turn_tensor)
    for order, factor in enumerate(factors[1:], start=1):
        wave = net.unary(net.with_number(turn_tensor, order, Op.PROD), UnaryOperation.COS)
        total = net.binary(total, net.with_number(wave, factor, Op.PROD), Op.SUM)
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
    net: NetworkWriter, real: ITensor, imaginary: ITensor | None, have: int, length: int, inverse: bool, onesided: bool
) -> ITensor:
    """(..., 2, bins) of parts (..., 1, have)."""
    bins = length // 2 + 1 if onesided else length
    used = min(have, length)
    net.take_room(2 * have * bins, "a Fourier transform")
    cosines, sines = (np.pad(m, ((0, have - used), (0, 0))) for m in _waves(used, bins, length, inverse))
    cosine, sine = (net.constant(m, DataType.FLOAT) for m in (cosines, sines))
    out_real, out_imaginary = net.matmul(real, cosine), net.matmul(real, sine)
    if imaginary is not None:
        out_real = net.binary(out_real, net.matmul(imaginary, sine), Op.SUB)
        out_imaginary = net.binary(out_imaginary, net.matmul(imaginary, cosine), Op.SUM)
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
    return net.binary(result, net.matmul(imaginary, net.constant(sines * twice, DataType.FLOAT)), Op.SUB)


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
    step = int(net.number(frame_step, 0, "frame_step"))
    if frame_length is not None:
        length = int(net.number(frame_length, 0, "frame_length"))
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
    if parts not in (1, 2):
        raise Unsupported(f"STFT of numbers of {parts} parts", ErrorCode.UNSUPPORTED_NODE_SHAPE)
    columns = [net.narrow(wide, 2, part, 1) if rank == 3 else wide for part in range(parts)]
    pieces = []
    for column in columns:
        flat = net.squeeze(column, [2]) if rank == 3 else column
        framed = net.gather(flat, at, 1)  # (N, frames, length)
        if window is not None:
            framed = net.binary(framed, net.cast(net.tensor(window), DataType.FLOAT), Op.PROD)
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
