"""Arguments of public functions are held to their annotations before anything runs.

What is an `Any` there, and settings, which have a reader of their own, is left to the function. Annotations are read
when an argument is given for the first time. Deciding takes some microseconds: it stands at doors, and in no call of a
compiled model.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

import torch

from trt_core.errors import InputError
from trt_core.wording import did_you_mean, kind_of, with_article

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")

_CHECKED_ITEMS: Final = 1000
"""Items of a collection that are looked at."""

_NUMBERS: Final[Mapping[Any, tuple[Any, ...]]] = {
    int: (numbers.Integral, torch.SymInt),
    float: (numbers.Real, torch.SymInt, torch.SymFloat),
}
_TITLES: Final[Mapping[Any, str]] = {
    collections.abc.Collection: "a list",
    collections.abc.Iterable: "an iterable",
    collections.abc.Sequence: "a list",
    collections.abc.Mapping: "a mapping",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    os.PathLike: "a path",
}
_COLLECTIONS: Final = (collections.abc.Collection, collections.abc.Iterable, collections.abc.Sequence)
_LISTED: Final = (list, tuple, set, frozenset, dict)
_UNTITLED_ITEMS: Final = (os.PathLike,)


def held_to_signature(function: F) -> F:
    """Lets a function, or a class when it is made, refuse arguments of a kind that its annotations exclude.

    Args:
        function: A function, the function of a method, or a class whose `__init__` is meant.

    Returns:
        The function, which raises an `InputError` that names argument and kinds; or the class itself.
    """
    if isinstance(function, type):
        made: Any = function
        made.__init__ = held_to_signature(made.__init__)
        return cast("F", made)
    door = _Door(function)

    @functools.wraps(function)
    def held(*args: Any, **kwargs: Any) -> Any:
        if not door.surely_takes(args, kwargs):
            door.require(args, kwargs)
        return function(*args, **kwargs)

    return cast("F", held)


def require_arguments(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Refuses what a function would that is held to its signature, for whoever calls it later, or elsewhere.

    Raises:
        InputError: An argument is of another kind.
        TypeError: One has no parameter, or a parameter has none.
    """
    _Door(function).require(args, kwargs)


def held_to_names(made: type[C]) -> type[C]:
    """Lets a class that looks at its arguments itself say which was meant where it has none of a name.

    Args:
        made: The class; it takes neither any positional nor any keyword argument.

    Returns:
        The class, which raises a `TypeError` then.
    """
    door = _Door(made.__init__)
    init: Any = made.__init__

    @functools.wraps(init)
    def named(*args: Any, **kwargs: Any) -> None:
        if not door.names.issuperset(kwargs):
            door.bind(args, kwargs)
        init(*args, **kwargs)

    made.__init__ = named  # type: ignore[method-assign]
    return made


def also_named(**names: str) -> Callable[[F], F]:
    """Lets a function take arguments by other names, too, which scripts for torch-tensorrt write.

    Args:
        names: The name of a parameter for each of them.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            for other in names.keys() & kwargs.keys():
                own, title = names[other], function.__qualname__.removesuffix(".__init__")
                if own in kwargs:
                    raise TypeError(f"{title}: {other} and {own} are the same thing; give {own} alone")
                kwargs[own] = kwargs.pop(other)
            return function(*args, **kwargs)

        return cast("F", renamed)

    return decorate


def text_at(place: int, name: str) -> Callable[[F], F]:
    """Lets a function take a text by its place that it takes by name, since scripts for torch-tensorrt write it there.

    Args:
        place: Where it stands among positional arguments; what else may stand there is no text.
        name: Its name.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def placed(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place and isinstance(args[place], str):
                if name in kwargs:
                    raise TypeError(f"{function.__qualname__}: {name} is given twice; give it by name alone")
                kwargs[name] = args[place]
                args = (*args[:place], *args[place + 1 :])
            return function(*args, **kwargs)

        return cast("F", placed)

    return decorate


class _Door:
    """What a function takes. The kind of a parameter is read when an argument is given for it.

    Args:
        function: The function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._title = function.__qualname__.removesuffix(".__init__")
        inner: Any = inspect.unwrap(function)
        code = inner.__code__
        named = code.co_argcount + code.co_kwonlyargcount
        optional = code.co_argcount - len(inner.__defaults__ or ())
        self._places: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        self.names = frozenset(code.co_varnames[code.co_posonlyargcount : named])
        self._required = {
            *self._places[:optional],
            *code.co_varnames[code.co_argcount : named],
        }.difference(inner.__kwdefaults__ or ())
        self._takes_more = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self._annotations: Mapping[str, Any] = inner.__annotations__
        self._kinds: dict[str, tuple[tuple[type, ...], Any]] = {}

    def surely_takes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether arguments find their parameters and are of their kinds. If not, `require` looks again."""
        places, names = self._places, self.names
        more, more_names = self._takes_more
        if len(args) > len(places) and not more:
            return False
        given = dict(zip(places, args, strict=False))
        for name in kwargs:
            if name in given or not (name in names or more_names):
                return False
        for name in self._required:
            if name not in given and (name not in names or name not in kwargs):
                return False
        kinds = self._kinds
        for arguments in (given, kwargs):
            for name, value in arguments.items():
                classes, kind = kinds.get(name) or self._read(name)
                if kind is not Any and not isinstance(value, classes) and not _fits(value, kind):
                    return False
        return True

    def _read(self, name: str) -> tuple[tuple[type, ...], Any]:
        """The kind of a parameter, and classes all of whose objects are of it."""
        if name not in self.names and name not in self._places:
            return (), Any
        kind = _evaluated(self._function, self._annotations.get(name, Any))
        read = self._kinds[name] = (_classes(kind), kind)
        return read

    def require(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuses arguments that find no parameter, or are of another kind.

        Raises:
            InputError: One is of another kind.
            TypeError: One has no parameter, or a parameter has none.
        """
        signature = inspect.signature(self._function)
        for name, value in self.bind(args, kwargs).items():
            if signature.parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                _require(value, (self._kinds.get(name) or self._read(name))[1], name, self._title)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns arguments by the names of their parameters.

        Raises:
            TypeError: One has no parameter, or a parameter has none.
        """
        try:
            return inspect.signature(self._function).bind(*args, **kwargs).arguments
        except TypeError as error:
            unknown = [name for name in kwargs if name not in self.names]
            near = next(filter(None, (did_you_mean(name, self.names - {"self", "cls"}) for name in unknown)), "")
            raise TypeError(f"{self._title}: {error}{near and f'; {near}'}") from None


def _classes(kind: Any) -> tuple[type, ...]:
    """Classes all of whose objects are of a kind, whatever they hold."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return tuple(found for one in typing.get_args(kind) for found in _classes(one))
    if kind is None:
        return (types.NoneType,)
    if origin is not None or kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return ()
    return () if kind in _COLLECTIONS else (kind,)


def _evaluated(function: Callable[..., Any], annotation: Any) -> Any:
    """What an annotation says; names that only type checkers import are taken for anything."""
    if annotation is Any:
        return Any
    names = getattr(inspect.unwrap(function), "__globals__", {})
    if isinstance(annotation, str) and annotation not in names:
        builtin = getattr(builtins, annotation, None)
        if isinstance(builtin, type):
            return builtin
    holder = types.SimpleNamespace(__annotations__={"kind": annotation})
    unknown: dict[str, Any] = {}
    while True:
        try:
            return typing.get_type_hints(holder, names, unknown, include_extras=True)["kind"]
        except NameError as error:
            if error.name is None or error.name in unknown:
                return Any
            unknown[error.name] = Any
        except TypeError:  # a name that is taken for anything has no members or arguments
            return Any


def _require(value: Any, kind: Any, name: str, title: str) -> None:
    """Refuses a value of another kind.

    Raises:
        InputError: It is one.
    """
    if _fits(value, kind):
        return
    where = next((f"{name}[{key!r:.40}]" for key, item, wanted in _items(value, kind) if not _fits(item, wanted)), name)
    found = next((item for _, item, wanted in _items(value, kind) if not _fits(item, wanted)), value)
    raise InputError(
        f"{title} cannot take {kind_of(found)} as {where}",
        where=f"the argument {name} of {title}",
        why=f"it is {found!r:.80}" if isinstance(found, (bool, int, float, str, bytes, type)) else "",
        hint=f"give {_spelt(kind)}",
    )


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind, as far as can be told without running anything of it."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if kind is None or kind is types.NoneType:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is typing.Literal:
        return isinstance(value, tuple({type(one) for one in inside}))
    if origin is typing.Annotated:
        return _fits(value, inside[0])
    if isinstance(kind, TypeVar):
        return kind.__bound__ is None or _fits(value, _resolved_bound(kind))
    if collections.abc.Callable in (origin, kind):
        return callable(value)
    outer = origin or kind
    if not isinstance(outer, type) or getattr(outer, "_is_protocol", False):
        return True
    if not isinstance(value, _NUMBERS.get(outer, outer)):
        return False
    if isinstance(value, (str, bytes, torch.Tensor)) and outer in _COLLECTIONS:
        return False  # a list of characters or rows is what nobody means
    return all(_fits(item, wanted) for _, item, wanted in _items(value, kind))


def _resolved_bound(variable: TypeVar) -> Any:
    bound = variable.__bound__
    return Any if isinstance(bound, typing.ForwardRef) else bound


def _items(value: Any, kind: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Keys, items and their kinds, of those collections that can be looked into without using them up."""
    for one in typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,):
        inside = typing.get_args(one)
        outer = typing.get_origin(one)
        if outer is tuple and len(inside) == 2 and inside[1] is Ellipsis:
            inside = inside[:1]
        if not isinstance(value, _LISTED) or not isinstance(value, outer or ()):
            continue
        if isinstance(value, dict) and len(inside) == 2:
            yield from ((key, key, inside[0]) for key in _first(value))
            yield from ((key, value[key], inside[1]) for key in _first(value))
        elif len(inside) == 1:
            yield from ((number, item, inside[0]) for number, item in enumerate(_first(value)))


def _first(items: Iterable[Any]) -> Iterator[Any]:
    return (item for _, item in zip(range(_CHECKED_ITEMS), items, strict=False))


def _spelt(kind: Any) -> str:
    """A kind in words."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or kind is types.NoneType:
        return "None"
    if origin in (typing.Union, types.UnionType):
        *first, last = dict.fromkeys(_spelt(one) for one in inside)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is typing.Annotated:
        return _spelt(inside[0])
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, inside))}"
    if collections.abc.Callable in (origin, kind):
        return "a function"
    if isinstance(kind, TypeVar):
        return _spelt(_resolved_bound(kind))
    outer = origin or kind
    title = _TITLES.get(outer) or with_article(getattr(outer, "__name__", str(outer)))
    items = [one for one in inside if one not in (Any, Ellipsis)]
    if not items or outer in _UNTITLED_ITEMS:
        return title
    spelt = [_spelt(one) for one in items]
    return f"{title} from {spelt[0]} to {spelt[1]}" if len(spelt) == 2 else f"{title}, each item {spelt[0]}"
