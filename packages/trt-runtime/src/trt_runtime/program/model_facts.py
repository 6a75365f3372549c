"""What a program says of the model that it was made from: names of sizes, classes of results, configuration.

Nothing that runs a program reads this but for the form of its results, so it stands among the program's metadata: older
readers pass it over, and files without it load.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, cast

import torch

from trt_core.dtypes import dtype_of_weights
from trt_core.errors import ExecutionError, InputError
from trt_core.files import records, typed
from trt_core.files.records import Form, Row
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.internals import pytree
from trt_core.nesting import children_of
from trt_core.wording import did_you_mean, kind_of
from trt_runtime.plain_structure import names_of_parts
from trt_runtime.program import literals
from trt_runtime.program.fields import FACTS, Text, malformed

MAX_BYTES: Final = 1 << 20
"""Longest text of facts, as of every entry of metadata."""

_PLAIN: Final = frozenset({tuple, list, dict})
_RETURN_TYPES: Final = "torch.return_types:"
_MOST_PARTS: Final = 1024  # Python takes seconds for classes of a hundred times as many


class Record(dict[Any, Any]):
    """A dict whose entries are attributes, too, unless a dict has an attribute of that name."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(map(str, self)) or "nothing"
            raise AttributeError(f"there is no {name!r}, only {known}") from None

    def to_dict(self) -> dict[Any, Any]:
        """Returns the entries as a plain dict; records in it stay records."""
        return dict(self)


class Result(Record):
    """A result of a class that is not here: its parts by name, as attributes, and by position, as such classes do."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if type(key) in (int, slice) and not dict.__contains__(self, key):
            return self.to_tuple()[key]
        return super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the parts that are not None, in order."""
        return tuple(value for value in self.values() if value is not None)


@functools.lru_cache(maxsize=256)
def tuple_class(name: str, parts: tuple[str, ...]) -> type[Any] | None:
    """A class of named tuples, for results of one that is not here; None where names are too many, or none to Python.

    Its tuples can be pickled: where they are read, the class is made again.
    """
    if len(parts) > _MOST_PARTS:
        return None
    try:
        kind: Any = cast("Any", namedtuple)(name, parts, module=__name__)
    except (SyntaxError, ValueError):  # a file may say anything, such as two names that Python reads as one
        return None
    kind.__reduce__ = lambda value: (_make_tuple, (name, parts, tuple(value)))
    return cast("type[Any]", kind)


def _make_tuple(name: str, parts: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return getattr(tuple_class(name, parts), "_make", tuple)(values)


def _read_context(value: Any, place: str) -> Any:
    if value is not None:
        literals.from_json(value, place, 0)
    return value


@dataclass(frozen=True)
class ResultClass(Row):
    """A class of the model's library that a part of the result is of.

    Attributes:
        name: `module:QualifiedName`.
        parts: Names of the parts in the order in which PyTorch takes it apart, of named tuples too; None where they
            have none.
        context: What PyTorch keeps beside them, as a literal; `_NO_LITERAL` where it is none, so that only classes that
            are made from their parts can be made again.
    """

    name: Text
    parts: tuple[Text, ...] | None
    context: Annotated[Any, Form(_read_context)] = None


@dataclass(frozen=True)
class ResultTitle(Row):
    """What a model itself calls one of its results, as models in ONNX's format do.

    Attributes:
        name: Of the result.
        sizes: Of each of its sizes; empty where it has none.
    """

    name: Text
    sizes: tuple[Text, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model beside what it computes.

    Attributes:
        dimensions: What its user calls sizes that vary, by symbol.
        results: Classes of its results by place: `output`, `output['past']`.
        attributes: `config` and the like, literals.
        plugins: Plugins that its engines need, `library::name`.
        titles: What the model calls its results, one for each; empty where they are known by their places alone.
    """

    dimensions: Mapping[str, Text] = field(default_factory=dict)
    results: Mapping[str, ResultClass] = field(default_factory=dict)
    attributes: Mapping[str, Annotated[Any, Form(functools.partial(literals.from_json, known=0), literals.to_json)]] = (
        field(default_factory=dict)
    )
    plugins: tuple[Text, ...] = ()
    titles: tuple[ResultTitle, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dimensions or self.results or self.attributes or self.plugins or self.titles)

    def to_text(self) -> str:
        """Returns the facts as JSON."""
        return json.dumps(records.write(self), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> ModelFacts:
        """Reads what `to_text` wrote.

        Raises:
            PlanError: It is something else.
        """
        place = "what is said of the model"
        try:
            found = records.read(cls, parse_json(text.encode(), max_bytes=MAX_BYTES), place)
        except (BadJson, UnicodeEncodeError) as error:
            raise malformed(place, str(error)) from error
        except typed.BadField as error:
            raise malformed(error.place, error.why) from error
        for result in found.results.values():
            if result.parts is not None and len(set(result.parts)) != len(result.parts):
                raise malformed(place, "two parts of a result have one name")
        return found

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> ModelFacts:
        """Reads the facts of a program.

        Raises:
            PlanError: They are malformed.
        """
        text = metadata.get(FACTS)
        return cls() if text is None else cls.from_text(text)


# What a model says of itself -----------------------------------------------------------------------------------------


_KEPT: Final = ("config", "generation_config", "main_input_name", "base_model_prefix", "input_modalities")
"""Attributes of models of Hugging Face's libraries that pipelines read."""


def attributes_of(model: Any) -> dict[str, Any]:
    """Returns what a model says of itself, as far as libraries around it read it; its own objects.

    Args:
        model: A module, or anything else, which says nothing.
    """
    found = {}
    for name in _KEPT:
        value = getattr(model, name, None)
        if value is not None and not isinstance(value, (torch.nn.Module, torch.Tensor)):
            found[name] = value
    if isinstance(model, torch.nn.Module) and (dtype := dtype_of_weights(model)) is not None:
        found["dtype"] = dtype
    return found


def literal_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns attributes as literals that a file can hold; those that cannot be written are left out."""
    found = {name: _literal(value) for name, value in attributes.items()}
    return {name: value for name, value in found.items() if value is not _NOTHING}


_NOTHING: Final = object()
_DERIVED: Final = ("num_labels",)
"""What configurations of transformers compute from what they hold, and pipelines read."""


def _literal(value: Any) -> Any:
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict) and not isinstance(value, Mapping):
        hidden = {name: item for name, item in getattr(value, "__dict__", {}).items() if name.startswith("_")}
        derived = {name: getattr(value, name) for name in _DERIVED if hasattr(value, name)}
        value = {**hidden, **derived, **to_dict()}
    if isinstance(value, Mapping):
        entries = {key: _literal(item) for key, item in value.items() if type(key) in (str, int)}
        return {key: item for key, item in entries.items() if item is not _NOTHING}
    if isinstance(value, (list, tuple)):
        items = [_literal(item) for item in value]
        return type(value)(item for item in items if item is not _NOTHING) if type(value) in _PLAIN else items
    try:
        literals.to_json(value)
    except literals.NoLiteral:
        return _NOTHING
    return value


def as_record(value: Any) -> Any:
    """Returns a literal with records in the place of its dicts."""
    if isinstance(value, dict):
        return Record((key, as_record(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(as_record(item) for item in value)
    return value


# Classes of results --------------------------------------------------------------------------------------------------


def result_classes(spec: Any, place: str = "output") -> Iterator[tuple[str, ResultClass]]:
    """Yields the classes in the structure of a result that are none of Python's own, by place."""
    if spec.is_leaf():
        return
    names = names_of_parts(spec)
    kind = spec.context if isinstance(spec.context, type) else spec.type
    if isinstance(kind, type) and kind not in _PLAIN:
        known = getattr(kind, "_fields", None) if names is None else names
        parts = tuple(known) if known is not None and all(isinstance(name, str) for name in known) else None
        yield place, ResultClass(f"{kind.__module__}:{kind.__qualname__}", parts, _context(kind, spec.context))
    keys = [*range(len(children_of(spec)))] if names is None else names
    for key, child in zip(keys, children_of(spec), strict=True):
        yield from result_classes(child, f"{place}[{key!r}]")


_NO_LITERAL: Final = {"float": "nan"}  # which no class keeps beside its parts


FACTORIES: Final[Mapping[Any, type]] = {
    kind.__name__: kind for kind in (bool, dict, float, frozenset, int, list, set, str, tuple)
}
"""What a `defaultdict` that is loaded may make of a key that is missing; others have none of it."""


def factory_name(factory: Any) -> str | None:
    """Returns by which name `FACTORIES` has what a `defaultdict` makes of a missing key; None where it has not."""
    return next((name for name, kind in FACTORIES.items() if kind is factory), None)


def _context(kind: type, context: Any) -> Any:
    if kind is defaultdict:
        return factory_name(context[0])
    try:
        return literals.to_json(context)
    except literals.NoLiteral:
        return _NO_LITERAL


Rebuild = Callable[[Any], Any]


def rebuilder(tree: Any, facts: ModelFacts, result_types: Collection[Any] = ()) -> Rebuild | None:
    """Returns what gives a result the classes that it had; None where it is as it was.

    Args:
        tree: The result as the program nests it.
        facts: What the program says of its model.
        result_types: Classes to make of parts of the result: classes, or `"module:Class"` of such that are imported.

    Raises:
        InputError: One of them is no class, or no part of the result was of it.
    """
    chosen = dict(map(_named_class, result_types))
    known = {found.name for found in facts.results.values()}
    for name in chosen:
        if name not in known:
            raise InputError(
                f"no result of the program is of the class {name}",
                where="result_types",
                hint=did_you_mean(name, known) or f"its results are of {', '.join(sorted(known)) or 'no class'}",
            )
    return _rebuild(tree, "output", facts.results, chosen) if facts.results else None


def _named_class(given: Any) -> tuple[str, type]:
    if isinstance(given, type):
        return f"{given.__module__}:{given.__qualname__}", given
    module, _, name = given.partition(":") if isinstance(given, str) else ("", "", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise InputError(
            f"{given!r:.120} is no class that is imported"
            if isinstance(given, str)
            else f"{kind_of(given)} is no class",
            where="result_types",
            hint='give classes, or "module:Class" of a module that is imported',
        )
    return given, found


def _rebuild(tree: Any, place: str, classes: Mapping[str, ResultClass], chosen: Mapping[str, type]) -> Rebuild | None:
    pairs: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        pairs = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        pairs = list(enumerate(tree))
    inner = {key: _rebuild(child, f"{place}[{key!r}]", classes, chosen) for key, child in pairs}
    inside = {key: found for key, found in inner.items() if found is not None}
    make = _maker(tree, classes.get(place), chosen)
    if not inside:
        return make

    def rebuild(value: Any) -> Any:
        if isinstance(value, dict):
            value = {key: inside[key](item) if key in inside else item for key, item in value.items()}
        else:
            value = type(value)(inside[key](item) if key in inside else item for key, item in enumerate(value))
        return value if make is None else make(value)

    return rebuild


def _maker(tree: Any, found: ResultClass | None, chosen: Mapping[str, type]) -> Rebuild | None:
    """Returns what makes one part of a result of its own class, or lets its parts be read as they were."""
    if found is None:
        return None
    kind = chosen.get(found.name) or _class_of_pytorch(found.name)
    takes, of_python = _OF_PYTHON.get(found.name, (None, None))
    if kind is None and of_python is not None and type(tree) is takes:
        hint = "save the model again: the file names a class that such parts do not make"
        return _checked(functools.partial(of_python, found.context), found.name, hint)
    if kind is None and isinstance(tree, tuple) and found.parts is not None and len(found.parts) == len(tree):
        return getattr(tuple_class(found.name.rpartition(":")[2].rpartition(".")[2], found.parts), "_make", None)
    if kind is None:
        return Result if isinstance(tree, dict) else None
    hint = "leave the class out of result_types: its parts are attributes"
    return _checked(_made_by(kind, tree, found), found.name, hint)


_OF_PYTHON: Final[Mapping[str, tuple[type, Callable[[Any, Any], Any]]]] = {
    "collections:OrderedDict": (dict, lambda context, value: OrderedDict(value)),
    "collections:defaultdict": (
        dict,
        lambda context, value: defaultdict(FACTORIES.get(context) if isinstance(context, str) else None, value),
    ),
    "collections:deque": (tuple, lambda context, value: deque(value, maxlen=context)),
    "torch:Size": (tuple, lambda context, value: torch.Size(value)),
}
"""Classes that are there wherever a program is: what it nests their parts in, and what makes them of these again."""


def _checked(make: Rebuild, name: str, hint: str) -> Rebuild:
    def checked(value: Any) -> Any:
        try:
            return make(value)
        except Exception as error:  # the parts are whatever the program says, and the class is the caller's
            raise ExecutionError(
                f"a result cannot be made a {name}",
                why=f"{type(error).__name__}: {error}",
                hint=hint,
            ) from error

    return checked


def _class_of_pytorch(name: str) -> type | None:
    """Returns a class of PyTorch's own results, such as that of `topk`; None where it is none."""
    found = getattr(torch.return_types, name.removeprefix(_RETURN_TYPES), None)
    is_known = name.startswith(_RETURN_TYPES) and isinstance(found, type) and found in pytree.SUPPORTED_NODES
    return found if is_known else None


def _made_by(kind: type, tree: Any, found: ResultClass) -> Rebuild:
    """Returns what makes a part of a result of a class of the caller's.

    Raises:
        InputError: Nothing does.
    """
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: kind(*value)
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is not None and found.context != _NO_LITERAL:
        parts, context = found.parts, literals.from_json(found.context, "what is said of the model", 0)
        take = list if parts is None else (lambda value: [value[name] for name in parts])

        def unflatten(value: Any) -> Any:
            return registered.unflatten_fn(take(value), context)

        return unflatten
    if isinstance(tree, dict) and (dataclasses.is_dataclass(kind) or issubclass(kind, Mapping)):
        return lambda value: kind(**value)
    raise InputError(
        f"results of {found.name} cannot be made again",
        where="result_types",
        why="it is neither a dataclass, nor a class that PyTorch takes apart",
        hint="import what registers it with torch.utils._pytree, or leave it out: its parts are attributes",
    )


def require_facts(metadata: Mapping[str, str]) -> None:
    """Refuses metadata of a user's that would take the place of the facts.

    Raises:
        InputError: It has an entry of their name.
    """
    if FACTS in metadata:
        raise InputError(f"the entry {FACTS!r} is written by save itself", where="metadata", hint="name it otherwise")
