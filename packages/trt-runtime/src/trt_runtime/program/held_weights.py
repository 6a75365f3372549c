"""How the tensors that a program holds follow from weights of its model, so that loaded programs can be refitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.files import typed
from trt_core.refit_table import EngineWeight, RefitTable, why_unwritable
from trt_core.weight_recipes import Recipe, constants_of, content_digest, sources_of
from trt_runtime.program import tables
from trt_runtime.program.fields import malformed

if TYPE_CHECKING:
    from trt_runtime.program.graph import StoredTensor

_MOST_TENSORS: Final = 1 << 31


@dataclass(frozen=True)
class HeldWeights:
    """What is known of every tensor that a program holds.

    Attributes:
        table: Recipes of those that weights of the model decide, each named by the number of its tensor.
        constants: Numbers of those that follow from no weight, and stay what they are.
    """

    table: RefitTable
    constants: tuple[int, ...]

    def recipes(self) -> dict[int, Recipe]:
        """The recipes by the number of the tensor."""
        return {int(weight.name): weight.recipe for weight in self.table.weights}

    def to_json(self) -> dict[str, Any]:
        """What `read_held_weights` takes."""
        return {"table": self.table.to_json(), "constants": list(self.constants)}


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


def read_held_weights(value: Any, tensors: Sequence[StoredTensor]) -> HeldWeights:
    """Reads it back.

    Args:
        value: Parsed JSON.
        tensors: The tensors that the program holds.

    Raises:
        PlanError: It is no such table, or does not tell of every tensor once.
    """
    values = typed.fields(value, "refit", tables.REFIT)
    table = RefitTable.from_json(values["table"])
    constants = typed.integers(values["constants"], "refit", 0, _MOST_TENSORS)
    told = [*(weight.name for weight in table.weights), *map(str, constants)]
    if sorted(told) != sorted(map(str, range(len(tensors)))):
        raise malformed("refit", "it does not tell of every tensor, once")
    if any(not tensors[int(weight.name)].names for weight in table.weights):
        raise malformed("refit", "a tensor that follows from weights has no name")
    if table.reads or table.fixed:
        raise malformed("refit", "only engines depend on numbers of weights")
    return HeldWeights(table, constants)
