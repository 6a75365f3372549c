"""Fourier transforms of few points as products with constant matrices.

A transform of n points is a product with an n x n matrix: O(n) operations per value in place of O(log n), on hardware
that is made for products, in one engine with what stands around it. Values are accumulated in the type of the input, so
the error grows like that of any product over n values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import fx

from trt_lowering.complex_numbers.parts import Emitter, NotExpressible, Parts

aten = torch.ops.aten

MOST_POINTS: Final = 1024
"""Longest transform that becomes products."""


def complex_to_complex(emit: Emitter, x: Parts, dims: Sequence[int], normalization: int, forward: bool) -> Parts:
    """`aten::_fft_c2c`: transforms along each dimension."""
    sizes = [_points(x.real, dim) for dim in dims]
    for dim, size in zip(dims, sizes, strict=True):
        x = _transform(emit, x, dim, size, forward)
    return _scaled(emit, x, sizes, normalization)


def real_to_complex(emit: Emitter, x: fx.Node, dims: Sequence[int], normalization: int, onesided: bool) -> Parts:
    """`aten::_fft_r2c`: the last dimension gives half of a spectrum, or all of it; then the others are transformed."""
    sizes = [_points(x, dim) for dim in dims]
    *others, last = dims
    kept = sizes[-1] // 2 + 1 if onesided else sizes[-1]
    found = Parts(_product(emit, x, last, ("cos", sizes[-1], kept)), _product(emit, x, last, ("-sin", sizes[-1], kept)))
    for dim, size in zip(others, sizes, strict=False):
        found = _transform(emit, found, dim, size, True)
    return _scaled(emit, found, sizes, normalization)


def complex_to_real(emit: Emitter, x: Parts, dims: Sequence[int], normalization: int, size: int) -> fx.Node:
    """`aten::_fft_c2r`: transforms all dimensions but the last back, then half of a spectrum gives real values."""
    *others, last = dims
    sizes = [_points(x.real, dim) for dim in others]
    if not isinstance(size, int) or size > MOST_POINTS:
        raise NotExpressible(_too_long(size))
    if x.real.meta["val"].shape[last] != size // 2 + 1:
        raise NotExpressible("half of a spectrum of an unexpected size")
    for dim, points in zip(others, sizes, strict=True):
        x = _transform(emit, x, dim, points, False)
    found = _product(emit, x.real, last, ("half cos", size, size))
    if x.imaginary is not None:
        found = emit(aten.add.Tensor, found, _product(emit, x.imaginary, last, ("half -sin", size, size)))
    scaled = _scaled(emit, Parts(found, None), [*sizes, size], normalization)
    return scaled.real


def _transform(emit: Emitter, x: Parts, dim: int, size: int, forward: bool) -> Parts:
    """(re + i im) (cos -+ i sin)."""
    towards, back = ("-sin", "sin") if forward else ("sin", "-sin")
    real = _product(emit, x.real, dim, ("cos", size, size))
    imaginary = _product(emit, x.real, dim, (towards, size, size))
    if x.imaginary is not None:
        real = emit(aten.add.Tensor, real, _product(emit, x.imaginary, dim, (back, size, size)))
        imaginary = emit(aten.add.Tensor, imaginary, _product(emit, x.imaginary, dim, ("cos", size, size)))
    return Parts(real, imaginary)


def _product(emit: Emitter, x: fx.Node, dim: int, matrix: tuple[str, int, int]) -> fx.Node:
    """Multiplies a matrix into one dimension."""
    value = x.meta["val"]
    rank, dim = value.dim(), dim % value.dim()
    if value.dtype is not torch.float32:
        raise NotExpressible(f"a Fourier transform of {value.dtype}")
    if dim == rank - 2:  # from the left: nothing is transposed
        flipped = emit.constant((*matrix, "transposed"), lambda: fourier_matrix(*matrix).t().contiguous(), x)
        return emit(aten.matmul.default, flipped, x)
    constant = emit.constant(matrix, lambda: fourier_matrix(*matrix), x)
    if dim == rank - 1:
        return emit(aten.matmul.default, x, constant)
    moved = emit(aten.transpose.int, x, dim, rank - 1)
    return emit(aten.transpose.int, emit(aten.matmul.default, moved, constant), dim, rank - 1)


@functools.lru_cache(maxsize=64)
def fourier_matrix(kind: str, points: int, kept: int) -> torch.Tensor:
    """Returns the matrix of one part of a transform, computed in float64.

    Args:
        kind: `cos`, `sin` or `-sin`; with `half` before it, for half of a spectrum whose other half mirrors it.
        points: Points of the transform.
        kept: Columns.

    Returns:
        (points, kept), float32; (points // 2 + 1, kept) for half of a spectrum.
    """
    half, _, function = kind.rpartition(" ")
    rows = torch.arange(points // 2 + 1 if half else points)
    # whole numbers modulo the number of points: the angle is as exact as float64 is
    angles = (rows[:, None] * torch.arange(kept) % points).double() * (2 * math.pi / points)
    matrix = {"cos": angles.cos(), "sin": angles.sin(), "-sin": -angles.sin()}[function]
    if half:
        counts_twice = (rows > 0) & (2 * rows != points)
        matrix = matrix * (1 + counts_twice.double())[:, None]
    return matrix.float()


def _points(x: fx.Node, dim: int) -> int:
    size = x.meta["val"].shape[dim]
    if not isinstance(size, int) or size > MOST_POINTS:
        raise NotExpressible(_too_long(size))
    return size


def _too_long(size: object) -> str:
    if isinstance(size, int):
        return f"a Fourier transform of {size} points (those of up to {MOST_POINTS} become products)"
    return "a Fourier transform along a dimension that varies"


def _scaled(emit: Emitter, x: Parts, sizes: Sequence[int], normalization: int) -> Parts:
    """0: as it is; 1: by the root of the number of points; 2: by the number of points."""
    if normalization == 0:
        return x
    points = math.prod(sizes)
    factor = 1 / math.sqrt(points) if normalization == 1 else 1 / points
    real = emit(aten.mul.Tensor, x.real, factor)
    return Parts(real, None if x.imaginary is None else emit(aten.mul.Tensor, x.imaginary, factor))
