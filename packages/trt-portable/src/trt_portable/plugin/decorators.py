"""The decorators that make plugins of functions, what these say they support, and uses of them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from trt_portable.enums import DataType, TensorFormat
from trt_portable.network.definition import expect_tensor
from trt_portable.network.layer import ITensor
from trt_portable.plugin.definition import (
    DEFINITIONS,
    Definition,
    expect_parameters,
    read_signature,
    split_identity,
)
from trt_portable.plugin.quick_plugin import QuickCreator, QuickPlugin, write_attribute
from trt_portable.plugin_interfaces.registry import get_plugin_registry

Function = TypeVar("Function", bound=Callable[..., Any])


def register(plugin_id: str, lazy_register: bool = False) -> Callable[[Function], Function]:
    """Describes a plugin: ``(inp0: TensorDesc, ..., attr0: int, ...) -> TensorDesc | tuple[TensorDesc, ...]``.

    Args:
        plugin_id: ``"namespace::name"``.
        lazy_register: Whether the plugin registry learns of it only when it is used.

    Raises:
        ValueError: The identity is taken or malformed, or the signature has no such form.
    """
    namespace, name = split_identity(plugin_id)

    def decorate(function: Function) -> Function:
        if plugin_id in DEFINITIONS:
            raise ValueError(f"plugin {plugin_id!r} is registered already")
        inputs, attributes = read_signature(plugin_id, function)
        definition = Definition(namespace, name, function, inputs, attributes)
        DEFINITIONS[plugin_id] = definition
        if not lazy_register:
            list_plugin(definition)
        return function

    return decorate


def impl(plugin_id: str) -> Callable[[Function], Function]:
    """Computes a plugin: ``(inp0: Tensor, ..., attr0, ..., outputs: tuple[Tensor], stream: int[, tactic])``.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        named = expect_parameters(definition, function, ("outputs", "stream"), optional=("tactic",))
        definition.implementation, definition.saved = function, named
        return function

    return decorate


def autotune(plugin_id: str) -> Callable[[Function], Function]:
    """Says what a plugin supports: ``(inp0: TensorDesc, ..., attr0, ..., outputs) -> list[AutoTuneCombination]``.

    The first combination that fits a network is taken, with the first of its tactics: nothing is timed.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        expect_parameters(definition, function, ("outputs",))
        definition.combinations = function
        return function

    return decorate


def aot_impl(plugin_id: str) -> Callable[[Function], Function]:
    """Keeps what would compile a kernel for NVIDIA's GPUs; networks that ask for it are refused.

    Raises:
        ValueError: The plugin is not registered, or the parameters are others than it was registered with.
    """

    def decorate(function: Function) -> Function:
        definition = _registered(plugin_id)
        expect_parameters(definition, function, ("outputs",), optional=("tactic",))
        definition.ahead_of_time = function
        return function

    return decorate


def list_plugin(definition: Definition) -> None:
    """Makes the plugin registry know a plugin."""
    if not definition.is_listed:
        get_plugin_registry().register_creator(QuickCreator(definition), definition.namespace)
        definition.is_listed = True


def _registered(plugin_id: str) -> Definition:
    split_identity(plugin_id)
    found = DEFINITIONS.get(plugin_id)
    if found is None:
        raise ValueError(f"plugin {plugin_id!r} is not registered: decorate its description with register first")
    return found


class Operator:
    """Makes the argument of ``INetworkDefinition.add_plugin``.

    Args:
        definition: The plugin.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[list[ITensor], list[ITensor], QuickPlugin]:
        """Takes tensors and attributes, by position or by name, as the description does.

        Returns:
            Inputs, no shape inputs, and the plugin.

        Raises:
            TypeError: A parameter is missing, unknown, or of the wrong type.
        """
        definition = self._definition
        names = (*definition.inputs, *definition.attributes)
        if len(args) > len(names):
            raise TypeError(f"{definition.identity} takes {len(names)} parameters, not {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                known = "given twice" if name in given else f"not one of {', '.join(names)}"
                raise TypeError(f"{definition.identity}: parameter {name!r} is {known}")
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise TypeError(f"{definition.identity} lacks {', '.join(missing)}")
        tensors = [expect_tensor(given[name], name) for name in definition.inputs]
        attributes = {name: given[name] for name in definition.attributes}
        for name, kind in definition.attributes.items():
            write_attribute(name, kind, attributes[name])  # a wrong type is found now
        list_plugin(definition)
        types, ranks = [tensor.dtype for tensor in tensors], [tensor._rank for tensor in tensors]
        return tensors, [], QuickPlugin(definition, attributes, types, ranks)


class _Namespace:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Operator:
        definition = DEFINITIONS.get(f"{self._namespace}::{name}")
        if definition is None:
            raise AttributeError(f"no plugin is registered as '{self._namespace}::{name}'")
        return Operator(definition)


class _Operators:
    def __getattr__(self, namespace: str) -> _Namespace:
        if not any(definition.namespace == namespace for definition in DEFINITIONS.values()):
            raise AttributeError(f"no plugin is registered in namespace {namespace!r}")
        return _Namespace(namespace)


op = _Operators()
"""The registered plugins by namespace and name."""


_TYPES: Final[dict[str, DataType]] = {
    **DataType.__members__,
    "FP32": DataType.FLOAT,
    "FP16": DataType.HALF,
}


class AutoTuneCombination:
    """Which types and formats go together, and with which tactics.

    Args:
        io_types: Types by position, separated by commas; alternatives by ``|``, which are taken together:
            ``"FP32|FP16, FP32|FP16"`` is either all FP32 or all FP16.
        layouts: Formats for all positions, alternatives separated by ``|`` or ``*``.
        tactics: Numbers of tactics; none stands for the default one.
    """

    def __init__(self, io_types: str | None = None, layouts: str | None = None, tactics: Iterable[int] = ()) -> None:
        self.io_types: list[list[DataType]] = [] if io_types is None else [_types(each) for each in io_types.split(",")]
        self.layouts = [TensorFormat.LINEAR] if layouts is None else _formats(layouts)
        self._by_position: dict[int, tuple[list[DataType], list[TensorFormat]]] = {}
        self._tactics = list(tactics)

    def pos(self, pos: int | Sequence[int], io_types: str, layouts: str = "LINEAR") -> None:
        """Names the types and formats of one position, or of several."""
        for each in [pos] if isinstance(pos, int) else pos:
            self._by_position[each] = (_types(io_types), _formats(layouts))

    def tactics(self, tactics: Iterable[int]) -> None:
        """Names the tactics."""
        self._tactics = list(tactics)

    @property
    def tactic_numbers(self) -> list[int]:
        """The tactics."""
        return self._tactics

    def supports(self, types: Sequence[DataType], formats: Sequence[TensorFormat]) -> bool:
        """Whether the first positions may have these types and formats.

        Args:
            types: One by position, as far as they are known.
            formats: Likewise.
        """
        alternatives: set[int] | None = None
        for position, (dtype, kind) in enumerate(zip(types, formats, strict=True)):
            wanted, layouts = self._position(position)
            if dtype not in wanted or kind not in layouts:
                return False
            if len(wanted) > 1:
                fitting = {at for at, each in enumerate(wanted) if each is dtype}
                alternatives = fitting if alternatives is None else alternatives & fitting
                if not alternatives:
                    return False
        return True

    def _position(self, position: int) -> tuple[list[DataType], list[TensorFormat]]:
        found = self._by_position.get(position)
        if found is not None:
            return found
        if position < len(self.io_types):
            return self.io_types[position], self.layouts
        raise ValueError(f"the combination says nothing of position {position}")


def _types(names: str) -> list[DataType]:
    try:
        return [_TYPES[name.strip()] for name in names.split("|")]
    except KeyError as error:
        raise ValueError(f"no element type is called {error}; types are {', '.join(sorted(_TYPES))}") from None


def _formats(names: str) -> list[TensorFormat]:
    try:
        return [TensorFormat[name.strip()] for name in names.replace("*", "|").split("|")]
    except KeyError as error:
        raise ValueError(f"no format is called {error}") from None
