"""CUDA graphs over whole modules: engines and PyTorch blocks in one launch, one graph for each combination of shapes.

A graph reads from memory of its own and writes to memory of its own, so inputs are copied in and outputs copied out.
All graphs of a module share one memory pool: they never run at the same time, and hold no results between calls.

A module that communicates does so once a call, on every rank: its first calls of some shapes are the runs that warm up.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import torch
from torch import fx, nn

from trt_core.attributes import is_written
from trt_core.collective_watch import ReplayedCollectives, watch_collectives
from trt_core.device import CAPTURING, abandon_capture, copy_together
from trt_core.errors import ExecutionError, TrtError
from trt_core.forked_lock import ForkedLock
from trt_core.held_arguments import held_to_signature
from trt_core.internals import OpOverload, pytree, schema_name
from trt_core.nesting import unflatten
from trt_core.process_groups import Collective, collective_of, is_collective
from trt_core.remembered import Remembered
from trt_runtime.context_pool import captured_contexts, give_back_captured
from trt_runtime.direct_call import goes_direct
from trt_runtime.header import PlanHeader
from trt_runtime.module import TRTModule, engines_of
from trt_runtime.program.graph import WriteCall, operator_calls
from trt_runtime.program.input_reader import places_of
from trt_runtime.program.loaded_program import LoadedProgram, captured_from

MOST_GRAPHS: Final = 16
"""Combinations of input shapes that a module keeps graphs for, unless told otherwise."""

_WARM_UPS: Final = 3
"""Runs before recording, as PyTorch's notes on CUDA graphs ask for."""


Flat = Callable[[Sequence[Any]], Sequence[Any]]
"""Runs a module: flat inputs to flat outputs."""


class GraphedCalls:
    """Runs calls of a function as CUDA graphs. Calls from several threads and streams run one after the other.

    Args:
        module: What is called.
        run: Runs one call without a graph, on the current stream.
        device: A CUDA device.
        capacity: Most graphs that are kept; the least recently used goes first.
    """

    def __init__(
        self, module: weakref.ref[nn.Module], run: Flat, device: torch.device, capacity: int = MOST_GRAPHS
    ) -> None:
        self._module = module
        self._run = run
        self._device = device
        self._watched: ReplayedCollectives | None = None
        self._first_calls: Remembered[Hashable, int] = Remembered()
        self._capacity = capacity
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None
        self._lock = ForkedLock()
        self._graphs = GraphCache(self._record, capacity, self._warm_up)

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs one call on the current stream.

        Args:
            leaves: Flat inputs; tensors lie on the device.

        Raises:
            ExecutionError: The call cannot be recorded.
        """
        for value in tensors_among(leaves):
            if value.device != self._device:
                raise ExecutionError(
                    f"a call with a tensor on {value.device} cannot be recorded as a CUDA graph on {self._device}",
                    hint=f"move it with .to('{self._device}'), or call the module without CUDA graphs",
                )
        with self._lock, torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            if self._done is None:
                self._done = torch.cuda.Event()
            else:
                stream.wait_event(self._done)  # the last call may have been made on another stream
            try:
                found = self._graphs.run(leaves)
            finally:
                self._done.record(stream)
            if self._watched is not None:
                self._watched.enqueued(self._done)
            return found

    def release(self) -> None:
        """Gives back all graphs and their memory, once the last call is done."""
        with self._lock:
            if self._done is not None:
                self._done.synchronize()
            self._graphs.clear()
            self._pool = None

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphedCalls:
        return GraphedCalls(self._module, self._run, self._device, self._capacity)  # recordings are not copied

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return self._stream

    def _warm_up(self, key: Hashable, leaves: Sequence[Any]) -> list[Any] | None:
        """Runs one of the first calls of a module that communicates; None where calls of this kind may be recorded."""
        if self._watched is None:
            module = self._module()
            self._watched = None if module is None else watch_collectives(collectives_in(module), self._device)
        if self._watched is None:  # what runs before a recording runs with it
            return None
        calls = self._first_calls[key] = self._first_calls.get(key, 0) + 1
        if calls > _WARM_UPS:
            return None
        stream, current = self._own_stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            outputs = self._run(leaves)
        current.wait_stream(stream)
        return _copied(outputs)

    def _record(self, leaves: Sequence[Any]) -> _CudaGraph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            return _CudaGraph(self._run, leaves, self._own_stream(), self._pool, self._watched is None)
        except TrtError:
            raise
        except RuntimeError as error:  # the driver refuses, or an operator waits for the device
            raise ExecutionError(
                "the call cannot be recorded as a CUDA graph",
                why=str(error).partition("\n")[0],
                hint="call the module without CUDA graphs (use_cuda_graphs=False)",
            ) from error


class _CudaGraph:
    """One recorded call.

    Args:
        run: Runs one call.
        leaves: Inputs of the first call.
        stream: Where to record.
        pool: Memory pool that all graphs of a module share.
        warms_up: Whether it runs before it is recorded.
    """

    def __init__(self, run: Flat, leaves: Sequence[Any], stream: torch.cuda.Stream, pool: Any, warms_up: bool) -> None:
        # tensors that are made in inference mode could not be written to outside it
        with torch.inference_mode(False), torch.no_grad():
            self._record(run, leaves, stream, pool, warms_up)

    def _record(self, run: Flat, leaves: Sequence[Any], stream: torch.cuda.Stream, pool: Any, warms_up: bool) -> None:
        own = [torch.empty_like(value).copy_(value) if isinstance(value, torch.Tensor) else value for value in leaves]
        self._inputs = tensors_among(own)
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS if warms_up else 0):
                run(own)
        recording = torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        try:
            with CAPTURING, captured_contexts() as self._contexts, recording:
                self._outputs = list(run(own))
        except BaseException:
            abandon_capture(stream, pool)
            raise
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Runs the graph on the current stream; results have memory of their own."""
        copy_together(self._inputs, inputs)
        self._graph.replay()
        return _copied(self._outputs)

    def release(self) -> None:
        """Gives memory and contexts of the graph back, once it is done."""
        torch.cuda.current_stream().synchronize()
        self._outputs.clear()
        self._graph.reset()
        give_back_captured(self._contexts)


def _copied(outputs: Sequence[Any]) -> list[Any]:
    """Outputs in memory of their own, of the current stream."""
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in outputs]


class GraphedModule(nn.Module):
    """A module whose calls are CUDA graphs; see `cuda_graphs`."""

    def __init__(self, module: nn.Module, capacity: int) -> None:
        super().__init__()
        self.module = module
        self._capacity = capacity
        self._calls: dict[Any, tuple[GraphedCalls, list[Any]]] | None = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module.

        Raises:
            InputError: An input does not fit.
            ExecutionError: The call cannot be recorded, or the graphs were given back.
        """
        if self._calls is None:
            raise ExecutionError(
                "the CUDA graphs of this module were given back",
                hint="call it inside the block of trt_runtime.cuda_graphs, or call the module itself",
            )
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = tensors_among(leaves)
        if not tensors or not goes_direct(tensors):
            return self.module(*args, **kwargs)  # something else is being recorded, or there is nothing to copy
        found = self._calls.get(structure)
        if found is None:
            found = self._calls[structure] = self._graphed(structure, tensors[0].device)
        graphs, result_structure = found
        with torch.no_grad():
            outputs = graphs(leaves)
        return unflatten(outputs, result_structure[0])

    def _graphed(self, structure: Any, device: torch.device) -> tuple[GraphedCalls, list[Any]]:
        result_structure: list[Any] = [None]

        def run(leaves: Sequence[Any]) -> Sequence[Any]:
            args, kwargs = pytree.tree_unflatten(list(leaves), structure)
            outputs, result_structure[0] = pytree.tree_flatten(self.module(*args, **kwargs))
            return outputs

        return GraphedCalls(weakref.ref(self.module), run, device, self._capacity), result_structure

    def release(self) -> None:
        """Gives back all graphs."""
        calls, self._calls = self._calls or {}, None
        for graphs, _ in calls.values():
            graphs.release()


@held_to_signature
@contextlib.contextmanager
def cuda_graphs(module: nn.Module, *, capacity: int = MOST_GRAPHS) -> Iterator[GraphedModule]:
    """Runs calls of a module as CUDA graphs inside a block.

    Args:
        module: A compiled model or a loaded program on a CUDA device.
        capacity: Most combinations of input shapes that graphs are kept for.

    Yields:
        A module that is called like the one given. Its graphs are given back when the block ends.

    Raises:
        ExecutionError: Calls of the module cannot be recorded; the message says why.

    Example:
        >>> with cuda_graphs(compiled) as graphed:  # doctest: +SKIP
        ...     y = graphed(x)
    """
    require_capturable(module)
    graphed = GraphedModule(module, capacity)
    try:
        yield graphed
    finally:
        graphed.release()


def require_capturable(module: nn.Module) -> None:
    """Checks that calls of a module can be recorded.

    Args:
        module: A compiled model or a loaded program.

    Raises:
        ExecutionError: It runs on the CPU, has sizes that depend on data, or writes to inputs or buffers.
    """
    reasons = list(obstacles(module))
    if reasons:
        shown = reasons[:3] + ([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])
        raise ExecutionError(
            "calls of this module cannot be recorded as CUDA graphs",
            why="; ".join(shown),
            hint="call it without CUDA graphs (use_cuda_graphs=False)",
        )


def collectives_in(module: nn.Module) -> list[Collective]:
    """Returns what a call of a module communicates, in its engines and between them; engines are loaded for that."""
    found: list[Collective | None] = []
    for engine in engines_of(module):
        if (group := engine.header.process_group) is not None:
            found.append(Collective(f"the collectives of {engine.header.title}", group))
        found += getattr(engine.native, "collectives", tuple)()
    for child in module.modules():
        if isinstance(child, LoadedProgram):
            calls = operator_calls(captured_from(child).program.steps)
            found += [collective_of(call.name, call.args, call.kwargs) for call in calls]
        elif isinstance(child, fx.GraphModule):
            nodes = (node for node in child.graph.nodes if is_collective(node))
            found += [collective_of(schema_name(node.target), node.args, node.kwargs) for node in nodes]
    return [each for each in found if each is not None]


def obstacles(module: nn.Module) -> Iterator[str]:
    """Yields what stands against recording, as far as it is known without a call."""
    for name, child in module.named_modules():
        if isinstance(child, TRTModule):
            yield from _engine_obstacles(child.header)
        elif isinstance(child, LoadedProgram):
            yield from _program_obstacles(child, name)
        elif isinstance(child, fx.GraphModule):
            for node in child.graph.nodes:
                if node.op == "call_function" and isinstance(node.target, OpOverload):
                    yield from _operator_obstacles(node.target, _place(str(node.target), name))
            if not isinstance(module.get_submodule(name.rpartition(".")[0]), fx.GraphModule) or not name:
                yield from _lost_writes(str(node.target) for node in child.graph.nodes if _is_updated(node))
    devices = {value.device.type for value in module.parameters()}
    if devices - {"cuda"}:
        yield f"weights lie on {', '.join(sorted(devices - {'cuda'}))}"


def _engine_obstacles(header: PlanHeader) -> Iterator[str]:
    if header.device != "cuda":
        yield f"{header.title} runs on {header.device}"
    for binding in header.outputs:
        if None in binding.shape:
            yield f"the shape of {binding.name!r} of {header.title} depends on data"


def _program_obstacles(loaded: LoadedProgram, name: str) -> Iterator[str]:
    program = captured_from(loaded).program
    for operator in loaded._operators:
        yield from _operator_obstacles(operator, _place(str(operator), name))
    for step in program.steps:
        if isinstance(step, WriteCall):
            yield _WRITES.format(_place("a step", name))
    places = places_of(program.signature)
    yield from _lost_writes(places[number] for number in sorted(program.written) if number < len(places))


def _operator_obstacles(operator: OpOverload, place: str) -> Iterator[str]:
    if operator._schema.is_mutable:
        yield _WRITES.format(place)
    if torch.Tag.dynamic_output_shape in operator.tags or torch.Tag.data_dependent_output in operator.tags:
        yield f"the result of {place} has a size or value that the host must wait for"


_WRITES: Final = "{} writes to a tensor, and recording would do so more than once"


def _lost_writes(inputs: Iterable[str]) -> Iterator[str]:
    """Recorded calls read copies of their inputs: what is written to them reaches nobody."""
    for place in inputs:
        yield f"the input {place} is written to, and a recording has a copy of it"


def _is_updated(node: fx.Node) -> bool:
    return node.op == "placeholder" and is_written(node)


def _place(what: str, module: str) -> str:
    return f"{what} in {module}" if module else what


class RecordedCall(Protocol):
    """One call that can be repeated with other values."""

    def replay(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Repeats the call with inputs of the same shapes and types, and returns outputs of their own."""

    def release(self) -> None:
        """Gives back what it holds."""


Record = Callable[[Sequence[Any]], RecordedCall]
Begin = Callable[[Hashable, Sequence[Any]], list[Any] | None]


class GraphCache:
    """Repeats calls, and records those that it does not know.

    Args:
        record: Records a call.
        capacity: Most recordings that are kept.
        begin: Runs a call of which there is no recording yet, and returns its outputs; None where it is to be recorded.
    """

    def __init__(self, record: Record, capacity: int, begin: Begin = lambda key, leaves: None) -> None:
        self._record = record
        self._capacity = capacity
        self._begin = begin
        self._recorded: OrderedDict[Hashable, RecordedCall] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recorded)

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs one call.

        Args:
            leaves: Tensors and plain values. Calls whose tensors agree in shape, type and device, and whose plain
                values are equal, share a recording.
        """
        key = call_key(leaves)
        recorded = self._recorded.get(key)
        if recorded is None:
            outputs = self._begin(key, leaves)
            if outputs is not None:
                return outputs
            while len(self._recorded) >= self._capacity:
                self._recorded.popitem(last=False)[1].release()
            recorded = self._recorded[key] = self._record(leaves)
        else:
            self._recorded.move_to_end(key)
        return recorded.replay(tensors_among(leaves))

    def clear(self) -> None:
        """Gives back all recordings."""
        while self._recorded:
            self._recorded.popitem()[1].release()


def call_key(leaves: Sequence[Any]) -> Hashable:
    """What calls with one recording have in common."""
    return tuple(
        (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else (type(value), value)
        for value in leaves
    )


def tensors_among(leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the inputs of a call."""
    return [value for value in leaves if isinstance(value, torch.Tensor)]
