"""What a converter is: a function, the operator that it converts, and the checks that say when."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trt_converters.call import Call
from trt_core import Verdict

Check = Callable[[Call], "Verdict | None"]
"""A support check: pure, cheap, total. None means it has nothing against the call."""

ConverterFunction = Callable[..., Any]
Version = tuple[int, int]
BUILTIN: Final = "trt_converters"


@dataclass(frozen=True)
class Converter:
    """One way to convert one operator.

    Attributes:
        target: The operator, an overload.
        function: `function(ctx, **arguments)`; its parameters mirror the operator's schema.
        checks: Support checks, the first refusal wins.
        priority: Candidates are tried from high to low; among equals the one registered last comes first.
        dynamic: Whether it can convert symbolic extents.
        data_dependent: Whether it can convert calls whose result's extents depend on data.
        random: Whether it may convert an operator that draws random numbers.
        fold: Whether a call whose tensors are all known may be computed while building, instead of being converted.
        versions: First TensorRT version that has what it needs, and first that no longer has it (or None).
        plugin: Plugin that engines need for it, `namespace::name`, or the operator that one calls; "" for none. Saved
            programs say so, and `trt_runtime.load` finds it.
        origin: Package it comes from; by default the one that its function is defined in.

    Raises:
        TypeError: The function or a check cannot be called, or another attribute has a value of another type.
    """

    target: Any
    function: ConverterFunction
    checks: tuple[Check, ...] = ()
    priority: int = 0
    dynamic: bool = True
    data_dependent: bool = False
    random: bool = False
    versions: tuple[Version, Version | None] = ((10, 0), None)
    origin: str = ""
    fold: bool = True
    plugin: str = ""

    def __post_init__(self) -> None:
        for called in (self.function, *self.checks):
            if not callable(called):
                raise TypeError(f"a converter is made of functions, and {called!r} is none")
        if not isinstance(self.priority, (int, float)) or self.priority != self.priority:
            raise TypeError(f"priority must be a number, not {self.priority!r}")
        for name in ("dynamic", "data_dependent", "random", "fold"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.plugin, str):
            raise TypeError(f"plugin must be the name of a plugin, not {self.plugin!r}")
        if not isinstance(self.origin, str):
            raise TypeError(f"origin must be the name of a package, not {self.origin!r}")
        if not _are_versions(self.versions):
            raise TypeError(f"versions must be ((major, minor), (major, minor) or None), not {self.versions!r}")
        if not self.origin:
            module = getattr(self._definition, "__module__", None) or "__main__"
            object.__setattr__(self, "origin", module.partition(".")[0])

    @property
    def is_builtin(self) -> bool:
        """Whether it is one of ours."""
        return self.origin == BUILTIN

    @property
    def name(self) -> str:
        """Name of the converter function."""
        definition = self._definition
        return str(getattr(definition, "__name__", type(definition).__name__))

    @property
    def described(self) -> str:
        """Name and package, as reasons say them."""
        return f"converter {self.name} of {self.origin}"

    @property
    def _definition(self) -> Any:
        """The function itself, without the arguments that it was given in advance."""
        function: Any = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return inspect.unwrap(function)


def _are_versions(versions: Any) -> bool:
    if not isinstance(versions, tuple) or len(versions) != 2 or versions[0] is None:
        return False
    return all(
        version is None or (isinstance(version, tuple) and all(isinstance(part, int) for part in version))
        for version in versions
    )
