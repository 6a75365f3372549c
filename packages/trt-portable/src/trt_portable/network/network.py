"""A network definition: inputs, layers, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trt_core.graph_search import reachable
from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.enums import DataType, ErrorCodeTRT, LayerType, NetworkDefinitionCreationFlag
from trt_portable.errors import Refusal
from trt_portable.host_settings import HostSettings
from trt_portable.layers.collective import CollectiveLayers
from trt_portable.layers.convolution import ConvolutionLayers, PoolingLayers
from trt_portable.layers.indexing import DetectionLayers, GatherLayers, IndexingLayers
from trt_portable.layers.movement import MovementLayers
from trt_portable.layers.normalization import NormalizationLayers
from trt_portable.layers.pointwise import PointwiseLayers
from trt_portable.layers.products import ProductLayers
from trt_portable.layers.quantization import QuantizationLayers
from trt_portable.layers.reduction import ReductionLayers
from trt_portable.layers.resampling import ResamplingLayers
from trt_portable.layers.slicing import SlicingLayers
from trt_portable.layers.sources import SourceLayers
from trt_portable.layers.transformer import AttentionLayers, TransformerLayers
from trt_portable.network.control_flow import AssertionLayers, ConditionalLayers, LoopLayers
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.region import Scope
from trt_portable.pybind import instance_of, to_integer, to_text
from trt_portable.reporting import RecordsErrors, Reporter
from trt_portable.weights import Weights, as_weights

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.layers.plugin_layers import IPluginV3Layer
    from trt_portable.plugin.interfaces import IPluginV3
    from trt_portable.plugin.version_2 import IPluginV2, IPluginV2Layer


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
        from trt_portable.plugin.interfaces import IPluginV3

        instance_of(IPluginV3, plugin, "plugin")
        tensors = [expect_tensor(tensor, "an input") for tensor in (*inputs, *shape_inputs)]
        layer = IPluginV3Layer._create()
        layer._plugin, layer._data_inputs = plugin, len(inputs)
        return self._add(layer, *tensors)

    def add_plugin(
        self, func: Callable[[], Any] | _Triple | None = None, aot: bool = False, *, tuple: _Triple | None = None
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
        from trt_portable.plugin.version_2 import IPluginV2DynamicExt, IPluginV2Layer, PluginV2Faces

        faces = PluginV2Faces(instance_of(IPluginV2DynamicExt, plugin, "plugin"))
        tensors = [expect_tensor(tensor, "an input") for tensor in inputs]
        layer = IPluginV2Layer._create()
        layer._plugin, layer._data_inputs = faces, len(tensors)
        return self._add(layer, *tensors)


class TensorKinds(NamedTuple):
    """Identities (``id``) of tensors by kind; a tensor may be of both kinds or of neither.

    Attributes:
        shape: The host needs the values.
        execution: The device needs the values.
    """

    shape: frozenset[int]
    execution: frozenset[int]


def classify(layers: Sequence[ILayer], outputs: Iterable[ITensor], shape_outputs: Iterable[ITensor]) -> TensorKinds:
    """Finds shape tensors and execution tensors of a network.

    Args:
        layers: All layers.
        outputs: Outputs whose values are data.
        shape_outputs: Outputs whose values are shapes.
    """
    wanted = list(shape_outputs)
    data = list(outputs)
    for layer in layers:
        wanted += layer._sources(host=True)
        if not layer._outputs:  # conditions, which something else waits for
            data += layer._sources(host=False)
    shape = reachable(wanted, _sources_of_sizes)
    execution = reachable(data, _sources_of_data)
    return TensorKinds(frozenset(map(id, shape)), frozenset(map(id, execution)))


def _sources_of_sizes(tensor: ITensor) -> list[ITensor]:
    producer = tensor._producer
    if producer is None or not producer._SHAPE_ALGEBRA or producer._KIND is LayerType.SHAPE:
        return []
    return [source for source in producer._inputs if source is not None]


def _sources_of_data(tensor: ITensor) -> list[ITensor]:
    producer = tensor._producer
    return [] if producer is None or producer._KIND is LayerType.SHAPE else producer._sources(host=False)


class INetworkDefinition(
    SourceLayers,
    PointwiseLayers,
    MovementLayers,
    SlicingLayers,
    ProductLayers,
    ReductionLayers,
    GatherLayers,
    IndexingLayers,
    ConvolutionLayers,
    PoolingLayers,
    ResamplingLayers,
    NormalizationLayers,
    AttentionLayers,
    QuantizationLayers,
    TransformerLayers,
    DetectionLayers,
    AssertionLayers,
    CollectiveLayers,
    PluginLayers,
    LoopLayers,
    ConditionalLayers,
    RecordsErrors,
):
    """A strongly typed network of layers; made by ``Builder.create_network``.

    Every ``add_`` method answers with the layer, or logs an error and answers None when the layer is
    refused (in strict mode it raises `NetworkError` instead).

    Args:
        reporter: The error channel of the builder.
        flags: Bits ``1 << int(NetworkDefinitionCreationFlag)``.
        builder: The builder that made it.
    """

    name: str = "Unnamed Network 0"
    """The name; it becomes that of the engine."""

    def __init__(self, reporter: Reporter, flags: int = 0, builder: HostSettings | None = None) -> None:
        self._start(reporter.child())
        self._flags = flags
        self._builder = builder
        self._inputs: list[ITensor] = []
        self._marked: list[ITensor] = []
        self._marked_for_shapes: list[ITensor] = []
        self._output_ids: set[int] = set()
        self._input_names: set[str] | None = None
        """None where one has another name since they were collected."""
        self._debug: list[ITensor] = []
        self._debug_unfused = False
        self._weight_names: dict[str, tuple[int, DataType, int]] = {}
        self._names_of_weights: dict[tuple[int, DataType, int], str] = {}
        self._refittable: set[str] = set()
        self._scopes: list[Scope] = []
        self._kinds: tuple[int, TensorKinds] | None = None

    # --- the network itself ----------------------------------------------------------------------

    @property
    def builder(self) -> HostSettings | None:
        """The builder that made this network."""
        return self._builder

    @property
    def flags(self) -> int:
        """Bits ``1 << int(NetworkDefinitionCreationFlag)``."""
        return self._flags

    def get_flag(self, flag: NetworkDefinitionCreationFlag) -> bool:
        """Whether a flag is set.

        Raises:
            TypeError: The flag is of another type.
        """
        if not isinstance(flag, NetworkDefinitionCreationFlag):
            raise TypeError(f"get_flag takes NetworkDefinitionCreationFlag, not {type(flag).__name__}")
        return bool(self._flags >> int(flag) & 1)

    @property
    def has_implicit_batch_dimension(self) -> bool:
        """Always False."""
        return False

    @contextmanager
    def _as_built(self, config: IBuilderConfig) -> Iterator[None]:
        """The network as a build with a configuration reads it: as it was defined, where it is strongly typed."""
        yield

    # --- inputs ----------------------------------------------------------------------------------

    def add_input(self, name: str, dtype: DataType, shape: DimsLike) -> ITensor | None:
        """Adds an input.

        Args:
            name: Unique among inputs and outputs.
            dtype: The element type.
            shape: The extents; -1 where the extent is known only at run time.

        Raises:
            TypeError: The type is no `DataType`.
        """
        label, dims = to_text(name), as_dims(shape)
        instance_of(DataType, dtype, "dtype")
        if any(extent < -1 for extent in dims):
            self._reporter.refuse(f"input {label!r}", Refusal(f"shape {dims} has an extent below -1"))
            return None
        if self._input_names is None:
            self._input_names = {tensor.name for tensor in self._inputs}
        if not label or label in self._input_names:
            self._reporter.refuse(f"input {label!r}", Refusal("the name is empty or taken"))
            return None
        tensor = ITensor(self, None, 0, label, dtype)
        self._declare(tensor, dims)
        self._inputs.append(tensor)
        self._input_names.add(label)
        self._revision += 1
        return tensor

    def _declare(self, tensor: ITensor, dims: Dims) -> None:
        tensor._declared = tuple(dims)
        tensor._extents = tuple(self._inference.symbols.create() if extent == -1 else extent for extent in dims)
        tensor._host = None

    def _set_input_shape(self, tensor: ITensor, dims: Dims) -> None:
        self._declare(tensor, dims)
        for layer in tensor._consumers:
            layer._changed()

    @property
    def num_inputs(self) -> int:
        """Number of inputs."""
        return len(self._inputs)

    def get_input(self, index: int) -> ITensor | None:
        """The input at an index; None if there is none."""
        position = to_integer(index)
        return self._inputs[position] if 0 <= position < len(self._inputs) else None

    # --- outputs ---------------------------------------------------------------------------------

    def mark_output(self, tensor: ITensor) -> None:
        """Makes a tensor an output. A network input cannot be one: add an identity."""
        if self._owns(tensor, "mark_output") and not self._is_output(tensor):
            if tensor.is_network_input:
                rule = "a network input cannot be an output; add an identity layer"
                self._reporter.refuse(f"tensor {tensor.name!r}", Refusal(rule))
                return
            self._marked.append(tensor)
            self._output_ids.add(id(tensor))
            self._revision += 1

    def unmark_output(self, tensor: ITensor) -> None:
        """Makes an output an ordinary tensor again."""
        if self._owns(tensor, "unmark_output") and any(tensor is marked for marked in self._marked):
            self._output_ids.discard(id(tensor))
            self._marked = [marked for marked in self._marked if marked is not tensor]
            self._revision += 1

    def mark_output_for_shapes(self, tensor: ITensor) -> bool:
        """Asks for the values of a shape tensor (int32, 0-D or 1-D); False if refused."""
        if not self._owns(tensor, "mark_output_for_shapes") or self._is_output(tensor):
            return False
        shape = tensor.shape
        if tensor.dtype is not DataType.INT32 or len(shape) > 1 or -1 in tuple(shape):
            rule = "a shape output is INT32, 0-D or 1-D, with constant extents"
            self._reporter.refuse(f"tensor {tensor.name!r}", Refusal(rule))
            return False
        self._marked_for_shapes.append(tensor)
        self._output_ids.add(id(tensor))
        self._revision += 1
        return True

    def unmark_output_for_shapes(self, tensor: ITensor) -> bool:
        """Takes `mark_output_for_shapes` back; False if it was not marked."""
        expect_tensor(tensor, "tensor")
        if not any(tensor is marked for marked in self._marked_for_shapes):
            return False
        self._output_ids.discard(id(tensor))
        self._marked_for_shapes = [t for t in self._marked_for_shapes if t is not tensor]
        self._revision += 1
        return True

    @property
    def _outputs(self) -> list[ITensor]:
        return [*self._marked, *self._marked_for_shapes]

    def _is_output(self, tensor: ITensor) -> bool:
        return id(tensor) in self._output_ids

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._output_ids)

    def get_output(self, index: int) -> ITensor | None:
        """The output at an index; None if there is none."""
        position, count = to_integer(index), len(self._marked)
        if not 0 <= position < self.num_outputs:
            return None
        return self._marked[position] if position < count else self._marked_for_shapes[position - count]

    def remove_tensor(self, tensor: ITensor) -> None:
        """Removes an input that no layer uses; anything else is left with a warning."""
        if not self._owns(tensor, "remove_tensor"):
            return
        if tensor._consumers or not tensor.is_network_input:
            self._reporter.warning(f"tensor {tensor.name!r} is in use and is not removed")
            return
        self._inputs = [other for other in self._inputs if other is not tensor]
        self._input_names = None
        self._revision += 1

    def _owns(self, tensor: Any, what: str) -> bool:
        if expect_tensor(tensor, "tensor")._network is self:
            return True
        self._reporter.refuse(what, Refusal(f"tensor {tensor.name!r} is of another network"))
        return False

    # --- shape tensors ---------------------------------------------------------------------------

    def _tensor_kinds(self) -> TensorKinds:
        if self._kinds is None or self._kinds[0] != self._revision:
            self._kinds = (self._revision, classify(self._layers, self._marked, self._marked_for_shapes))
        return self._kinds[1]

    def _is_shape_tensor(self, tensor: ITensor) -> bool:
        return id(tensor) in self._tensor_kinds().shape

    def _is_execution_tensor(self, tensor: ITensor) -> bool:
        return id(tensor) in self._tensor_kinds().execution

    # --- debug tensors ---------------------------------------------------------------------------

    def mark_debug(self, tensor: ITensor) -> bool:
        """Makes a tensor visible to a debug listener; False if it already is."""
        if not self._owns(tensor, "mark_debug") or self.is_debug_tensor(tensor):
            return False
        self._debug.append(tensor)
        return True

    def unmark_debug(self, tensor: ITensor) -> bool:
        """Takes `mark_debug` back; False if it was not marked."""
        if not self.is_debug_tensor(tensor):
            return False
        self._debug = [marked for marked in self._debug if marked is not tensor]
        return True

    def is_debug_tensor(self, tensor: ITensor) -> bool:
        """Whether a tensor is visible to a debug listener."""
        expect_tensor(tensor, "tensor")
        return any(tensor is marked for marked in self._debug)

    def mark_unfused_tensors_as_debug_tensors(self) -> bool:
        """Makes every tensor that survives the build visible to a debug listener."""
        self._debug_unfused = True
        return True

    def unmark_unfused_tensors_as_debug_tensors(self) -> bool:
        """Takes `mark_unfused_tensors_as_debug_tensors` back."""
        self._debug_unfused = False
        return True

    # --- weights ---------------------------------------------------------------------------------

    def set_weights_name(self, weights: Weights, name: str) -> bool:
        """Names weights that a layer uses, so that a refit can find them.

        Returns:
            False if no layer uses the weights, or the name belongs to others.
        """
        key, label = as_weights(weights)._key, to_text(name)
        newest_first = reversed(self._layers)  # weights are named when their layer was added
        if not any(used._key == key for layer in newest_first for used in layer._roles.values()):
            self._reporter.refuse(f"weights {label!r}", Refusal("no layer uses these weights"))
            return False
        if self._weight_names.get(label, key) != key:
            self._reporter.refuse(f"weights {label!r}", Refusal("other weights have this name"))
            return False
        if key in self._names_of_weights:
            del self._weight_names[self._names_of_weights[key]]
        self._weight_names[label], self._names_of_weights[key] = key, label
        return True

    def mark_weights_refittable(self, name: str) -> bool:
        """Lets a refit replace named weights (with BuilderFlag.REFIT_INDIVIDUAL)."""
        if to_text(name) not in self._weight_names:
            self._reporter.refuse(f"weights {name!r}", Refusal("no weights have this name"))
            return False
        self._refittable.add(name)
        return True

    def unmark_weights_refittable(self, name: str) -> bool:
        """Takes `mark_weights_refittable` back."""
        if to_text(name) not in self._refittable:
            return False
        self._refittable.discard(name)
        return True

    def are_weights_marked_refittable(self, name: str) -> bool:
        """Whether `mark_weights_refittable` named these weights."""
        return to_text(name) in self._refittable
