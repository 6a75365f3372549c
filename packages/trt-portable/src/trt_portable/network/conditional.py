"""If-conditionals: a condition, inputs, and outputs that come from one of two branches."""

from __future__ import annotations

from typing import Any

from trt_portable.errors import Refusal
from trt_portable.network.conditional_boundary import (
    IConditionLayer,
    IIfConditionalInputLayer,
    IIfConditionalOutputLayer,
)
from trt_portable.network.conditional_region import ConditionalRegion
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer
from trt_portable.network.rules import require
from trt_portable.network.scope import Scope
from trt_portable.network.tensor import ITensor


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
        added: IConditionLayer | None = self._join(
            self._network._add(IConditionLayer._create(), expect_tensor(condition, "condition"))
        )
        return added

    def add_input(self, input: ITensor) -> IIfConditionalInputLayer | None:
        """Adds a tensor that the branches use."""
        added: IIfConditionalInputLayer | None = self._join(
            self._network._add(IIfConditionalInputLayer._create(), expect_tensor(input, "input"))
        )
        return added

    def add_output(
        self, true_subgraph_output: ITensor, false_subgraph_output: ITensor
    ) -> IIfConditionalOutputLayer | None:
        """Adds a result.

        Args:
            true_subgraph_output: The result if the condition holds.
            false_subgraph_output: The result otherwise; same type and rank.
        """
        added: IIfConditionalOutputLayer | None = self._join(
            self._network._add(
                IIfConditionalOutputLayer._create(),
                expect_tensor(true_subgraph_output, "true_subgraph_output"),
                expect_tensor(false_subgraph_output, "false_subgraph_output"),
            )
        )
        return added

    def _of(self, kind: type[Any]) -> list[Any]:
        return [layer for layer in self._boundary if isinstance(layer, kind)]

    def _entries(self) -> list[ILayer]:
        return self._of(IIfConditionalInputLayer)

    def _exits(self) -> list[ILayer]:
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
