"""The layer of plugins of the second version; only networks and plans that have one import it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from trt_portable.enums import LayerType
from trt_portable.layers.plugin_layers import PluginLayer
from trt_portable.plan import tables
from trt_portable.plugin_interfaces.plugin import IPluginV3
from trt_portable.plugin_interfaces.plugin_v2 import IPluginV2, PluginV2Faces


class IPluginV2Layer(PluginLayer):
    """A plugin of the second version, written in Python; all its inputs are data."""

    _KIND = LayerType.PLUGIN_V2
    _SAVED = tables.PLUGIN_V2

    _plugin: PluginV2Faces

    @property
    def plugin(self) -> IPluginV2:
        """The plugin."""
        return self._plugin.plugin

    def _saved(self) -> dict[str, Any]:
        return {"serialized": base64.b64encode(bytes(self._plugin.plugin.serialize())).decode()}

    def _recreated(self, creator: Any, saved: Mapping[str, Any]) -> IPluginV3:
        return PluginV2Faces(creator.deserialize_plugin(saved["name"], base64.b64decode(saved["serialized"])))
