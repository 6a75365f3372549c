"""Normalization over the last axes, as PyTorch's kernel takes it: what shapes decide is decided before the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trt_portable.enums import LayerType
from trt_portable.layers.normalization import INormalizationLayer
from trt_portable.network.rules import axes_of_mask
from trt_portable.runtime.fusion import Shape, constant_shapes
from trt_portable.runtime.program import LayerCall, ShapedCompute
from trt_portable.values import Value, as_tensor


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
