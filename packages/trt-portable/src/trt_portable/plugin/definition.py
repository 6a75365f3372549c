"""What decorated functions say of a plugin."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trt_portable.plugin.descriptors import TensorDesc

SCALARS: Final = (int, float, str, bool, bytes)
"""Types of attributes besides one-dimensional arrays."""


@dataclass
class Definition:
    """A plugin that decorated functions define.

    Attributes:
        namespace: Before the ``::`` of its identity.
        name: Behind it.
        describe: Gives the descriptions of the outputs.
        inputs: Names of the tensors, in order.
        attributes: Types of the attributes, by name: one of `SCALARS`, or a numpy type for arrays.
        implementation: Computes the outputs.
        saved: Names of the attributes that the implementation takes; an engine keeps them.
        combinations: Gives what the plugin supports, or None for LINEAR and the types of the network.
        ahead_of_time: Kept; never run.
        is_listed: Whether the plugin registry has it.
    """

    namespace: str
    name: str
    describe: Callable[..., Any]
    inputs: tuple[str, ...]
    attributes: dict[str, Any]
    implementation: Callable[..., Any] | None = None
    saved: tuple[str, ...] = ()
    combinations: Callable[..., Any] | None = None
    ahead_of_time: Callable[..., Any] | None = None
    is_listed: bool = field(default=False, compare=False)

    @property
    def identity(self) -> str:
        """``namespace::name``."""
        return f"{self.namespace}::{self.name}"


DEFINITIONS: Final[dict[str, Definition]] = {}
"""Plugins by identity."""


def split_identity(plugin_id: str) -> tuple[str, str]:
    """Namespace and name of an identity.

    Raises:
        ValueError: Not of the form ``namespace::name``.
    """
    namespace, separator, name = plugin_id.partition("::")
    if not separator or not namespace.isidentifier() or not name.isidentifier():
        raise ValueError(f"{plugin_id!r} is not of the form 'namespace::name'")
    return namespace, name


def read_signature(plugin_id: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the inputs, and types of the attributes by name, of a description.

    Raises:
        ValueError: The signature is not that of a description.
    """
    hints = typing.get_type_hints(function)
    inputs: list[str] = []
    attributes: dict[str, Any] = {}
    for name in inspect.signature(function).parameters:
        kind = hints.get(name)
        if kind is TensorDesc:
            if attributes:
                raise ValueError(f"plugin {plugin_id!r}: input {name!r} comes after attributes; inputs come first")
            inputs.append(name)
        else:
            attributes[name] = _attribute_type(plugin_id, name, kind)
    returned = hints.get("return")
    if returned is not TensorDesc and typing.get_origin(returned) is not tuple:
        raise ValueError(f"plugin {plugin_id!r}: the description returns TensorDesc or Tuple[TensorDesc, ...]")
    return tuple(inputs), attributes


def _named(kind: Any) -> Any:
    """The type that an alias stands for, with the alias's arguments in it; NDArray is such an alias in newer NumPy."""
    alias = typing.get_origin(kind) or kind
    meaning = getattr(alias, "__value__", None)
    return kind if meaning is None else meaning[typing.get_args(kind)]


def _attribute_type(plugin_id: str, name: str, kind: Any) -> Any:
    if kind in SCALARS:
        return kind
    array = _named(kind)
    if typing.get_origin(array) is np.ndarray:
        element = typing.get_args(typing.get_args(array)[1])[0]
        return np.dtype(element)
    raise ValueError(
        f"plugin {plugin_id!r}: parameter {name!r} is annotated with {kind}; inputs are TensorDesc, attributes are "
        "int, float, str, bool, bytes or numpy.typing.NDArray[...]"
    )


def expect_parameters(
    definition: Definition, function: Callable[..., Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The attributes among a function's parameters, after checking all of them.

    Raises:
        ValueError: A parameter is missing, or unknown.
    """
    names = list(inspect.signature(function).parameters)
    allowed = {*definition.inputs, *definition.attributes, *required, *optional}
    missing = [name for name in (*definition.inputs, *required) if name not in names]
    unknown = [name for name in names if name not in allowed]
    if missing or unknown:
        said = f"lacks {missing}" if missing else f"has unknown {unknown}"
        raise ValueError(f"plugin {definition.identity!r}: {getattr(function, '__name__', function)} {said}")
    return tuple(name for name in names if name in definition.attributes)
