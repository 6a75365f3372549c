"""What TensorRT 10.16's API has and 11.4's has not, for processes that ask for it (`trt_portable.api_version`).

`install` puts the members that follow into the classes of the package; there is no second implementation of anything.

Weakly typed networks are those that were not created with ``STRONGLY_TYPED``. In them
- floats of different types that meet in a layer are cast to float32, and weights to the type of the data;
- `ITensor.dtype` and `ILayer.set_output_type` of another type than the layer computes are casts of its output;
- with ``BuilderFlag.FP16`` (or ``BF16``), convolutions, deconvolutions and matrix products of float32 are computed in
  half (bfloat16), and so are arithmetic and movement that read nothing else: while the engine is built, casts stand
  around them, and their weights are rounded. A layer's `precision` says otherwise for it. Weights that a refit may
  replace, and their layers, stay as they are;
- ``INT8`` changes nothing without quantizing layers: calibrators are never called, dynamic ranges only kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

import torch

from trt_portable import enums
from trt_portable.application_interfaces import IStreamReaderV2, IVersionedInterface
from trt_portable.builder.builder import Builder
from trt_portable.builder.config import IBuilderConfig
from trt_portable.dtypes import CARRIERS, FLOATS, INDICES
from trt_portable.enums import BuilderFlag, DataType, ExecutionContextAllocationStrategy, LayerType, SeekPosition
from trt_portable.enums import NetworkDefinitionCreationFlag as CreationFlag
from trt_portable.errors import Refusal
from trt_portable.layers.normalization import INormalizationLayer
from trt_portable.layers.quantization import IDequantizeLayer, IQuantizeLayer
from trt_portable.layers.sources import ICastLayer
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.network import INetworkDefinition
from trt_portable.onnx_parser.parser import OnnxParser
from trt_portable.optimization_profile import IOptimizationProfile
from trt_portable.plugin.interfaces import BoundList, IPluginRegistry
from trt_portable.plugin.version_2 import IPluginCreator
from trt_portable.pybind import Setting, instance_of, optional_of, to_integer, to_number, to_text
from trt_portable.runtime.cuda_engine import ICudaEngine, Runtime
from trt_portable.runtime.execution_context import IExecutionContext
from trt_portable.runtime.refitter import Refitter
from trt_portable.weights import Weights

CalibrationAlgoType: Any = enums.__dict__.get("CalibrationAlgoType")  # enumerations of 10 alone
QuantizationFlag: Any = enums.__dict__.get("QuantizationFlag")


# --- classes that only 10 has ----------------------------------------------------------------------------


class IInt8Calibrator:
    """Interface of what shows data to a build that measures ranges; no build here does."""

    _ALGORITHM: ClassVar[str] = ""

    def __init__(self) -> None:
        pass

    def get_batch_size(self) -> int:
        """Samples in a batch."""
        raise NotImplementedError("a subclass of IInt8Calibrator must define get_batch_size()")

    def get_batch(self, names: Sequence[str]) -> list[int]:
        """Addresses of the next batch, one for each input; nothing at the end."""
        raise NotImplementedError("a subclass of IInt8Calibrator must define get_batch()")

    def read_calibration_cache(self) -> Any:
        """Ranges that were measured before."""
        return None

    def write_calibration_cache(self, cache: Any) -> None:
        """Takes the ranges that were measured."""

    def get_algorithm(self) -> Any:
        """How ranges are chosen."""
        if not self._ALGORITHM:
            raise NotImplementedError("a subclass of IInt8Calibrator must define get_algorithm()")
        return CalibrationAlgoType[self._ALGORITHM]


class IInt8LegacyCalibrator(IInt8Calibrator):
    """A calibrator of TensorRT's first algorithm."""

    _ALGORITHM = "LEGACY_CALIBRATION"


class IInt8EntropyCalibrator(IInt8Calibrator):
    """A calibrator that minimizes lost information."""

    _ALGORITHM = "ENTROPY_CALIBRATION"


class IInt8EntropyCalibrator2(IInt8Calibrator):
    """A calibrator that minimizes lost information, a range for each tensor."""

    _ALGORITHM = "ENTROPY_CALIBRATION_2"


class IInt8MinMaxCalibrator(IInt8Calibrator):
    """A calibrator that takes the extreme values."""

    _ALGORITHM = "MINMAX_CALIBRATION"


class _Unmade:
    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")


class IAlgorithmIOInfo(_Unmade):
    """Types and strides of an operand of an algorithm."""

    dtype: DataType
    strides: Any
    vectorized_dim: int
    components_per_element: int


class IAlgorithmVariant(_Unmade):
    """The numbers of an algorithm."""

    implementation: int
    tactic: int


class IAlgorithmContext(_Unmade):
    """Where an algorithm is chosen."""

    name: str
    num_inputs: int
    num_outputs: int

    def get_shape(self, index: int) -> list[Any]:
        """Least, usual and greatest extents of an operand."""
        raise NotImplementedError


class IAlgorithm(_Unmade):
    """A kernel that a build may choose."""

    algorithm_variant: IAlgorithmVariant
    timing_msec: float
    workspace_size: int

    def get_algorithm_io_info(self, index: int) -> IAlgorithmIOInfo:
        """An operand."""
        raise NotImplementedError


class IAlgorithmSelector(IVersionedInterface):
    """Interface of what chooses among kernels; builds here choose themselves, and never ask it."""

    def __init__(self) -> None:
        pass

    def select_algorithms(self, context: IAlgorithmContext, choices: Sequence[IAlgorithm]) -> list[int]:
        """The numbers of the choices that a build may time."""
        raise NotImplementedError("a subclass of IAlgorithmSelector must define select_algorithms()")

    def report_algorithms(self, contexts: Sequence[IAlgorithmContext], choices: Sequence[IAlgorithm]) -> None:
        """Told what was chosen."""
        raise NotImplementedError("a subclass of IAlgorithmSelector must define report_algorithms()")


class IStreamReader:
    """Interface of a source of bytes; subclass it, call ``IStreamReader.__init__``, define ``read(size)``."""

    def __init__(self) -> None:
        pass

    def read(self, size: int) -> Any:
        """Returns at most `size` bytes; nothing at the end."""
        raise NotImplementedError("a subclass of IStreamReader must define read()")


class SubGraphCollection(BoundList[tuple[list[int], bool]]):
    """Runs of nodes, each with whether it is supported."""


# --- members that only 10 has: each class is copied into its base -----------------------------------------


def is_weakly_typed(network: Any) -> bool:
    """Whether a network's types are for the builder to choose."""
    return not network.get_flag(CreationFlag.STRONGLY_TYPED)


_RANGES: WeakKeyDictionary[ITensor, tuple[float, float]] = WeakKeyDictionary()


class _Tensor(ITensor):
    @property
    def dtype(self) -> DataType:
        """The element type; in a weakly typed network that of inputs and of what layers make can be set."""
        self._refresh()
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        wanted = instance_of(DataType, dtype, "dtype")
        if wanted is self.dtype:
            return
        if self._producer is not None:
            self._producer.set_output_type(self._index, wanted)  # type: ignore[attr-defined]
            return
        self._dtype, self._host = wanted, None
        for layer in self._consumers:
            layer._changed()

    @property
    def dynamic_range(self) -> tuple[float, float] | None:
        """The range that was set, None if none was; kept."""
        return _RANGES.get(self)

    @dynamic_range.setter
    def dynamic_range(self, dynamic_range: Sequence[float] | None) -> None:
        if dynamic_range is None:
            _RANGES.pop(self, None)
            return
        least, most = map(to_number, dynamic_range)
        self.set_dynamic_range(least, most)

    def set_dynamic_range(self, min: float, max: float) -> bool:
        """Sets a range for the tensor, which is kept; False where the range is not symmetric."""
        least, most = to_number(min), to_number(max)
        if -least != most:
            self._report(Refusal(f"a dynamic range is symmetric, not {least} to {most}"))
            return False
        _RANGES[self] = (least, most)
        return True

    def reset_dynamic_range(self) -> None:
        """Forgets the range."""
        _RANGES.pop(self, None)


class _Layer(ILayer):
    def _asked_types(self) -> dict[int, DataType]:
        asked: dict[int, DataType] = self.__dict__.get("_asked", {})
        return asked

    def _learn(self, facts: Sequence[Facts]) -> None:
        asked = self._asked_types()
        for index, (output, fact) in enumerate(zip(self._outputs, facts, strict=True)):
            output._extents, output._dtype, output._host = fact
            wanted = asked.get(index, fact.dtype)
            if wanted is not fact.dtype:
                output._dtype = wanted
                output._host = fact.host if {wanted, fact.dtype} <= INDICES else None

    def _may_choose(self, what: str) -> bool:
        if self._network is not None and is_weakly_typed(self._network):
            return True
        self._report(Refusal(f"{what} cannot be set in a strongly typed network; add a cast"))
        return False

    @property
    def precision(self) -> DataType:
        """The type to compute in, where the builder's flags allow it."""
        found: DataType = self.__dict__.get("_precision", DataType.FLOAT)
        return found

    @precision.setter
    def precision(self, precision: DataType) -> None:
        wanted = instance_of(DataType, precision, "precision")
        if self._may_choose("precision"):
            self.__dict__["_precision"] = wanted

    @property
    def precision_is_set(self) -> bool:
        """Whether a type to compute in was set."""
        return "_precision" in self.__dict__

    def reset_precision(self) -> None:
        """Leaves the type to compute in to the builder."""
        self.__dict__.pop("_precision", None)

    def set_output_type(self, index: int, dtype: DataType) -> None:
        """Chooses the type of an output: it is a cast of what the layer computes."""
        position, wanted = to_integer(index), instance_of(DataType, dtype, "dtype")
        if not self._may_choose("the type of an output"):
            return
        if not 0 <= position < len(self._outputs):
            self._report(Refusal(f"output {position} is outside [0, {len(self._outputs)})"))
            return
        if wanted not in _CASTABLE and wanted is not self._outputs[position].dtype:
            self._report(Refusal(f"{wanted.name} is made by quantizing layers; dynamic ranges quantize nothing here"))
            return
        self.__dict__["_asked"] = {**self._asked_types(), position: wanted}
        self._changed()

    def output_type_is_set(self, index: int) -> bool:
        """Whether the type of an output was chosen."""
        return to_integer(index) in self._asked_types()

    def reset_output_type(self, index: int) -> None:
        """Leaves the type of an output to the layer."""
        position = to_integer(index)
        self.__dict__["_asked"] = {at: dtype for at, dtype in self._asked_types().items() if at != position}
        self._changed()


_CASTABLE: Final = FLOATS | INDICES | {DataType.BOOL, DataType.UINT8}


class _Normalization(INormalizationLayer):
    @property
    def compute_precision(self) -> DataType:
        """The type of the sums; kept, sums are those of float32."""
        found: DataType = self.__dict__.get("_compute_precision", DataType.FLOAT)
        return found

    @compute_precision.setter
    def compute_precision(self, dtype: DataType) -> None:
        self.__dict__["_compute_precision"] = instance_of(DataType, dtype, "compute_precision")


_OF_MANY_TYPES: Final = frozenset(
    {
        *(LayerType.QUANTIZE, LayerType.DEQUANTIZE, LayerType.DYNAMIC_QUANTIZE, LayerType.PLUGIN_V2),
        *(LayerType.PLUGIN_V3, LayerType.MOE),
    }
)
"""Layers whose operands have types of their own."""
_IN_LOW_PRECISION: Final = frozenset({LayerType.CONVOLUTION, LayerType.DECONVOLUTION, LayerType.MATRIX_MULTIPLY})
_FOLLOWING: Final = frozenset(
    {
        *(LayerType.ACTIVATION, LayerType.CONCATENATION, LayerType.ELEMENTWISE, LayerType.IDENTITY, LayerType.POOLING),
        *(LayerType.SCALE, LayerType.SHUFFLE, LayerType.SLICE),
    }
)
"""Layers that stay in the type of such layers where they read nothing else, so that nothing is cast in between."""


class _Network(INetworkDefinition):
    def add_quantize(
        self, input: ITensor, scale: ITensor, output_type: DataType = DataType.INT8
    ) -> IQuantizeLayer | None:
        """Adds a quantization, to INT8 unless another type is given."""
        return super(INetworkDefinition, self).add_quantize(input, scale, output_type)

    def add_dequantize(
        self, input: ITensor, scale: ITensor, output_type: DataType = DataType.FLOAT
    ) -> IDequantizeLayer | None:
        """Adds a dequantization, to FLOAT unless another type is given."""
        return super(INetworkDefinition, self).add_dequantize(input, scale, output_type)

    def _of_one_type(self, layer: ILayer, inputs: tuple[ITensor | None, ...]) -> tuple[ITensor | None, ...]:
        if not is_weakly_typed(self) or layer._KIND in _OF_MANY_TYPES:
            return inputs
        types = {tensor.dtype for tensor in inputs if tensor is not None} & FLOATS
        if len(types) > 1:
            inputs = tuple(
                tensor if tensor is None or tensor.dtype not in types - {DataType.FLOAT} else self._widened(tensor)
                for tensor in inputs
            )
            types = {DataType.FLOAT}
        if types and layer._roles:
            (wanted,) = types
            _convert_weights(layer, wanted)
        return inputs

    def _widened(self, tensor: ITensor) -> ITensor | None:
        cast = self.add_cast(tensor, DataType.FLOAT)
        return None if cast is None else cast.get_output(0)

    @contextmanager
    def _as_built(self, config: IBuilderConfig) -> Iterator[None]:
        if not is_weakly_typed(self):
            yield
            return
        if config.get_flag(BuilderFlag["INT8"]):
            self._reporter.info("BuilderFlag.INT8 has no effect: networks compute in INT8 where they quantize")
        self._validate()  # what is stale would be inferred from casts
        layers, self._layers = self._layers, list(self._layers)
        with ExitStack() as undo:
            typing = _Typing(self, config, undo)
            for layer in layers:
                typing.apply(layer)
            self._revision += 1
            try:
                yield
            finally:
                self._layers = layers
                self._revision += 1


def _convert_weights(layer: ILayer, dtype: DataType) -> None:
    """Rounds float weights of a layer to another float type."""
    for role, weights in layer._roles.items():
        if weights._dtype in FLOATS - {dtype}:
            layer._roles[role] = _rounded(weights, dtype)


def _rounded(weights: Weights, dtype: DataType) -> Weights:
    if not weights._count:
        return Weights(dtype)
    return Weights._on_device(dtype, weights._tensor().to(CARRIERS[dtype]))


class _Typing:
    """Puts casts into a network for the time of a build: for outputs of chosen types, and around what is in half.

    Args:
        network: Weakly typed, with nothing stale.
        config: Says which types may be computed in.
        undo: Gets what takes everything back.
    """

    def __init__(self, network: INetworkDefinition, config: IBuilderConfig, undo: ExitStack) -> None:
        self._network = network
        self._undo = undo
        allowed = {DataType.HALF: "FP16", DataType.BF16: "BF16"}
        self._allowed = [dtype for dtype, flag in allowed.items() if config.get_flag(BuilderFlag[flag])]
        refit = (BuilderFlag.REFIT, BuilderFlag.REFIT_INDIVIDUAL, BuilderFlag.REFIT_IDENTICAL, BuilderFlag.STRIP_PLAN)
        self._keeps_weights = any(map(config.get_flag, refit))
        self._narrow: dict[int, ITensor] = {}  # what a cast that stands here widened, by what it made

    def apply(self, layer: ILayer) -> None:
        """Gives one layer the types that were chosen for it."""
        types = [output._dtype for output in layer._outputs]
        facts: Sequence[Facts] | None = None
        precision = self._precision(layer)
        if precision is not None:
            facts = self._computed_in(layer, precision)
        if facts is None and layer.__dict__.get("_asked"):
            facts = self._network._inference.infer(layer)
        if facts is not None:
            for index, (fact, wanted) in enumerate(zip(facts, types, strict=True)):
                if fact.dtype is not wanted:
                    self._cast_output(layer, index, fact.dtype)

    def _precision(self, layer: ILayer) -> DataType | None:
        """The type to compute a layer in, None for its own."""
        if self._keeps_weights and layer._roles:
            return None
        asked: DataType | None = layer.__dict__.get("_precision")
        if asked is not None:
            return asked if asked in self._allowed else None
        if not self._allowed:
            return None
        if layer._KIND in _FOLLOWING:
            floats = [tensor for tensor in layer._inputs if tensor is not None and tensor._dtype in FLOATS]
            follows = bool(floats) and all(id(tensor) in self._narrow for tensor in floats)
            return self._allowed[0] if follows else None
        return self._allowed[0] if layer._KIND in _IN_LOW_PRECISION else None

    def _computed_in(self, layer: ILayer, precision: DataType) -> Sequence[Facts] | None:
        """Narrows the operands of a layer; None, and everything as before, where it has no such form."""
        inputs, roles = list(layer._inputs), dict(layer._roles)
        if not any(tensor is not None and tensor._dtype is DataType.FLOAT for tensor in inputs):
            return None
        casts = len(self._network._layers)
        layer._inputs = [
            tensor if tensor is None or tensor._dtype is not DataType.FLOAT else self._narrowed(tensor, precision)
            for tensor in inputs
        ]
        _convert_weights(layer, precision)

        def restore() -> None:
            layer._inputs = inputs
            layer._roles.update(roles)

        try:
            facts = self._network._inference.infer(layer)
        except Refusal:
            restore()
            del self._network._layers[casts:]
            return None
        self._undo.callback(restore)
        return facts

    def _narrowed(self, tensor: ITensor, dtype: DataType) -> ITensor:
        narrow = self._narrow.get(id(tensor))
        if narrow is not None and narrow._dtype is dtype:  # it was widened from just that
            return narrow
        made = ITensor(tensor._network, None, 0, f"{tensor.name} [{dtype.name}]", dtype, tensor._extents)
        self._add_cast(tensor, made, dtype)
        return made

    def _cast_output(self, layer: ILayer, index: int, dtype: DataType) -> None:
        output, name = layer._outputs[index], layer._outputs[index]._name
        own = ITensor(output._network, layer, index, f"{output.name} [{dtype.name}]", dtype, output._extents)

        def restore() -> None:
            layer._outputs[index] = output
            output._producer, output._index, output._name = layer, index, name

        output._name = output.name
        layer._outputs[index] = own
        self._undo.callback(restore)
        self._add_cast(own, output, output._dtype)
        if output._dtype is DataType.FLOAT:
            self._narrow[id(output)] = own

    def _add_cast(self, source: ITensor, target: ITensor, dtype: DataType) -> None:
        cast = ICastLayer._create(to_type=dtype)
        cast._name = f"{source.name} to {dtype.name}"
        cast._network = self._network
        cast._inputs, cast._outputs = [source], [target]
        cast._check([source])
        target._producer, target._index = cast, 0
        self._network._layers.append(cast)


class _Config(IBuilderConfig):
    int8_calibrator = optional_of(IInt8Calibrator, "Kept, and never called: quantize in the network.")
    algorithm_selector = optional_of(IAlgorithmSelector, "Kept, and never asked.")
    quantization_flags = Setting(to_integer, 0, "Bit mask of ``1 << int(QuantizationFlag)``; kept.")

    def set_quantization_flag(self, flag: Any) -> None:
        """Sets a flag of calibration; kept."""
        self.quantization_flags |= 1 << int(instance_of(QuantizationFlag, flag, "flag"))

    def clear_quantization_flag(self, flag: Any) -> None:
        """Clears a flag of calibration."""
        self.quantization_flags &= ~(1 << int(instance_of(QuantizationFlag, flag, "flag")))

    def get_quantization_flag(self, flag: Any) -> bool:
        """Whether a flag of calibration is set."""
        return bool(self.quantization_flags >> int(instance_of(QuantizationFlag, flag, "flag")) & 1)

    def set_calibration_profile(self, profile: IOptimizationProfile) -> bool:
        """Keeps the profile of calibration."""
        self._of_10_profile = instance_of(IOptimizationProfile, profile, "profile")
        return True

    def get_calibration_profile(self) -> IOptimizationProfile | None:
        """The profile of calibration, None if none was set."""
        found: IOptimizationProfile | None = self.__dict__.get("_of_10_profile")
        return found


class _Builder(Builder):
    @property
    def platform_has_tf32(self) -> bool:
        """Whether the device has products in TF32."""
        return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)

    @property
    def platform_has_fast_fp16(self) -> bool:
        """Whether half is worth it; PyTorch's kernels have it on every device."""
        return True

    @property
    def platform_has_fast_int8(self) -> bool:
        """Whether INT8 is worth it; quantized layers have kernels on every device."""
        return True


class _Engine(ICudaEngine):
    @property
    def device_memory_size(self) -> int:
        """As `device_memory_size_v2`."""
        return self.device_memory_size_v2

    def get_device_memory_size_for_profile(self, profile_index: int) -> int:
        """As `get_device_memory_size_for_profile_v2`."""
        return self.get_device_memory_size_for_profile_v2(profile_index)

    @property
    def has_implicit_batch_dimension(self) -> bool:
        """Always False."""
        return False

    @property
    def weight_streaming_budget(self) -> int:
        """As `weight_streaming_budget_v2`."""
        return self.weight_streaming_budget_v2

    @weight_streaming_budget.setter
    def weight_streaming_budget(self, budget: int) -> None:
        self.weight_streaming_budget_v2 = budget

    @property
    def minimum_weight_streaming_budget(self) -> int:
        """The least budget: all weights may be streamed."""
        return 0

    def create_execution_context_without_device_memory(self) -> IExecutionContext | None:
        """Makes a context whose memory the application provides."""
        return self.create_execution_context(ExecutionContextAllocationStrategy.USER_MANAGED)


class _Context(IExecutionContext):
    @property
    def all_shape_inputs_specified(self) -> bool:
        """Whether every shape tensor among the inputs has its values."""
        return self.all_binding_shapes_specified and not self.infer_shapes()


class _Registry(IPluginRegistry):
    @property
    def plugin_creator_list(self) -> list[Any]:
        """The creators of plugins of the second version."""
        return [creator for creator in self.all_creators if isinstance(creator, IPluginCreator)]

    def get_plugin_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        """The creator of plugins of the second version that has a name; None if there is none."""
        found = self.get_creator(type, version, plugin_namespace)
        return found if isinstance(found, IPluginCreator) else None


class _Parser(OnnxParser):
    def supports_model(self, model: Any, path: str | None = None) -> tuple[bool, SubGraphCollection]:
        """As `supports_model_v2`, together with the runs of nodes."""
        whole = self.supports_model_v2(model, path)
        return whole, SubGraphCollection(self._subgraphs)

    def parse_with_weight_descriptors(self, model: Any) -> bool:
        """As `parse`; a model that holds addresses in place of weights is refused like any without data."""
        return self.parse(model)


class _Refitter(Refitter):
    def set_dynamic_range(self, tensor_name: str, range: Sequence[float]) -> bool:
        """False: no engine has dynamic ranges."""
        self._reporter.error("set_dynamic_range", f"{to_text(tensor_name)!r} has no dynamic range in this engine")
        return False

    def get_dynamic_range(self, tensor_name: str) -> tuple[float, float]:
        """No range: none is in an engine."""
        to_text(tensor_name)
        return (0.0, 0.0)

    def get_tensors_with_dynamic_range(self) -> list[str]:
        """None."""
        return []


class _WholeStream(IStreamReaderV2):
    """A stream of the first version as one of the second."""

    def __init__(self, reader: IStreamReader) -> None:
        super().__init__()
        self._reader = reader

    def read(self, num_bytes: int, stream: int) -> Any:
        """Returns at most `num_bytes` bytes; nothing at the end."""
        return self._reader.read(num_bytes)

    def seek(self, offset: int, where: SeekPosition) -> bool:
        """False: the first version has no positions."""
        return False


_deserialize = Runtime.deserialize_cuda_engine


class _Runtime(Runtime):
    def deserialize_cuda_engine(
        self,
        serialized_engine: Any = None,
        *,
        stream_reader: IStreamReader | None = None,
        stream_reader_v2: IStreamReaderV2 | None = None,
    ) -> ICudaEngine | None:
        """As in 11, from a stream of the first version too."""
        source: Any = serialized_engine
        for given in (stream_reader, stream_reader_v2):
            source = source if given is None else given
        return _deserialize(self, _WholeStream(source) if isinstance(source, IStreamReader) else source)


_MEMBERS: Final[dict[type, type]] = {
    Builder: _Builder,
    IBuilderConfig: _Config,
    ICudaEngine: _Engine,
    IExecutionContext: _Context,
    ILayer: _Layer,
    INetworkDefinition: _Network,
    INormalizationLayer: _Normalization,
    IPluginRegistry: _Registry,
    ITensor: _Tensor,
    OnnxParser: _Parser,
    Refitter: _Refitter,
    Runtime: _Runtime,
}
_CLASSES: Final[tuple[type, ...]] = (
    *(IAlgorithm, IAlgorithmContext, IAlgorithmIOInfo, IAlgorithmSelector, IAlgorithmVariant, IInt8Calibrator),
    *(IInt8EntropyCalibrator, IInt8EntropyCalibrator2, IInt8LegacyCalibrator, IInt8MinMaxCalibrator, IStreamReader),
    SubGraphCollection,
)


def install() -> dict[str, Any]:
    """Puts the members of 10 into the classes of this package.

    Returns:
        The public names that only 10 has.
    """
    for target, members in _MEMBERS.items():
        for name, value in vars(members).items():
            if isinstance(value, (FunctionType, property, Setting)):
                setattr(target, name, value)
    found: dict[str, Any] = {each.__name__: each for each in _CLASSES}
    return found | {"CalibrationAlgoType": CalibrationAlgoType, "QuantizationFlag": QuantizationFlag}
