"""What watches a run layer by layer: profilers and debug listeners."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from trt_portable.dims import Dims
from trt_portable.dtypes import FROM_TORCH
from trt_portable.enums import DataType, TensorLocation
from trt_portable.execution.program import LayerCall
from trt_portable.reporting import report_callback_failure
from trt_portable.shape_tensors import Value, as_tensor


class IProfiler:
    """Interface that receives layer times; subclass it, call ``IProfiler.__init__``."""

    def __init__(self) -> None:
        pass

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Receives the time of one layer, in milliseconds."""
        raise NotImplementedError("a subclass of IProfiler must define report_layer_time()")


class Profiler(IProfiler):
    """Prints layer times."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Prints the time of one layer, in milliseconds."""
        print(f"{layer_name}: {ms}ms")  # noqa: T201 - it is what this class is for


class IDebugListener:
    """Interface that sees debug tensors; subclass it, call ``IDebugListener.__init__``."""

    def __init__(self) -> None:
        pass

    def process_debug_tensor(
        self,
        addr: int,
        location: TensorLocation,
        type: DataType,
        shape: Dims,
        name: str,
        stream: int,
    ) -> None:
        """Receives the address of a tensor whose content is valid until the call returns."""
        raise NotImplementedError("a subclass of IDebugListener must define process_debug_tensor()")


class LayerTimer:
    """Times each layer, waiting for it to finish.

    Args:
        device: Where the layers run.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._times: list[tuple[str, float]] = []
        self._started = 0.0

    def before(self) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """Stops the clock when the device is done."""
        if self._cuda is not None:
            torch.cuda.current_stream(self._cuda).synchronize()
        self._times.append((call.name, (time.perf_counter() - self._started) * 1e3))

    def milliseconds(self) -> list[tuple[str, float]]:
        """Layer names and times in order of execution."""
        return self._times


class LayerTimes:
    """Layer times of the last run of a context, and the profiler that receives them.

    Attributes:
        profiler: The receiver; None while nobody asks.
        are_reported_at_once: Whether a run reports itself, or `report` does later.
    """

    def __init__(self) -> None:
        self.profiler: IProfiler | None = None
        self.are_reported_at_once = True
        self._times: list[tuple[str, float]] = []

    def take(self, times: list[tuple[str, float]]) -> None:
        """Receives the times of a run, in milliseconds by layer."""
        self._times = times
        if self.are_reported_at_once:
            self.report()

    def report(self) -> bool:
        """Tells the profiler; False when there is none, or no run that it was not told of."""
        if self.profiler is None or not self._times:
            return False
        for name, milliseconds in self._times:
            try:
                self.profiler.report_layer_time(name, milliseconds)
            except Exception as error:
                report_callback_failure("report_layer_time()", error)
        self._times = []
        return True


class DebugTensors:
    """Which debug tensors a context shows to its listener.

    Args:
        tensors: Debug tensors of the engine: name by tensor id.

    Attributes:
        unfused_state: Whether tensors that were not marked are shown too.
        listener: Who sees them.
    """

    def __init__(self, tensors: Mapping[int, str]) -> None:
        self._tensors = tensors
        self._names = frozenset(tensors.values())
        self._enabled: set[str] = set()
        self.unfused_state = False
        self.listener: IDebugListener | None = None

    @property
    def is_active(self) -> bool:
        """Whether a run must look at tensors at all."""
        return self.listener is not None and bool(self._enabled or self.unfused_state)

    def set_state(self, name: str, flag: bool) -> bool:
        """Shows or hides a tensor; False when it is no debug tensor."""
        if name not in self._names:
            return False
        (self._enabled.add if flag else self._enabled.discard)(name)
        return True

    def set_all(self, flag: bool) -> None:
        """Shows or hides all debug tensors."""
        self._enabled = set(self._names) if flag else set()

    def state(self, name: str) -> bool:
        """Whether a tensor is shown."""
        return name in self._enabled

    def show_inputs(self, tensors: Sequence[int], values: Sequence[Value], stream: int) -> None:
        """Shows the inputs of a run, by tensor id, that are to be shown."""
        for tensor, value in zip(tensors, values, strict=True):
            name = self._tensors.get(tensor)
            if name in self._enabled:
                self._process(name, value, stream)

    def show(self, call: LayerCall, outputs: Sequence[Value], stream: int) -> None:
        """Shows the outputs of a layer that are to be shown."""
        for tensor, name, value in zip(call.outputs, call.output_names, outputs, strict=True):
            marked = self._tensors.get(tensor)
            if marked in self._enabled or (marked is None and self.unfused_state):
                self._process(name if marked is None else marked, value, stream)

    def _process(self, name: str, content: Value, stream: int) -> None:
        assert self.listener is not None
        value = as_tensor(content).contiguous()
        if value.is_cuda:
            torch.cuda.current_stream(value.device).synchronize()
        try:
            self.listener.process_debug_tensor(
                value.data_ptr(),
                TensorLocation.DEVICE if value.is_cuda else TensorLocation.HOST,
                FROM_TORCH[value.dtype],
                Dims(tuple(value.shape)),
                name,
                stream,
            )
        except Exception as error:
            report_callback_failure("process_debug_tensor()", error)


class RunObserver:
    """Passes each layer of one run to a timer and to debug tensors.

    Args:
        timer: Times layers, or None.
        debug: Shows tensors, or None.
        stream: Handle of the stream in use.
    """

    def __init__(self, timer: LayerTimer | None, debug: DebugTensors | None, stream: int) -> None:
        self._timer = timer
        self._debug = debug
        self._stream = stream

    def before(self, call: LayerCall, operands: Sequence[Value | None]) -> None:
        """A layer is about to run."""
        if self._timer is not None:
            self._timer.before()

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """A layer ran."""
        if self._timer is not None:
            self._timer.after(call, outputs)
        if self._debug is not None:
            self._debug.show(call, outputs, self._stream)
