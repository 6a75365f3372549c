"""Running a conditional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trt_portable.enums import LayerType
from trt_portable.errors import Refusal
from trt_portable.network.conditional_boundary import (
    IConditionLayer,
    IIfConditionalInputLayer,
    IIfConditionalOutputLayer,
)
from trt_portable.network.layer import ILayer
from trt_portable.network.region import Region
from trt_portable.network.tensor import ITensor
from trt_portable.values import HostValues, Value, as_tensor, host_numbers


class ConditionalRegion(Region):
    """A conditional as one layer of a plan; only the branch that the condition chooses runs."""

    _KIND = LayerType.CONDITIONAL_OUTPUT

    @classmethod
    def _plan_type(cls) -> str:
        return "CONDITIONAL"

    def _exits(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalOutputLayer)

    def _of(self, kind: type[Any]) -> list[Any]:
        return [layer for layer in self._boundary if isinstance(layer, kind)]

    def _prepare(self) -> None:
        (condition,) = self._of(IConditionLayer)
        tensor = condition._inputs[0]
        assert tensor is not None
        self._condition: ITensor = tensor
        self._entries: list[ILayer] = self._of(IIfConditionalInputLayer)
        results: list[IIfConditionalOutputLayer] = self._of(IIfConditionalOutputLayer)
        self._branches = []
        for index in (0, 1):
            wanted = [layer._inputs[index] for layer in results]
            tensors = [tensor for tensor in wanted if tensor is not None]
            self._branches.append((tensors, self._ancestors(tensors)))

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        outside = self._start(inputs)
        condition = outside[id(self._condition)]
        self._run(self._entries, outside)
        if isinstance(condition, torch.Tensor) and condition.device.type == "meta":
            return self._shapes(outside)
        tensors, layers = self._branches[0 if host_numbers(condition)[0] else 1]
        self._run(layers, outside)
        return tuple(outside[id(tensor)] for tensor in tensors)

    def _shapes(self, outside: dict[int, Any]) -> tuple[Value, ...]:
        """Outputs without data, if both branches agree on their extents."""
        found: list[list[Value]] = []
        for tensors, layers in self._branches:
            values = dict(outside)
            self._run(layers, values)
            found.append([values[id(tensor)] for tensor in tensors])
        for chosen, other in zip(*found, strict=True):
            if tuple(chosen.shape) != tuple(other.shape):
                raise Refusal("the extents depend on the condition")
        return tuple(as_tensor(value) if isinstance(value, HostValues) else value for value in found[0])
