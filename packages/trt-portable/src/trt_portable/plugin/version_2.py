"""Plugins of the second version: deprecated in TensorRT, and still what many clients have.

Only `IPluginV2DynamicExt` can be written in Python, as in TensorRT's bindings. `PluginV2Faces` shows such a plugin to
layers as the three faces of the third version, so that both run the same way.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trt_portable.dims import Dims
from trt_portable.enums import DataType, LayerType, PluginCapabilityType, TensorFormat
from trt_portable.layers.plugin_layers import PluginLayer
from trt_portable.plan import tables
from trt_portable.plugin.interfaces import (
    DimsExprs,
    DynamicPluginTensorDesc,
    IExprBuilder,
    IPluginResourceContext,
    IPluginV3,
    IPluginV3OneBuild,
    IPluginV3OneCore,
    IPluginV3OneRuntime,
    NamedCreator,
    PluginFieldCollection_,
    PluginTensorDesc,
    undefined,
)


class IPluginV2:
    """A plugin of the second version.

    Attributes:
        num_outputs: Number of outputs.
        plugin_type: The name, that of the creator.
        plugin_version: The version, that of the creator.
        plugin_namespace: The namespace, usually empty.
        tensorrt_version: The version of the interface.
    """

    num_outputs: int = 1
    plugin_type: str = ""
    plugin_version: str = ""
    plugin_namespace: str = ""
    tensorrt_version: int = 11

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined! Derive from IPluginV2DynamicExt")

    @property
    def serialization_size(self) -> int:
        """Bytes of `serialize`."""
        return len(self.serialize())

    def initialize(self) -> int | None:
        """Called before the first run; 0 or nothing when ready."""
        return 0

    def terminate(self) -> None:
        """Called after the last run."""

    def destroy(self) -> None:
        """Called when the plugin is no longer needed."""

    def serialize(self) -> Any:
        """The bytes from which the creator can make this plugin again."""
        undefined(self, "serialize")

    def clone(self) -> Any:
        """A copy that shares nothing mutable."""
        undefined(self, "clone")

    def get_output_shape(self, index: int, input_shapes: Sequence[Dims]) -> Dims:
        """The extents of an output; asked of plugins written in C++ alone."""
        undefined(self, "get_output_shape")

    def supports_format(self, dtype: DataType, format: TensorFormat) -> bool:
        """Whether a type and format will do; asked of plugins written in C++ alone."""
        undefined(self, "supports_format")

    def configure_with_format(
        self,
        input_shapes: Sequence[Dims],
        output_shapes: Sequence[Dims],
        dtype: DataType,
        format: TensorFormat,
        max_batch_size: int,
    ) -> None:
        """Told extents and types before a build; told to plugins written in C++ alone."""
        undefined(self, "configure_with_format")

    def get_workspace_size(self, max_batch_size: int) -> int:
        """Bytes of work memory."""
        return 0

    def execute_async(
        self, batch_size: int, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any, stream_handle: int
    ) -> int:
        """Computes the outputs; asked of plugins written in C++ alone."""
        undefined(self, "execute_async")


class IPluginV2Ext(IPluginV2):
    """A plugin of the second version whose outputs have types of their own; written in C++ alone."""

    def get_output_data_type(self, index: int, input_types: Sequence[DataType]) -> DataType:
        """The element type of an output."""
        undefined(self, "get_output_data_type")

    def configure_plugin(
        self,
        input_shapes: Sequence[Dims],
        output_shapes: Sequence[Dims],
        input_types: Sequence[DataType],
        output_types: Sequence[DataType],
        input_is_broadcasted: Sequence[bool],
        output_is_broacasted: Sequence[bool],
        format: TensorFormat,
        max_batch_size: int,
    ) -> None:
        """Told extents and types before a build."""
        undefined(self, "configure_plugin")

    def attach_to_context(self, cudnn: Any, cublas: Any, allocator: Any) -> None:
        """Told what an execution context offers."""

    def detach_from_context(self) -> None:
        """Called when the execution context goes."""


class IPluginV2DynamicExtBase(IPluginV2):
    """What `IPluginV2DynamicExt` derives from."""


class IPluginV2DynamicExt(IPluginV2DynamicExtBase):
    """A plugin of the second version for dynamic extents, the only kind that can be written in Python."""

    FORMAT_COMBINATION_LIMIT: ClassVar[int] = 100

    def __init__(self, arg0: IPluginV2DynamicExt | None = None) -> None:
        pass

    def get_output_datatype(self, index: int, input_types: Sequence[DataType]) -> DataType:
        """The element type of an output."""
        undefined(self, "get_output_datatype")

    def get_output_dimensions(
        self, output_index: int, inputs: Sequence[DimsExprs], expr_builder: IExprBuilder
    ) -> DimsExprs:
        """The extents of an output."""
        undefined(self, "get_output_dimensions")

    def supports_format_combination(self, pos: int, in_out: Sequence[PluginTensorDesc], num_inputs: int) -> bool:
        """Whether the tensor at a position may have the type and format described."""
        undefined(self, "supports_format_combination")

    def configure_plugin(
        self, pos: Sequence[DynamicPluginTensorDesc], in_out: Sequence[DynamicPluginTensorDesc]
    ) -> None:
        """Told types and ranges of extents of inputs and outputs before a build."""

    def get_workspace_size(  # type: ignore[override]  # as in TensorRT
        self, in_: Sequence[PluginTensorDesc], out: Sequence[PluginTensorDesc]
    ) -> int:
        """Bytes of work memory."""
        return 0

    def get_serialization_size(self) -> int:
        """Bytes of `serialize`."""
        return len(self.serialize())

    def enqueue(
        self,
        input_desc: Sequence[PluginTensorDesc],
        output_desc: Sequence[PluginTensorDesc],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Computes the outputs; see `IPluginV3OneRuntime.enqueue`."""
        undefined(self, "enqueue")


class IPluginCreator(NamedCreator):
    """Makes plugins of the second version."""

    _INTERFACE = ("PLUGIN CREATOR_V1", 1, 0)

    def create_plugin(self, name: str, field_collection: PluginFieldCollection_) -> IPluginV2:
        """Makes a plugin from parameters."""
        undefined(self, "create_plugin")

    def deserialize_plugin(self, name: str, serialized_plugin: bytes) -> IPluginV2:
        """Makes a plugin from what its `serialize` gave."""
        undefined(self, "deserialize_plugin")


class PluginV2Faces(IPluginV3, IPluginV3OneCore, IPluginV3OneBuild, IPluginV3OneRuntime):
    """The faces of a plugin of the second version.

    Args:
        plugin: The plugin.
    """

    def __init__(self, plugin: IPluginV2DynamicExt) -> None:
        self.plugin = plugin
        self.plugin_name = plugin.plugin_type
        self.plugin_version = plugin.plugin_version
        self.plugin_namespace = plugin.plugin_namespace
        self.num_outputs = plugin.num_outputs

    def get_capability_interface(self, type: PluginCapabilityType) -> Any:
        """Itself, for all three."""
        return self

    def get_output_data_types(self, input_types: Sequence[DataType]) -> list[DataType]:
        """The element types of the outputs, asked one by one."""
        return [self.plugin.get_output_datatype(at, input_types) for at in range(self.num_outputs)]

    def get_output_shapes(
        self, inputs: Sequence[DimsExprs], shape_inputs: Sequence[DimsExprs], expr_builder: IExprBuilder
    ) -> list[DimsExprs]:
        """The extents of the outputs, asked one by one."""
        return [self.plugin.get_output_dimensions(at, inputs, expr_builder) for at in range(self.num_outputs)]

    def supports_format_combination(self, pos: int, in_out: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> bool:
        """As the plugin says."""
        return bool(self.plugin.supports_format_combination(pos, [each.desc for each in in_out], num_inputs))

    def configure_plugin(self, in_: Sequence[DynamicPluginTensorDesc], out: Sequence[DynamicPluginTensorDesc]) -> None:
        """Tells the plugin."""
        self.plugin.configure_plugin(in_, out)

    def get_workspace_size(self, in_: Sequence[DynamicPluginTensorDesc], out: Sequence[DynamicPluginTensorDesc]) -> int:
        """As the plugin says."""
        return self.plugin.get_workspace_size([each.desc for each in in_], [each.desc for each in out])

    def attach_to_context(self, resource_context: IPluginResourceContext) -> IPluginV3:
        """The faces of a clone that is ready to run.

        Raises:
            RuntimeError: The clone says that it is not.
        """
        clone = self.plugin.clone()
        status = clone.initialize()
        if status:
            raise RuntimeError(f"plugin {self.plugin_name!r}: initialize() answered {status}")
        return PluginV2Faces(clone)

    def enqueue(
        self,
        input_desc: Sequence[PluginTensorDesc],
        output_desc: Sequence[PluginTensorDesc],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Lets the plugin compute."""
        self.plugin.enqueue(input_desc, output_desc, inputs, outputs, workspace, stream)


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
