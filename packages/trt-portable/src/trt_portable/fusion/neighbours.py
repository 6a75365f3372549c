"""Patterns of neighbouring layers for which PyTorch has one kernel that computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F

from trt_portable.enums import (
    ActivationType,
    ElementWiseOperation,
    LayerType,
    MatrixOperation,
    UnaryOperation,
)
from trt_portable.execution.program import Compute, LayerCall, ShapedCompute
from trt_portable.fusion.call_graph import CallFusion, CallGraph, CallPattern, Shape
from trt_portable.layers.normalization import INormalizationLayer
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    IUnaryLayer,
    is_usual_hard_sigmoid,
    representable,
)
from trt_portable.layers.products import IMatrixMultiplyLayer
from trt_portable.layers.slicing import narrowed_axis
from trt_portable.network.rules import axes_of_mask
from trt_portable.shape_tensors import Value, as_tensor

_NONE: Final = MatrixOperation.NONE
_TRANSPOSE: Final = MatrixOperation.TRANSPOSE


class LinearProduct(CallPattern):
    """A product with a constant matrix on the right is a linear map.

    The matrix may have leading extents of 1, over which a plain product would broadcast at great cost.
    Weights still come from constant layers, so a refit reaches them.
    """

    kinds = frozenset({LayerType.MATRIX_MULTIPLY})

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The linear map."""
        layer, shape = call.layer, graph.constants.get(call.inputs[1])
        assert isinstance(layer, IMatrixMultiplyLayer)
        if shape is None or layer.op0 is not _NONE or layer.op1 not in (_NONE, _TRANSPOSE):
            return None
        if len(shape) < 2 or any(extent != 1 for extent in shape[:-2]):
            return None
        linear = replace(call, compute=Linear(shape[-2:], is_transposed=layer.op1 is _TRANSPOSE))
        return CallFusion([linear], [call], call)


class LinearBias(CallPattern):
    """A linear map takes the constant along that is added to it, if that is one number per column."""

    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The linear map with its bias."""
        if operation_of(call) is not ElementWiseOperation.SUM:
            return None
        for output, bias in (call.inputs, call.inputs[::-1]):
            product, added = graph.private_maker(output), graph.constants.get(bias)
            if product is None or added is None or not isinstance(product.compute, Linear) or len(product.inputs) > 2:
                continue
            if added[-1:] == (product.compute.columns,) and all(extent == 1 for extent in added[:-1]):
                return _in_place_of(call, [product], (*product.inputs, bias), product.compute)
        return None


def operation_of(call: LayerCall) -> ElementWiseOperation | None:
    """The operation of an elementwise layer that runs as it is; None for other layers, and where it was fused."""
    layer = call.layer
    return layer.op if isinstance(layer, IElementWiseLayer) and call.compute == layer._compute else None


def _in_place_of(
    last: LayerCall, before: Sequence[LayerCall], inputs: tuple[int | None, ...], compute: Compute
) -> CallFusion:
    """One call where the last of several stood, which reads other inputs."""
    name = " + ".join(call.name for call in (*before, last))
    return CallFusion([replace(last, inputs=inputs, compute=compute, name=name)], [*before, last], last)


@dataclass(frozen=True)
class LinearForm:
    """How a linear map reads its matrix, the second input, and whether a third is its bias."""

    is_transposed: bool
    has_bias: bool


def linear_form(call: LayerCall) -> LinearForm | None:
    """What `LinearProduct` and `LinearBias` made of a call; None for other calls."""
    if not isinstance(call.compute, Linear):
        return None
    return LinearForm(call.compute.is_transposed, len(call.inputs) > 2)


class Gate(CallPattern):
    """``x * sigmoid(x)`` and ``x * hard_sigmoid(x)`` are one kernel each, which rounds once."""

    kinds = frozenset({LayerType.ELEMENTWISE})

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The gated tensor."""
        if operation_of(call) is not ElementWiseOperation.PROD:
            return None
        for x, gate in (call.inputs, call.inputs[::-1]):
            activation = graph.private_maker(gate)
            compute = None if activation is None else _gated(activation)
            if activation is not None and compute is not None and activation.inputs == (x,):
                return _in_place_of(call, [activation], (x,), compute)
        return None


def _gated(call: LayerCall) -> Compute | None:
    """What computes the product of a tensor and this activation of it."""
    layer = call.layer
    if not isinstance(layer, IActivationLayer):
        return None
    if layer.type is ActivationType.SIGMOID:
        return _silu
    is_hard = layer.type is ActivationType.HARD_SIGMOID and is_usual_hard_sigmoid(layer.alpha, layer.beta)
    return _hard_swish if is_hard else None


def _silu(inputs: Sequence[Value | None]) -> Sequence[Value]:
    (x,) = inputs
    assert x is not None
    return (F.silu(as_tensor(x)),)


def _hard_swish(inputs: Sequence[Value | None]) -> Sequence[Value]:
    (x,) = inputs
    assert x is not None
    return (F.hardswish(as_tensor(x)),)


class ClampWithNan(CallPattern):
    """``x if isnan(x) else clip(x)``, as a clamp that keeps NaN is written in layers, is one kernel."""

    kinds = frozenset({LayerType.SELECT})

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The clamp."""
        condition, x, clipped = call.inputs
        test, clip = graph.private_maker(condition), graph.private_maker(clipped)
        limits = None if clip is None else clip_limits(clip)
        if test is None or clip is None or limits is None or not _tests_nan(test):
            return None
        return _in_place_of(call, [test, clip], (x,), Clamp(*limits)) if test.inputs == clip.inputs == (x,) else None


class Clamp:
    """A tensor within limits; NaN stays.

    Args:
        low: Least value.
        high: Greatest value, not less.
    """

    def __init__(self, low: float, high: float) -> None:
        self.limits = (low, high)

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""
        (x,) = inputs
        assert x is not None
        return (torch.clamp(as_tensor(x), *self.limits),)


def clip_limits(call: LayerCall) -> tuple[float, float] | None:
    """The limits of a clip, as its type holds them; None for other layers, and where all results are the lower one."""
    layer = call.layer
    if not isinstance(layer, IActivationLayer) or layer.type is not ActivationType.CLIP or layer.alpha > layer.beta:
        return None
    dtype = layer._carrier(layer._outputs[0].dtype)
    return representable(layer.alpha, dtype), representable(layer.beta, dtype)


def _tests_nan(call: LayerCall) -> bool:
    return isinstance(call.layer, IUnaryLayer) and call.layer.op is UnaryOperation.ISNAN


class Linear(ShapedCompute):
    """A product with a matrix, the second operand, plus a bias per column, the third, if there is one.

    Args:
        extents: The last two of the matrix; those before are 1.
        is_transposed: Whether the matrix is (N, K) and not (K, N).
    """

    def __init__(self, extents: Shape, *, is_transposed: bool) -> None:
        self.is_transposed = is_transposed
        self.shapes = {1: extents, 2: (extents[0 if is_transposed else 1],)}

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.shapes[2][0]

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""
        x, matrix, *bias = inputs
        assert matrix is not None
        flat = [_shaped(as_tensor(addend), self.shapes[2]) for addend in bias if addend is not None]
        return self.compute_shaped((x, _shaped(as_tensor(matrix), self.shapes[1]), *flat))

    def compute_shaped(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of a matrix and a bias as PyTorch takes them."""
        x, weights, *bias = inputs
        assert x is not None and isinstance(weights, torch.Tensor)
        rows = as_tensor(x)
        matrix = weights if self.is_transposed else weights.mT
        if rows.dim() < 3 or rows.is_contiguous():
            return (F.linear(rows, matrix, *bias),)  # type: ignore[arg-type]
        # PyTorch multiplies each part of rows that lie apart on its own, which reads the matrix for every part
        result = F.linear(rows.reshape(-1, rows.shape[-1]), matrix, *bias)  # type: ignore[arg-type]
        return (result.view(*rows.shape[:-1], self.columns),)


def _shaped(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A tensor in other extents; asking whether it has them takes less time than a view."""
    return tensor if tensor.shape == shape else tensor.reshape(shape)


_LEAST_PARTS: Final = 2


class _Part(NamedTuple):
    """A slice that narrows one axis.

    Attributes:
        start: Its first place.
        size: How many places it takes.
        number: Which of them it is, by order of calls.
        call: What makes it.
    """

    start: int
    size: int
    number: int
    call: LayerCall


class SplitOfSlices(CallPattern):
    """Slices of a tensor that follow each other without gaps, from its first place on, are one split."""

    kinds = frozenset({LayerType.SLICE})

    def __init__(self) -> None:
        self._seen: set[tuple[int | None, int]] = set()

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The split, where the first of the slices stood."""
        found = _narrowed(call)
        whole = call.inputs[0]
        if found is None or (whole, found[0]) in self._seen:
            return None
        axis = found[0]
        self._seen.add((whole, axis))
        parts: list[_Part] = []
        for reader in {id(reader): reader for reader in graph.all_readers(whole)}.values():
            other = _narrowed(reader) if reader.inputs[0] == whole else None
            if other is not None and other[0] == axis:
                parts.append(_Part(*other[1:], len(parts), reader))
        parts.sort()
        if len(parts) < _LEAST_PARTS or not _are_side_by_side(parts):
            return None
        slices = [part.call for part in parts]
        split = replace(
            slices[0],
            outputs=tuple(part.outputs[0] for part in slices),
            output_names=tuple(part.output_names[0] for part in slices),
            compute=Split(axis, [part.size for part in parts], slices),
            name=" | ".join(part.name for part in slices),
        )
        return CallFusion([split], slices, call)


def _narrowed(call: LayerCall) -> tuple[int, int, int] | None:
    """Axis, start and size of a slice that narrows one axis, and runs as it is."""
    return narrowed_axis(call.layer) if call.compute == call.layer._compute else None


def _are_side_by_side(parts: Sequence[_Part]) -> bool:
    """Whether sorted parts begin at the first place, and each where the one before ends."""
    ends = [part.start + part.size for part in parts]
    return [part.start for part in parts] == [0, *ends[:-1]]


class Split:
    """Parts of a tensor, side by side along an axis.

    Args:
        axis: The axis.
        sizes: Of the parts.
        slices: The same, one by one: of numbers that the host knows, and where the parts leave something over.
    """

    def __init__(self, axis: int, sizes: Sequence[int], slices: Sequence[LayerCall]) -> None:
        self._axis = axis
        self._sizes = list(sizes)
        self._extent = sum(sizes)
        self._slices = tuple(slices)

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The parts, in order."""
        first = inputs[0]
        assert first is not None
        if isinstance(first, torch.Tensor) and first.shape[self._axis] == self._extent:
            return first.split_with_sizes(self._sizes, self._axis)
        return [call.compute(inputs)[0] for call in self._slices]


class LayerNormalization(CallPattern):
    """Normalizations over the last axes, with a constant scale and bias per element of theirs, have a kernel."""

    kinds = frozenset({LayerType.NORMALIZATION})

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The same, computed by that kernel."""
        layer = call.layer
        if not isinstance(layer, INormalizationLayer) or call.compute != layer._compute:
            return None
        extents = _normalized_extents(layer, [graph.constants.get(tensor) for tensor in call.inputs[1:]])
        if extents is None:
            return None
        return CallFusion([replace(call, compute=LayerNorm(extents, layer.epsilon))], [call], call)


def _normalized_extents(layer: INormalizationLayer, coefficients: Sequence[Shape | None]) -> Shape | None:
    """The extents that a layer normalizes over; None where PyTorch has no kernel that takes the coefficients along."""
    x = layer._inputs[0]
    assert x is not None
    shape = tuple(x.shape)
    axes = axes_of_mask(layer.axes, len(shape))
    extents = shape[axes[0] :]
    if layer.num_groups != 1 or axes != tuple(range(axes[0], len(shape))) or any(extent < 1 for extent in extents):
        return None
    wanted = (1,) * axes[0] + extents
    return extents if all(found == wanted for found in coefficients) else None


class LayerNorm(ShapedCompute):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axes.

    Args:
        extents: Those of these axes.
        epsilon: Added to the variance.
    """

    def __init__(self, extents: Shape, epsilon: float) -> None:
        self.shapes = {1: extents, 2: extents}
        self._extents = extents
        self._epsilon = epsilon

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""
        x, scale, bias = inputs
        assert scale is not None and bias is not None
        shaped = (as_tensor(coefficient).reshape(self._extents) for coefficient in (scale, bias))
        return self.compute_shaped((x, *shaped))

    def compute_shaped(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of a scale and a bias of the extents."""
        x, scale, bias = inputs
        assert x is not None and isinstance(scale, torch.Tensor) and isinstance(bias, torch.Tensor)
        return (torch.layer_norm(as_tensor(x), self._extents, scale, bias, self._epsilon),)
