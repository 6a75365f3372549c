"""The converter registry: which functions convert which operators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, Final, TypeVar

from trt_converters.converter import Check, Converter, ConverterFunction, Version
from trt_core import SettingsError, operator_name
from trt_core.control_flow import PARAMETERS, is_control_flow
from trt_core.internals import OpOverload

_TAKES_MORE: Final = CO_VARARGS | CO_VARKEYWORDS

_Function = TypeVar("_Function", bound=ConverterFunction)


class ConverterRegistry:
    """Converters by operator. Safe to use from several threads.

    `operator in registry`, `registry[operator]` and `registry.get(operator)` answer with the first enabled candidate.
    """

    def __init__(self, candidates: Mapping[Any, tuple[Converter, ...]] | None = None) -> None:
        self._candidates = dict(candidates or {})
        self._disabled: frozenset[Any] = frozenset()
        self._lock = threading.RLock()
        self._fill: Callable[[], None] | None = None

    def fill_with(self, fill: Callable[[], None]) -> None:
        """Has `fill` called before every question.

        Args:
            fill: Registers what belongs here when it is first called, and returns at once later. It may be called from
                several threads, and again while it runs: what it calls may ask this registry.
        """
        self._fill = fill

    def register(self, converter: Converter) -> None:
        """Adds a candidate for its operator; see `Converter.priority` for the order.

        Raises:
            TypeError: It is no `Converter`.
        """
        if not isinstance(converter, Converter):
            raise TypeError(f"a registry holds Converters, not {converter!r}; the decorator `converter` makes them")
        with self._lock:
            known = self._candidates.get(converter.target, ())
            ordered = sorted((converter, *known), key=lambda candidate: -candidate.priority)
            self._candidates[converter.target] = tuple(ordered)

    def unregister(self, converter: Converter) -> None:
        """Removes a candidate.

        Raises:
            KeyError: The candidate is not registered.
        """
        self._filled()
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
        self._filled()
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

    def copy(self) -> ConverterRegistry:
        """Returns an independent registry with the same converters, for one compilation to change."""
        self._filled()
        with self._lock:
            twin = ConverterRegistry(self._candidates)
            twin._disabled = self._disabled
            return twin

    def __deepcopy__(self, _: object) -> ConverterRegistry:
        """Models that were compiled with a registry of their own are copied with it."""
        return self.copy()

    def restore(self, earlier: ConverterRegistry) -> None:
        """Goes back to what an earlier `copy` holds."""
        with self._lock:
            self._candidates = dict(earlier._candidates)
            self._disabled = earlier._disabled

    def get(self, target: Any, default: Converter | None = None) -> Converter | None:
        """Returns the first enabled candidate of an operator, or the default."""
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
        self._filled()
        with self._lock:
            return iter([target for target in self._candidates if target not in self._disabled])

    def keys(self) -> Iterator[Any]:
        """Yields the operators that have a converter."""
        return iter(self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _filled(self) -> None:
        if self._fill is not None:
            self._fill()


DYNAMO_CONVERTERS = ConverterRegistry()
"""The registry that compilations use unless they are given another.

It holds the built-in converters and those of plugins, which load when it is first asked; see `load_converters`.
"""


def require_registry(registry: Any) -> ConverterRegistry:
    """Returns what was given as a registry.

    Raises:
        SettingsError: It is none.
    """
    if isinstance(registry, ConverterRegistry):
        return registry
    raise SettingsError(
        f"registry={registry!r:.60} is none",
        hint="give a ConverterRegistry, such as a changed DYNAMO_CONVERTERS.copy()",
    )


def converter(
    *targets: Any,
    checks: Sequence[Check] | Check = (),
    priority: int = 0,
    dynamic: bool = True,
    data_dependent: bool = False,
    random: bool = False,
    versions: tuple[Version, Version | None] = ((10, 0), None),
    origin: str = "",
    fold: bool = True,
    plugin: str = "",
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Callable[[_Function], _Function]:
    """Registers a function as converter of one or more operators.

    Args:
        targets: Operator overloads, such as `torch.ops.aten.relu.default`.
        checks: One support check or several.
        priority, dynamic, data_dependent, random, versions, origin, fold, plugin: See `Converter`.
        registry: Where to register it.

    Raises:
        TypeError: There is no target, or one is not an operator overload; or the function's parameters are not the
            operator's arguments.
    """
    if not targets:
        raise TypeError("converter() was given no operator; write converter(torch.ops.<namespace>.<name>.<overload>)")
    all_checks = tuple(checks) if isinstance(checks, Sequence) else (checks,)
    for target in targets:
        if not isinstance(target, OpOverload) and not is_control_flow(target):
            raise TypeError(f"{target!r} is not an operator overload; write torch.ops.<namespace>.<name>.<overload>")

    def register(function: _Function) -> _Function:
        options = (all_checks, priority, dynamic, data_dependent, random, versions, origin, fold, plugin)
        for target in targets:
            _require_parameters(function, target)
            registry.register(Converter(target, function, *options))
        return function

    return register


def _require_parameters(function: Callable[..., Any], target: OpOverload) -> None:
    """Refuses a function that cannot be called with a context and the arguments of an operator by name."""
    if not isinstance(function, FunctionType) or function.__code__.co_flags & _TAKES_MORE:
        return
    code = function.__code__
    taken = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    given = (
        [argument.name for argument in target._schema.arguments]
        if isinstance(target, OpOverload)
        else list(PARAMETERS[target.name()])
    )
    optional = {*taken[code.co_argcount - 1 - len(function.__defaults__ or ()) :]}
    if not set(given) <= set(taken) or not set(taken) - optional <= set(given):
        raise TypeError(
            f"{function.__name__} takes {', '.join(taken) or 'nothing'} beside the context, {target} has the arguments "
            f"{', '.join(given) or 'nothing'}: name the parameters as the schema does"
        )
