"""Objects that take no attributes but their own, as those of TensorRT's bindings do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from trt_portable.arguments import to_boolean, to_integer, to_number, to_text

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
            kind = type(self)
            if name[0] != "_" and not hasattr(kind, name) and _is_ours(kind):
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            convert = kind._PLAIN.get(name)
            if convert is not None:
                try:
                    value = convert(value)
                except TypeError as error:
                    raise TypeError(f"{kind.__name__}.{name}: {error}") from None
            object.__setattr__(self, name, value)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _PACKAGE
