"""Assertions about shapes, and collectives across devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_portable.attributes import Attribute, integer, member, text
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import (
    CollectiveOperation,
    DataType,
    ErrorCodeTRT,
    LayerType,
    ReduceOperation,
)
from trt_portable.errors import Refusal
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_minimum_rank, require_rank, require_type
from trt_portable.pybind import instance_of, to_integer
from trt_portable.shape_tensors import Value, as_tensor, host_numbers


class IAssertionLayer(ILayer):
    """Fails the build if the condition is false for certain, else the run in which it is false."""

    _KIND = LayerType.ASSERTION
    _HOST_INPUTS = frozenset({0})
    _NUM_OUTPUTS = 0

    message = text("", "What the error says.")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        (condition,) = inputs
        assert condition is not None
        require_type(condition, {DataType.BOOL}, "the condition")
        require_rank(condition, {0, 1}, "the condition")

    def _check_complete(self) -> None:
        condition = self._inputs[0]
        assert condition is not None
        for truth in condition._host or ():
            if truth is False:
                raise Refusal(f"the assertion is false: {self.message}")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        (condition,) = inputs
        assert condition is not None
        if condition.device.type != "meta" and not all(host_numbers(condition)):
            raise Refusal(f"assertion failed: {self.message}", ErrorCodeTRT.FAILED_EXECUTION)
        return ()


_REDUCING: Final = frozenset(
    {
        CollectiveOperation.ALL_REDUCE,
        CollectiveOperation.REDUCE,
        CollectiveOperation.REDUCE_SCATTER,
    }
)
_ROOTED: Final = frozenset(
    {
        CollectiveOperation.BROADCAST,
        CollectiveOperation.REDUCE,
        CollectiveOperation.GATHER,
        CollectiveOperation.SCATTER,
    }
)
_GROWING: Final = frozenset({CollectiveOperation.ALL_GATHER, CollectiveOperation.GATHER})
_SHRINKING: Final = frozenset({CollectiveOperation.REDUCE_SCATTER, CollectiveOperation.SCATTER})


def _to_groups(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(to_integer(rank) for rank in value)


class IDistCollectiveLayer(ILayer):
    """A collective operation of several devices. It can be defined here, but not built."""

    _KIND = LayerType.DIST_COLLECTIVE
    _DEFERRED = True

    _operation = member(CollectiveOperation, CollectiveOperation.ALL_REDUCE)
    _reduction = member(ReduceOperation, ReduceOperation.NONE)
    _root = integer(-1)
    _groups: Attribute[tuple[int, ...]] = Attribute(_to_groups, (), list)

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        (x,) = inputs
        assert x is not None
        require_type(x, FLOATS | INDICES | {DataType.INT8}, "the input")
        require_minimum_rank(x, 1, "the input")
        operation = self._operation
        reduces = self._reduction is not ReduceOperation.NONE
        require(
            reduces == (operation in _REDUCING),
            f"{operation.name} with reduction {self._reduction.name}",
        )
        require((self._root >= 0) == (operation in _ROOTED), f"{operation.name} with root {self._root}")

    def _check_complete(self) -> None:
        raise Refusal(
            "collectives need several devices and a communicator; this provider runs on one device",
            ErrorCodeTRT.UNSUPPORTED_STATE,
        )

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        x = as_tensor(inputs[0])
        if x.device.type != "meta":
            raise Refusal("collectives need several devices", ErrorCodeTRT.UNSUPPORTED_STATE)
        shape: list[Any] = [*x.shape]
        if self._operation in _GROWING:
            shape[0] = shape[0] * self._ranks
        elif self._operation in _SHRINKING or self._operation is CollectiveOperation.ALL_TO_ALL:
            first = shape[0]
            require(
                not isinstance(first, int) or first % self._ranks == 0,
                f"extent {first} is not divisible by {self._ranks} devices",
            )
            if self._operation in _SHRINKING:
                shape[0] = first // self._ranks
        return (torch.empty(shape, dtype=x.dtype, device=x.device),)


class AssertionLayers(LayerFactory):
    """The methods that add assertions and collectives."""

    def add_assertion(self, condition: ITensor, message: str) -> IAssertionLayer | None:
        """Adds an assertion.

        Args:
            condition: 0-D or 1-D bool shape tensor.
            message: What the error says.
        """
        layer = IAssertionLayer._create(message=message)
        return self._add(layer, expect_tensor(condition, "condition"))

    def add_dist_collective(
        self,
        input: ITensor,
        dist_collective_op: CollectiveOperation,
        reduce_op: object,
        root: object,
        groups: object,
    ) -> IDistCollectiveLayer | None:
        """Adds a collective; set ``num_ranks`` on the layer. A build refuses it.

        Args:
            input: Rank 1 or more.
            dist_collective_op: The operation.
            reduce_op: A `ReduceOperation`, NONE where nothing is reduced.
            root: The root device, -1 where there is none.
            groups: Ranks that take part; None for all.

        Raises:
            RuntimeError: The reduction or the root is of another type.
        """
        tensor, operation = expect_tensor(input, "input"), instance_of(CollectiveOperation, dist_collective_op)
        if not isinstance(reduce_op, ReduceOperation) or not isinstance(root, int):
            raise RuntimeError("reduce_op must be a ReduceOperation and root an int")
        layer = IDistCollectiveLayer._create(_operation=operation, _reduction=reduce_op, _root=root, _groups=groups)
        return self._add(layer, tensor)
