"""The refit table of an engine: how its weights follow from the model's, as data that is safe to read."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import PlanError, RefitError
from trt_core.internals import OWN_NAMESPACES, OpOverload
from trt_core.weight_recipes import Applied, Literal, Recipe, Source, bytes_of, lost_in, walk, why_not_repeatable

FIELDS: Final = ("sources", "literals", "steps", "weights", "reads", "fixed", "constants", "content")
"""What a table holds, neither less nor more; another set of fields needs another version of the plan header."""

LARGEST_LITERAL: Final = 1 << 16
"""Bytes of a constant that a table may hold."""

_FORMATS: Final = {
    str(item): item
    for item in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}
_Json = Any


@dataclass(frozen=True)
class EngineWeight:
    """A weight of an engine.

    Attributes:
        name: Its name in the engine.
        recipe: How it follows from the model's weights.
        dtype, count: Type and number of elements that the engine takes.
    """

    name: str
    recipe: Recipe
    dtype: torch.dtype
    count: int


@dataclass(frozen=True, eq=False)
class RefitTable:
    """How the weights of an engine follow from the weights of the model.

    Attributes:
        weights: The engine's weights that can be replaced.
        reads: Tensors whose numbers were looked at while the engine was built, with the SHA-256 of their content: the
            engine is right only for these numbers.
        fixed: Why weights of the model cannot be replaced, and the SHA-256 of their content, by name.
        constants: SHA-256 of the content of constants of the model that are no weights, such as buffers that state
            dicts leave out, by name: an engine is right only for a model that has the same.
        content: Digest of the model's weights that the engine holds now; empty when it is unknown.
    """

    weights: tuple[EngineWeight, ...] = ()
    reads: tuple[tuple[Recipe, str], ...] = ()
    fixed: Mapping[str, tuple[Source, str, str]] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    content: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The weights of the model that the engine depends on, each name once."""
        recipes = [*(weight.recipe for weight in self.weights), *(recipe for recipe, _ in self.reads)]
        found = {item.name: item for item in walk(recipes) if isinstance(item, Source)}
        found.update((name, source) for name, (source, _, _) in self.fixed.items())
        return tuple(found.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefitTable) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(sorted(weight.name for weight in self.weights)))

    def to_json(self) -> dict[str, _Json]:
        """Returns the table as JSON values.

        Raises:
            RefitError: A recipe cannot be repeated, or needs a large constant.
        """
        writer = _Writer()
        weights = sorted(self.weights, key=lambda weight: weight.name)
        recipes = [*(weight.recipe for weight in weights), *(recipe for recipe, _ in self.reads)]
        for item in walk([*recipes, *(source for source, _, _ in self.fixed.values())]):
            writer.write(item)
        return {
            "sources": writer.sources,
            "literals": writer.literals,
            "steps": writer.steps,
            "weights": {
                weight.name: [writer.reference(weight.recipe), dtype_name(weight.dtype), weight.count]
                for weight in weights
            },
            "reads": [[writer.reference(recipe), digest] for recipe, digest in self.reads],
            "fixed": {
                name: [writer.reference(source), why, digest] for name, (source, why, digest) in self.fixed.items()
            },
            "constants": dict(self.constants),
            "content": self.content,
        }

    @classmethod
    def from_json(cls, value: _Json) -> RefitTable:
        """Reads a table back: operators of PyTorch by name, of its own namespaces and without side effects only.

        Raises:
            PlanError: It is not a table.
        """
        if not isinstance(value, dict) or value.keys() != set(FIELDS):
            wrong = sorted(map(str, value.keys() ^ set(FIELDS))) if isinstance(value, dict) else [type(value).__name__]
            raise PlanError(
                "the refit table of a plan cannot be read", why=f"missing or unknown: {', '.join(wrong)[:200]}"
            )
        try:
            reader = _Reader(value["sources"], value["literals"], value["steps"])
            return cls(
                weights=tuple(
                    EngineWeight(str(name), reader.reference(reference), parse_dtype(dtype), _whole(count))
                    for name, (reference, dtype, count) in value["weights"].items()
                ),
                reads=tuple((reader.reference(reference), str(digest)) for reference, digest in value["reads"]),
                fixed={
                    str(name): (reader.source(reference), str(why), str(digest))
                    for name, (reference, why, digest) in value["fixed"].items()
                },
                constants={str(name): str(digest) for name, digest in value["constants"].items()},
                content=str(value["content"]),
            )
        except PlanError:
            raise
        except Exception as error:
            raise PlanError(
                "the refit table of a plan cannot be read", why=f"{type(error).__name__}: {error}"
            ) from error


def why_unwritable(recipe: Recipe) -> str:
    """Says why a recipe cannot be written into a table; nothing when it can."""
    lost = lost_in(recipe)
    if lost is not None:
        return lost.why
    for item in walk([recipe]):
        if isinstance(item, Literal) and item.value.nbytes > LARGEST_LITERAL:
            return f"it is combined with a constant of {item.value.nbytes} bytes"
        if isinstance(item, Applied):
            try:
                _Writer(lenient=True).write(item)
            except RefitError as error:
                return error.what
    return ""


def recipe_text(recipe: Recipe) -> _Json:
    """Returns a recipe as JSON values that are equal for equal recipes."""
    writer = _Writer()
    for item in walk([recipe]):
        writer.write(item)
    return [writer.sources, writer.literals, writer.steps, writer.reference(recipe)]


class _Writer:
    """Numbers recipes, operands first; equal ones get the same number."""

    def __init__(self, *, lenient: bool = False) -> None:
        self.sources: list[_Json] = []
        self.literals: list[_Json] = []
        self.steps: list[_Json] = []
        self._references: dict[Recipe, _Json] = {}
        self._lenient = lenient

    def reference(self, recipe: Recipe) -> _Json:
        """Returns how the table names a recipe that was written."""
        return {"step": 0} if self._lenient else self._references[recipe]

    def write(self, recipe: Recipe) -> None:
        """Adds a recipe whose operands were written.

        Raises:
            RefitError: A recipe is of a kind that tables cannot hold.
        """
        if recipe in self._references:
            return
        if isinstance(recipe, Source):
            described = [recipe.name, dtype_name(recipe.dtype), list(recipe.shape), list(recipe.tied)]
            reference = {"source": _place(self.sources, described)}
        elif isinstance(recipe, Literal):
            reference = {"literal": _place(self.literals, _write_tensor(recipe.value))}
        elif isinstance(recipe, Applied):
            kwargs = {name: self._argument(value) for name, value in recipe.kwargs.items()}
            place = _place(self.steps, [str(recipe.operator), [self._argument(value) for value in recipe.args], kwargs])
            reference = {"step": place} if recipe.item is None else {"step": place, "item": recipe.item}
        else:
            raise RefitError(recipe.why)
        self._references[recipe] = reference

    def _argument(self, value: Any) -> _Json:
        if isinstance(value, (Source, Literal, Applied)):
            return self.reference(value)
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value)}
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        raise RefitError(f"it was made with an argument of type {type(value).__name__}")


class _Reader:
    """Makes recipes of a table."""

    def __init__(self, sources: _Json, literals: _Json, steps: _Json) -> None:
        self._sources = [
            Source(str(name), parse_dtype(dtype), _shape(shape), tuple(map(str, tied)))
            for name, dtype, shape, tied in sources
        ]
        self._literals = [Literal(_read_tensor(*item)) for item in literals]
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self._made: dict[tuple[int, int | None], Applied] = {}
        for operator, args, kwargs in steps:  # a step can only name earlier ones
            given = {str(name): self._argument(value) for name, value in kwargs.items()}
            self._steps.append((_operator(operator), tuple(self._argument(value) for value in args), given))

    def source(self, reference: _Json) -> Source:
        """Returns the source of a reference.

        Raises:
            TypeError: The reference names something else.
        """
        found = self.reference(reference)
        if not isinstance(found, Source):
            raise TypeError("a weight of the model is expected")
        return found

    def reference(self, reference: _Json) -> Recipe:
        """Returns the recipe of a reference."""
        if "source" in reference:
            return self._sources[_whole(reference["source"])]
        if "literal" in reference:
            return self._literals[_whole(reference["literal"])]
        item = reference.get("item")
        key = (_whole(reference["step"]), None if item is None else _whole(item))
        if key not in self._made:
            self._made[key] = Applied(*self._steps[key[0]], key[1])
        return self._made[key]

    def _argument(self, value: _Json) -> Any:
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "float" in value:
            return float.fromhex(value["float"])
        if "dtype" in value:
            return parse_dtype(value["dtype"])
        if "memory_format" in value:
            return _FORMATS[value["memory_format"]]
        return self.reference(value)


def _place(table: list[_Json], entry: _Json) -> int:
    """Where an entry is in a table; it is added when it is new."""
    if entry in table[-64:]:  # equal entries lie close together, and the search must not become quadratic
        return len(table) - 1 - table[::-1].index(entry)
    table.append(entry)
    return len(table) - 1


def _operator(name: _Json) -> OpOverload:
    namespace, packet, overload = str(name).split(".")
    if namespace not in OWN_NAMESPACES:
        raise PlanError(f"the refit table of a plan names the operator {name!r}, which is not one of PyTorch's own")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    why = why_not_repeatable(found)
    if why:
        raise PlanError("the refit table of a plan names an operator that it may not", why=why)
    assert isinstance(found, OpOverload)
    return found


def _write_tensor(value: torch.Tensor) -> _Json:
    if value.nbytes > LARGEST_LITERAL:
        raise RefitError(f"it is combined with a constant of {value.nbytes} bytes")
    return [dtype_name(value.dtype), list(value.shape), base64.b64encode(bytes_of(value)).decode()]


def _read_tensor(dtype: _Json, shape: _Json, content: _Json) -> torch.Tensor:
    data = bytearray(base64.b64decode(content, validate=True))
    held = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8, device="cpu")
    return held.view(parse_dtype(dtype)).reshape(_shape(shape))


def _shape(value: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_whole(extent) for extent in value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value
