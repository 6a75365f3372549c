"""Replay: the kernels of a run, recorded once as a CUDA graph and started all together from then on.

Starting kernels one by one costs the host 5 to 10 microseconds each, which at small batches is most of a
run. A recording fixes shapes and addresses, so a context keeps one for each of some shapes. Recordings
read inputs from buffers and leave outputs in memory that all of them share, since no two run at once; both are copied
around a replay, so that many shapes take the memory of the largest. Where the same addresses keep coming back, a second
recording is made at these addresses, which copies no input.

Ranks that communicate in an engine record at the same call: NCCL wants a collective to be in a graph on all of them or
on none. So their recordings depend neither on addresses nor on what a rank's own build has chosen, and engines that
ranks may give other sizes than each other are not recorded.

What cannot be recorded is launched directly: runs inside somebody else's capture, engines that wait for
data, and whatever made PyTorch or the driver refuse.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from trt_core.collective_watch import watch_collectives
from trt_core.device import CAPTURING, capture, copy_together
from trt_core.remembered import Remembered
from trt_portable.enums import LayerType
from trt_portable.execution.launch_list import SpecializedProgram, with_plans
from trt_portable.execution.launcher import Executable, is_capturing, targets_of
from trt_portable.internals import clear_product_workspaces, current_stream_handle
from trt_portable.layers.collective import IDistCollectiveLayer, collectives_of, rehearsal
from trt_portable.memory import wrap_address
from trt_portable.runtime.binding import Binding
from trt_portable.runtime.engine_state import EngineState
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

SWITCH: Final = "TRT_PORTABLE_REPLAY"
"""Environment variable that turns replay off where it is "0"; read when a context is created."""

_WARM_UP_RUNS: Final = 1  # first runs choose algorithms and fill allocators
_MAX_SHAPES: Final = 64  # a recording holds what the driver needs to start its kernels: some hundred kilobytes
_RUNS_BEFORE_EVICTION: Final = 16  # keeps the cost of recordings small against runs when shapes never settle
_RUNS_BEFORE_PINNING: Final = 4
_MAX_PINNED: Final = 4
_MAX_PINNINGS: Final = 16

_WAITING: Final = frozenset(
    {
        *(LayerType.NON_ZERO, LayerType.NMS, LayerType.CONDITION, LayerType.ASSERTION, LayerType.PLUGIN),
        *(LayerType.PLUGIN_V2, LayerType.PLUGIN_V3),
    }
)

Shapes = tuple[tuple[int, ...], ...]
Addresses = tuple[int, ...]
_Key = tuple[Shapes, Addresses]
"""Shapes of inputs, and where those lie that are updated in place."""


def may_record(device: torch.device) -> bool:
    """Whether runs on a device may be recorded at all."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "0"


def can_replay(state: EngineState) -> bool:
    """Whether the runs of an engine may be recorded: on CUDA, nothing on the host, nothing waits for data."""
    if state.host_inputs or not may_record(state.device):
        return False
    if state.streams:  # a recording would wait for each transfer where it begins
        return False
    return not any(_waits(layer) for layer in state.layers)


def _waits(layer: ILayer) -> bool:
    """Whether a layer may wait for data, or for other processes by the way of the host."""
    if layer.type is LayerType.DIST_COLLECTIVE:
        return not cast("IDistCollectiveLayer", layer)._can_be_recorded()
    return layer.type in _WAITING or layer._DATA_DEPENDENT


@dataclass(frozen=True)
class _Recording:
    """One recorded run.

    Attributes:
        graph: Replays it on the current stream.
        inputs: Where it reads; None for all, or for some, where it reads the application's own memory.
        results: What it computes, in memory that the recordings after it use too; empty where it writes to the
            application's own.
        keep: What must live as long as the recording: constants of the time it was made.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor | None] | None
    results: list[Value]
    keep: object


def record_run(
    executable: Executable, values: Sequence[Value], results: Sequence[Value], device: torch.device
) -> Callable[[], None] | None:
    """One run as a graph, after a warm-up, that leaves its outputs in memory made beforehand, as engines do.

    Args:
        executable: What runs.
        values: Its inputs, which the caller keeps alive.
        results: What it computed of them before, for the extents.
        device: Where it runs.

    Returns:
        What replays the graph on the current stream; None where the run cannot be recorded.
    """
    if is_capturing(device) or not CAPTURING.acquire(blocking=False):
        return None

    def run() -> list[Value]:
        found = list(executable.run(values, targets))
        for value, target in zip(found, targets, strict=True):
            if target is not None and value is not target:
                target.copy_(as_tensor(value))
        return found

    try:
        given = {id(value) for value in values}  # a result that is one of them was updated in place
        targets = [
            torch.empty(value.shape, dtype=value.dtype, device=device)
            if isinstance(value, torch.Tensor) and id(value) not in given
            else None
            for value in results
        ]
        graph, _ = _recorded(torch.cuda.Stream(device), torch.cuda.graph_pool_handle(), run)
    except RuntimeError:
        return None
    finally:
        CAPTURING.release()
    recording = _Recording(graph, None, [target for target in targets if target is not None], executable.constants)
    return lambda: recording.graph.replay()  # with all that it reads and writes


def _recorded(
    stream: torch.cuda.Stream, pool: Any, run: Callable[[], list[Value]]
) -> tuple[torch.cuda.CUDAGraph, list[Value]]:
    """Records a run, and returns its results too.

    Raises:
        RuntimeError: A layer waits for data, there is no memory, or somebody else's capture is in the way.
    """
    _forget_workspaces()
    graph, results = capture(run, stream, pool)
    _forget_workspaces()
    return graph, results


class ReplayLauncher:
    """Records runs of a context after a warm-up, and replays them.

    Args:
        state: The engine; `can_replay` holds.
        executable: What runs.
    """

    def __init__(self, state: EngineState, executable: Executable) -> None:
        self._state = state
        self._executable = executable
        self._plans_after = state.executable.plans_after if isinstance(state.executable, SpecializedProgram) else ()
        self._device = state.device
        self._generation = state.generation
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._buffers: dict[int, torch.Tensor] = {}  # bytes, for each input
        self._done: torch.cuda.Event | None = None
        self._communication = watch_collectives(collectives_of(state.layers), state.device)
        self._last_stream: torch.cuda.Stream | None = None
        self._last_handle = -1
        self._is_refused = False
        updated = set(state.loaded.updates.values())
        self._updated = [at for at, tensor in enumerate(state.loaded.inputs) if tensor in updated]
        self._copied = [at for at, tensor in enumerate(state.loaded.inputs) if tensor not in updated]
        self._runs: Remembered[_Key, int] = Remembered()
        self._replays: dict[_Key, int] = {}  # of recordings of which some kernels have no plans
        self._recordings: OrderedDict[_Key, _Recording] = OrderedDict()
        self._uses: Remembered[tuple[Shapes, Addresses], int] = Remembered()
        self._pinned: OrderedDict[tuple[Shapes, Addresses], _Recording] = OrderedDict()
        self._pinnings = 0

    def launch(self, values: Sequence[Value], outputs: Sequence[Binding]) -> bool:
        """Replays the run; False while there is no recording of it, and inside captures."""
        if self._is_refused or is_capturing(self._device):
            return False
        if self._generation != self._state.generation:  # a refit: recordings read the old weights
            self._forget()
        shapes = tuple(value.shape for value in values)
        addresses = (*(value.data_ptr() for value in values), *(binding.address for binding in outputs))  # type: ignore[union-attr]
        if self._plans_after and self._communication is None:
            self._plan(self._key(shapes, addresses), values)
        recording = self._pinned.get((shapes, addresses)) or self._at_addresses(shapes, addresses, values, outputs)
        if recording is None:
            key = self._key(shapes, addresses)
            recording = self._recordings.get(key) or self._record(key, values)
            if recording is None:
                return False
        self._replay(recording, values, outputs)
        return True

    def _key(self, shapes: Shapes, addresses: Addresses) -> _Key:
        """What recordings are told apart by: inputs that are updated in place are never copied, others are."""
        return shapes, tuple([addresses[at] for at in self._updated])

    def _replay(self, recording: _Recording, values: Sequence[Value], outputs: Sequence[Binding]) -> None:
        handle = current_stream_handle(self._device.index)
        stream = self._last_stream
        if stream is None or self._done is None or handle != self._last_handle:
            stream = torch.cuda.current_stream(self._device)
            if self._done is None:
                self._done = torch.cuda.Event()
            else:
                stream.wait_event(self._done)  # recordings share memory, so they never overlap
            self._last_stream, self._last_handle = stream, handle
        if recording.inputs is not None:
            buffers = recording.inputs
            copy_together([buffers[at] for at in self._copied], [values[at] for at in self._copied])  # type: ignore[misc]
        recording.graph.replay()
        for binding, value in zip(outputs, recording.results, strict=False):
            binding.write(value)
        self._done.record(stream)
        if self._communication is not None:
            self._communication.enqueued(self._done)

    def _forget(self) -> None:
        """Drops everything that was recorded."""
        self._generation = self._state.generation
        if self._done is not None:
            self._done.synchronize()  # memory of a recording must not go while it runs
        self._recordings.clear()
        self._pinned.clear()
        self._runs.clear()
        self._replays.clear()
        self._uses.clear()
        self._buffers.clear()
        self._pool = None  # PyTorch gives up a pool with the last recording in it

    def _record(self, key: _Key, values: Sequence[Value]) -> _Recording | None:
        """A recording for shapes that came often enough, if it can be made."""
        runs = self._runs[key] = self._runs.get(key, 0) + 1
        is_full = len(self._recordings) >= _MAX_SHAPES
        if runs <= (_RUNS_BEFORE_EVICTION if is_full else _WARM_UP_RUNS):
            return None
        if self._plans_after and not is_full and self._communication is None:
            self._replays[key] = 0
        recording = self._with_buffers(values, runs=self._replays.get(key, math.inf))
        if recording is not None:
            if is_full:
                oldest, _ = self._recordings.popitem(last=False)
                self._runs.pop(oldest, None)
                self._replays.pop(oldest, None)
            self._recordings[key] = recording
        return recording

    def _plan(self, key: _Key, values: Sequence[Value]) -> None:
        """Counts replays of a recording without plans, and makes one with plans once they are worth their time."""
        replays = self._replays.get(key)
        if replays is None:
            return
        self._replays[key] = replays + 1
        if replays not in self._plans_after:
            return
        recording = self._with_buffers(values, runs=replays + 1)
        if recording is None:
            return
        if replays == self._plans_after[-1]:
            self._replays.pop(key, None)
        self._recordings[key] = recording
        for pinned in [each for each in self._pinned if self._key(*each) == key]:
            del self._pinned[pinned]

    def _with_buffers(self, values: Sequence[Value], *, runs: float) -> _Recording | None:
        """A recording that reads inputs from buffers, but for those that are updated in place.

        Args:
            values: What a call is given.
            runs: It plans what sizes plan that came so many times.
        """
        buffers = [None if at in self._updated else self._buffer(at, value) for at, value in enumerate(values)]
        read = [value if buffer is None else buffer for buffer, value in zip(buffers, values, strict=True)]
        return self._capture(buffers, read, (), runs=runs, given=values)

    def _buffer(self, at: int, value: Value) -> torch.Tensor:
        """Where recordings read an input: the same memory for all shapes, until a larger one comes."""
        count = math.prod(value.shape) * value.dtype.itemsize
        known = self._buffers.get(at)
        if known is None or known.numel() < count:
            size = count if known is None else max(count, 2 * known.numel())
            known = self._buffers[at] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return known[:count].view(value.dtype).view(value.shape)

    def _at_addresses(
        self, shapes: Shapes, addresses: Addresses, values: Sequence[Value], outputs: Sequence[Binding]
    ) -> _Recording | None:
        """A recording at addresses that came often enough, if it can be made."""
        known = self._recordings.get(self._key(shapes, addresses))
        if known is None or self._pinnings >= _MAX_PINNINGS or self._communication is not None:
            return None
        if not all(isinstance(value, torch.Tensor) and value.is_cuda for value in known.results):
            return None  # an output known on the host
        if not all(value.is_contiguous() for value in values if isinstance(value, torch.Tensor)):
            return None  # an input without an address
        key = (shapes, addresses)
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        if uses < _RUNS_BEFORE_PINNING:
            return None
        runs = self._replays.get(self._key(shapes, addresses), math.inf)
        recording = self._capture(None, values, outputs, runs=runs)
        if recording is not None:
            self._pinnings += 1
            if len(self._pinned) >= _MAX_PINNED:
                self._pinned.popitem(last=False)
            self._pinned[key] = recording
        return recording

    def _capture(
        self,
        buffers: list[torch.Tensor | None] | None,
        values: Sequence[Value],
        outputs: Sequence[Binding],
        *,
        runs: float,
        given: Sequence[Value] = (),
    ) -> _Recording | None:
        """Records a run that reads `values`, and writes to `outputs` where these are given.

        What plans late does so in a run of its own before: on what the call was `given`, since buffers are empty yet.
        """
        if not CAPTURING.acquire(blocking=self._communication is not None):
            return None

        def run() -> list[Value]:
            results = list(self._executable.run(values, targets_of(values, outputs)))
            if outputs:
                _write_all(results, outputs, values)
            return results

        try:
            if self._stream is None or self._pool is None:
                self._stream, self._pool = torch.cuda.Stream(self._device), torch.cuda.graph_pool_handle()
            with with_plans(runs):
                if given and any(runs > each for each in self._plans_after):
                    with rehearsal():  # other ranks make no such run
                        self._executable.run(given)
                graph, results = _recorded(self._stream, self._pool, run)
        except RuntimeError:
            self._is_refused = True
            self._forget()
            return None
        finally:
            CAPTURING.release()
        kept = [] if outputs else [_unowned(value) for value in results]
        return _Recording(graph, buffers, kept, self._executable.constants)


def _unowned(value: Value) -> Value:
    """A result of a recording without its memory, which later recordings may use; the pool of all of them keeps it."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    extent = storage.nbytes() // value.element_size()
    flat = wrap_address(storage.data_ptr(), (extent,), value.dtype, value.device)
    return torch.as_strided(flat, value.shape, value.stride(), value.storage_offset())


def _write_all(results: Sequence[Value], outputs: Sequence[Binding], inputs: Sequence[Value]) -> None:
    """Copies results to bound memory; views of inputs first to memory that no other output overwrites."""
    read = {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
    apart = [
        value.clone()
        if isinstance(value, torch.Tensor)
        and value.untyped_storage().data_ptr() in read
        and not (binding.tensor.aliased_input is not None and value.data_ptr() == binding.address)  # it is there
        else value
        for binding, value in zip(outputs, results, strict=True)
    ]
    for binding, value in zip(outputs, apart, strict=True):
        binding.write(value)


def _forget_workspaces() -> None:
    """Makes matrix products of a recording take their workspace from the recording's own memory.

    PyTorch keeps one workspace for each stream; recordings that shared one could not run at once.
    """
    clear_product_workspaces()
