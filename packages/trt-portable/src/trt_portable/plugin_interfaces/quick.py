"""The interfaces behind `tensorrt.plugin`: plugins that decorated functions define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trt_portable.enums import PluginArgDataType, PluginArgType, QuickPluginCreationRequest, TensorRTPhase
from trt_portable.plugin_interfaces.field import PluginFieldCollection_
from trt_portable.plugin_interfaces.plugin import IPluginCapability, IPluginV3, NamedCreator, undefined


class IPluginV3QuickCore(IPluginCapability):
    """Name, version and namespace of a plugin, as attributes."""

    _INTERFACE = ("PLUGIN_V3QUICK_CORE", 1, 0)

    plugin_name: str = ""
    plugin_version: str = ""
    plugin_namespace: str = ""

    def __init__(self, arg0: IPluginV3QuickCore | None = None) -> None:
        pass


class IPluginV3QuickBuild(IPluginCapability):
    """What a build asks a plugin."""

    _INTERFACE = ("PLUGIN_V3QUICK_BUILD", 1, 0)

    def __init__(self, arg0: IPluginV3QuickBuild | None = None) -> None:
        pass


class IPluginV3QuickAOTBuild(IPluginV3QuickBuild):
    """What a build asks a plugin whose kernels are compiled ahead of time; none are here."""

    _INTERFACE = ("PLUGIN_V3QUICKAOT_BUILD", 1, 0)

    def __init__(self, arg0: IPluginV3QuickAOTBuild | None = None) -> None:
        pass


class IPluginV3QuickRuntime(IPluginCapability):
    """What running asks a plugin."""

    _INTERFACE = ("PLUGIN_V3QUICK_RUNTIME", 1, 0)

    def __init__(self, arg0: IPluginV3QuickRuntime | None = None) -> None:
        pass


class IPluginCreatorV3Quick(NamedCreator):
    """Makes the plugins that decorated functions define."""

    _INTERFACE = ("PLUGIN CREATOR_V3QUICK", 1, 0)

    def create_plugin(
        self,
        name: str,
        namespace: str,
        field_collection: PluginFieldCollection_,
        phase: TensorRTPhase,
        quickPluginType: QuickPluginCreationRequest,
    ) -> IPluginV3:
        """Makes a plugin from parameters."""
        undefined(self, "create_plugin")


class ISymExpr:
    """A number that a kernel takes, computed from extents.

    Attributes:
        type: The kind of the argument.
        dtype: Its type.
        expr: The number.
    """

    type: PluginArgType = PluginArgType.INT
    dtype: PluginArgDataType = PluginArgDataType.INT32
    expr: Any = None

    def __init__(self) -> None:
        pass


class ISymExprs:
    """Numbers that a kernel takes, in order."""

    def __init__(self) -> None:
        self._expressions: list[ISymExpr] = []

    @property
    def nbSymExprs(self) -> int:
        """How many they are."""
        return len(self._expressions)

    @nbSymExprs.setter
    def nbSymExprs(self, count: int) -> None:
        del self._expressions[count:]
        self._expressions.extend(ISymExpr() for _ in range(count - len(self._expressions)))

    def __len__(self) -> int:
        return len(self._expressions)

    def __getitem__(self, arg0: int) -> ISymExpr:
        return self._expressions[arg0]

    def __setitem__(self, arg0: int, expression: ISymExpr) -> None:
        self._expressions[arg0] = expression


@dataclass
class KernelLaunchParams:
    """How a kernel is launched: numbers, or expressions of extents.

    Attributes:
        grid_x: Blocks along x.
        grid_y: Blocks along y.
        grid_z: Blocks along z.
        block_x: Threads of a block along x.
        block_y: Threads of a block along y.
        block_z: Threads of a block along z.
        shared_mem: Bytes of shared memory.
    """

    grid_x: Any = 1
    grid_y: Any = 1
    grid_z: Any = 1
    block_x: Any = 1
    block_y: Any = 1
    block_z: Any = 1
    shared_mem: Any = 0
