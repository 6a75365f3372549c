"""The converter registry: which functions convert which operators, and operators that engines run as plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, Final, TypeVar

import torch

from trt_converters.call import Call
from trt_converters.checks import never
from trt_converters.converter import Check, Converter, ConverterFunction, Version
from trt_core import Reason, SettingsError, Verdict, operator_name
from trt_core.control_flow import PARAMETERS, is_control_flow
from trt_core.dtypes import dtype_name
from trt_core.forked_lock import ForkedLock
from trt_core.held_arguments import held_to_signature
from trt_core.internals import OpOverload
from trt_core.operator_plugin import PluginCall, plugin_of, register_operator
from trt_core.sizes.expressions import extent_of, is_integer_arithmetic, symbols_in

_TAKES_MORE: Final = CO_VARARGS | CO_VARKEYWORDS

_Function = TypeVar("_Function", bound=ConverterFunction)


class ConverterRegistry:
    """Converters by operator. Safe to use from several threads.

    `operator in registry`, `registry[operator]` and `registry.get(operator)` answer with the first enabled candidate.
    """

    def __init__(self, candidates: Mapping[Any, tuple[Converter, ...]] | None = None) -> None:
        self._candidates = dict(candidates or {})
        self._disabled: frozenset[Any] = frozenset()
        self._lock = ForkedLock()
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


def convert_each(table: Mapping[Any, Callable[..., Any]], **options: Any) -> None:
    """Registers functions of one expression, as `converter` does those of several lines.

    Args:
        table: A function by its operator overload, or by a tuple of them; its parameters mirror the schema.
        options: What `converter` takes, the same for every row.

    Raises:
        TypeError: As `converter` does.
    """
    for key, function in table.items():
        targets = key if isinstance(key, tuple) else (key,)
        if function.__name__ == "<lambda>":
            function.__name__ = targets[0].name().replace("::", "_").replace(".", "_")
        converter(*targets, **options)(function)


def refuse_each(reason: Reason, message: str, *targets: Any, **options: Any) -> None:
    """Registers operators that TensorRT is known not to express, so that the report says why.

    Args:
        reason, message: Why every call of them is refused.
        targets: Operator overloads.
        options: What `converter` takes.
    """

    def refused(ctx: Any, **arguments: Any) -> Any:
        raise ctx.fail(message)

    converter(*targets, checks=never(reason, message), **options)(refused)


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


@held_to_signature
def plugin_from_operator(
    op: OpOverload,
    *,
    checks: tuple[Check, ...] | Check = (),
    priority: int = 0,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
) -> Any:
    """Lets engines run an operator as a plugin that calls its PyTorch implementation.

    The operator must be functional, take tensors and plain constants, and have a fake implementation, from which the
    extents of its results are known. Operators that draw random numbers stay in PyTorch.

    Plans hold the plugin by name. A process that loads a saved program needs the operator, by which `load` finds the
    plugin; one that runs a plan alone calls this function where the operator is defined.

    Args:
        op: The operator, an overload such as `torch.ops.my_library.smooth.default`.
        checks: Further support checks.
        priority: See `Converter`.
        registry: Where the converter is registered.

    Returns:
        The plugin creator, registered with the provider of TensorRT's API that is in use.

    Raises:
        TypeError: The argument is not an operator overload, or the operator writes to its arguments.
    """
    if not isinstance(op, OpOverload):
        raise TypeError(f"{op!r} is not an operator overload; write torch.ops.<namespace>.<name>.<overload>")
    if op._schema.is_mutable:
        raise TypeError(f"{op} writes to its arguments, and engines do not; give an operator that returns its result")
    creator = register_operator(op)

    def convert(ctx: Any, **arguments: Any) -> Any:
        call = describe_call(ctx.call)
        inputs = [ctx.tensor(arguments[name]) for name in call.tensors]
        plugin = plugin_of(op, call)
        layer = ctx.own(ctx.network.add_plugin_v3(inputs, [], plugin))
        outputs = [layer.get_output(index) for index in range(len(call.output_types))]
        return outputs if isinstance(ctx.result, (tuple, list)) else outputs[0]

    convert.__name__ = op.name().replace("::", "_").replace(".", "_")
    all_checks = (refuse_call, *(checks if isinstance(checks, tuple) else (checks,)))
    registry.register(Converter(op, convert, all_checks, priority, origin=op.namespace, plugin=op.name()))
    return creator


NO_PLUGIN_OUTPUT = frozenset({torch.bool, torch.uint8})
"""Types that plugins cannot return."""


def describe_call(call: Call) -> PluginCall:
    """Returns a call that `refuse_call` has nothing against as data."""
    names = [name for name, value in call.arguments.items() if isinstance(value, torch.Tensor)]
    inputs = [call.tensor(name) for name in names]
    results = _results(call)
    return PluginCall(
        constants={name: value for name, value in call.arguments.items() if name not in names},
        tensors=names,
        input_types=[dtype_name(tensor.dtype) for tensor in inputs],
        output_types=[dtype_name(tensor.dtype) for tensor in results],
        output_shapes=[[extent_of(extent) for extent in tensor.shape] for tensor in results],
        symbols=_symbols_of(inputs),
    )


def refuse_call(call: Call) -> Verdict | None:
    """Refuses calls that a plugin cannot make: a support check."""
    known = _symbols_of([value for value in call.arguments.values() if isinstance(value, torch.Tensor)])
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor) and not _is_plain(value):
            return Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, f"{name} is neither a tensor nor a plain constant")
    for tensor in _results(call):
        if tensor.dtype in NO_PLUGIN_OUTPUT:
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"plugins return no {dtype_name(tensor.dtype)}")
        for extent in tensor.shape:
            data = extent_of(extent)
            if not is_integer_arithmetic(data) or not symbols_in(data) <= known.keys():
                return Verdict.refuse(Reason.DYNAMIC_SHAPE, f"no input of the plugin tells the extent {extent}")
    return None


def _results(call: Call) -> list[torch.Tensor]:
    return list(call.result) if isinstance(call.result, (tuple, list)) else [call.result]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _symbols_of(tensors: Sequence[torch.Tensor]) -> dict[str, tuple[int, int]]:
    """Which input and axis tells each symbol."""
    found: dict[str, tuple[int, int]] = {}
    for index, tensor in enumerate(tensors):
        for axis, size in enumerate(tensor.shape):
            extent = extent_of(size)
            if isinstance(extent, str):
                found.setdefault(extent, (index, axis))
    return found
