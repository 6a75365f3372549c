"""The converter registry: which function converts which operator, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch

from trt_converters.call import Call
from trt_core import Verdict, operator_name

Check = Callable[[Call], "Verdict | None"]
"""A support check: pure, cheap, total. None means it has nothing against the call."""

ConverterFunction = Callable[..., Any]
_Function = TypeVar("_Function", bound=ConverterFunction)

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
        origin: Package it comes from; by default the one that its function is defined in.
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

    def __post_init__(self) -> None:
        if not self.origin:
            object.__setattr__(self, "origin", (self.function.__module__ or "__main__").partition(".")[0])

    @property
    def is_builtin(self) -> bool:
        """Whether it is one of ours."""
        return self.origin == BUILTIN

    @property
    def name(self) -> str:
        """Name of the converter function."""
        return self.function.__name__


@dataclass
class ConverterRegistry:
    """Converters by operator. Safe to use from several threads.

    `operator in registry`, `registry[operator]` and `registry.get(operator)` answer with the first enabled candidate.
    """

    _candidates: dict[Any, tuple[Converter, ...]] = field(default_factory=dict)
    _disabled: frozenset[Any] = frozenset()
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _unloaded: bool = field(default=False, repr=False)

    def register(self, converter: Converter) -> None:
        """Adds a candidate for its operator; see `Converter.priority` for the order."""
        with self._lock:
            known = self._candidates.get(converter.target, ())
            ordered = sorted((converter, *known), key=lambda candidate: -candidate.priority)
            self._candidates[converter.target] = tuple(ordered)

    def unregister(self, converter: Converter) -> None:
        """Removes a candidate.

        Raises:
            KeyError: The candidate is not registered.
        """
        with self._lock:
            known = self._candidates.get(converter.target, ())
            if converter not in known:
                raise KeyError(f"{converter.name} is not registered for {operator_name(converter.target)}")
            remaining = tuple(candidate for candidate in known if candidate != converter)
            if remaining:
                self._candidates[converter.target] = remaining
            else:
                del self._candidates[converter.target]

    def candidates(self, target: Any) -> tuple[Converter, ...]:
        """Returns the enabled candidates of an operator, best first."""
        return () if target in self._disabled else self._candidates.get(target, ())

    def disable(self, target: Any) -> None:
        """Keeps every candidate of an operator from being used, until `enable`."""
        with self._lock:
            self._disabled |= {target}

    def enable(self, target: Any) -> None:
        """Takes back `disable`."""
        with self._lock:
            self._disabled -= {target}

    def is_disabled(self, target: Any) -> bool:
        """Whether the operator's candidates were disabled."""
        return target in self._disabled

    def restore(self, earlier: ConverterRegistry) -> None:
        """Removes every candidate that an earlier copy does not have."""
        with self._lock:
            for target, known in list(self._candidates.items()):
                before = earlier._candidates.get(target, ())
                remaining = tuple(item for item in known if any(item is other for other in before))
                if remaining:
                    self._candidates[target] = remaining
                else:
                    del self._candidates[target]

    def copy(self) -> ConverterRegistry:
        """Returns an independent registry with the same converters, for one compilation to change."""
        self._load_builtin()
        with self._lock:
            return ConverterRegistry(dict(self._candidates), self._disabled)

    def get(self, target: Any, default: Converter | None = None) -> Converter | None:
        """Returns the first enabled candidate of an operator, or the default."""
        self._load_builtin()
        found = self.candidates(target)
        return found[0] if found else default

    def __contains__(self, target: Any) -> bool:
        return self.get(target) is not None

    def __getitem__(self, target: Any) -> Converter:
        found = self.get(target)
        if found is None:
            raise KeyError(f"no converter for {operator_name(target)}")
        return found

    def __iter__(self) -> Iterator[Any]:
        self._load_builtin()
        with self._lock:
            return iter([target for target in self._candidates if target not in self._disabled])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load_builtin(self) -> None:
        """Whoever asks the shared registry means the built-in converters and plugins too; they load at first use."""
        if self._unloaded:
            self._unloaded = False  # first: plugins ask the registry while they load
            from trt_converters.support import load_converters

            load_converters()


DYNAMO_CONVERTERS = ConverterRegistry(_unloaded=True)
"""The registry that compilations use unless they are given another."""


def converter(
    *targets: Any,
    checks: tuple[Check, ...] | Check = (),
    priority: int = 0,
    dynamic: bool = True,
    data_dependent: bool = False,
    random: bool = False,
    versions: tuple[Version, Version | None] = ((10, 0), None),
    origin: str = "",
    fold: bool = True,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Callable[[_Function], _Function]:
    """Registers a function as converter of one or more operators.

    Args:
        targets: Operator overloads, such as `torch.ops.aten.relu.default`.
        checks: One support check or several.
        priority, dynamic, data_dependent, random, versions, origin, fold: See `Converter`.
        registry: Where to register it.

    Raises:
        TypeError: A target is not an operator overload.
    """
    all_checks = checks if isinstance(checks, tuple) else (checks,)
    for target in targets:
        if not isinstance(target, torch._ops.OpOverload):
            raise TypeError(f"{target!r} is not an operator overload; write torch.ops.<namespace>.<name>.<overload>")

    def register(function: _Function) -> _Function:
        options = (all_checks, priority, dynamic, data_dependent, random, versions, origin, fold)
        for target in targets:
            registry.register(Converter(target, function, *options))
        return function

    return register
