"""What TensorRT's bindings do for all objects: arguments are converted, foreign attributes refused, `with` works."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


def to_integer(value: Any) -> int:
    """An integer as the bindings convert it: no fractions, no text.

    Raises:
        TypeError: The value is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"expected an integer, not {type(value).__name__}") from None


def to_integers(values: Any) -> list[int]:
    """A list of integers as the bindings convert it.

    Raises:
        TypeError: Something else, or something else in it.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"expected a sequence of integers, not {type(values).__name__}")
    return [to_integer(value) for value in values]


def to_boolean(value: Any) -> bool:
    """A boolean as the bindings convert it: whatever says itself whether it is true, as numbers do and text does not.

    Raises:
        TypeError: The value does not.
    """
    if isinstance(value, bool):
        return value
    if hasattr(type(value), "__bool__"):
        return bool(value)
    raise TypeError(f"expected bool, not {type(value).__name__}")


def to_number(value: Any) -> float:
    """A float as the bindings convert it; integers pass, text does not.

    Raises:
        TypeError: The value is none.
    """
    if isinstance(value, (str, bytes)):
        raise TypeError(f"expected a number, not {type(value).__name__}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"expected a number, not {type(value).__name__}") from None


def to_text(value: Any) -> str:
    """Text, and nothing else.

    Raises:
        TypeError: The value is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected str, not {type(value).__name__}")
    return value


def instance_of(kind: type[T], value: Any, what: str = "") -> T:
    """A value of a class of the API.

    Args:
        kind: The class.
        value: What was given.
        what: The parameter, for the message.

    Raises:
        TypeError: The value is of another class.
    """
    if not isinstance(value, kind):
        found = type(value).__name__
        raise TypeError(
            f"{what} must be {kind.__name__}, not {found}" if what else f"expected {kind.__name__}, not {found}"
        )
    return value


_PACKAGE = __name__.partition(".")[0]
_CONVERSIONS: Final[dict[type, Callable[[Any], Any]]] = {
    bool: to_boolean,
    int: to_integer,
    float: to_number,
    str: to_text,
}


class Sealed:
    """Refuses public attributes that its class does not know: a mistyped name is an error at once.

    An attribute that is plain data on the class, such as ``name: str = ""``, takes values of that type. Classes that
    applications derive take what they like, for attributes of their own.
    """

    _PLAIN: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """How values of the attributes that are plain data are converted, by name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        plain = {name: convert for name, convert in cls._PLAIN.items() if name not in own}
        if _is_ours(cls):
            public = {name: _CONVERSIONS.get(type(value)) for name, value in own.items() if name[0] != "_"}
            plain.update((name, convert) for name, convert in public.items() if convert is not None)
        cls._PLAIN = plain

    if not TYPE_CHECKING:  # or type checkers would allow any name

        def __setattr__(self, name: str, value: Any) -> None:
            if name[0] != "_":
                value = self._admitted(name, value)
            object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        """What the bindings show: clients take every other name for an attribute of the API."""
        return [name for name in object.__dir__(self) if name[0] != "_" or name.startswith("__")]

    def _admitted(self, name: str, value: Any) -> Any:
        """A value as a public attribute takes it."""
        kind = type(self)
        if not hasattr(kind, name) and _is_ours(kind):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        convert = kind._PLAIN.get(name)
        try:
            return value if convert is None else convert(value)
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{name}: {error}") from None


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE


class Setting(Generic[T]):
    """A property that keeps what is assigned.

    Args:
        convert: Makes the stored value of what is assigned; raises TypeError or ValueError.
        default: The value before any assignment.
        doc: What the property's docstring says.
        least: The smallest number that is taken; a smaller one is reported, and changes nothing.
    """

    def __init__(self, convert: Callable[[Any], T], default: T, doc: str = "", *, least: int | None = None) -> None:
        self.convert = convert
        self.default = default
        self.least = least
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.slot = name

    @overload
    def __get__(self, holder: None, owner: type) -> Self: ...

    @overload
    def __get__(self, holder: Any, owner: type) -> T: ...

    def __get__(self, holder: Any, owner: type) -> T | Self:
        if holder is None:
            return self
        value: T = holder.__dict__.get(self.slot, self.default)
        return value

    def __set__(self, holder: Any, value: Any) -> None:
        try:
            converted = self.convert(value)
        except TypeError as error:
            raise TypeError(f"{type(holder).__name__}.{self.name}: {error}") from None
        self.store(holder, converted)

    def store(self, holder: Any, value: T) -> None:
        """Keeps a converted value."""
        if self.least is not None and value < self.least:  # type: ignore[operator]  # settings with a least are numbers
            holder._reporter.error(self.name, f"must be at least {self.least}, not {value}")
        else:
            holder.__dict__[self.slot] = value


def forwarded(part: str, name: str, doc: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """A property that a part of the object holds, which may refuse a value with an error of its own.

    Args:
        part: The attribute that holds the part.
        name: The property of the part.
        doc: What the property's docstring says.
        convert: Makes what the part is given of what is assigned.
    """

    def read(holder: Any) -> Any:
        return getattr(getattr(holder, part), name)

    def write(holder: Any, value: Any) -> None:
        setattr(getattr(holder, part), name, convert(value))

    return property(read, write, doc=doc)


def one_of(default: T, doc: str) -> Setting[T]:
    """A setting that is a member of the enumeration of its default."""
    return Setting(functools.partial(instance_of, type(default)), default, doc)


def optional_of(kind: type[T], doc: str) -> Setting[T | None]:
    """A setting that is an object of a class, or None as at first."""
    return Setting(lambda value: None if value is None else instance_of(kind, value), None, doc)


def common_enter(this: T) -> T:
    """Begins a ``with`` statement: the object itself."""
    return this


def common_exit(this: Any, exc_type: object, exc_value: object, traceback: object) -> None:
    """Ends a ``with`` statement: the object stays usable, its memory goes with its last reference."""


class ContextManaged:
    """An object that may head a ``with`` statement."""

    __enter__ = common_enter
    __exit__ = common_exit
