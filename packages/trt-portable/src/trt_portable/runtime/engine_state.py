"""A plan on a device: what an engine, its contexts, its inspector, its refitter and tracing share."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_core.copies import copy_all
from trt_core.files import records, typed
from trt_core.forked_lock import ForkedLock
from trt_core.limits import LimitReached
from trt_core.remembered import Remembered
from trt_portable.errors import PortableError
from trt_portable.execution.bounded_runs import BoundedRuns, RunBounds
from trt_portable.execution.launcher import Executable, WithoutTF32
from trt_portable.execution.loaded_network import load_network, shape_only_inputs
from trt_portable.execution.paging import release_pages_of
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.execution.shapes import ShapeReport, load_shape_program, report_shapes
from trt_portable.fusion.epilogues import planned
from trt_portable.fusion.programs import fused_program, host_program, prepacked_program, streamed_program
from trt_portable.libraries import NAMES as LIBRARIES
from trt_portable.network.layer import META
from trt_portable.plan import tables
from trt_portable.plan.engine_info import EngineInfo, Shape, is_host_constant
from trt_portable.plan.extents import evaluate, sizes_by_symbol
from trt_portable.plan.plan_file import Plan, PlanError, reading
from trt_portable.plan.weight_store import WeightStore
from trt_portable.reporting import Reporter
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.execution.launch_list import SpecializedProgram
    from trt_portable.execution.weight_streaming import WeightStreaming
    from trt_portable.plan.artifact import Artifact

_HOST: Final = torch.device("cpu")
_OF_TENSOR: Final = itemgetter("id", "dtype", "shape")
_OF_LAYER: Final = itemgetter("type", "num_ranks", "inputs", "outputs", "attributes", "weight_specs", "implementation")


class EngineState:
    """Layers, weights and programs of a loaded engine. Any number of threads may read it at once.

    Args:
        plan: A plan that was read and verified.
        device: Where the engine runs.
        reporter: Hears why compiled artifacts stay unused.
        host_code_allowed: Whether compiled artifacts of plans from elsewhere may run.
        bounds: What each run may use; None for all.

    Attributes:
        info: What the plan says beside the layers.
        structure: The network part of the plan.
        features: What a reader of the plan must understand.
        inputs: Inputs in order.
        outputs: Outputs in order.
        host_inputs: Indices of the inputs whose numbers are read on the host.
        shape_only_inputs: Names of inputs of which only the extents matter.
        weights: Which tensor stands for each use of weights.
        program: The layers, interpreted; what profilers and debug listeners watch.
        executable: What runs otherwise: the program, prepacked or not, or what the engine's tactic made of it.
        takes_memory: Whether `executable` leaves outputs in memory that it is offered.
        home: Where `weights` holds them: the device, or the host in engines for streaming on CUDA.
        streaming: What places the weights of such an engine; None where it was not built for streaming.
        compiled: The plan's section of compiled artifacts.
        generation: Grows with every refit; what was made from older weights is stale.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        reporter: Reporter,
        *,
        host_code_allowed: bool,
        bounds: RunBounds | None = None,
    ) -> None:
        with reading("the document", plan):
            typed.fields(plan.structure, "the document", tables.DOCUMENT)
        with reading("the engine's part", plan):
            self.info = info = records.read(EngineInfo, plan.structure["engine"], "the engine")
            info.check()
        self.device = device
        self.structure: dict[str, Any] = plan.structure["network"]
        self.features: list[str] = plan.structure["features"]
        self.inputs = [tensor for tensor in info.io if tensor.is_input]
        self.outputs = [tensor for tensor in info.io if not tensor.is_input]
        self.host_inputs = tuple(at for at, tensor in enumerate(self.inputs) if tensor.is_host)
        is_cuda = device.type == "cuda"
        may_stream = info.weight_streaming and is_cuda
        # the plan's bytes back the weights on the CPU, so they stay as long as the engine does
        self._owner = plan.owner if may_stream or not is_cuda else None
        with reading("the network's part", plan):
            self.loaded, self.layers = load_network(self.structure, info, device)
        if bounds is not None:
            bounds.require_reachable(self.layers)
        self.shape_only_inputs = shape_only_inputs(self.loaded, self.inputs)
        with reading("the table of weights", plan):
            self.home = _HOST if may_stream else device
            self.weights = WeightStore(info.weight_slots, self.layers, _weights_on(self.home, plan, info))
        self.program = fused_program(self.loaded) if is_cuda else host_program(self.loaded)
        packed = prepacked_program(self.loaded, planned) if info.prepacked else None
        if packed is not None and self._owner is not None:
            release_pages_of(plan.data, self)
        self._fast_program = self.program if packed is None or is_cuda else packed
        self.compiled = plan.compiled
        self._bounds = bounds
        self._bounded: BoundedRuns | None = None
        # as long as what was read is still in a cache of the processor: later it takes five times as long
        self._likeness = b"" if bounds is None else _likeness(self.structure, info, device)
        self._limits_said: set[str] = set()
        is_said = bounds is not None and bounds.unused_kernels_are_said
        self._artifacts = usable_artifacts(
            plan.compiled, device, reporter, is_allowed=host_code_allowed, is_said=is_said
        )
        self._reporter = reporter
        self.executable: Executable = self._fast_program
        self.takes_memory = False
        self.streaming: WeightStreaming | None = None
        if info.weight_streaming:
            from trt_portable.execution.weight_streaming import WeightStreaming

            streamed = streamed_program(self.loaded, device)
            self.streaming = WeightStreaming(self.weights, self.layers, streamed, device)
        self._resident_program = self.program
        self._specialized: SpecializedProgram | None = None
        self._budget: int | None = None
        self._placing = ForkedLock()
        if not may_stream:
            self._load_weights()
        self.generation = 0
        self._shape_program: Program | None = None
        self._shape_reports: Remembered[Any, ShapeReport] = Remembered()
        is_static = not any(tensor.is_dynamic for tensor in info.io)
        self._extents_are_known = not self.host_inputs and all(
            not tensor.is_host
            and (is_static or len(tensor.extents) == len(tensor.shape))
            and None not in tensor.extents
            for tensor in self.outputs
        )
        self._output_shapes: Remembered[tuple[Shape, ...], tuple[Shape, ...]] = Remembered()

    @property
    def streams(self) -> bool:
        """Whether some weights lie on the host now, and come as layers need them."""
        return self.streaming is not None and self.program is self.streaming.program

    @property
    def runner(self) -> Executable:
        """`executable`, as contexts are to run it."""
        executable: Executable = self._inside_of_limits(self.executable)
        if self.info.allows_tf32:
            return executable

        return WithoutTF32(executable)

    @property
    def observable(self) -> Program | BoundedRuns:
        """`program`, as contexts are to run it while somebody observes."""
        observable: Program | BoundedRuns = self._inside_of_limits(self.program)
        return observable

    def _inside_of_limits(self, executable: Any) -> Any:
        """What stays inside of the limits, if there are any; compiled kernels run of trusted plans only."""
        if self._bounds is None or not isinstance(executable, Program):
            return executable
        bounded = self._bounded
        if bounded is None or bounded.program is not executable:
            alike = None if self.streaming is not None else (self._likeness, executable is self.program)
            self._bounded = bounded = BoundedRuns(executable, self._bounds, alike)
        return bounded

    def place_weights(self, budget: int) -> None:
        """Brings weights to the device where that waits for a budget: in engines for streaming, before a context.

        Args:
            budget: Bytes of streamable weights that may stay on the device.

        Raises:
            RuntimeError: There is no memory for them.
        """
        if self.streaming is None or self.home == self.device or budget == self._budget:
            return
        with self._placing:
            if budget == self._budget:
                return
            self._budget = None
            for program in self._programs:
                program.forget_constants()
            self._specialized = None
            is_partial = self.streaming.place(budget)
            self.executable = self.program = self._fast_program = (
                self.streaming.program if is_partial else self._resident_program
            )
            self._load_weights()
            self._budget = budget

    def replace_weights(self, tensors: Mapping[int, torch.Tensor]) -> None:
        """Gives uses of weights, by index, new tensors; runs that have begun keep the old ones."""
        if self.home == self.device:
            self.weights.replace(tensors, self._programs)
            if not self.weights.missing:
                self._load_artifacts()
        else:
            self.weights.replace(tensors, ())
            if self.streaming is not None and self._budget is not None:
                self.streaming.place(self._budget)
                self._load_weights()
        self.generation += 1
        if any(is_host_constant(self.weights.slots[index]) for index in tensors):
            self._shape_program = None
            self._shape_reports = Remembered()

    @property
    def _programs(self) -> set[Program]:
        return {self.program, self._fast_program}

    def _load_weights(self) -> None:
        """Brings all that runs up to date with the weights, unless some are missing."""
        if not self.weights.missing:
            for program in self._programs:
                program.load_constants()
            self._load_artifacts()

    def _load_artifacts(self) -> None:
        """Brings compiled artifacts up, or up to date with the weights, where these lie on the device."""
        if self._specialized is not None:
            self._specialized.load_constants()
        elif self._artifacts and not self.streams:
            try:
                if self._artifacts[0].tactic in LIBRARIES:
                    self._load_library()
                else:
                    self._load_launches()
            except PortableError as error:
                self._reporter.warning(f"engine {self.info.name!r} is interpreted: {error}")
            if self.streaming is None:  # else another budget may need them again
                self._artifacts = []

    def _load_launches(self) -> None:
        from trt_portable.execution.launch_list import CompiledProgram, SpecializedProgram

        compiled = [CompiledProgram(each, self.weights, self._fast_program, self.device) for each in self._artifacts]
        self.executable = self._specialized = SpecializedProgram(compiled, self._fast_program)

    def _load_library(self) -> None:
        """Hands the network to the library that was faster when it was built; nothing in the plan is the library's."""
        from trt_portable.libraries.library_program import LibraryExecutable, LibraryProgram

        made = [LibraryProgram(each, self.structure, self.info, self.weights) for each in self._artifacts]
        self.executable = LibraryExecutable(made, self._fast_program)
        self.takes_memory = True

    def infer(self, shapes: tuple[Shape, ...], numbers: Mapping[int, tuple[Any, ...]]) -> ShapeReport:
        """Output shapes for input shapes and the numbers of host inputs, by input index.

        Raises:
            LayerFailure: A layer refused the shapes.
        """
        key = (shapes, tuple(numbers.items()))
        report = self._shape_reports.get(key)
        if report is None:
            if self._shape_program is None:
                try:
                    tensors = [self.weights.tensor(index) for index in range(len(self.weights.slots))]
                    self._shape_program = load_shape_program(self.structure, self.info, tensors)
                except Exception as error:  # constants that cannot be, in a plan that makes no sense
                    raise LayerFailure("the constants of shapes", error) from error
            values: list[Value] = [
                HostValues.of(numbers[at], shape, tensor.torch_dtype, META)
                if at in numbers
                else torch.empty(shape, dtype=tensor.torch_dtype, device=META)
                for at, (tensor, shape) in enumerate(zip(self.inputs, shapes, strict=True))
            ]
            report = self._shape_reports[key] = report_shapes(self._shape_program, values)
        return report

    def has_said(self, error: BaseException) -> bool:
        """Notes the limit that a run has reached, and says whether another run reached it before."""
        cause = error.cause if isinstance(error, LayerFailure) else error
        if not isinstance(cause, LimitReached):
            return False
        is_known = cause.field in self._limits_said
        self._limits_said.add(cause.field)
        return is_known

    def peak_bytes(self, profile: int) -> int:
        """Bytes of intermediate values at the largest shapes of a profile; 0 where unknown."""
        shapes = tuple(self.info.allowed_shape(tensor, profile).max for tensor in self.inputs)
        values = self.info.profiles[profile].values
        numbers = {}
        for index in self.host_inputs:
            allowed = values.get(self.inputs[index].name)
            if allowed is None:
                return 0
            numbers[index] = allowed.max
        try:
            return self.infer(shapes, numbers).peak_bytes
        except RuntimeError:  # the greatest extents need not fit each other
            return 0

    def output_shapes(self, shapes: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
        """Output shapes for input shapes by what the plan says of them; None where it does not say all.

        Raises:
            Refusal: An expression of the plan has no value for these shapes.
        """
        if not self._extents_are_known:
            return None
        found = self._output_shapes.get(shapes)
        if found is None:
            symbols = sizes_by_symbol(shapes)
            found = self._output_shapes[shapes] = tuple(
                tuple(evaluate(extent, symbols) for extent in tensor.extents) if tensor.extents else tensor.shape
                for tensor in self.outputs
            )
        return found


def _likeness(network: Mapping[str, Any], info: EngineInfo, device: torch.device) -> bytes:
    """What decides about all that an engine makes of inputs but numbers of constants: the network, without names."""
    described = (
        (info.prepacked, device.type, network["flags"], network["outputs"], *info.debug_tensors),
        [(tensor.id, tensor.is_input, tensor.is_host, tensor.aliased_input) for tensor in info.io],
        [*map(_OF_TENSOR, network["tensors"])],
        [*map(_OF_LAYER, network["layers"])],
    )
    # a fifth of the time of text; in this version without references, which depend on who else holds an object
    return hashlib.sha256(marshal.dumps(described, 2)).digest()


def usable_artifacts(
    section: bytes, device: torch.device, reporter: Reporter, *, is_allowed: bool, is_said: bool = False
) -> list[Artifact]:
    """The compiled artifacts that may run, on this machine; says, once, why others do not.

    Args:
        section: The plan's section of artifacts.
        device: The engine's device.
        reporter: Receives the warning.
        is_allowed: Whether artifacts that were built elsewhere may run.
        is_said: Whether the user knows if they may not.
    """
    if not section:
        return []
    from trt_portable.plan.artifact import is_trusted, machine_of, read_artifacts

    if not (is_allowed or is_trusted(section)):
        if not is_said:
            reporter.warning(
                "the plan holds compiled kernels, which run only from plans that you trust; this engine is "
                "interpreted. Set Runtime.engine_host_code_allowed = True, or load with allow_host_code=True, to run "
                "them"
            )
        return []
    try:
        artifacts = read_artifacts(section)
    except ValueError as error:
        raise PlanError(f"corrupted: {error}") from error
    here = machine_of(device)
    missing = artifacts[0].tactic if artifacts and artifacts[0].tactic in LIBRARIES else ""
    if missing:
        from trt_portable.libraries.library_program import machine_with

        here = machine_with(missing, here)
    fitting = [artifact for artifact in artifacts if artifact.machine == here]
    if missing and missing not in here:
        reporter.warning(
            f"the engine was built to run in {missing}, which is not installed or switched off here; it is "
            f"interpreted. python -m pip install 'trt-portable[{missing}]' brings it"
        )
    elif len(fitting) < len(artifacts):
        reporter.warning(
            f"the plan's compiled kernels were made for {artifacts[0].machine}, and this is {here}; the engine is "
            "interpreted. Build it again here to get kernels that fit"
        )
    return fitting


def _weights_on(device: torch.device, plan: Plan, info: EngineInfo) -> list[torch.Tensor | None]:
    """A tensor per use of weights, on a device and moved there in one piece; None where stripped."""
    tensors = dict(plan.weights)
    if device.type != "cpu":
        data = torch.empty_like(plan.data, device=device)
        copy_all([(plan.data, data)])
        for name, tensor in plan.weights.items():
            begin = plan.offsets[name]
            tensors[name] = data[begin : begin + tensor.nbytes].view(tensor.dtype)
        for slot in info.weight_slots:
            if is_host_constant(slot) and slot.weights in plan.weights:
                tensors[slot.weights] = plan.weights[slot.weights].clone()
    return [tensors.get(slot.weights) for slot in info.weight_slots]
