"""The methods that add plugins; what implements these is imported with the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trt_portable.enums import ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ITensor

if TYPE_CHECKING:
    from trt_portable.layers.plugin_layers import IPluginV3Layer
    from trt_portable.layers.plugin_v2_layer import IPluginV2Layer
    from trt_portable.plugin_interfaces.plugin import IPluginV3
    from trt_portable.plugin_interfaces.plugin_v2 import IPluginV2
_TUPLE: Final = tuple
_Triple: TypeAlias = "tuple[Sequence[ITensor], Sequence[ITensor], IPluginV3]"


class PluginLayers(LayerFactory):
    """The methods that add plugins."""

    def add_plugin_v3(
        self, inputs: Sequence[ITensor], shape_inputs: Sequence[ITensor], plugin: IPluginV3
    ) -> IPluginV3Layer | None:
        """Adds a plugin.

        Args:
            inputs: Tensors whose data the plugin reads.
            shape_inputs: Shape tensors whose values decide the extents of the outputs.
            plugin: The plugin.

        Raises:
            TypeError: The plugin is no `IPluginV3`.
        """
        from trt_portable.layers.plugin_layers import IPluginV3Layer
        from trt_portable.plugin_interfaces.plugin import IPluginV3

        if not isinstance(plugin, IPluginV3):
            raise TypeError(f"plugin must be IPluginV3, not {type(plugin).__name__}")
        tensors = [expect_tensor(tensor, "an input") for tensor in (*inputs, *shape_inputs)]
        layer = IPluginV3Layer._create()
        layer._plugin, layer._data_inputs = plugin, len(inputs)
        return self._add(layer, *tensors)

    def add_plugin(
        self,
        func: Callable[[], Any] | _Triple | None = None,
        aot: bool = False,
        *,
        tuple: _Triple | None = None,
    ) -> IPluginV3Layer | None:
        """Adds a plugin given as ``(inputs, shape_inputs, plugin)``, or as a function that gives that.

        Args:
            func: The triple, or a function without arguments; ``trt_portable.plugin.op`` makes triples.
            aot: Refused: a kernel that was compiled ahead of time is a program for NVIDIA's GPUs.
            tuple: The triple, by name.

        Raises:
            TypeError: There is no triple.
        """
        if aot:
            rule = "kernels compiled ahead of time are not run here: implement the plugin with plugin.impl"
            self._reporter.refuse("add_plugin", Refusal(rule, ErrorCodeTRT.UNSUPPORTED_STATE))
            return None
        given = func if tuple is None else tuple
        triple = given() if callable(given) else given
        if triple is None or not isinstance(triple, _TUPLE) or len(triple) != 3:
            raise TypeError("add_plugin takes (inputs, shape_inputs, plugin)")
        return self.add_plugin_v3(*triple)

    def add_plugin_v2(self, inputs: Sequence[ITensor], plugin: IPluginV2) -> IPluginV2Layer | None:
        """Adds a plugin of the second version, which is deprecated; new plugins are `IPluginV3`.

        Args:
            inputs: Tensors whose data the plugin reads.
            plugin: An `IPluginV2DynamicExt`.

        Raises:
            TypeError: The plugin is no `IPluginV2DynamicExt`.
        """
        from trt_portable.layers.plugin_v2_layer import IPluginV2Layer
        from trt_portable.plugin_interfaces.plugin_v2 import IPluginV2DynamicExt, PluginV2Faces

        if not isinstance(plugin, IPluginV2DynamicExt):
            raise TypeError(f"plugin must be IPluginV2DynamicExt, not {type(plugin).__name__}")
        tensors = [expect_tensor(tensor, "an input") for tensor in inputs]
        layer = IPluginV2Layer._create()
        layer._plugin, layer._data_inputs = PluginV2Faces(plugin), len(tensors)
        return self._add(layer, *tensors)
