"""Objects that take no attributes but their own, as those of TensorRT's bindings do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_PACKAGE = __name__.partition(".")[0]


class Sealed:
    """Refuses public attributes that its class does not know: a mistyped name is an error at once.

    Classes that applications derive take what they like.
    """

    if not TYPE_CHECKING:  # or type checkers would allow any name

        def __setattr__(self, name: str, value: Any) -> None:
            if name[0] != "_" and not hasattr(type(self), name):
                kind = type(self)
                if kind.__module__.partition(".")[0] == _PACKAGE:
                    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            object.__setattr__(self, name, value)
