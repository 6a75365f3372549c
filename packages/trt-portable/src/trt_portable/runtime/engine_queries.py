"""What a loaded engine tells of its tensors, its profiles and the settings it was built with."""

from __future__ import annotations

from collections.abc import Iterator

from trt_core.files import records
from trt_portable.dims import Dims
from trt_portable.enums import (
    DataType,
    EngineCapability,
    HardwareCompatibilityLevel,
    ProfilingVerbosity,
    TensorFormat,
    TensorIOMode,
    TensorLocation,
)
from trt_portable.formats import LAYOUTS, Layout, describe_format
from trt_portable.plan.engine_info import EngineInfo, IOTensor, RefitMode
from trt_portable.pybind import ContextManaged, Sealed, to_integer, to_text
from trt_portable.reporting import RecordsErrors, Reporter


class EngineQueries(RecordsErrors, ContextManaged, Sealed):
    """The part of an engine that answers from its plan alone.

    Args:
        info: The engine part of a plan.
        num_layers: Layers that are executed.
        reporter: Receives what is wrong with a question.
    """

    def __init__(self, info: EngineInfo, num_layers: int, reporter: Reporter) -> None:
        self._info = info
        self._reporter = reporter
        self._num_layers = num_layers
        self._io = {tensor.name: tensor for tensor in info.io}

    # Tensors ---------------------------------------------------------------------------------------

    @property
    def num_io_tensors(self) -> int:
        """Number of inputs and outputs."""
        return len(self._info.io)

    def get_tensor_name(self, index: int) -> str | None:
        """Name of an input or output: inputs first, each in network order; None out of range."""
        index = to_integer(index)
        if not 0 <= index < len(self._info.io):
            self._reporter.error("get_tensor_name", f"index {index} is out of range")
            return None
        return self._info.io[index].name

    def __getitem__(self, arg0: int) -> str:
        return self._info.io[arg0].name

    def __iter__(self) -> Iterator[str]:
        return iter([tensor.name for tensor in self._info.io])

    def _tensor(self, name: str, profile_index: int = 0) -> IOTensor | None:
        to_integer(profile_index)
        tensor = self._io.get(name)
        if tensor is None:
            self._reporter.error("engine", f"no input or output is named {to_text(name)!r}")
        return tensor

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Input or output; NONE for an unknown name."""
        tensor = self._io.get(to_text(name))
        if tensor is None:
            return TensorIOMode.NONE
        return TensorIOMode.INPUT if tensor.is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        """Element type; FLOAT for an unknown name."""
        tensor = self._tensor(name)
        return DataType.FLOAT if tensor is None else tensor.dtype

    def get_tensor_shape(self, name: str) -> Dims:
        """Extents, -1 for dynamic ones; invalid dims for an unknown name."""
        tensor = self._tensor(name)
        return Dims._invalid() if tensor is None else Dims(tensor.shape)

    def get_tensor_location(self, name: str) -> TensorLocation:
        """HOST for shape tensors, DEVICE for all others."""
        tensor = self._tensor(name)
        is_host = tensor is not None and tensor.is_host
        return TensorLocation.HOST if is_host else TensorLocation.DEVICE

    def is_shape_inference_io(self, name: str) -> bool:
        """Whether `IExecutionContext.infer_shapes` reads or writes the tensor."""
        tensor = self._tensor(name)
        return tensor is not None and tensor.is_host

    def is_debug_tensor(self, name: str) -> bool:
        """Whether the network marked a tensor of this name for debugging."""
        return to_text(name) in self._info.debug_tensors.values()

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """The input that must share an output's memory, or None."""
        tensor = self._tensor(name)
        return None if tensor is None else tensor.aliased_input

    def get_tensor_format(self, name: str, profile_index: int = 0) -> TensorFormat:
        """How the bound memory is laid out; LINEAR for an unknown name."""
        tensor = self._tensor(name, profile_index)
        return TensorFormat.LINEAR if tensor is None else tensor.format

    def get_tensor_format_desc(self, name: str, profile_index: int = 0) -> str:
        """The format in words."""
        tensor = self._tensor(name, profile_index)
        return "" if tensor is None else describe_format(tensor.format, tensor.dtype)

    def get_tensor_bytes_per_component(self, name: str, profile_index: int = 0) -> int:
        """Bytes of one number in a vector; -1 where the format has no vectors."""
        found = self._vectors(name, profile_index)
        return -1 if found is None else found[0].torch_dtype.itemsize

    def get_tensor_components_per_element(self, name: str, profile_index: int = 0) -> int:
        """Numbers in a vector; -1 where the format has no vectors."""
        found = self._vectors(name, profile_index)
        return -1 if found is None else found[1].lanes

    def get_tensor_vectorized_dim(self, name: str, profile_index: int = 0) -> int:
        """The axis along which vectors lie; -1 where the format has no vectors."""
        found = self._vectors(name, profile_index)
        return -1 if found is None else len(found[0].shape) - found[1].channel

    def _vectors(self, name: str, profile_index: int) -> tuple[IOTensor, Layout] | None:
        tensor = self._tensor(name, profile_index)
        layout = None if tensor is None else LAYOUTS.get(tensor.format)
        return None if tensor is None or layout is None or layout.lanes == 1 else (tensor, layout)

    # Profiles --------------------------------------------------------------------------------------

    @property
    def num_optimization_profiles(self) -> int:
        """At least 1."""
        return len(self._info.profiles)

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Dims]:
        """[min, opt, max] extents of an input in a profile; empty when there is no such thing."""
        tensor = self._tensor(name, profile_index)
        if tensor is None or not tensor.is_input or not self._has_profile(profile_index):
            return []
        allowed = self._info.allowed_shape(tensor, profile_index)
        return [Dims(allowed.min), Dims(allowed.opt), Dims(allowed.max)]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        """[min, opt, max] values of a shape input; as in TensorRT, the profile's index comes first.

        Raises:
            RuntimeError: Not a shape input, or no such profile.
        """
        profile, tensor = to_integer(name), self._io.get(to_text(profile_index))
        if tensor is None or not (tensor.is_input and tensor.is_host):
            raise RuntimeError(f"{profile_index!r} is not a shape input of the engine")
        if not 0 <= profile < len(self._info.profiles):
            raise RuntimeError(f"profile {profile} does not exist")
        values = self._info.profiles[profile].values.get(tensor.name)
        return [] if values is None else records.write(values)

    def _has_profile(self, index: int) -> bool:
        if 0 <= index < len(self._info.profiles):
            return True
        count = len(self._info.profiles)
        self._reporter.error("engine", f"profile {index} does not exist: there are {count}")
        return False

    # Properties ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The network's name."""
        return self._info.name

    @property
    def num_layers(self) -> int:
        """Layers that are executed; fewer than the network has where layers were removed or folded."""
        return self._num_layers

    @property
    def refittable(self) -> bool:
        """Whether weights may be replaced."""
        return self._info.refit is not RefitMode.NONE

    @property
    def engine_capability(self) -> EngineCapability:
        """Always STANDARD."""
        return self._info.capability

    @property
    def hardware_compatibility_level(self) -> HardwareCompatibilityLevel:
        """As configured."""
        return self._info.hardware

    @property
    def profiling_verbosity(self) -> ProfilingVerbosity:
        """As configured."""
        return self._info.verbosity

    @property
    def tactic_sources(self) -> int:
        """As configured."""
        return self._info.tactic_sources

    @property
    def num_aux_streams(self) -> int:
        """0: everything runs on the main stream."""
        return 0

    # Memory ----------------------------------------------------------------------------------------

    @property
    def device_memory_size_v2(self) -> int:
        """Bytes of intermediate values at the largest shapes of any profile; 0 where unknown."""
        sizes = [self.get_device_memory_size_for_profile_v2(at) for at in self._profile_indices()]
        return max(sizes)

    def _profile_indices(self) -> range:
        return range(len(self._info.profiles))

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        """Bytes of intermediate values at the largest shapes of a profile, and of weights that come and go."""
        raise NotImplementedError
