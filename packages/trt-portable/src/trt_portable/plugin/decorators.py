"""The decorators that make plugins of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trt_portable.plugin.definition import (
    DEFINITIONS,
    Definition,
    expect_parameters,
    read_signature,
    split_identity,
)
from trt_portable.plugin.quick_plugin import QuickCreator
from trt_portable.plugins.registry import get_plugin_registry

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
