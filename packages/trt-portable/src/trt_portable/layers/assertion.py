"""Assertions about shapes."""

from __future__ import annotations

from collections.abc import Sequence

from trt_portable.attributes import text
from trt_portable.enums import DataType, ErrorCodeTRT, LayerType
from trt_portable.errors import Refusal
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require_rank, require_type
from trt_portable.shape_tensors import Value, host_numbers


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


class AssertionLayers(LayerFactory):
    """The method that adds assertions."""

    def add_assertion(self, condition: ITensor, message: str) -> IAssertionLayer | None:
        """Adds an assertion.

        Args:
            condition: 0-D or 1-D bool shape tensor.
            message: What the error says.
        """
        layer = IAssertionLayer._create(message=message)
        return self._add(layer, expect_tensor(condition, "condition"))
