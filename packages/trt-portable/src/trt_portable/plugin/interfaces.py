"""The interfaces that plugins written in Python implement: what they are told, asked, and given as parameters."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, TypeVar

import numpy as np

from trt_core.files import typed
from trt_core.sizes.functions import FUNCTIONS, RELATIONS
from trt_portable.application_interfaces import IVersionedInterface
from trt_portable.dims import Dims
from trt_portable.enums import (
    DataType,
    DimensionOperation,
    EngineCapability,
    PluginArgDataType,
    PluginArgType,
    PluginCapabilityType,
    PluginFieldType,
    QuickPluginCreationRequest,
    TensorFormat,
    TensorRTPhase,
)
from trt_portable.plan import tables
from trt_portable.pybind import Sealed, instance_of, optional_of, to_integer, to_text
from trt_portable.reporting import IErrorRecorder

if TYPE_CHECKING:
    import numpy.typing as npt


class IDimensionExpr:
    """An extent, or a number computed from extents."""

    def __init__(self, value: Any, size_tensor: tuple[int, Any, Any] | None = None) -> None:
        self._value = value
        self._size_tensor = size_tensor

    def is_constant(self) -> bool:
        """Whether the number is known now."""
        return self._size_tensor is None and isinstance(self._value, int)

    def get_constant_value(self) -> int:
        """The number, if it is known now.

        Raises:
            RuntimeError: It is not.
        """
        if not self.is_constant():
            raise RuntimeError("the dimension expression is not constant")
        return int(self._value)

    def is_size_tensor(self) -> bool:
        """Whether the number is an output of the plugin."""
        return self._size_tensor is not None


class DimsExprs:
    """Extents as expressions: a list of them, or a number of extents that are all 0."""

    def __init__(self, extents: Sequence[IDimensionExpr] | int = ()) -> None:
        if isinstance(extents, int):
            self._extents = [IDimensionExpr(0) for _ in range(extents)]
        else:
            self._extents = list(extents)

    def __len__(self) -> int:
        return len(self._extents)

    def __getitem__(self, index: int) -> IDimensionExpr:
        return self._extents[to_integer(index)]

    def __setitem__(self, index: int, extent: IDimensionExpr) -> None:
        self._extents[to_integer(index)] = extent


_OPERATIONS: Final = {
    DimensionOperation.SUM: "add",
    DimensionOperation.PROD: "mul",
    DimensionOperation.MAX: "max",
    DimensionOperation.MIN: "min",
    DimensionOperation.SUB: "sub",
    DimensionOperation.EQUAL: "eq",
    DimensionOperation.LESS: "lt",
    DimensionOperation.FLOOR_DIV: "floordiv",
    DimensionOperation.CEIL_DIV: "ceildiv",
}
"""What operations are called in `trt_core.sizes.functions`."""


class IExprBuilder:
    """Makes dimension expressions."""

    def __init__(self) -> None:
        pass

    def constant(self, arg0: int) -> IDimensionExpr:
        """A known number."""
        return IDimensionExpr(to_integer(arg0))

    def operation(self, arg0: DimensionOperation, arg1: IDimensionExpr, arg2: IDimensionExpr) -> IDimensionExpr:
        """A number computed from two others."""
        name = _OPERATIONS[arg0]
        result = FUNCTIONS[name].compute(arg1._value, arg2._value)
        return IDimensionExpr(int(result) if name in RELATIONS else result)

    def declare_size_tensor(self, arg0: int, arg1: IDimensionExpr, arg2: IDimensionExpr) -> IDimensionExpr:
        """A number that an output of the plugin holds.

        Args:
            arg0: Index of the output, a 0-D int32.
            arg1: The number that is expected.
            arg2: The largest number possible.
        """
        return IDimensionExpr(arg2._value, (to_integer(arg0), arg1._value, arg2._value))


class PluginTensorDesc:
    """What a plugin is told of a tensor.

    Attributes:
        dims: The extents.
        type: The element type.
        format: The memory layout.
        scale: Kept for compatibility.
    """

    def __init__(self) -> None:
        self.dims = Dims()
        self.type = DataType.FLOAT
        self.format = TensorFormat.LINEAR
        self.scale = 0.0

    @classmethod
    def _of(cls, dims: Sequence[int], dtype: DataType, format: TensorFormat = TensorFormat.LINEAR) -> PluginTensorDesc:
        made = cls()
        made.dims, made.type, made.format = Dims(dims), dtype, format
        return made


class DynamicPluginTensorDesc:
    """What a plugin is told of a tensor before its extents are known.

    Attributes:
        desc: Extents (-1 where unknown), type and format.
        min: The smallest extents.
        opt: The usual extents.
        max: The largest extents.
    """

    def __init__(self) -> None:
        self.desc = PluginTensorDesc()
        self.min = Dims()
        self.opt = Dims()
        self.max = Dims()

    @classmethod
    def _of(
        cls, dims: Sequence[int], dtype: DataType, format: TensorFormat = TensorFormat.LINEAR
    ) -> DynamicPluginTensorDesc:
        made = cls()
        made.desc = PluginTensorDesc._of(dims, dtype, format)
        made.min = made.opt = made.max = Dims(dims)
        return made


T = TypeVar("T")


class BoundList(list[T]):
    """A vector of C++ as a list, with the names that its bindings give to parameters."""

    def append(self, x: T) -> None:
        """Adds an item to the end."""
        super().append(x)

    def extend(self, L: Iterable[T]) -> None:
        """Adds items to the end."""
        super().extend(L)

    def insert(self, i: SupportsIndex, x: T) -> None:
        """Adds an item before a position."""
        super().insert(i, x)

    def pop(self, i: SupportsIndex = -1) -> T:
        """Removes an item, the last one by default, and returns it."""
        return super().pop(i)

    def remove(self, x: T) -> None:
        """Removes the first item that is equal.

        Raises:
            ValueError: There is none.
        """
        super().remove(x)

    def count(self, x: T) -> int:
        """How many items are equal."""
        return super().count(x)


class NodeIndices(BoundList[int]):
    """Numbers of nodes."""


class FallbackString(str):
    """Text as the bindings hand it to C++; plain text serves wherever it does."""


ELEMENTS: Final[dict[PluginFieldType, np.dtype[Any]]] = {
    PluginFieldType.FLOAT16: np.dtype(np.float16),
    PluginFieldType.FLOAT32: np.dtype(np.float32),
    PluginFieldType.FLOAT64: np.dtype(np.float64),
    PluginFieldType.INT8: np.dtype(np.int8),
    PluginFieldType.INT16: np.dtype(np.int16),
    PluginFieldType.INT32: np.dtype(np.int32),
    PluginFieldType.INT64: np.dtype(np.int64),
    PluginFieldType.CHAR: np.dtype(np.int8),
}
"""What numpy calls the elements of a field; other types are kept as they are given."""


class PluginField:
    """A named parameter.

    Args:
        name: The name.
        data: The values: anything with a buffer, or text; None for a field that only announces a name.
        type: The element type.

    Raises:
        TypeError: Not a `PluginFieldType`, or data without a buffer.
        ValueError: The data are not whole elements of the type, or do not fit it.
    """

    def __init__(self, name: str = "", data: Any = None, type: PluginFieldType = PluginFieldType.UNKNOWN) -> None:
        instance_of(PluginFieldType, type, "type")
        self.name = str(name)
        self.type = type
        self.data = data

    @property
    def data(self) -> npt.NDArray[Any] | None:
        """The values, flat, as elements of the type: int8 for CHAR; bytes as given where numpy lacks the type."""
        return self._data

    @data.setter
    def data(self, data: Any) -> None:
        self._data = None if data is None else _elements(data, self.type, self.name)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if self._data is None else self._data.size

    def _to_json(self) -> dict[str, Any]:
        array = np.empty(0, np.uint8) if self._data is None else self._data
        return {
            "name": self.name,
            "type": self.type.name,
            "dtype": array.dtype.str,
            "data": base64.b64encode(array.tobytes()).decode(),
        }

    @classmethod
    def _from_json(cls, entry: Any) -> PluginField:
        entry = typed.fields(entry, "a field of a plugin", tables.PLUGIN_FIELD)
        name = typed.text(entry["name"], "the name of a field of a plugin")
        data = base64.b64decode(typed.text(entry["data"], f"field {name!r}"), validate=True)
        flat = np.frombuffer(data, np.dtype(typed.text(entry["dtype"], f"the type of field {name!r}")))
        return cls(name, flat, typed.member(PluginFieldType, entry["type"], f"the type of field {name!r}"))


def _elements(data: Any, kind: PluginFieldType, name: str) -> npt.NDArray[Any]:
    wanted = ELEMENTS.get(kind)
    array: npt.NDArray[Any]
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(data).reshape(-1)
    else:
        view = memoryview(data)
        plain = view.format in ("b", "B", "c")
        array = np.frombuffer(view, np.uint8) if plain else np.asarray(view).reshape(-1)
        if plain and wanted is not None:
            if array.size % wanted.itemsize:
                raise ValueError(f"field {name!r}: {array.size} bytes are not whole elements of {kind.name}")
            return array.view(wanted)
    if wanted is None or array.dtype == wanted:
        return array
    if array.dtype.itemsize == wanted.itemsize == 1:
        return array.view(wanted)
    converted = array.astype(wanted)
    if not np.array_equal(converted, array, equal_nan=array.dtype.kind == "f"):
        raise ValueError(f"field {name!r}: {array.dtype} values do not fit {kind.name}")
    return converted


class PluginFieldCollection(BoundList[PluginField]):
    """The parameters of a plugin, in order."""

    def __init__(self, fields: Iterable[PluginField] = ()) -> None:
        super().__init__(fields)


class PluginFieldCollection_:
    """A read-only view of parameters, as creators receive them."""

    def __init__(self, fields: PluginFieldCollection) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def __getitem__(self, index: int) -> PluginField:
        return self._fields[index]

    def __iter__(self) -> Iterator[PluginField]:
        return iter(self._fields)


def undefined(owner: object, method: str) -> NoReturn:
    """Raises NotImplementedError: a subclass lacks a method."""
    raise NotImplementedError(f"{type(owner).__name__} must define {method}()")


class IPluginCapability(IVersionedInterface):
    """One of the faces of a plugin."""

    def __init__(self, arg0: Any = None) -> None:
        pass


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

    def get_output_data_types(self, input_types: Sequence[DataType]) -> list[DataType]:
        """The element types of the outputs."""
        undefined(self, "get_output_data_types")

    def get_output_shapes(
        self, inputs: Sequence[DimsExprs], shape_inputs: Sequence[DimsExprs], expr_builder: IExprBuilder
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

    def get_aliased_input(self, output_index: int) -> int:
        """The input whose memory an output shares, -1 for none."""
        return -1


class IPluginV3OneRuntime(IPluginCapability):
    """What running asks a plugin."""

    _INTERFACE = ("PLUGIN_V3ONE_RUNTIME", 1, 0)

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


class IPluginV3QuickCore(IPluginCapability):
    """Name, version and namespace of a plugin, as attributes."""

    _INTERFACE = ("PLUGIN_V3QUICK_CORE", 1, 0)

    plugin_name: str = ""
    plugin_version: str = ""
    plugin_namespace: str = ""


class IPluginV3QuickBuild(IPluginCapability):
    """What a build asks a plugin."""

    _INTERFACE = ("PLUGIN_V3QUICK_BUILD", 1, 0)


class IPluginV3QuickAOTBuild(IPluginV3QuickBuild):
    """What a build asks a plugin whose kernels are compiled ahead of time; none are here."""

    _INTERFACE = ("PLUGIN_V3QUICKAOT_BUILD", 1, 0)


class IPluginV3QuickRuntime(IPluginCapability):
    """What running asks a plugin."""

    _INTERFACE = ("PLUGIN_V3QUICK_RUNTIME", 1, 0)


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


class IPluginRegistry(Sealed):
    """Creators by name, version and namespace, and resources that plugins share."""

    parent_search_enabled: bool = True
    """Whether what is not found here is looked for in the parent."""
    error_recorder = optional_of(IErrorRecorder, "Receives errors.")

    def __init__(self, parent: IPluginRegistry | None = None) -> None:
        self._parent = parent
        self._creators: dict[tuple[str, str, str], Any] = {}
        self._resources: dict[str, tuple[IPluginResource, int]] = {}

    @property
    def all_creators(self) -> list[Any]:
        """The creators registered here."""
        return list(self._creators.values())

    @property
    def all_creators_recursive(self) -> list[Any]:
        """The creators registered here and in the parents."""
        inherited = []
        if self._parent is not None and self.parent_search_enabled:
            inherited = self._parent.all_creators_recursive
        return [*self.all_creators, *inherited]

    def register_creator(self, creator: IPluginCreatorInterface, plugin_namespace: str = "") -> bool:
        """Registers a creator; False if its name, version and namespace are taken.

        Raises:
            TypeError: It is no `IPluginCreatorInterface`.
        """
        if not isinstance(creator, IPluginCreatorInterface):
            raise TypeError(f"a creator is IPluginCreatorInterface, not {type(creator).__name__}")
        space = to_text(plugin_namespace)
        key = (creator.name, creator.plugin_version, space)  # type: ignore[attr-defined]
        if key in self._creators:
            return False
        if space:
            creator.plugin_namespace = space  # type: ignore[attr-defined]
        self._creators[key] = creator
        return True

    def deregister_creator(self, creator: IPluginCreatorInterface) -> bool:
        """Removes a creator; False if it is not registered."""
        instance_of(IPluginCreatorInterface, creator, "creator")
        for key, known in self._creators.items():
            if known is creator:
                del self._creators[key]
                return True
        return False

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        """The creator of a name, version and namespace; None if there is none."""
        found = self._creators.get((to_text(type), to_text(version), to_text(plugin_namespace)))
        if found is None and self._parent is not None and self.parent_search_enabled:
            return self._parent.get_creator(type, version, plugin_namespace)
        return found

    def acquire_plugin_resource(self, key: str, resource: IPluginResource) -> IPluginResource:
        """The shared resource of a key; the first caller's is cloned."""
        instance_of(IPluginResource, resource, "resource")
        known, users = self._resources.get(to_text(key), (None, 0))
        shared = resource.clone() if known is None else known
        self._resources[key] = (shared, users + 1)
        return shared

    def release_plugin_resource(self, key: str) -> int:
        """Gives a shared resource back: 0, or -1 if nobody holds it."""
        known, users = self._resources.get(to_text(key), (None, 0))
        if known is None:
            return -1
        if users > 1:
            self._resources[key] = (known, users - 1)
        else:
            del self._resources[key]
            known.release()
        return 0

    def load_library(self, plugin_path: str) -> NoReturn:
        """Refused: libraries of compiled plugins hold CUDA code for TensorRT.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"{to_text(plugin_path)!r} holds plugins compiled for TensorRT; write IPluginV3 in Python instead"
        )

    def deregister_library(self, handle: Any) -> None:
        """Removes the creators of a library; there are none here."""


_registry = IPluginRegistry()


def get_plugin_registry() -> IPluginRegistry:
    """The registry of the process."""
    return _registry


def get_builder_plugin_registry(arg0: EngineCapability) -> IPluginRegistry:
    """The registry that builds with a capability use: that of the process.

    Raises:
        TypeError: It is no `EngineCapability`.
    """
    if not isinstance(arg0, EngineCapability):
        raise TypeError(f"expected EngineCapability, not {type(arg0).__name__}")
    return _registry


def init_libnvinfer_plugins(logger: Any, namespace: str) -> bool:
    """Accepted for compatibility: no bundled plugins exist here."""
    to_text(namespace)
    return True
