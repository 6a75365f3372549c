"""Conditionals and assertions: layers that ask whether something holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from trt_portable.attributes import text
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import DataType, ErrorCodeTRT, LayerType
from trt_portable.errors import Refusal, UnknownExtents
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.region import BoundaryLayer, Region, Scope
from trt_portable.network.rules import (
    require,
    require_equal_ranks,
    require_equal_types,
    require_rank,
    require_type,
)
from trt_portable.shape_tensors import HostValues, Value, as_tensor, host_numbers

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols


class ConditionalRegion(Region):
    """A conditional as one layer of a plan; only the branch that the condition chooses runs."""

    _KIND = LayerType.CONDITIONAL_OUTPUT

    @classmethod
    def _plan_type(cls) -> str:
        return "CONDITIONAL"

    def _exits(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalOutputLayer)

    def _prepare(self) -> None:
        (condition,) = self._of(IConditionLayer)
        tensor = condition._inputs[0]
        assert tensor is not None
        self._condition: ITensor = tensor
        self._entries = self._of(IIfConditionalInputLayer)
        results = self._of(IIfConditionalOutputLayer)
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
        found = self._of_both(outside)
        if any(chosen.shape != other.shape for chosen, other in found):
            raise UnknownExtents("the extents depend on the condition")
        return tuple(chosen for chosen, _ in found)

    def _greatest(self, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, ...]:
        """Outputs without data, as large along each axis as that of the larger branch.

        Args:
            inputs: Operands without data.
        """
        outside = self._start(inputs)
        self._run(self._entries, outside)
        return tuple(
            chosen.new_empty([max(extents) for extents in zip(chosen.shape, other.shape, strict=True)])
            for chosen, other in self._of_both(outside)
        )

    def _of_both(self, outside: dict[int, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What each of the branches makes of operands without data, for each output."""
        found: list[list[torch.Tensor]] = []
        for tensors, layers in self._branches:
            values = dict(outside)
            self._run(layers, values)
            made = (values[id(tensor)] for tensor in tensors)
            found.append([as_tensor(value) if isinstance(value, HostValues) else value for value in made])
        return list(zip(*found, strict=True))


class IIfConditionalBoundaryLayer(BoundaryLayer):
    """A layer on the boundary of a conditional."""

    @property
    def conditional(self) -> IIfConditional | None:
        """The conditional."""
        return self._scope  # type: ignore[no-any-return]


class IConditionLayer(IIfConditionalBoundaryLayer):
    """The condition: a 0-D bool."""

    _KIND = LayerType.CONDITION
    _NUM_OUTPUTS = 0

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        assert inputs[0] is not None
        require_type(inputs[0], {DataType.BOOL}, "the condition")
        require_rank(inputs[0], {0}, "the condition")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return ()


class IIfConditionalInputLayer(IIfConditionalBoundaryLayer):
    """A tensor on its way into the branches; what depends on it runs only if its branch does."""

    _KIND = LayerType.CONDITIONAL_INPUT

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        assert inputs[0] is not None
        return (inputs[0],)


class IIfConditionalOutputLayer(IIfConditionalBoundaryLayer):
    """A tensor from the branch that the condition chose. Inputs: 0 if true, 1 if false."""

    _KIND = LayerType.CONDITIONAL_OUTPUT
    _CACHEABLE = False

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        chosen, other = inputs
        assert chosen is not None and other is not None
        require_equal_types((chosen, other), "the branches")
        require_type(chosen, FLOATS | INDICES | {DataType.BOOL}, "a branch")
        require_equal_ranks((chosen, other), "the branches")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        chosen, other = self._inputs
        assert chosen is not None and other is not None
        extents = tuple(
            left if left == right else symbols.create()
            for left, right in zip(chosen._extents or (), other._extents or (), strict=True)
        )
        return (Facts(extents, chosen._dtype, None),)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        raise Refusal("the output of a conditional has no meaning outside it")


class IIfConditional(Scope):
    """A conditional. Its branches are what its outputs depend on and its inputs lead to."""

    _network: ConditionalLayers

    def set_condition(self, condition: ITensor) -> IConditionLayer | None:
        """Sets the condition; once only.

        Args:
            condition: 0-D bool.
        """
        if self._of(IConditionLayer):
            rule = "the condition is already set"
            self._network._reporter.refuse(f"conditional {self.name!r}", Refusal(rule))
            return None
        return self._add(IConditionLayer._create(), expect_tensor(condition, "condition"))

    def add_input(self, input: ITensor) -> IIfConditionalInputLayer | None:
        """Adds a tensor that the branches use."""
        return self._add(IIfConditionalInputLayer._create(), expect_tensor(input, "input"))

    def add_output(
        self, true_subgraph_output: ITensor, false_subgraph_output: ITensor
    ) -> IIfConditionalOutputLayer | None:
        """Adds a result.

        Args:
            true_subgraph_output: The result if the condition holds.
            false_subgraph_output: The result otherwise; same type and rank.
        """
        return self._add(
            IIfConditionalOutputLayer._create(),
            expect_tensor(true_subgraph_output, "true_subgraph_output"),
            expect_tensor(false_subgraph_output, "false_subgraph_output"),
        )

    def _entries(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalInputLayer)

    def _exits(self) -> Sequence[ILayer]:
        return self._of(IIfConditionalOutputLayer)

    def _region(self, body: list[ILayer]) -> ILayer:
        require(bool(self._of(IConditionLayer)), f"conditional {self.name!r} has no condition")
        return ConditionalRegion._of_scope(self.name, self._boundary, body)


class ConditionalLayers(LayerFactory):
    """The method that adds conditionals."""

    _scopes: list[Scope]

    def add_if_conditional(self) -> IIfConditional:
        """Adds a conditional."""
        conditional = IIfConditional(self, f"(Unnamed Conditional* {len(self._scopes)})")
        self._scopes.append(conditional)
        return conditional


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
