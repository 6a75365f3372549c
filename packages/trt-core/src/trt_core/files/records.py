"""Dataclasses as JSON: what the fields of a class say is what is written, and all that is read.

=====================================  =========================================================================
a field of type                        is
=====================================  =========================================================================
``int``, ``float``, ``str``, ``bool``  a value; integers are not negative, other numbers are finite
an enumeration                         the name of a member
``X | None``                           null, or what X is
``int | X``                            an integer, or what X is
``tuple[X, ...]``, ``tuple[X, Y]``     a list
``frozenset[str]``                     a list in alphabetical order
``Mapping[str, X]``                    an object
``Mapping[K, X]``                      a list of pairs
a dataclass                            an object with exactly its fields, and its `TAG`: a key and what it holds
a `Row`                                the list of its fields
a `Grown`                              an object without the fields that have their defaults
``X | Y``, both dataclasses            that which the tag names, or whose first field is there
``Annotated[X, Form(...)]``            what that says
``field(metadata={"key": "name"})``    what its type says, under another name
=====================================  =========================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from trt_core.files import typed

_R = TypeVar("_R")


class Row:
    """A dataclass that is written as the list of its fields."""


class Grown:
    """A dataclass that fields were added to: one that has its default is not written, and may be missing."""


def _as_it_is(value: Any, place: str = "") -> Any:
    return value


@dataclass(frozen=True)
class Form:
    """How values are read and written.

    Attributes:
        read: Makes one of parsed JSON and of the place that messages call it by.
        write: Makes JSON of one.
    """

    read: Callable[[Any, str], Any] = _as_it_is
    write: Callable[[Any], Any] = _as_it_is


def by_value(kind: type[Enum]) -> Form:
    """How members of an enumeration are written by their values, which are texts."""
    members = {member.value: member for member in kind}
    return Form(lambda value, place: typed.choice(members, value, place, kind.__name__), lambda value: value.value)


_PLAIN: Final[dict[Any, Form]] = {
    int: Form(typed.integer),
    float: Form(typed.number),
    str: Form(typed.text),
    bool: Form(typed.flag),
    frozenset[str]: Form(lambda value, place: frozenset(typed.texts(value, place)), sorted),
    Any: Form(),
}
_FORMS: Final[dict[Any, dict[str, Form]]] = {}


def write(record: Any) -> Any:
    """A dataclass as JSON values."""
    return _form(cast("Hashable", type(record))).write(record)


def read(kind: type[_R], value: Any, place: str) -> _R:
    """What `write` wrote.

    Args:
        kind: The dataclass.
        value: Parsed JSON.
        place: What it is, as messages call it.

    Raises:
        BadField: A field is missing, unknown, or of another type; the message names it.
    """
    return cast("_R", _form(cast("Hashable", kind)).read(value, place))


@functools.cache
def _form(kind: Any) -> Form:
    found, origin, parts = _PLAIN.get(kind), get_origin(kind), get_args(kind)
    if found is not None:
        return found
    if origin is Annotated:
        return cast("Form", parts[1])
    if origin is tuple:
        return _sequence(_form(parts[0])) if parts[-1] is ... else _list(list(map(_form, parts)), tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):  # an optional Annotated has no class there
        return _object(_form(parts[1])) if parts[0] is str else _pairs(_list(list(map(_form, parts)), tuple))
    if parts:
        kinds = [part for part in parts if part is not type(None)]
        form = _form(kinds[0]) if len(kinds) == 1 else _number_or(_form(kinds[1])) if kinds[0] is int else _union(kinds)
        return form if len(kinds) == len(parts) else _optional(form)
    if issubclass(kind, Enum):
        return Form(lambda value, place: typed.member(kind, value, place), lambda value: value.name)
    return _dataclass(kind)


def forms_of(kind: Any) -> dict[str, Form]:
    """How the fields of a dataclass are read and written, by name."""
    if kind not in _FORMS:
        hints = get_type_hints(kind, include_extras=True)
        _FORMS[kind] = {field.name: _form(hints[field.name]) for field in fields(kind)}
    return _FORMS[kind]


def _optional(form: Form) -> Form:
    return Form(
        lambda value, place: None if value is None else form.read(value, place),
        lambda value: None if value is None else form.write(value),
    )


def _number_or(form: Form) -> Form:
    return Form(
        lambda value, place: typed.integer(value, place) if isinstance(value, int) else form.read(value, place),
        lambda value: value if isinstance(value, int) else form.write(value),
    )


def _sequence(form: Form) -> Form:
    is_plain, read_item, write_item = form in _PLAIN.values(), form.read, form.write

    def read_items(value: Any, place: str) -> Any:
        items = typed.items(value, place)
        if is_plain:
            return tuple([read_item(item, place) for item in items])
        return tuple([read_item(item, f"{place} {index}") for index, item in enumerate(items)])

    return Form(read_items, lambda value: [write_item(item) for item in value])


def _list(forms: list[Form], make: Callable[[list[Any]], Any], parts: Callable[[Any], Any] = _as_it_is) -> Form:
    def read_list(value: Any, place: str) -> Any:
        items = typed.items(value, place, len(forms))
        return make([form.read(item, place) for form, item in zip(forms, items, strict=True)])

    return Form(read_list, lambda value: [form.write(item) for form, item in zip(forms, parts(value), strict=True)])


def _object(form: Form) -> Form:
    return Form(
        lambda value, place: {
            name: form.read(item, f"{place} {name!r:.60}") for name, item in typed.mapping(value, place).items()
        },
        lambda value: {name: form.write(item) for name, item in value.items()},
    )


def _pairs(form: Form) -> Form:
    return Form(
        lambda value, place: dict(form.read(item, place) for item in typed.items(value, place)),
        lambda value: [form.write(item) for item in value.items()],
    )


def _union(kinds: list[Any]) -> Form:
    tags = [(*getattr(kind, "TAG", (_key(fields(kind)[0]), None)), kind) for kind in kinds]

    def read_one(value: Any, place: str) -> Any:
        found = typed.mapping(value, place)
        for key, content, kind in tags:
            if key in found and content in (None, found[key]):
                return _form(kind).read(value, place)
        raise typed.BadField(place, f"it is none of {', '.join(kind.__name__ for kind in kinds)}")

    return Form(read_one, write)


def _dataclass(kind: type) -> Form:
    assert is_dataclass(kind), kind
    forms = forms_of(kind)
    if issubclass(kind, Row):
        return _row(kind, forms)
    tag = dict([kind.TAG] if hasattr(kind, "TAG") else ())
    readers = [(_key(field), field.name, forms[field.name].read) for field in fields(kind)]
    writers = [(_key(field), field.name, forms[field.name].write) for field in fields(kind)]
    keys = (*tag, *(key for key, _, _ in readers))
    known = frozenset(keys)

    def read_fields(value: Any, place: str) -> Any:
        found = value if type(value) is dict and value.keys() == known else typed.fields(value, place, keys)
        return kind(**{name: read_field(found[key], f"{place}, {key}") for key, name, read_field in readers})

    def write_fields(record: Any) -> dict[str, Any]:
        values = vars(record)
        return {**tag, **{key: write_field(values[name]) for key, name, write_field in writers}}

    if not issubclass(kind, Grown):
        return Form(read_fields, write_fields)
    defaults = {_key(field): _default(field) for field in fields(kind) if _default(field) is not MISSING}

    def read_those_there(value: Any, place: str) -> Any:
        found = typed.fields(value, place, keys, defaults)
        given = [reader for reader in readers if reader[0] in found]
        return kind(**{name: read_field(found[key], f"{place}, {key}") for key, name, read_field in given})

    def write_those_that_differ(record: Any) -> dict[str, Any]:
        values = {key: getattr(record, name) for key, name, _ in writers}
        written = {key for key, value in values.items() if key not in defaults or value != defaults[key]}
        return {**tag, **{key: write_field(values[key]) for key, _, write_field in writers if key in written}}

    return Form(read_those_there, write_those_that_differ)


def _row(kind: type, forms: Mapping[str, Form]) -> Form:
    whole = _list([*forms.values()], lambda values: kind(*values), lambda row: [getattr(row, name) for name in forms])
    if not issubclass(kind, Grown):
        return whole
    assert is_dataclass(kind)
    added = [_default(field) for field in fields(kind) if _default(field) is not MISSING]  # behind all others

    def read_those_there(value: Any, place: str) -> Any:
        lacking = len(forms) - len(value) if isinstance(value, list) else 0
        return whole.read([*value, *added[-lacking:]] if 0 < lacking <= len(added) else value, place)

    def write_those_that_differ(row: Any) -> Any:
        values = whole.write(row)
        while len(values) > len(forms) - len(added) and values[-1] == added[len(values) - len(forms) - 1]:
            values.pop()
        return values

    return Form(read_those_there, write_those_that_differ)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _key(field: Field[Any]) -> str:
    key: str = field.metadata.get("key", field.name)
    return key
