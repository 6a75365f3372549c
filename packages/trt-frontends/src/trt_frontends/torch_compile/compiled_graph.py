"""One graph of a model under `torch.compile`: builds its engines at the first call, and again when it must.

AOTAutograd hands over a functional graph, which writes to inputs as its last acts, and takes care of everything around
it: results that are inputs or views of them, random state. What is left is to be right about three things that change
between calls: tensors that were frozen into engines, sizes beyond the range that engines were built for, and memory
that results share.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import itertools
import math
import operator
import struct
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, preserve_predicate
from trt_core import CompilationSettings, ExecutionError, InputError, LoweringError, logger
from trt_core.cached_property import cached_property
from trt_core.internals import OWN_NAMESPACES, FakeTensor, OpOverload
from trt_core.nesting import leaves_of, tensors_in
from trt_core.process_groups import group_of, is_collective, raise_failed_collective, terms_of
from trt_core.sizes.conditions import relation_of
from trt_core.sizes.expressions import Extent, evaluate_extent, extent_of, symbols_in
from trt_core.sizes.functions import relation_name
from trt_core.sizes.guards import shape_environment
from trt_core.sizes.ranges import UNBOUNDED, ShapeRanges
from trt_core.temporary import undone
from trt_frontends.compiled_module import engine_of_whole, flat_function
from trt_frontends.custom_engine_cache import CustomCache
from trt_frontends.internals import buffer_hooks, module_hooks, parameter_hooks
from trt_frontends.pipeline import LoweredModel, visible_log
from trt_frontends.precision.exclusions import exclusions
from trt_frontends.result_memory import owners_of_results
from trt_lowering import begin_lowering_graph, tracing_lock
from trt_lowering.passes.check_indices import CHECK, CheckIndices, CheckValues, check_indices, counted
from trt_partition import PartitionReport
from trt_runtime.sharded import Compared, compare_new, digests_of_calls, tell_failure

WORTHWHILE: Final = 16
"""A build that served fewer calls than that before weights changed was not worth its time."""

MOST_SHORT_BUILDS: Final = 4
"""How many such builds a graph makes before no weight is part of an engine any more."""

FIRST_SEARCH: Final = 4
"""How many modules that share a graph keep engines before garbage is collected, to see which of them are gone.

The next search comes at twice as many.
"""

MOST_INSTANCES: Final = 64
"""How many modules that share a graph keep engines at a time."""

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the inputs of a graph and returns its results."""


@dataclass(frozen=True)
class BuildReport:
    """One build of a graph's engines.

    Attributes:
        reason: Why it was built: the first call, sizes beyond the range of the build before, changed weights.
        partition: What runs where; None where the graph could not be lowered, and runs in PyTorch.
    """

    reason: str
    partition: PartitionReport | None


@dataclass
class Build:
    """The engines of a graph, for certain values of its frozen tensors and certain sizes.

    Attributes:
        run: Runs the graph with them.
        frozen_at: Positions of the inputs that are part of the engines.
        take_frozen: Takes them out of the inputs.
        frozen: Their values.
        numbers_at: Positions of numbers that are part of the engines.
        numbers: Their values.
        ranges: What the sizes may be.
        calls: How many calls it has served.
    """

    run: Run
    frozen_at: tuple[int, ...]
    take_frozen: Run
    frozen: FrozenTensors
    numbers_at: tuple[int, ...]
    numbers: tuple[int | bytes, ...]
    ranges: ShapeRanges
    calls: int = 0


class CompiledGraph:
    """A graph that AOTAutograd made functional, ready to call. Calls may come from several threads.

    Modules of one class share the graphs that Dynamo captures of their code, such as the layers of a model behind a
    graph break. Each gets engines of its own.

    Args:
        gm: The functional graph of ATen operators.
        static: Positions of the inputs that are the same at every call: parameters, buffers, tensors that are
            attributes of modules. A position that is wrongly among them costs a build, never a wrong result.
        written: Positions of the inputs that the graph, or AOTAutograd after it, writes to.
        settings: What to compile with.
        registry: Where converters are looked up.
        engine_cache: The user's own engine cache.
        ended_by: Where and why PyTorch ended the graph, as `CapturedGraph.end` says it; other ranks hear that.
        code: Of what it was captured, as `name_of_code` calls it.

    Attributes:
        history: What was built so far, the latest last.
    """

    _boxed_call = True  # tells AOTAutograd to give the inputs as one list

    def __init__(
        self,
        gm: fx.GraphModule,
        static: Collection[int],
        written: Collection[int],
        settings: CompilationSettings,
        registry: ConverterRegistry = DYNAMO_CONVERTERS,
        engine_cache: CustomCache | None = None,
        ended_by: str = "",
        code: str = "",
    ) -> None:
        self.history: list[BuildReport] = []
        self._gm = gm
        self._static = set(static)
        self._attributes, self._written = frozenset(static), frozenset(written)
        self._settings = settings
        self._registry = registry
        self._engine_cache = engine_cache
        self._sizes = GraphSizes(gm)
        self._counts = set() if _has_seen_numbers_change() else {reading.position for reading in self._sizes.counts}
        found = _find_numbers(gm)
        numbers = {at for at, dtype in found.items() if dtype is torch.float64}
        self._numbers = (numbers - self._static - self._written) | self._counts
        self._narrow = {at: dtype for at, dtype in found.items() if at not in numbers}
        self._instance_at: int | None = None  # position of a parameter, by which modules that share the graph are told
        self._builds: dict[int, Build] = {}
        self._short_changes: Counter[int] = Counter()
        self._short_builds = 0
        self._next_search = FIRST_SEARCH
        self._traffic = Traffic(gm, ended_by, code) or None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the graph.

        Args:
            inputs: What the graph takes: tensors, and numbers for sizes that vary.
        """
        for place, dtype in self._narrow.items():
            if inputs[place].dtype is not dtype:
                inputs[place] = inputs[place].to(dtype)
        at = self._instance_at  # as `_instance`, which costs a call
        build = self._builds.get(0 if at is None else id(inputs[at]))
        if build is None or not self._fits(build, inputs):
            if any(isinstance(value, FakeTensor) for value in inputs):
                return self._gm.forward(*inputs)  # type: ignore[no-any-return]  # shapes are asked for, not values
            with self._traffic.telling(inputs) if self._traffic is not None else contextlib.nullcontext():
                build = self._find_build(inputs)
        if self._traffic is not None:
            self._traffic.compare(inputs)  # the lock of builds is free here
        build.calls += 1
        try:
            return build.run(inputs)
        except RuntimeError as error:
            raise_failed_collective(error)
            if isinstance(error, (ExecutionError, InputError)):
                self._raise_as_pytorch(inputs, error)
            raise

    def _raise_as_pytorch(self, inputs: Sequence[Any], error: ExecutionError | InputError) -> None:
        """Raises what PyTorch does where an engine on the CPU refused operands, which it does before it writes.

        The graph is computed once more for that, on copies of what it writes to; only where nobody can tell.
        """
        on_cpu = all(value.device.type == "cpu" for value in inputs if isinstance(value, torch.Tensor))
        if not on_cpu or not all(map(_is_known_operator, self._gm.graph.nodes)):
            return
        copied = [value.clone() if at in self._written else value for at, value in enumerate(inputs)]
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            try:
                self._gm.forward(*copied)
            except (IndexError, RuntimeError, ZeroDivisionError) as raised:
                raise raised from error

    def _instance(self, inputs: Sequence[Any]) -> int:
        return 0 if self._instance_at is None else id(inputs[self._instance_at])

    def _fits(self, build: Build, inputs: Sequence[Any]) -> bool:
        if build.frozen_at and self._settings.check_weights and not build.frozen.unchanged(build.take_frozen(inputs)):
            return False
        if build.numbers_at and tuple(_number(inputs[at]) for at in build.numbers_at) != build.numbers:
            return False
        bounds = build.ranges.symbols
        for reading in self._sizes.readings:
            low, _, high = bounds[reading.name]
            if not low <= reading.read(inputs) <= high:
                return False
        return True

    def _find_build(self, inputs: Sequence[Any]) -> Build:
        with tracing_lock():
            if not self.history:
                self._instance_at = self._first_parameter(inputs)
            former = self._builds.get(self._instance(inputs))
            if former is not None and self._fits(former, inputs):
                return former  # another thread has just built it
            reasons = self._forget_dead_instances(former)
            ranges = None
            if former is not None:
                reasons += self._note_change(former, self._changed(former, inputs))
                ranges = former.ranges
                reasons += outside(ranges, self._sizes.read(inputs))
            elif self.history and not reasons:
                reasons = ["another module of the same class"]
            if self._instance_at is not None and self._instance_at not in self._static:
                self._builds.clear()
                self._instance_at = self._first_parameter(inputs)
            chosen = self._sizes.choose(inputs, ranges, self._counts)
            build = self._build(inputs, chosen, "; ".join(reasons) or "first call")
            self._builds[self._instance(inputs)] = build
            return build

    def _first_parameter(self, inputs: Sequence[Any]) -> int | None:
        """Returns the position of a frozen parameter, by which modules that share the graph are told."""
        return next((at for at in sorted(self._static) if isinstance(inputs[at], torch.nn.Parameter)), None)

    def _changed(self, build: Build, inputs: Sequence[Any]) -> list[int]:
        """Returns the positions of the inputs that are part of engines, and are no longer what they were."""
        pairs = zip(build.numbers_at, build.numbers, strict=True)
        found = [at for at, number in pairs if _number(inputs[at]) != number]
        if self._settings.check_weights:
            changed = build.frozen.changed([inputs[at] for at in build.frozen_at])
            found += [build.frozen_at[index] for index in changed]
        return found

    def _forget_dead_instances(self, former: Build | None) -> list[str]:
        """Drops engines of modules that no longer exist, or whose parameters were replaced; `former` is looked at."""
        if former is None and len(self._builds) >= self._next_search:
            gc.collect()  # graphs that a build leaves behind are cycles, and hold the memory of its weights
            self._next_search *= 2
        dead = [key for key, build in self._builds.items() if build is not former and not build.frozen.are_alive]
        gone = [self._builds.pop(key) for key in dead]
        reasons = ["parameters were replaced, or their module is gone"] if gone else []
        for build in gone:
            if build.calls < WORTHWHILE:
                reasons += self._note_short_build()
        if former is None and len(self._builds) >= MOST_INSTANCES:
            reasons += self._thaw_all(f"more than {MOST_INSTANCES} modules share a graph")
        return reasons

    def _note_change(self, build: Build, changed: Collection[int]) -> list[str]:
        """Decides which tensors stop being part of engines, and says what changed.

        What changes now and then (a checkpoint is loaded, an epoch was trained) is frozen anew. What changes from call
        to call is state, or is being trained. A count that changed once is one that changes.
        """
        counts = self._counts.intersection(changed)
        reasons = [f"{len(counts)} numbers changed, and became inputs"] if counts else []
        self._counts -= counts
        self._numbers -= counts
        changed = [at for at in changed if at not in counts]
        if not changed:
            return reasons
        reasons.append(f"{len(changed)} frozen tensors changed")
        if build.calls >= WORTHWHILE:
            return reasons
        self._short_changes.update(changed)
        thawed = {at for at in changed if self._short_changes[at] > 1}
        if thawed:
            self._static -= thawed
            self._numbers -= thawed
            reasons.append(f"{len(thawed)} of them became inputs")
        return reasons + self._note_short_build()

    def _note_short_build(self) -> list[str]:
        self._short_builds += 1
        if self._short_builds != MOST_SHORT_BUILDS or not self._static:
            return []
        return self._thaw_all(f"the weights of a graph changed {MOST_SHORT_BUILDS} times within a few calls")

    def _thaw_all(self, why: str) -> list[str]:
        warnings.warn(
            f"{why}: from now on none of its weights is part of an engine. Results are right, and come slower. Compile "
            "a model once its weights stay as they are",
            stacklevel=2,
        )
        self._static.clear()
        return ["no weight is part of an engine any more"]

    def _build(self, inputs: Sequence[Any], ranges: ShapeRanges, reason: str) -> Build:
        is_frozen = [at in self._static and isinstance(value, torch.Tensor) for at, value in enumerate(inputs)]
        frozen_at = tuple(at for at, yes in enumerate(is_frozen) if yes)
        frozen = FrozenTensors([inputs[at] for at in frozen_at])  # first: what changes from now on is seen
        numbers_at = tuple(sorted(self._numbers))
        numbers = tuple(_number(inputs[at]) for at in numbers_at)
        logger.debug("building a graph of %d nodes: %s", len(self._gm.graph.nodes), reason)
        with visible_log(self._settings), torch.no_grad(), without_registration_hooks():
            constants = {at: inputs[at] for at in (*frozen_at, *numbers_at)}
            run, report = self._compile(constants, inputs, ranges)
        self.history.append(BuildReport(reason, report))
        return Build(run, frozen_at, _taker(frozen_at), frozen, numbers_at, numbers, ranges)

    def _compile(
        self, constants: dict[int, torch.Tensor | int], inputs: Sequence[Any], ranges: ShapeRanges
    ) -> tuple[Run, PartitionReport | None]:
        settings = self._settings
        body = fx.GraphModule(self._gm, copy.deepcopy(self._gm.graph))
        counted = take_counters(body.graph)
        names = [str(node.target) for node in body.graph.find_nodes(op="placeholder")]
        kept = [at for at in range(len(inputs)) if at not in constants]
        fixed = {names[at]: value for at, value in constants.items()}
        CheckValues()(body)
        checks = [] if settings.check_indices else take_index_checks(body, self._sizes, fixed)
        try:
            decomposed = begin_lowering_graph(
                body,
                settings,
                preserve=preserve_predicate(settings, self._registry),
                constants=fixed,
                states={names[at] for at in self._states(inputs)},
            )
            lowered = decomposed.finish(exclusions(decomposed, lambda: [[inputs[at] for at in kept]]))
        except LoweringError as error:
            logger.warning("a graph of %d nodes runs in PyTorch: %s", len(self._gm.graph.nodes), error)
            return self._in_pytorch(), None
        owners = owners_of_results(self._gm.graph)
        model = LoweredModel(lowered, settings, ranges, self._registry, owners=owners, engine_cache=self._engine_cache)
        if settings.dryrun:
            return self._in_pytorch(), model.leave_in_pytorch().module.meta["partition_report"]
        compiled = model.build().module
        if settings.torch_fallback == "inductor":
            compile_pytorch_blocks(compiled)
        run = _counting(_runner(compiled, kept), counted)
        return _checking(run, checks, self._sizes), compiled.meta["partition_report"]

    def _states(self, inputs: Sequence[Any]) -> set[int]:
        """Returns the positions of what lasts from call to call, parameters apart: `forward` may assign attributes."""
        plain = {at for at in self._attributes if not isinstance(inputs[at], torch.nn.Parameter)}
        return plain | self._written

    def _in_pytorch(self) -> Run:
        run = with_inductor(self._gm) if self._settings.torch_fallback == "inductor" else self._gm.forward
        return lambda inputs: run(*inputs)


def _is_known_operator(node: fx.Node) -> bool:
    """Whether a node computes something, or writes to inputs, and nothing else."""
    target = node.target
    return node.op != "call_function" or not isinstance(target, OpOverload) or target.namespace in OWN_NAMESPACES


def _has_seen_numbers_change() -> bool:
    """Whether Dynamo, which compiles right now, makes inputs of those numbers only that it has seen change."""
    from trt_frontends.internals import dynamo_config  # costly to import

    return bool(dynamo_config.assume_static_by_default)


def _number(value: Any) -> int | bytes:
    """The number that an input is: a size, or the bytes of a tensor of one float64, which tell signs of zeros."""
    number: int | bytes = struct.pack("d", value.item()) if isinstance(value, torch.Tensor) else value
    return number


def _find_numbers(gm: fx.GraphModule) -> dict[int, torch.dtype]:
    """Returns the positions of inputs that hold one float on the CPU, written to or not, with their types.

    With sizes that vary, Dynamo takes the floats of a model (the epsilon of a norm) for inputs, too, and gives them as
    tensors of float64. Most never change. What `random.uniform` draws it traces in the default type, and gives so, too.
    """
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    return {
        at: value.dtype
        for at, value in enumerate(values)
        if isinstance(value, torch.Tensor)
        and value.dim() == 0
        and value.is_floating_point()
        and value.device.type == "cpu"
    }


def _runner(compiled: fx.GraphModule, kept: Sequence[int]) -> Run:
    """Returns what runs a graph on those of its inputs, by position, that are no constants."""
    take, whole = _taker(kept), engine_of_whole(compiled)
    if whole is not None:
        engine = whole[1]
        if engine.header.returns_tuple:
            return lambda inputs: list(engine.forward(*take(inputs)))
        return lambda inputs: [engine.forward(*take(inputs))]
    run = flat_function(compiled.graph)
    return lambda inputs: list(run(compiled, *take(inputs)))


def take_counters(graph: fx.Graph) -> dict[int, list[int]]:
    """Takes out of a graph what adds a number to an input in place, as caches count the tokens that they hold.

    An engine would return each counter, to be copied to its place in PyTorch: two copies for each layer of a model.

    Args:
        graph: A functional graph, which writes to inputs as its last acts; changed in place.

    Returns:
        The positions of the inputs that are integers and counted up, by what is added.
    """
    found: dict[int, list[int]] = {}
    positions = {node: at for at, node in enumerate(graph.find_nodes(op="placeholder"))}
    for copied in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        counter, made = copied.args[:2]
        if copied.users or counter not in positions or getattr(made, "target", None) is not torch.ops.aten.add.Tensor:
            continue
        value, (first, more) = counter.meta["val"], made.args
        if first is not counter or type(more) is not int or made.kwargs or not _is_integer(value.dtype):
            continue
        found.setdefault(more, []).append(positions[counter])
        graph.erase_node(copied)
        if not made.users:
            graph.erase_node(made)
    return found


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _counting(run: Run, counted: Mapping[int, Sequence[int]]) -> Run:
    """Returns what runs a graph, and counts up those of its inputs that `take_counters` returned."""
    if not counted:
        return run
    counters = [(more, _taker(positions)) for more, positions in counted.items()]

    def run_and_count(inputs: Sequence[Any]) -> Sequence[Any]:
        results = run(inputs)
        for more, take in counters:
            torch._foreach_add_(list(take(inputs)), more)
        return results

    return run_and_count


@dataclass(frozen=True)
class IndexCheck:
    """A check of indices that a graph is given, or that follow from its sizes.

    Attributes:
        position: Position of the indices among the inputs; None where they count up to a size.
        end: The size that they count up to.
        size: What they must be below.
        others: What else `check_indices` takes.
    """

    position: int | None
    end: Extent
    size: Extent
    others: tuple[Any, ...]

    def __call__(self, inputs: Sequence[Any], sizes: Mapping[str, int]) -> None:
        """Checks the indices of a call.

        Args:
            inputs: The inputs of the graph.
            sizes: Its symbolic sizes.

        Raises:
            IndexError, RuntimeError: One of them is outside; as the operator raises it in PyTorch.
        """
        size = int(evaluate_extent(self.size, sizes))
        if self.position is not None:
            check_indices(inputs[self.position], size, *self.others)
        elif int(evaluate_extent(self.end, sizes)) > size:
            check_indices(torch.tensor(size, device="cpu"), size, *self.others)


def take_index_checks(gm: fx.GraphModule, sizes: GraphSizes, constants: Mapping[str, Any]) -> list[IndexCheck]:
    """Adds checks of indices to a graph, and returns those that need nothing that the graph computes.

    These are made before it runs, without a block of theirs.

    Args:
        gm: A functional graph; changed in place.
        sizes: Its symbolic sizes.
        constants: Placeholders (by target) whose value is fixed.
    """
    if not CheckIndices(constants)(gm).changed:
        return []
    found = []
    known = {reading.name for reading in sizes.readings}
    positions = {node: at for at, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    for node in gm.graph.find_nodes(op="call_function", target=CHECK):
        indices, size, *others = node.args
        extent = extent_of(size.meta["val"] if isinstance(size, fx.Node) else size)
        last = counted(indices)[1]
        last = None if last is None else extent_of(last)
        if extent is None or not symbols_in(extent) <= known:
            continue
        if indices not in positions and (last is None or not symbols_in(last) <= known):
            continue
        found.append(IndexCheck(positions.get(indices), last, extent, tuple(others)))
        gm.graph.erase_node(node)
        if isinstance(size, fx.Node) and not size.users:
            gm.graph.erase_node(size)
    return found


def _checking(run: Run, checks: Sequence[IndexCheck], sizes: GraphSizes) -> Run:
    """Returns what runs a graph where its indices pass checks."""
    if not checks:
        return run
    varies = any(type(extent) is not int for check in checks for extent in (check.size, check.end or 0))

    def check_and_run(inputs: Sequence[Any]) -> Sequence[Any]:
        named = {str(symbol): size for symbol, size in sizes.read(inputs).items()} if varies else {}
        for check in checks:
            check(inputs, named)
        return run(inputs)

    return check_and_run


def _taker(positions: Sequence[int]) -> Run:
    """Returns what takes the items at some positions, without a loop in Python."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return operator.itemgetter(slice(positions[0], positions[0] + 1) if positions else slice(0))


# Tensors that are part of engines ------------------------------------------------------------------------------------


_CANDIDATES: Final = 8

_version = operator.attrgetter("_version")
_raw = operator.attrgetter("raw")

_WHOLE_BYTES: Final = 1024
"""Tensors up to this size are compared as a whole: that takes a quarter of a microsecond."""


class FrozenTensors:
    """Tensors whose values are part of an engine, and how to tell that they are no longer the same.

    What tells is the tensor object, its version counter, which in-place operators raise, and the address of its
    memory, which assigning to `data` changes. Writing through `weight.data` changes none of them. Of each tensor on
    the CPU memory is compared as well: all of it where it is small, and one element of others, which finds what changes
    a tensor as a whole, such as a step of an optimizer. On a GPU looking at memory would wait for the device, so such a
    write is not seen there.

    The tensors are not kept alive. Their memory is held weakly, so that no other tensor is taken for one of them, and
    not they themselves: `torch.utils.swap_tensors` refuses tensors that anybody holds weakly.

    Args:
        tensors: The tensors.

    Attributes:
        are_alive: Whether the memory of all of them still exists.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.are_alive = True
        self._memory = [weakref.ref(tensor.untyped_storage(), self._note_death) for tensor in tensors]
        self._ids = list(map(id, tensors))
        self._tracked_at = [at for at, tensor in enumerate(tensors) if not tensor.is_inference()]
        self._take_tracked = _taker(self._tracked_at)
        self._versions = [tensors[at]._version for at in self._tracked_at]
        self._addresses = list(map(torch.Tensor.data_ptr, tensors))
        pieces = list(map(_telling_piece, tensors))
        self._sampled_at = [at for at, piece in enumerate(pieces) if piece is not None]
        self._pieces = [pieces[at] for at in self._sampled_at]
        self._contents = [piece.raw for piece in self._pieces]

    def unchanged(self, current: Sequence[Any]) -> bool:
        """Whether what is given now is what was frozen, with the values that it had.

        Args:
            current: What stands in the place of each tensor now.
        """
        return (
            self.are_alive
            and list(map(id, current)) == self._ids
            and list(map(_version, self._take_tracked(current))) == self._versions
            and list(map(torch.Tensor.data_ptr, current)) == self._addresses
            # only now: memory may be read only where its tensor has not moved
            and list(map(_raw, self._pieces)) == self._contents
        )

    def changed(self, current: Sequence[Any]) -> tuple[int, ...]:
        """Returns the positions of what is no longer what was frozen.

        Args:
            current: What stands in the place of each tensor now.
        """
        found = {at for at, now in enumerate(current) if id(now) != self._ids[at] or self._memory[at]() is None}
        pairs = zip(self._tracked_at, self._versions, strict=True)
        found.update(at for at, version in pairs if at not in found and current[at]._version != version)
        found.update(
            at for at, address in enumerate(self._addresses) if at not in found and current[at].data_ptr() != address
        )
        sampled = zip(self._sampled_at, self._pieces, self._contents, strict=True)
        found.update(at for at, piece, content in sampled if at not in found and piece.raw != content)
        return tuple(sorted(found))

    def _note_death(self, _: weakref.ref[torch.UntypedStorage]) -> None:
        self.are_alive = False


def _telling_piece(tensor: torch.Tensor) -> Any:
    """Returns the memory of a small tensor; of another one an element, one that is not zero if one of a few is not."""
    size, count = tensor.element_size(), tensor.numel()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not count:
        return None
    if size * count <= _WHOLE_BYTES and torch.ops.aten.is_non_overlapping_and_dense.default(tensor):
        return (ctypes.c_char * (size * count)).from_address(tensor.data_ptr())
    element = None
    for candidate in range(_CANDIDATES):
        rest, offset = count * (2 * candidate + 1) // (2 * _CANDIDATES), 0
        for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            rest, index = divmod(rest, extent)
            offset += index * stride
        element = (ctypes.c_char * size).from_address(tensor.data_ptr() + offset * size)
        if any(element.raw):
            break
    return element


# What surrounds a build ----------------------------------------------------------------------------------------------


def compile_pytorch_blocks(split: fx.GraphModule) -> None:
    """Gives the PyTorch blocks of a split graph a compiled `forward`. They are compiled at their first call.

    Args:
        split: The module of a `BuiltModel`; changed in place.
    """
    for child in split.children():
        if isinstance(child, fx.GraphModule):
            child.forward = with_inductor(child)


def with_inductor(gm: fx.GraphModule) -> Callable[..., Any]:
    """Returns what a module computes, compiled by Inductor, for sizes that vary where those of its graph do."""
    compiled: Callable[..., Any] = torch.compile(gm.forward, backend="inductor")
    return compiled


@contextlib.contextmanager
def without_registration_hooks() -> Iterator[None]:
    """Hides what this thread registers from the registration hooks of the process; other threads show what they do.

    A graph is built in the middle of a call of the user's model, with hooks that may count modules, or change the
    tensors that they are shown.
    """
    tables: tuple[dict[int, Callable[..., Any]], ...] = (module_hooks, parameter_hooks, buffer_hooks)
    hidden = [(table, key, hook) for table in tables for key, hook in table.items()]

    def undo() -> None:
        for table, key, hook in hidden:
            if key in table:  # it may have been removed meanwhile
                table[key] = hook

    with undone(undo):  # threads of a forked process may have the number of this one
        for table, key, hook in hidden:
            table[key] = functools.partial(_call_elsewhere, threading.get_ident(), hook)
        yield


def _call_elsewhere(builder: int, hook: Callable[..., Any], *registered: Any) -> Any:
    return None if threading.get_ident() == builder else hook(*registered)


GENEROUS: Final = 4096
"""The end of a range that nothing bounds."""

MOST_ELEMENTS: Final = 2**31 - 1
"""The most elements of a tensor in a TensorRT engine."""

_TRIES: Final = 256


@dataclass(frozen=True)
class SizeReading:
    """Where a call says what a symbol is: the number at a position, or an extent of the tensor there.

    Attributes:
        symbol: The symbol.
        position: Position among the inputs of the graph.
        axis: Axis of the tensor, None for a number.
    """

    symbol: Any
    position: int
    axis: int | None

    @cached_property
    def name(self) -> str:
        """The symbol's name, which takes as long to print as a small engine to start."""
        return str(self.symbol)

    def read(self, inputs: Sequence[Any]) -> int:
        """Returns the size."""
        value = inputs[self.position]
        return int(value if self.axis is None else value.shape[self.axis])


class GraphSizes:
    """The symbolic sizes of a graph.

    Args:
        gm: A graph whose nodes carry `meta["val"]`.

    Attributes:
        readings: Where a call says what each symbol is.
        counts: Those of numbers that are no size of any tensor, such as how many of the last tokens are wanted.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.readings = _find_readings(gm)
        self.counts = _find_counts(gm, self.readings)
        self._volumes = _find_volumes(gm) if self.readings else []
        self._shape_env = shape_environment(gm.graph.nodes)

    def read(self, inputs: Sequence[Any]) -> dict[Any, int]:
        """Returns the value of each symbol in a call."""
        return {reading.symbol: reading.read(inputs) for reading in self.readings}

    def choose(
        self, inputs: Sequence[Any], former: ShapeRanges | None = None, fixed_at: Collection[int] = ()
    ) -> ShapeRanges:
        """Returns the ranges to build for.

        Args:
            inputs: Inputs of the call that is at hand; it lies within the ranges, and they are tuned for it.
            former: Ranges that turned out too narrow; the new ones contain them.
            fixed_at: Positions of numbers that are part of the engines.
        """
        sizes = self.read(inputs)
        fixed = {reading.symbol for reading in self.counts if reading.position in fixed_at}
        low: dict[Any, int] = {}
        high: dict[Any, int] = {}
        open_ends = set()
        for symbol, size in sizes.items():
            if symbol in fixed:
                low[symbol] = high[symbol] = size
                continue
            least, most = self._known(symbol)
            if most >= UNBOUNDED:
                open_ends.add(symbol)
                most = max(GENEROUS, _next_power_of_two(4 * size))
            if former is not None:
                before = former.symbols[str(symbol)]
                least, most = min(least, before[0]), max(most, before[2])
            low[symbol], high[symbol] = min(least, size), max(most, size)
        self._limit_volumes(high, sizes, open_ends)
        low, high = self._agreeing(low, sizes, step=1), self._agreeing(high, sizes, step=-1)
        for symbol in sizes.keys() - fixed if former is not None else ():
            before = former.symbols[str(symbol)]  # type: ignore[union-attr]
            low[symbol], high[symbol] = min(low[symbol], before[0]), max(high[symbol], before[2])
        return ShapeRanges({str(symbol): (low[symbol], sizes[symbol], high[symbol]) for symbol in sizes})

    def _known(self, symbol: Any) -> tuple[int, int]:
        known = self._shape_env.var_to_range.get(symbol) if self._shape_env is not None else None
        if known is None:
            return 0, UNBOUNDED
        low = int(known.lower) if known.lower.is_Integer else 0
        high = int(known.upper) if known.upper.is_Integer else UNBOUNDED
        return max(low, 0), min(high, UNBOUNDED)

    def _limit_volumes(self, high: dict[Any, int], sizes: Mapping[Any, int], open_ends: set[Any]) -> None:
        """Halves the widest ranges until no tensor is larger than TensorRT can count."""
        names = {str(symbol): symbol for symbol in high}
        for extents in self._volumes:
            mine = [names[name] for name in sorted(set().union(*map(symbols_in, extents))) if name in names]
            while _volume(extents, high) > MOST_ELEMENTS:
                shrinkable = [
                    symbol for symbol in mine if symbol in open_ends and high[symbol] >= 2 * max(sizes[symbol], 1)
                ]
                if not shrinkable:
                    break
                widest = max(shrinkable, key=lambda symbol: (high[symbol] / max(sizes[symbol], 1), str(symbol)))
                high[widest] //= 2

    def _agreeing(self, ends: Mapping[Any, int], sizes: Mapping[Any, int], step: int) -> dict[Any, int]:
        """Moves one end of each range to where the guards of the graph hold, such as a multiple of 8, or `s1 + 1`.

        An engine is checked at the ends of all ranges at a time, so ends are chosen one after the other, each to agree
        with those before. Where nothing near an end agrees, it is a multiple or a part of the size at hand, or as far
        from that as guards hold, such as 39 for `size // 8 == 4`. An end that finds no agreement stays: guards are
        more than an engine needs.

        Args:
            ends: The end of each range.
            sizes: Sizes at which all guards hold.
            step: 1 to look upwards first, for the lower ends; -1 to look downwards first.
        """
        guards = self._guards()
        found: dict[Any, int] = {}
        for symbol, end in ends.items():
            known = {*found, symbol}
            mine = [guard for guard in guards if symbol in guard.free_symbols and guard.free_symbols <= known]
            if not mine:
                found[symbol] = end
                continue
            size, tests = sizes[symbol], [_test_of(guard) for guard in mine]
            named = {str(other): value for other, value in found.items()}

            def agrees(candidate: int, name: str = str(symbol), named: Any = named, tests: Any = tests) -> bool:
                return all(test({**named, name: candidate}) for test in tests)

            inwards = range(end, size + step, step)[:_TRIES]
            outwards = range(end, max(end - step * _TRIES, 0), -step)
            best = next(filter(agrees, (*inwards, *outwards, *_scales(size, end))), None)
            if best == size != end:
                beyond = range(size - step, end - step, -step)[:_TRIES]
                best = ([size, *itertools.takewhile(agrees, beyond)])[-1]
            found[symbol] = end if best is None else best
        return found

    def _guards(self) -> list[Any]:
        """Guards other than that two sizes differ: Dynamo asks that of sizes that differed at the first call."""
        guards = getattr(self._shape_env, "guards", ())
        return [guard.expr for guard in guards if relation_name(guard.expr) != "ne"]


class Traffic:
    """What a graph communicates, which ranks compare before they do: the first time that it is of some sizes.

    Args:
        gm: A graph whose nodes carry `meta["val"]`.
        ended_by: Where and why PyTorch ended the graph; empty at the end of the model's code.
        code: Of what it was captured, as `name_of_code` calls it.
    """

    def __init__(self, gm: fx.GraphModule, ended_by: str = "", code: str = "") -> None:
        graphs = [part.graph for part in gm.modules() if isinstance(part, fx.GraphModule)]
        nodes = [node for graph in graphs for node in graph.nodes if is_collective(node)]
        found = [(group_of(node), str(node.target), terms_of(node), _bytes_of(node.args[0])) for node in nodes]
        self._calls = [(group.ranks, op, terms, size) for group, op, terms, size in found if group is not None]
        named = set().union(*(symbols_in(size) for *_, size in self._calls))
        self._readings = [reading for reading in _find_readings(gm) if reading.name in named] if named else []
        self._compared = Compared()
        self._note = f"graph ends at a graph break{ended_by}" if ended_by else ""
        self._code = code
        if self._calls:
            _communicating.add(code)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def compare(self, inputs: Sequence[Any]) -> None:
        """Makes sure that all ranks communicate the same in a call that is at hand.

        Raises:
            ExecutionError: A rank runs another program, or with other sizes, has failed, or does not come.
        """
        sizes = tuple(reading.read(inputs) for reading in self._readings)
        if self._compared.here()[sizes]:
            return
        compare_new(self._digests(sizes), self._note, self._code)
        self._compared.here()[sizes] += 1

    @contextlib.contextmanager
    def telling(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Tells the other ranks of a call, where they are about to compare it, of an error that ends it here."""
        try:
            yield
        except Exception as error:
            sizes = tuple(reading.read(inputs) for reading in self._readings)
            if not self._compared.here()[sizes]:
                tell_failure(self._digests(sizes), error, self._code)
            raise

    def _digests(self, sizes: Sequence[int]) -> dict[tuple[int, ...], str]:
        named = {reading.name: size for reading, size in zip(self._readings, sizes, strict=True)}
        return digests_of_calls((ranks, op, terms, _volume([size], named)) for ranks, op, terms, size in self._calls)


_communicating: Final[set[str]] = set()  # code of which graphs were captured that communicate


def communicates(code: str) -> bool:
    """Whether a graph was captured of some code that communicates with other ranks."""
    return code in _communicating


def compared(gm: fx.GraphModule, run: Callable[..., Any], ended_by: str = "", code: str = "") -> Callable[..., Any]:
    """Returns what runs a graph that is left to PyTorch, and compares it with the graphs of other ranks before.

    These may run it in engines, and wait for this rank.

    Args:
        gm: A functional graph whose nodes carry `meta["val"]`.
        run: What runs it.
        ended_by, code: As `Traffic` takes them.
    """
    traffic = Traffic(gm, ended_by, code)
    if not traffic:
        return run

    def compare_and_run(*inputs: Any) -> Any:
        if not any(isinstance(value, FakeTensor) for value in inputs):
            traffic.compare(inputs)
        try:
            return run(*inputs)
        except RuntimeError as error:
            raise_failed_collective(error)
            raise

    return compare_and_run


def _bytes_of(operands: Any) -> Extent:
    """The bytes of what a collective takes, one tensor or several; 0 where they depend on data."""
    values = [node.meta.get("val") for node in leaves_of(operands)]
    return extent_of(sum(value.numel() * value.itemsize for value in tensors_in(values))) or 0


def outside(ranges: ShapeRanges, sizes: Mapping[Any, int]) -> list[str]:
    """Returns what lies outside of ranges, such as `s0 is 9, built for 2 to 8`."""
    found = []
    for symbol, size in sizes.items():
        low, _, high = ranges.symbols[str(symbol)]
        if not low <= size <= high:
            found.append(f"{symbol} is {size}, built for {low} to {high}")
    return found


def _find_readings(gm: fx.GraphModule) -> tuple[SizeReading, ...]:
    found: dict[Any, SizeReading] = {}
    placeholders = list(enumerate(gm.graph.find_nodes(op="placeholder")))
    for position, node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, SizeReading(value.node.expr, position, None))
    for position, node in placeholders:
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape) if isinstance(value, torch.Tensor) else ():
            if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                found.setdefault(extent.node.expr, SizeReading(extent.node.expr, position, axis))
    return tuple(found.values())


def _find_counts(gm: fx.GraphModule, readings: Sequence[SizeReading]) -> tuple[SizeReading, ...]:
    in_shapes: set[Any] = set()
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for extent in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else ():
            if isinstance(extent, torch.SymInt):
                in_shapes |= extent.node.expr.free_symbols
    return tuple(reading for reading in readings if reading.axis is None and reading.symbol not in in_shapes)


def _find_volumes(gm: fx.GraphModule) -> list[tuple[Extent, ...]]:
    """The shapes of the graph's tensors that vary, each once."""
    found: dict[str, tuple[Extent, ...]] = {}
    for value in (tensor for node in gm.graph.nodes for tensor in tensors_in(node.meta.get("val"))):
        if any(isinstance(extent, torch.SymInt) for extent in value.shape):
            found.setdefault(str(tuple(value.shape)), tuple(map(extent_of, value.shape)))
    return [extents for extents in found.values() if None not in extents]


def _volume(extents: Sequence[Extent], sizes: Mapping[Any, int]) -> int:
    named = {str(symbol): size for symbol, size in sizes.items()}
    try:
        return math.prod(int(evaluate_extent(extent, named)) for extent in extents)
    except (KeyError, ZeroDivisionError):  # a symbol that no input tells, or sizes that cannot go together
        return 0
    except ValueError:  # an extent of more than 64 bits
        return MOST_ELEMENTS + 1


def _scales(size: int, end: int) -> Iterator[int]:
    """Sizes between an end and a size, from the end on: the size times powers of two, or divided by them."""
    if not size:
        return
    steps = max(end, size).bit_length()
    sizes = (size << step if end > size else size >> step for step in range(steps, -1, -1))
    yield from (each for each in sizes if min(size, end) <= each <= max(size, end))


def _test_of(guard: Any) -> Callable[[Mapping[str, int]], bool]:
    """Returns what says whether a guard may hold for sizes by name; one that divides by zero does not.

    Substituting in sympy takes a thousand times as long as arithmetic, and many sizes are tried.
    """
    name = relation_name(guard)
    relation = relation_of(guard.lhs, name, guard.rhs) if name is not None else None
    if relation is not None:
        return relation.holds
    symbols = tuple(guard.free_symbols)

    def test(sizes: Mapping[str, int]) -> bool:
        try:
            return bool(guard.subs({symbol: sizes[str(symbol)] for symbol in symbols}) != False)  # noqa: E712
        except ZeroDivisionError:
            return False

    return test


def _next_power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
