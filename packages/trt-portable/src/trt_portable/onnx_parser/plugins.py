"""Operators that are plugins of the application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trt_portable.enums import ErrorCode, PluginFieldType, TensorRTPhase
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.plugin_interfaces.field import PluginField, PluginFieldCollection
from trt_portable.plugin_interfaces.registry import get_plugin_registry

if TYPE_CHECKING:
    from trt_portable.network.layer import ITensor
    from trt_portable.onnx_parser.writer import NetworkWriter

_IDENTITY: Final = ("plugin_version", "plugin_namespace")


def import_as_plugin(net: NetworkWriter, inputs: Sequence[ITensor]) -> list[ITensor]:
    """Adds the plugin that is registered under the name of the node's operator.

    The attributes ``plugin_version`` ("1") and ``plugin_namespace`` ("") choose it; the others are its fields.

    Raises:
        Unsupported: No creator has that name.
    """
    facts = net.node
    version = str(facts.attributes.get("plugin_version", "1"))
    namespace = str(facts.attributes.get("plugin_namespace", ""))
    creator = get_plugin_registry().get_creator(facts.operator, version, namespace)
    if creator is None:
        raise Unsupported(
            f"there is no operator {facts.operator!r} of opset {facts.opset}, no function, and no plugin "
            f"{facts.operator!r}, version {version!r}, in the namespace {namespace!r}"
        )
    fields = [_field(name, value) for name, value in facts.attributes.items() if name not in _IDENTITY]
    plugin = creator.create_plugin(facts.name, PluginFieldCollection(fields), TensorRTPhase.BUILD)
    if plugin is None:
        raise Unsupported(f"the creator of the plugin {facts.operator!r} made none", ErrorCode.INVALID_NODE)
    layer = net.layer(net.network.add_plugin_v3(list(inputs), [], plugin))
    return [net.output_of(layer, index) for index in range(layer.num_outputs)]


def _field(name: str, value: Any) -> PluginField:
    if isinstance(value, str):
        return PluginField(name, np.frombuffer(value.encode(), np.int8).copy(), PluginFieldType.CHAR)
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return PluginField(name, array.astype(np.float32).reshape(-1), PluginFieldType.FLOAT32)
    if array.dtype.kind == "i":
        return PluginField(name, array.astype(np.int32).reshape(-1), PluginFieldType.INT32)
    raise Unsupported(f"attribute {name!r} cannot be a field of a plugin", ErrorCode.UNSUPPORTED_NODE_ATTR)
