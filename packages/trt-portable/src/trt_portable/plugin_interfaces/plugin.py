"""The interfaces that plugins written in Python implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from trt_portable.enums import DataType, PluginCapabilityType, TensorRTPhase
from trt_portable.interfaces import IVersionedInterface
from trt_portable.plugin_interfaces.expressions import (
    DimsExprs,
    DynamicPluginTensorDesc,
    IExprBuilder,
    PluginTensorDesc,
)
from trt_portable.plugin_interfaces.field import PluginFieldCollection, PluginFieldCollection_


def undefined(owner: object, method: str) -> NoReturn:
    """Raises NotImplementedError: a subclass lacks a method."""
    raise NotImplementedError(f"{type(owner).__name__} must define {method}()")


class IPluginCapability(IVersionedInterface):
    """One of the faces of a plugin."""


class IPluginV3(IVersionedInterface):
    """A plugin. It gives its faces for defining, building and running, usually itself for all three."""

    _INTERFACE = ("PLUGIN_V3", 1, 0)

    def __init__(self, arg0: IPluginV3 | None = None) -> None:
        pass

    def get_capability_interface(self, type: PluginCapabilityType) -> Any:
        """The face of a kind."""
        undefined(self, "get_capability_interface")

    def clone(self) -> IPluginV3:
        """A copy that shares nothing mutable."""
        undefined(self, "clone")

    def destroy(self) -> None:
        """Called when the plugin is no longer needed."""


class IPluginV3OneCore(IPluginCapability):
    """Name, version and namespace of a plugin, as attributes.

    Attributes:
        plugin_name: The name.
        plugin_version: The version.
        plugin_namespace: The namespace, usually empty.
    """

    _INTERFACE = ("PLUGIN_V3ONE_CORE", 1, 0)

    plugin_name: str = ""
    plugin_version: str = ""
    plugin_namespace: str = ""

    def __init__(self, arg0: IPluginV3OneCore | None = None) -> None:
        pass


class IPluginV3OneBuild(IPluginCapability):
    """What a build asks a plugin.

    Attributes:
        num_outputs: Number of outputs.
        format_combination_limit: Most formats tried.
        metadata_string: Text for the inspector.
        timing_cache_id: Key in the timing cache.
    """

    _INTERFACE = ("PLUGIN_V3ONE_BUILD", 1, 0)

    DEFAULT_FORMAT_COMBINATION_LIMIT = 100

    num_outputs: int = 1
    format_combination_limit: int = 100
    metadata_string: str = ""
    timing_cache_id: str = ""

    def __init__(self, arg0: IPluginV3OneBuild | None = None) -> None:
        pass

    def get_output_data_types(self, input_types: Sequence[DataType]) -> list[DataType]:
        """The element types of the outputs."""
        undefined(self, "get_output_data_types")

    def get_output_shapes(
        self,
        inputs: Sequence[DimsExprs],
        shape_inputs: Sequence[DimsExprs],
        expr_builder: IExprBuilder,
    ) -> list[DimsExprs]:
        """The extents of the outputs."""
        undefined(self, "get_output_shapes")

    def supports_format_combination(self, pos: int, in_out: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> bool:
        """Whether the tensor at a position may have the type and format described."""
        undefined(self, "supports_format_combination")

    def configure_plugin(self, in_: Sequence[DynamicPluginTensorDesc], out: Sequence[DynamicPluginTensorDesc]) -> None:
        """Told types and ranges of extents before a build."""

    def get_workspace_size(self, in_: Sequence[DynamicPluginTensorDesc], out: Sequence[DynamicPluginTensorDesc]) -> int:
        """Bytes of work memory."""
        return 0

    def get_valid_tactics(self) -> list[int]:
        """Numbers of the tactics that a build may choose from."""
        return []


class IPluginV3OneBuildV2(IPluginV3OneBuild):
    """Outputs that may share the memory of an input."""

    _INTERFACE = ("PLUGIN_V3ONE_BUILD", 2, 0)

    def __init__(self, arg0: IPluginV3OneBuildV2 | None = None) -> None:
        pass

    def get_aliased_input(self, output_index: int) -> int:
        """The input whose memory an output shares, -1 for none."""
        return -1


class IPluginV3OneRuntime(IPluginCapability):
    """What running asks a plugin."""

    _INTERFACE = ("PLUGIN_V3ONE_RUNTIME", 1, 0)

    def __init__(self, arg0: IPluginV3OneRuntime | None = None) -> None:
        pass

    def enqueue(
        self,
        input_desc: Sequence[PluginTensorDesc],
        output_desc: Sequence[PluginTensorDesc],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Computes the outputs.

        Args:
            input_desc: Extents and types of the inputs.
            output_desc: Extents and types of the outputs.
            inputs: Addresses; each is a `TensorAddress`, whose ``tensor`` is the memory as a tensor.
            outputs: Addresses to write to, likewise.
            workspace: Address of work memory.
            stream: Handle of the CUDA stream, 0 on the CPU.
        """
        undefined(self, "enqueue")

    def on_shape_change(self, in_: Sequence[PluginTensorDesc], out: Sequence[PluginTensorDesc]) -> None:
        """Told extents before they are used."""

    def set_tactic(self, tactic: int) -> None:
        """Told the tactic that the build chose."""

    def attach_to_context(self, resource_context: IPluginResourceContext) -> IPluginV3:
        """A plugin for one execution context: a clone."""
        return self.clone()  # type: ignore[attr-defined, no-any-return]

    def get_fields_to_serialize(self) -> PluginFieldCollection:
        """The parameters from which the creator can make this plugin again."""
        return PluginFieldCollection()


class IPluginResource(IVersionedInterface):
    """Something that several plugins share."""

    _INTERFACE = ("IPluginResource", 1, 0)

    def __init__(self) -> None:
        pass

    def clone(self) -> IPluginResource:
        """The copy that the registry keeps."""
        undefined(self, "clone")

    def release(self) -> None:
        """Called when nobody uses the resource any more."""
        undefined(self, "release")


class IPluginResourceContext:
    """What an execution context offers to plugins.

    Attributes:
        gpu_allocator: Allocator of the context, if it has one.
        error_recorder: Error recorder of the context, if it has one.
    """

    gpu_allocator: Any = None
    error_recorder: Any = None


class IPluginCreatorInterface(IVersionedInterface):
    """Makes plugins."""


class NamedCreator(IPluginCreatorInterface):
    """Makes plugins of one name and version.

    Attributes:
        name: The name.
        plugin_version: The version.
        plugin_namespace: The namespace, usually empty.
        field_names: The parameters that `create_plugin` understands.
    """

    name: str = ""
    plugin_version: str = ""
    plugin_namespace: str = ""
    field_names: PluginFieldCollection = PluginFieldCollection()

    def __init__(self) -> None:
        pass


class IPluginCreatorV3One(NamedCreator):
    """Makes plugins of the third version."""

    _INTERFACE = ("PLUGIN CREATOR_V3ONE", 1, 0)

    def create_plugin(self, name: str, field_collection: PluginFieldCollection_, phase: TensorRTPhase) -> IPluginV3:
        """Makes a plugin from parameters."""
        undefined(self, "create_plugin")
