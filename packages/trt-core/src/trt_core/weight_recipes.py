"""Recipes: how a tensor that a compilation made follows from weights of the model, and their recorder.

Folding, transposing, casting and merging all leave tensors that are no weights of the model any more. A recipe keeps
the operators that made one, so that it can be made again from other weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakTensorKeyDictionary

from trt_core.dtypes import dtype_name
from trt_core.errors import RefitError
from trt_core.internals import OWN_NAMESPACES, OpOverload, TorchDispatchMode, is_traceable_wrapper_subclass
from trt_core.nesting import leaves_of, reach_of, tensors_in, with_leaves
from trt_core.process_groups import shard_of

RECIPE: Final = "weight_recipe"
"""Key of `fx.Node.meta`: the recipe of the tensor that a `get_attr` node reads; absent where nothing is known."""


@dataclass(frozen=True, eq=False)
class Source:
    """A weight of the model as it is.

    Attributes:
        name: Its name in the model's state dict.
        dtype, shape: What it must be.
        tied: Other names that the same tensor has there; a compilation knows one of them.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tied: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Literal:
    """A tensor that follows from no weight: a constant of the model, or one that the compilation made.

    Attributes:
        value: The tensor; never changed.
        name: Its name in the model, such as that of a buffer that state dicts leave out; empty where it has none.
    """

    value: torch.Tensor = field(repr=False)
    name: str = ""


@dataclass(frozen=True, eq=False)
class Applied:
    """A result of an operator.

    Attributes:
        operator: A functional operator.
        args, kwargs: Its arguments; a recipe stands for its tensor.
        item: Which of several results; None for an operator with one.
    """

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    item: int | None = None


@dataclass(frozen=True, eq=False)
class Lost:
    """A tensor that follows from weights in a way that cannot be repeated.

    Attributes:
        why: What made it so.
        operands: Recipes that it follows from.
    """

    why: str
    operands: tuple[Recipe, ...]


Recipe = Source | Literal | Applied | Lost


def recipes_in(value: Any) -> Iterator[Recipe]:
    """Yields the recipes in an argument, those in lists, tuples and mappings included."""
    return (leaf for leaf in leaves_of(value) if isinstance(leaf, Recipe))


def operands_of(recipe: Recipe) -> tuple[Recipe, ...]:
    """Returns the recipes that a recipe is made of."""
    if isinstance(recipe, Applied):
        return (*recipes_in(recipe.args), *recipes_in(recipe.kwargs))
    return recipe.operands if isinstance(recipe, Lost) else ()


def walk(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Returns recipes and everything that they are made of, each once, operands first."""
    done: dict[Recipe, None] = {}
    pending = list(reversed(recipes))
    while pending:
        current = pending[-1]
        missing = [item for item in operands_of(current) if item not in done]
        if current in done or not missing:
            done.setdefault(current)
            pending.pop()
        else:
            pending.extend(missing)
    return list(done)


def follow_from_sources(recipes: Sequence[Recipe]) -> list[bool]:
    """Says of each recipe whether it starts from a weight."""
    found: set[Recipe] = set()
    for item in walk(recipes):
        if isinstance(item, Source) or any(operand in found for operand in operands_of(item)):
            found.add(item)
    return [recipe in found for recipe in recipes]


def sources_of(recipe: Recipe) -> tuple[Source, ...]:
    """Returns the weights that a recipe starts from, each once."""
    return tuple(item for item in walk([recipe]) if isinstance(item, Source))


def constants_of(*recipes: Recipe) -> tuple[Literal, ...]:
    """Returns the constants of the model that recipes start from, each once."""
    return tuple(item for item in walk(recipes) if isinstance(item, Literal) and item.name)


def lost_in(recipe: Recipe) -> Lost | None:
    """Returns the first part of a recipe that cannot be repeated, if there is one."""
    return next((item for item in walk([recipe]) if isinstance(item, Lost)), None)


def apply_operator(operator: Any, args: Any, kwargs: Any, *, item: int | None = None) -> Recipe:
    """Returns the recipe of an operator's result.

    Args:
        operator: What was called.
        args, kwargs: Its arguments, recipes in place of tensors.
        item: Which of several results.
    """
    operands = (*recipes_in(args), *recipes_in(kwargs))
    why = why_not_repeatable(operator)
    if why:
        return Lost(why, operands)
    without_places = {name: value for name, value in kwargs.items() if name not in ("device", "layout", "pin_memory")}
    return Applied(operator, tuple(args), without_places, item)


def why_not_repeatable(operator: Any) -> str:
    """Says why an operator cannot be part of a recipe; nothing when it can."""
    if not isinstance(operator, OpOverload):
        return f"{operator} is no operator"
    if operator.namespace not in OWN_NAMESPACES:
        return f"{operator} is not one of PyTorch's own operators"
    if operator._schema.is_mutable:
        return f"{operator} writes in place"
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return f"{operator} draws random numbers"
    return ""


_SMALLEST_LIMIT: Final = 1 << 26
_GROWTH: Final = 16


Admit = Callable[[OpOverload], Callable[..., Any]]
"""Returns what calls an operator, or raises where it may not be called."""


def replay(recipe: Recipe, weights: Mapping[str, torch.Tensor], *, admit: Admit = lambda op: op) -> torch.Tensor:
    """Makes a tensor from weights of the model; see `replay_all`."""
    (made,) = replay_all([recipe], weights, admit=admit)
    return made


def replay_all(
    recipes: Sequence[Recipe], weights: Mapping[str, torch.Tensor], *, admit: Admit = lambda op: op
) -> Iterator[torch.Tensor]:
    """Makes tensors from weights of the model one by one; what several are made of is made once.

    Args:
        recipes: How.
        weights: The weights by name; all of them on one device. They are not changed, and may be what is returned.
        admit: Asked for each operator, before anything runs. A recipe that was read from a file may name any.

    Yields:
        The tensor of each recipe, in order.

    Raises:
        RefitError: A weight is missing or has another type or shape, an operator fails, or a result would be far
            larger than everything that they are made of (a table need not come from where it says).
    """
    order = walk(recipes)
    sources = [item for item in order if isinstance(item, Source)]
    for source in sources:
        check_weight(source, weights)
    device = weights[sources[0].name].device if sources else torch.device("cpu")
    given = sum(weights[source.name].nbytes for source in sources)
    operators = {item.operator for item in order if isinstance(item, Applied)}
    calls = {operator: admit(operator) for operator in operators}
    _check_sizes(order, calls, max(_SMALLEST_LIMIT, _GROWTH * given))
    uses = Counter(operand for item in order for operand in operands_of(item))
    uses.update(recipes)
    values: dict[Recipe, Any] = {}

    def let_go(used: Recipe) -> None:
        uses[used] -= 1
        if not uses[used]:
            del values[used]

    ordered = iter(order)
    for recipe in recipes:
        while recipe not in values:
            item = next(ordered)
            if isinstance(item, Source):
                values[item] = weights[item.name].detach()
            elif isinstance(item, Literal):
                values[item] = item.value.to(device)
            else:
                with torch.no_grad():
                    values[item] = _run(item, calls, values, device)
            for operand in operands_of(item):
                let_go(operand)
        result: torch.Tensor = values[recipe]
        let_go(recipe)
        yield result


def check_weight(source: Source, weights: Mapping[str, torch.Tensor]) -> None:
    """Checks that a weight is there and fits.

    Raises:
        RefitError: It is missing, has another type or shape, or is no longer the weight that it was tied to.
    """
    value = weights.get(source.name)
    if value is None:
        inner = source.name.partition(_INSIDE)[0]
        others = [name for name in weights if inner != source.name and name.partition(_INSIDE)[0] == inner]
        raise RefitError(
            f"the weight {source.name!r} is missing",
            why=f"{others[0]!r} is quantized in another way" if others else "",
            hint="compile the model again"
            if others
            else "give all weights of the model, under their names in it; the model itself where it is quantized",
        )
    require_numbers(source.name, value)
    if value.dtype != source.dtype or tuple(value.shape) != source.shape:
        raise RefitError(
            f"the weight {source.name!r} does not fit",
            why=f"it is {dtype_name(value.dtype)} {tuple(value.shape)}, the engine was built from "
            f"{dtype_name(source.dtype)} {source.shape}",
            hint="compile the model again",
        )
    for name in source.tied:
        other = weights.get(name, value)
        require_numbers(name, other)
        if other is not value and not (
            other.shape == value.shape and torch.equal(content_of(other), content_of(value))
        ):
            raise RefitError(
                f"the weights {source.name!r} and {name!r} differ",
                why="they were one tensor when the engine was built, so it holds them once",
                hint="compile the model again",
            )


def require_numbers(name: str, value: torch.Tensor) -> None:
    """Checks that a weight is a dense tensor whose numbers lie in memory.

    Raises:
        RefitError: It is sparse or nested, on the meta device, or its memory was freed, as libraries do that shard
            models.
    """
    if value.layout is not torch.strided or value.is_nested:
        why = "it is nested" if value.is_nested else f"its layout is {value.layout}"
    elif value.device.type == "meta":
        why = "it lies on the meta device, and has no numbers"
    elif type(value) in (torch.Tensor, torch.nn.Parameter) and _reaches_beyond(value):
        why = "its memory was freed"
    else:
        return
    raise RefitError(f"the weight {name!r} is no tensor with numbers", why=why, hint="give it dense, and whole")


def _reaches_beyond(value: torch.Tensor) -> bool:
    """Whether a tensor has elements where its storage has none."""
    end = value.storage_offset() + reach_of(value.shape, value.stride()) if value.numel() else 0
    return end * value.element_size() > value.untyped_storage().nbytes()


_INSIDE: Final = " in "


def inner_name(wrapper: Any, part: str, name: str) -> str:
    """Returns how a tensor inside of a weight is called that is a wrapper, such as a quantized weight of torchao.

    The name also says how the wrapper puts its tensors together, so that no other one takes its place.

    Args:
        wrapper: The weight.
        part: What the wrapper calls the tensor.
        name: Of the weight.
    """
    _, context = wrapper.__tensor_flatten__()
    said = re.sub(r" at 0x[0-9a-f]+", "", repr((context, tuple(wrapper.shape), wrapper.stride())))
    digest = hashlib.sha256(said.encode()).hexdigest()
    return f"{name}.{part}{_INSIDE}{type(wrapper).__qualname__} {digest[:12]}"


def opened_weights(weights: Mapping[str, torch.Tensor], *, keep: bool = True) -> dict[str, torch.Tensor]:
    """Returns weights with the tensors inside of those that are wrappers.

    A `DTensor` is the shard of this process: that is what engines of a sharded model are built from.

    Args:
        weights: Weights of a model by name.
        keep: Return the wrappers, too.
    """
    found: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        value = shard_of(weight)
        if not is_traceable_wrapper_subclass(value):
            found[name] = value
            continue
        if keep:
            found[name] = value
        parts, _ = value.__tensor_flatten__()
        inner = {inner_name(value, part, name): getattr(value, part) for part in parts}
        found.update(opened_weights(inner, keep=keep))
    return found


def content_digest(value: torch.Tensor) -> str:
    """Returns the SHA-256 of a tensor's numbers in hexadecimal."""
    return hashlib.sha256(bytes_of(value)).hexdigest()


def bytes_of(value: torch.Tensor) -> memoryview:
    """Returns a tensor's numbers as bytes on the host, to be read at once: its own memory, or a copy."""
    # `numpy` marks a storage as one that is never resized again, as FSDP does to weights: here one that goes at once
    return from_dlpack(content_of(value)).numpy().data


def content_of(value: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's numbers as bytes on the host: its own memory, or a copy."""
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # a single element has any stride


_Calls = Mapping[OpOverload, Callable[..., Any]]


def _run(item: Recipe, calls: _Calls, values: Mapping[Recipe, Any], device: torch.device) -> Any:
    if not isinstance(item, Applied):
        assert isinstance(item, Lost)
        raise RefitError("a weight cannot be made again", why=item.why)
    args, kwargs = with_leaves(
        (item.args, item.kwargs), lambda leaf: values[leaf] if isinstance(leaf, Recipe) else leaf
    )
    if not operands_of(item) and any(argument.name == "device" for argument in item.operator._schema.arguments):
        kwargs["device"] = device  # it makes a tensor of nothing
    try:
        result = calls[item.operator](*args, **kwargs)
    except Exception as error:
        raise RefitError(
            "a weight cannot be made again", where=str(item.operator), why=f"{type(error).__name__}: {error}"
        ) from error
    if item.item is not None and isinstance(result, (tuple, list)) and item.item < len(result):
        result = result[item.item]
    if not isinstance(result, torch.Tensor):
        raise RefitError(
            "a weight cannot be made again", where=str(item.operator), why=f"its result {item.item} is no tensor"
        )
    return result


def _check_sizes(order: list[Recipe], calls: _Calls, limit: int) -> None:
    """Runs everything on the meta device first, where nothing takes memory."""
    shapes: dict[Recipe, Any] = {}
    nowhere = torch.device("meta")
    with torch.no_grad():
        for item in order:
            if isinstance(item, Source):
                shapes[item] = torch.empty(item.shape, dtype=item.dtype, device=nowhere)
            elif isinstance(item, Literal):
                shapes[item] = torch.empty(item.value.shape, dtype=item.value.dtype, device=nowhere)
            else:
                shapes[item] = _run(item, calls, shapes, nowhere)
            size = math.prod(shapes[item].shape) * shapes[item].element_size()
            if size > limit:
                raise RefitError(
                    f"making a weight again would take {size} bytes",
                    why=f"all that it is made of allows {limit}",
                    hint="check where the plan comes from",
                )


_SAME_VALUE: Final = frozenset(
    {
        torch.ops.aten.detach.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.lift_fresh.default,
        torch.ops.aten.lift.default,
    }
)
_READERS: Final = frozenset(
    getattr(torch.Tensor, name) for name in ("tolist", "numpy", "__array__", "__dlpack__", "untyped_storage")
)


class WeightRecorder:
    """Knows the recipe of every tensor that is computed from weights while it records.

    Attributes:
        read: Recipes of tensors whose numbers were looked at: what was done then holds for these numbers only.
    """

    def __init__(self) -> None:
        self.read: list[Recipe] = []
        self._recipes = WeakTensorKeyDictionary()

    def know(self, tensor: torch.Tensor, recipe: Recipe) -> None:
        """Says what the recipe of a tensor is; of this tensor object, not of others over the same memory."""
        self._recipes[tensor] = recipe

    def recipe_of(self, tensor: torch.Tensor) -> Recipe | None:
        """Returns the recipe of a tensor that follows from weights, None for any other."""
        found: Recipe | None = self._recipes.get(tensor)
        return found if found is not None and sources_of(found) else None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records everything inside: operators are seen below, reads of numbers that call no operator above."""
        with _Operators(self), _Reads(self):
            yield

    def note_call(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Learns the recipes of an operator's results."""
        tensors = list(tensors_in((args, kwargs)))
        if tensors and not any(tensor in self._recipes for tensor in tensors):
            return
        results = list(tensors_in(result))
        if operator in _SAME_VALUE:
            self._recipes[results[0]] = self._recipes[tensors[0]]
            return
        if not results:
            self.note_read(tensors)
            return
        args, kwargs = self._replace(args), self._replace(kwargs)
        several = not isinstance(result, torch.Tensor)
        for index, tensor in enumerate(result if several else (result,)):
            if isinstance(tensor, torch.Tensor):
                self._recipes[tensor] = apply_operator(operator, args, kwargs, item=index if several else None)
        if isinstance(operator, OpOverload) and operator._schema.is_mutable:
            self._forget_written(operator, tensors)

    def note_read(self, tensors: Any) -> None:
        """Notes that numbers of tensors were looked at."""
        self.read += [found for found in map(self.recipe_of, tensors) if found is not None]

    def _forget_written(self, operator: Any, tensors: list[torch.Tensor]) -> None:
        operands = tuple(self._recipes[tensor] for tensor in tensors if tensor in self._recipes)
        for tensor in tensors:
            self._recipes[tensor] = Lost(f"{operator} writes in place", operands)

    def _replace(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self._recipes.get(value)
            return Literal(value.detach()) if known is None else known
        if isinstance(value, (list, tuple)):
            return tuple(self._replace(item) for item in value)
        if isinstance(value, dict):
            return {name: self._replace(item) for name, item in value.items()}
        return value


class _Operators(TorchDispatchMode):
    def __init__(self, recorder: WeightRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._recorder.note_call(func, args, kwargs or {}, result)
        return result


class _Reads(TorchFunctionMode):
    def __init__(self, recorder: WeightRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS:
            self._recorder.note_read(args[:1])
        return func(*args, **(kwargs or {}))
