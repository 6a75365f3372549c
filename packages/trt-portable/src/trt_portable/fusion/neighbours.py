"""Fusion of neighbouring layers into one PyTorch kernel that computes the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
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
from trt_portable.layers.normalization import INormalizationLayer
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    ISelectLayer,
    IUnaryLayer,
    is_usual_hard_sigmoid,
    representable,
)
from trt_portable.layers.slicing import ISliceLayer, narrowed_axis
from trt_portable.network.rules import axes_of_mask
from trt_portable.shape_tensors import Value, as_tensor

_NONE: Final = MatrixOperation.NONE
_TRANSPOSE: Final = MatrixOperation.TRANSPOSE

Shape = tuple[int, ...]


def fuse_linear(
    calls: Sequence[LayerCall], visible: Collection[int], outside: Mapping[int | None, Shape] | None = None
) -> list[LayerCall]:
    """Computes a product with a constant matrix, and a constant bias added to it, as one linear map.

    The matrix may have leading extents of 1, over which a plain product would broadcast at great cost.
    Weights still come from constant layers, so a refit reaches them.

    Args:
        calls: Layers in executable order.
        visible: Ids of tensors that something besides the layers reads.
        outside: Shapes of constants that other layers make.
    """
    constants = {**(outside or {}), **constant_shapes(calls)}
    uses = Counter(tensor for call in calls for tensor in call.inputs)
    products: dict[int | None, int] = {}  # where products that only a bias may read are in `fused`
    fused: list[LayerCall | None] = []
    for call in calls:
        product = _linear_product(call, constants)
        if product is not None:
            if uses[call.outputs[0]] == 1 and call.outputs[0] not in visible:
                products[call.outputs[0]] = len(fused)
            fused.append(product)
            continue
        biased = None
        for output, bias in _addends(call):
            if output in products and bias in constants:
                at = products[output]
                biased = _with_bias(fused[at], call, bias, constants)
                if biased is not None:
                    fused[at] = None
                    break
        fused.append(biased or call)
    return [call for call in fused if call is not None]


def constant_shapes(calls: Sequence[LayerCall]) -> dict[int | None, Shape]:
    """Shapes of the tensors that constant layers make."""
    return {
        call.outputs[0]: tuple(call.layer.shape)  # type: ignore[attr-defined]
        for call in calls
        if call.layer.type is LayerType.CONSTANT
    }


@dataclass(frozen=True)
class LinearForm:
    """How a linear map reads its matrix, the second input, and whether a third is its bias."""

    is_transposed: bool
    has_bias: bool


def linear_form(call: LayerCall) -> LinearForm | None:
    """What `fuse_linear` made of a call; None for other calls."""
    if not isinstance(call.compute, Linear):
        return None
    return LinearForm(call.compute.is_transposed, len(call.inputs) > 2)


def _linear_product(call: LayerCall, constants: dict[int | None, Shape]) -> LayerCall | None:
    """A product with a constant matrix on the right as a linear map, if it is one."""
    layer = call.layer
    if layer.type is not LayerType.MATRIX_MULTIPLY or call.inputs[1] not in constants:
        return None
    op0, op1 = layer.op0, layer.op1  # type: ignore[attr-defined]
    shape = constants[call.inputs[1]]
    plain = op0 is _NONE and op1 in (_NONE, _TRANSPOSE)
    if not plain or len(shape) < 2 or any(extent != 1 for extent in shape[:-2]):
        return None
    return _replaced(call, call.inputs, Linear(shape[-2:], is_transposed=op1 is _TRANSPOSE), call.name)


def _addends(call: LayerCall) -> list[tuple[int | None, int | None]]:
    """The operands of a sum, both ways round."""
    layer = call.layer
    if layer.type is not LayerType.ELEMENTWISE:
        return []
    if layer.op is not ElementWiseOperation.SUM:  # type: ignore[attr-defined]
        return []
    first, second = call.inputs
    return [(first, second), (second, first)]


def _with_bias(
    product: LayerCall | None, addition: LayerCall, bias: int | None, constants: dict[int | None, Shape]
) -> LayerCall | None:
    """A linear map with its bias, if the bias is one number per column."""
    assert product is not None and isinstance(product.compute, Linear)
    added = constants[bias]
    if added[-1:] != (product.compute.columns,) or any(extent != 1 for extent in added[:-1]):
        return None
    inputs = (*product.inputs, bias)
    return _replaced(addition, inputs, product.compute, f"{product.name} + {addition.name}")


def fuse_gates(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
    """Computes ``x * sigmoid(x)`` and ``x * hard_sigmoid(x)`` in one kernel each, which rounds once.

    Args:
        calls: Layers in executable order.
        visible: Ids of tensors that something besides the layers reads.
    """
    uses = Counter(tensor for call in calls for tensor in call.inputs)
    gates = {call.outputs[0]: index for index, call in enumerate(calls) if _gated(call) is not None}
    fused: list[LayerCall | None] = list(calls)
    for index, call in enumerate(calls):
        if not isinstance(call.layer, IElementWiseLayer) or call.layer.op is not ElementWiseOperation.PROD:
            continue
        for x, gate in (call.inputs, call.inputs[::-1]):
            at = gates.get(gate) if gate is not None and uses[gate] == 1 and gate not in visible else None
            if at is not None and calls[at].inputs == (x,):
                compute = _gated(calls[at])
                assert compute is not None
                fused[at], fused[index] = None, _replaced(call, (x,), compute, f"{calls[at].name} + {call.name}")
                break
    return [call for call in fused if call is not None]


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


def fuse_clamps(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
    """Computes ``x if isnan(x) else clip(x)``, as a clamp that keeps NaN is written in layers, in one kernel.

    Args:
        calls: Layers in executable order.
        visible: Ids of tensors that something besides the layers reads.
    """
    uses = Counter(tensor for call in calls for tensor in call.inputs)
    makers = {tensor: index for index, call in enumerate(calls) for tensor in call.outputs}
    fused: list[LayerCall | None] = list(calls)
    for index, call in enumerate(calls):
        if not isinstance(call.layer, ISelectLayer):
            continue
        condition, x, clipped = call.inputs
        if any(uses[tensor] != 1 or tensor in visible or tensor not in makers for tensor in (condition, clipped)):
            continue
        tests, clips = makers[condition], makers[clipped]  # type: ignore[index]
        limits = clip_limits(calls[clips])
        if limits is not None and _tests_nan(calls[tests]) and calls[tests].inputs == calls[clips].inputs == (x,):
            fused[tests] = fused[clips] = None
            fused[index] = _replaced(call, (x,), Clamp(*limits), f"{calls[clips].name} + {call.name}")
    return [call for call in fused if call is not None]


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


def _replaced(call: LayerCall, inputs: tuple[int | None, ...], compute: Compute, name: str) -> LayerCall:
    return LayerCall(
        layer=call.layer,
        inputs=inputs,
        outputs=call.outputs,
        compute=compute,
        output_names=call.output_names,
        name=name,
    )


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
        call: The number of the call that makes it.
    """

    start: int
    size: int
    call: int


def fuse_splits(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Computes slices of a tensor that follow each other without gaps, from its first place on, by one split.

    Args:
        calls: Layers in executable order.
    """
    groups: dict[tuple[int | None, int], list[_Part]] = defaultdict(list)
    for index, call in enumerate(calls):
        is_plain = isinstance(call.layer, ISliceLayer) and call.compute == call.layer._compute
        found = narrowed_axis(call.layer) if is_plain else None
        if found is not None:
            axis, start, size = found
            groups[call.inputs[0], axis].append(_Part(start, size, index))
    fused: list[LayerCall | None] = list(calls)
    for (_, axis), group in groups.items():
        parts = sorted(group)
        if len(parts) < _LEAST_PARTS or not _are_side_by_side(parts):
            continue
        chain = [calls[part.call] for part in parts]
        for part in parts:
            fused[part.call] = None
        fused[min(part.call for part in parts)] = replace(
            chain[0],
            outputs=tuple(call.outputs[0] for call in chain),
            output_names=tuple(call.output_names[0] for call in chain),
            compute=Split(axis, [part.size for part in parts], chain),
            name=" | ".join(call.name for call in chain),
        )
    return [call for call in fused if call is not None]


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


def settle_layer_norms(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Gives normalizations over the last axes, with a constant scale and bias per element of theirs, their kernel.

    Args:
        calls: Layers in executable order; what they compute stays the same.
    """
    if not any(call.layer._KIND is LayerType.NORMALIZATION for call in calls):
        return list(calls)
    constants = constant_shapes(calls)
    settled = []
    for call in calls:
        layer = call.layer
        if isinstance(layer, INormalizationLayer) and call.compute == layer._compute:
            extents = _normalized_extents(layer, [constants.get(tensor) for tensor in call.inputs[1:]])
            if extents is not None:
                call = replace(call, compute=LayerNorm(extents, layer.epsilon))
        settled.append(call)
    return settled


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
