"""Uses of decorated plugins: ``op.namespace.name(tensor, ..., attribute=value)``."""

from __future__ import annotations

from typing import Any

from trt_portable.network.definition import expect_tensor
from trt_portable.network.tensor import ITensor
from trt_portable.plugin.decorators import list_plugin
from trt_portable.plugin.definition import DEFINITIONS, Definition
from trt_portable.plugin.quick_plugin import QuickPlugin, write_attribute


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
