"""`ICudaEngine`: a plan, loaded onto a device."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

import torch

from trt_portable.enums import (
    EngineStat,
    ErrorCodeTRT,
    ExecutionContextAllocationStrategy,
    SerializationFlag,
)
from trt_portable.error_recorder import Reporter
from trt_portable.host_memory import IHostMemory
from trt_portable.plan.container import Plan
from trt_portable.plan.engine_info import EngineInfo, Shape
from trt_portable.plan.engine_plan import is_host_constant, write_engine
from trt_portable.plan.weight_store import WeightStore
from trt_portable.runtime.engine_queries import EngineQueries
from trt_portable.runtime.execution_context import IExecutionContext
from trt_portable.runtime.image import load_image, shape_only_inputs
from trt_portable.runtime.inspector import EngineInspector
from trt_portable.runtime.program import Program
from trt_portable.runtime.runtime_config import IRuntimeConfig, ISerializationConfig
from trt_portable.runtime.shape_report import ShapeReport, report_shapes
from trt_portable.runtime.tactic import TACTICS
from trt_portable.values import HostValues, Value

_META: Final = torch.device("meta")
_MAX_REMEMBERED_SHAPES: Final = 256


class ICudaEngine(EngineQueries):
    """A loaded engine; made by `Runtime.deserialize_cuda_engine` or `Builder.build_engine_with_config`.

    Queries and contexts are safe to use from several threads, one context per thread.
    """

    def __init__(self, plan: Plan, device: torch.device, reporter: Reporter) -> None:
        info = EngineInfo.from_json(plan.structure["engine"])
        super().__init__(info, len(plan.structure["network"]["layers"]), reporter)
        self._device = device
        self._structure: dict[str, Any] = plan.structure["network"]
        self._features: list[str] = plan.structure["features"]
        self._inputs = [tensor for tensor in info.io if tensor.is_input]
        self._outputs = [tensor for tensor in info.io if not tensor.is_input]
        self._host_inputs = [at for at, tensor in enumerate(self._inputs) if tensor.is_host]
        # the plan's bytes back the weights of CPU engines, so they stay as long as the engine does
        self._owner = plan.owner if device.type == "cpu" else None
        image, layers = load_image(self._structure, info, device)
        self._shape_only_inputs = shape_only_inputs(image, self._inputs)
        self._weights = WeightStore(info.weight_slots, layers, _weights_on(device, plan, info))
        self._program = TACTICS[info.tactic].load(image)
        if not self._weights.missing:
            self._program.load_constants()
        self._shape_program: Program | None = None
        self._shape_reports: dict[Any, ShapeReport] = {}
        self._device_memory_sizes: dict[int, int] = {}
        self._contexts: weakref.WeakSet[IExecutionContext] = weakref.WeakSet()
        self._streaming_budget = self.streamable_weights_size
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    # Memory ----------------------------------------------------------------------------------------

    @property
    def device_memory_size_v2(self) -> int:
        """Bytes of intermediate values at the largest shapes of any profile; 0 where unknown."""
        sizes = [self.get_device_memory_size_for_profile_v2(at) for at in self._profile_indices()]
        return max(sizes)

    def _profile_indices(self) -> range:
        return range(len(self._info.profiles))

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        """Bytes of intermediate values at the largest shapes of a profile; 0 where unknown."""
        if not self._has_profile(profile_index):
            return 0
        size = self._device_memory_sizes.get(profile_index)
        if size is None:
            size = self._device_memory_sizes[profile_index] = self._peak_bytes(profile_index)
        return size

    def _peak_bytes(self, profile: int) -> int:
        shapes = tuple(self._allowed_shape(tensor, profile).max for tensor in self._inputs)
        values = self._info.profiles[profile].values
        numbers = {}
        for index in self._host_inputs:
            allowed = values.get(self._inputs[index].name)
            if allowed is None:
                return 0
            numbers[index] = allowed.max
        try:
            return self._infer(shapes, numbers).peak_bytes
        except RuntimeError:  # the greatest extents need not fit each other
            return 0

    @property
    def streamable_weights_size(self) -> int:
        """Bytes of weights that could be streamed; 0 unless built for weight streaming."""
        return self._weights.bytes_of() if self._info.weight_streaming else 0

    @property
    def weight_streaming_budget_v2(self) -> int:
        """Bytes of weights kept on the device; kept and reported, weights always stay there."""
        return self._streaming_budget

    @weight_streaming_budget_v2.setter
    def weight_streaming_budget_v2(self, budget: int) -> None:
        if self._contexts or not self._info.weight_streaming or budget < 0:
            self._reporter.error(
                "weight_streaming_budget_v2",
                "needs an engine built with WEIGHT_STREAMING, without contexts, and a budget >= 0",
                ErrorCodeTRT.INVALID_STATE,
            )
            return
        self._streaming_budget = min(int(budget), self.streamable_weights_size)

    @property
    def weight_streaming_scratch_memory_size(self) -> int:
        """0: nothing is streamed."""
        return 0

    def get_weight_streaming_automatic_budget(self) -> int:
        """All weights."""
        return self.streamable_weights_size

    def get_engine_stat(self, stat: EngineStat = EngineStat.TOTAL_WEIGHTS_SIZE) -> int:
        """Size of all weights, or of those that the plan left out (-1 if it left out none)."""
        if stat is EngineStat.TOTAL_WEIGHTS_SIZE:
            return self._weights.bytes_of()
        return self._weights.bytes_of(self._info.stripped) if self._info.stripped else -1

    # Children --------------------------------------------------------------------------------------

    def create_runtime_config(self) -> IRuntimeConfig:
        """Settings for `create_execution_context`."""
        return IRuntimeConfig()

    def create_execution_context(
        self,
        strategy: ExecutionContextAllocationStrategy
        | IRuntimeConfig
        | None = ExecutionContextAllocationStrategy.STATIC,
        runtime_config: IRuntimeConfig | None = None,
    ) -> IExecutionContext | None:
        """Makes a context, on profile 0.

        Args:
            strategy: Who provides memory for intermediate values, or a runtime configuration.
            runtime_config: The same, as a configuration.
        """
        config = runtime_config if runtime_config is not None else IRuntimeConfig()
        if isinstance(strategy, IRuntimeConfig):
            config = strategy
        elif strategy is not None and runtime_config is None:
            config.set_execution_context_allocation_strategy(strategy)
        chosen = config.get_execution_context_allocation_strategy()
        context = IExecutionContext(self, chosen, config, self._reporter.child())
        self._contexts.add(context)
        return context

    def create_engine_inspector(self) -> EngineInspector:
        """Makes an inspector of this engine."""
        return EngineInspector(self, self._reporter.child())

    def create_serialization_config(self) -> ISerializationConfig:
        """Settings for `serialize_with_config`."""
        return ISerializationConfig()

    # Serialization ---------------------------------------------------------------------------------

    def serialize(self) -> IHostMemory | None:
        """The engine as a plan, with the weights it has now."""
        return self.serialize_with_config(ISerializationConfig())

    def serialize_with_config(self, arg0: ISerializationConfig) -> IHostMemory | None:
        """The engine as a plan.

        Args:
            arg0: EXCLUDE_WEIGHTS leaves out what a refit can bring back; INCLUDE_REFIT keeps an engine
                that was stripped and refitted refittable.

        Returns:
            None, with a report, when weights are to be excluded from an engine that has no refit.
        """
        exclude = arg0.get_flag(SerializationFlag.EXCLUDE_WEIGHTS)
        if exclude and not self.refittable:
            self._reporter.error(
                "serialize_with_config",
                "EXCLUDE_WEIGHTS needs a refittable engine",
                ErrorCodeTRT.INVALID_CONFIG,
            )
            return None
        keep_refit = exclude or not self._info.stripped or bool(self._weights.missing)
        keep_refit = keep_refit or arg0.get_flag(SerializationFlag.INCLUDE_REFIT)
        slots, tensors = self._weights.snapshot()
        return write_engine(
            self._structure,
            self._info,
            slots,
            tensors,
            self._features,
            strip=exclude,
            keep_refit=keep_refit,
        )

    # Shapes, refit ---------------------------------------------------------------------------------

    def _replace_weights(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Gives uses of weights, by index, new tensors; runs that have begun keep the old ones."""
        self._weights.replace(tensors, self._program)
        if any(is_host_constant(self._weights.slots[index]) for index in tensors):
            self._shape_program = None
            self._shape_reports = {}

    def _infer(self, shapes: tuple[Shape, ...], numbers: dict[int, tuple[Any, ...]]) -> ShapeReport:
        """Output shapes for input shapes and the numbers of host inputs, by input index.

        Raises:
            LayerFailure: A layer refused the shapes.
        """
        key = (shapes, tuple(numbers.items()))
        report = self._shape_reports.get(key)
        if report is None:
            if self._shape_program is None:
                self._shape_program = self._load_shape_program()
            values: list[Value] = [
                HostValues.of(numbers[at], shape, tensor.torch_dtype, _META)
                if at in numbers
                else torch.empty(shape, dtype=tensor.torch_dtype, device=_META)
                for at, (tensor, shape) in enumerate(zip(self._inputs, shapes, strict=True))
            ]
            report = report_shapes(self._shape_program, values)
            if len(self._shape_reports) >= _MAX_REMEMBERED_SHAPES:
                self._shape_reports.clear()
            self._shape_reports[key] = report
        return report

    def _load_shape_program(self) -> Program:
        image, layers = load_image(self._structure, self._info, _META)
        WeightStore(
            self._weights.slots,
            layers,
            [
                self._weights.tensor(index) if is_host_constant(slot) else None
                for index, slot in enumerate(self._weights.slots)
            ],
        )
        program = Program(image.calls, image.inputs, image.outputs)
        program.load_constants()
        return program


def _weights_on(device: torch.device, plan: Plan, info: EngineInfo) -> list[torch.Tensor | None]:
    """A tensor per use of weights, on a device and moved there in one piece; None where stripped."""
    tensors = dict(plan.weights)
    if device.type != "cpu":
        data = plan.data.to(device)
        for name, tensor in plan.weights.items():
            begin = plan.offsets[name]
            tensors[name] = data[begin : begin + tensor.nbytes].view(tensor.dtype)
        for slot in info.weight_slots:
            if is_host_constant(slot) and slot.weights in plan.weights:
                tensors[slot.weights] = plan.weights[slot.weights].clone()
    return [tensors.get(slot.weights) for slot in info.weight_slots]
