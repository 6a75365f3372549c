"""Names the weights of a network after the model's, and keeps how they follow from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trt_core import RefitError
from trt_core.refit_table import EngineWeight, RefitTable, recipe_text, why_unwritable
from trt_core.replay import content_digest, replay
from trt_core.weight_recipes import Recipe, Source, constants_of, sources_of
from trt_core.weight_recorder import WeightRecorder


class EngineWeights:
    """The weights of one network that follow from weights of the model.

    Args:
        network: The `trt.INetworkDefinition`.

    Attributes:
        recorder: Knows how tensors follow from weights of the model.
    """

    def __init__(self, network: Any) -> None:
        self.recorder = WeightRecorder()
        self._network = network
        self._constants: dict[str, torch.Tensor] = {}
        self._held: dict[tuple[int, torch.dtype, int], tuple[Any, torch.Tensor, Recipe]] = {}

    def know(self, tensors: Sequence[torch.Tensor], recipe: Recipe) -> None:
        """Says what the recipe of tensors that the block reads is."""
        for tensor in tensors:
            self.recorder.know(tensor, recipe)
        self._constants.update((item.name, item.value) for item in constants_of(recipe))

    def identity(self, tensor: torch.Tensor) -> str:
        """Returns a text that is equal for tensors that follow from weights in the same way; empty for others."""
        recipe = self.recorder.recipe_of(tensor)
        if recipe is None:
            return ""
        try:
            return json.dumps(recipe_text(recipe))
        except RefitError:
            return f"recipe {id(recipe)}"

    def add(self, weights: Any, tensor: torch.Tensor) -> None:
        """Notes weights of a layer.

        Args:
            weights: The `trt.Weights`.
            tensor: Its memory.
        """
        recipe = self.recorder.recipe_of(tensor)
        if recipe is not None and tensor.numel():
            # tensors over the same memory are views of one weight, or of tied ones, which stay tied
            key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
            self._held.setdefault(key, (weights, tensor, recipe))

    def finish(self, given: Mapping[str, torch.Tensor], content: str = "") -> RefitTable:
        """Names the weights in the network and marks those that can be replaced.

        Each recipe is replayed once here and compared with what the network got, so that what recording missed makes a
        weight fixed, and never wrong.

        Args:
            given: Weights of the model by name.
            content: Digest of these weights.
        """
        weights: dict[str, EngineWeight] = {}
        fixed: dict[str, tuple[Source, str, str]] = {}
        reads: dict[str, tuple[Recipe, str]] = {}
        for native, tensor, recipe in self._held.values():
            why = _why_fixed(recipe, given, tensor)
            name = _free_name(recipe, weights)
            if not why and not self._network.set_weights_name(native, name):
                why = "the provider does not let it have a name"
            if not why and not self._network.mark_weights_refittable(name):
                why = "the provider does not let it be replaced"
            if why:
                _fix(recipe, why, given, fixed)
            else:
                weights[name] = EngineWeight(name, recipe, tensor.dtype, tensor.numel())
        for recipe in self.recorder.read:
            why = _why_fixed(recipe, given)
            if why:
                _fix(recipe, f"its numbers were looked at while the engine was built, and {why}", given, fixed)
            else:
                reads.setdefault(json.dumps(recipe_text(recipe)), (recipe, content_digest(replay(recipe, given))))
        constants = {name: content_digest(value) for name, value in self._constants.items()}
        return RefitTable(tuple(weights.values()), tuple(reads.values()), fixed, constants, content)


def _free_name(recipe: Recipe, taken: Mapping[str, EngineWeight]) -> str:
    base = sources_of(recipe)[0].name
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}:{count}"
    return name


def _why_fixed(recipe: Recipe, given: Mapping[str, torch.Tensor], tensor: torch.Tensor | None = None) -> str:
    why = why_unwritable(recipe)
    if why:
        return why
    try:
        made = replay(recipe, given)
    except RefitError as error:
        return error.why or error.what
    if tensor is None:
        return ""
    return "" if _same_numbers(made.cpu(), tensor) else "what was done to it cannot be repeated"


def _same_numbers(made: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding, which is another where part of it ran on another device."""
    if made.dtype != tensor.dtype or made.numel() != tensor.numel():
        return False
    if torch.equal(made.reshape(-1), tensor.reshape(-1)):
        return True
    if not tensor.is_floating_point():
        return False
    left, right = made.reshape(-1).double(), tensor.reshape(-1).double()
    few = 16 * torch.finfo(tensor.dtype).eps
    scale = right[right.isfinite()].abs().max().item() if bool(right.isfinite().any()) else 0.0
    return torch.allclose(left, right, rtol=few, atol=few * scale, equal_nan=True)


def _fix(
    recipe: Recipe, why: str, given: Mapping[str, torch.Tensor], fixed: dict[str, tuple[Source, str, str]]
) -> None:
    for source in sources_of(recipe):
        if source.name in given:
            fixed.setdefault(source.name, (source, why, content_digest(given[source.name])))
