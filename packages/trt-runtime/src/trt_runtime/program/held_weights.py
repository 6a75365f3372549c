"""How the tensors that a program holds follow from weights of its model, so that loaded programs can be refitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch

from trt_core.files.records import Form
from trt_core.refit_table import EngineWeight, RefitTable, why_unwritable
from trt_core.weight_recipes import Recipe, constants_of, content_digest, sources_of
from trt_runtime.program.fields import malformed

if TYPE_CHECKING:
    from trt_runtime.program.graph import StoredTensor


def _read_table(value: Any, place: str) -> RefitTable:
    return RefitTable.from_json(value)


@dataclass(frozen=True)
class HeldWeights:
    """What is known of every tensor that a program holds.

    Attributes:
        table: Recipes of those that weights of the model decide, each named by the number of its tensor.
        constants: Numbers of those that follow from no weight, and stay what they are.
    """

    table: Annotated[RefitTable, Form(_read_table, RefitTable.to_json)]
    constants: tuple[int, ...]

    def recipes(self) -> dict[int, Recipe]:
        """The recipes by the number of the tensor."""
        return {int(weight.name): weight.recipe for weight in self.table.weights}

    def check(self, tensors: Sequence[StoredTensor]) -> None:
        """Sees whether it tells of every tensor that a program holds, once.

        Raises:
            PlanError: It does not.
        """
        told = [*(weight.name for weight in self.table.weights), *map(str, self.constants)]
        if sorted(told) != sorted(map(str, range(len(tensors)))):
            raise malformed("refit", "it does not tell of every tensor, once")
        if any(not tensors[int(weight.name)].names for weight in self.table.weights):
            raise malformed("refit", "a tensor that follows from weights has no name")
        if self.table.reads or self.table.fixed:
            raise malformed("refit", "only engines depend on numbers of weights")


def held_weights(recipes: Sequence[Recipe | None], tensors: Sequence[torch.Tensor]) -> HeldWeights | None:
    """Returns what is known of the tensors of a program; None where one is unknown, or cannot be made again.

    Args:
        recipes: How each tensor follows from weights, None where nothing says so.
        tensors: The tensors.
    """
    weights: list[EngineWeight] = []
    constants: list[int] = []
    digests: dict[str, str] = {}
    for number, (recipe, tensor) in enumerate(zip(recipes, tensors, strict=True)):
        if recipe is None:
            return None
        digests.update({one.name: content_digest(one.value) for one in constants_of(recipe)})
        if not sources_of(recipe):
            constants.append(number)
        elif why_unwritable(recipe):
            return None
        else:
            weights.append(EngineWeight(str(number), recipe, tensor.dtype, tensor.numel()))
    return HeldWeights(RefitTable(weights=tuple(weights), constants=digests), tuple(constants))
