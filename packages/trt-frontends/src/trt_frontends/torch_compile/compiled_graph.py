"""One graph of a model under `torch.compile`: builds its engines at the first call, and again when it must.

AOTAutograd hands over a functional graph and takes care of everything around it: writes to inputs and buffers, results
that are inputs or views of them, random state. What is left is to be right about three things that change between
calls: tensors that were frozen into engines, sizes beyond the range that engines were built for, and memory that
results share.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from trt_converters import preserve_predicate
from trt_core import CompilationSettings, LoweringError, logger
from trt_core.ranges import ShapeRanges
from trt_frontends.compiler import visible_log
from trt_frontends.pipeline import Compilation, announce
from trt_frontends.torch_compile.frozen_tensors import FrozenTensors
from trt_frontends.torch_compile.output_views import borrowed_results, cut_output_views
from trt_frontends.torch_compile.size_ranges import GraphSizes, outside
from trt_lowering import lower_graph
from trt_partition import PartitionReport

MOST_CHANGES: Final = 4
"""How often engines are built again because weights changed, before no weight is part of an engine any more."""

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the inputs of a graph and returns its results."""


@dataclass(frozen=True)
class Build:
    """The engines of a graph, for certain values of its frozen tensors and certain sizes.

    Attributes:
        run: Runs the graph with them.
        frozen_at: Positions of the inputs that are part of the engines.
        frozen: Their values.
        ranges: What the sizes may be.
        reason: Why it was built.
        report: What runs where; None where the graph could not be lowered, and runs in PyTorch.
    """

    run: Run
    frozen_at: tuple[int, ...]
    frozen: FrozenTensors
    ranges: ShapeRanges
    reason: str
    report: PartitionReport | None


class CompiledGraph:
    """A graph that AOTAutograd made functional, ready to call. Calls may come from several threads.

    Args:
        gm: The functional graph of ATen operators.
        static: Positions of the inputs that are the same at every call: parameters, buffers, tensors that are
            attributes of modules. A position that is wrongly among them costs a build, never a wrong result.
        settings: What to compile with.

    Attributes:
        builds: What was built so far; the last is in use.
    """

    _boxed_call = True  # tells AOTAutograd to give the inputs as one list

    def __init__(self, gm: fx.GraphModule, static: Collection[int], settings: CompilationSettings) -> None:
        self.builds: list[Build] = []
        self._gm = gm
        self._static = set(static)
        self._settings = settings
        self._sizes = GraphSizes(gm)
        self._changes: Counter[int] = Counter()
        self._weight_builds = 0
        self._lock = threading.RLock()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Runs the graph.

        Args:
            inputs: What the graph takes: tensors, and numbers for sizes that vary.
        """
        build = self.builds[-1] if self.builds else None
        if build is None or not self._fits(build, inputs):
            if any(isinstance(value, FakeTensor) for value in inputs):
                return self._run_in_pytorch(inputs)  # shapes are asked for, not values
            build = self._find_build(inputs)
        return build.run(inputs)

    def _fits(self, build: Build, inputs: Sequence[Any]) -> bool:
        if self._settings.check_weights and not build.frozen.unchanged([inputs[at] for at in build.frozen_at]):
            return False
        bounds = build.ranges.symbols
        for reading in self._sizes.readings:
            low, _, high = bounds[str(reading.symbol)]
            if not low <= reading.read(inputs) <= high:
                return False
        return True

    def _find_build(self, inputs: Sequence[Any]) -> Build:
        with self._lock:
            former = self.builds[-1] if self.builds else None
            if former is None:
                build = self._build(inputs, self._sizes.choose(inputs), "first call")
            elif self._fits(former, inputs):  # another thread has just built it
                return former
            else:
                build = self._build_again(former, inputs)
            self.builds.append(build)
            return build

    def _build_again(self, former: Build, inputs: Sequence[Any]) -> Build:
        ranges, reasons = former.ranges, outside(former.ranges, self._sizes.read(inputs))
        if reasons:
            ranges = self._sizes.choose(inputs, former.ranges)
        if self._settings.check_weights:
            changed = former.frozen.changed([inputs[at] for at in former.frozen_at])
            if changed:
                reasons.append(self._thaw([former.frozen_at[index] for index in changed]))
        return self._build(inputs, ranges, "; ".join(reasons))

    def _thaw(self, changed: Sequence[int]) -> str:
        """Decides which tensors stop being part of engines; returns what to say about it.

        What changes once (a checkpoint is loaded) is frozen anew. What changes again is state, or is being trained.
        """
        self._changes.update(changed)
        self._weight_builds += 1
        reason = f"{len(changed)} frozen tensors changed"
        thawed = {at for at in changed if self._changes[at] > 1}
        if self._weight_builds >= MOST_CHANGES:
            thawed = set(self._static)
            warnings.warn(
                f"the weights of a graph changed {self._weight_builds} times: from now on none of them is part of an "
                "engine. That is always right, and slower. Compile the model once its weights stay as they are",
                stacklevel=2,
            )
        self._static -= thawed
        return f"{reason}, {len(thawed)} of them became inputs" if thawed else reason

    def _build(self, inputs: Sequence[Any], ranges: ShapeRanges, reason: str) -> Build:
        is_frozen = [at in self._static and isinstance(value, torch.Tensor) for at, value in enumerate(inputs)]
        frozen_at = tuple(at for at, yes in enumerate(is_frozen) if yes)
        frozen = FrozenTensors([inputs[at] for at in frozen_at])  # first: what changes from now on is seen
        logger.debug("building a graph of %d nodes: %s", len(self._gm.graph.nodes), reason)
        with visible_log(self._settings), torch.no_grad():
            run, report = self._compile({at: inputs[at] for at in frozen_at}, len(inputs), ranges)
        return Build(run, frozen_at, frozen, ranges, reason, report)

    def _compile(
        self, constants: dict[int, torch.Tensor], count: int, ranges: ShapeRanges
    ) -> tuple[Run, PartitionReport | None]:
        settings = self._settings
        cut = cut_output_views(self._gm)
        names = [str(node.target) for node in cut.body.graph.find_nodes(op="placeholder")]
        try:
            lowered = lower_graph(
                cut.body,
                settings,
                preserve=preserve_predicate(settings),
                constants={names[at]: tensor for at, tensor in constants.items()},
            )
        except LoweringError as error:
            logger.warning("a graph of %d nodes runs in PyTorch: %s", len(self._gm.graph.nodes), error)
            return self._run_in_pytorch, None
        compilation = Compilation(lowered, settings, ranges)
        if settings.dryrun:
            report = compilation.report()
            announce(report, settings)
            return self._run_in_pytorch, report
        compiled = compilation.run()
        kept = [at for at in range(count) if at not in constants]
        run = _runner(compiled, kept, borrowed_results(lowered), cut.tail, cut.inputs)
        return run, compiled.meta["partition_report"]

    def _run_in_pytorch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return self._gm.forward(*inputs)  # type: ignore[no-any-return]


def _runner(
    compiled: fx.GraphModule,
    kept: Sequence[int],
    borrowed: Collection[int],
    tail: fx.GraphModule | None,
    tail_inputs: Sequence[int],
) -> Run:
    """Returns what runs a graph in its two parts.

    Args:
        compiled: The body: engines, and blocks in PyTorch.
        kept: Positions of the graph's inputs that the body takes.
        borrowed: Positions among the body's results that need a copy to own their memory.
        tail: Makes the results out of inputs and of what the body returns.
        tail_inputs: Positions of the graph's inputs that the tail takes.
    """

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        results = list(compiled(*[inputs[at] for at in kept]))
        for at in borrowed:
            if isinstance(results[at], torch.Tensor):
                results[at] = results[at].clone()
        if tail is None:
            return results
        return tail(*[inputs[at] for at in tail_inputs], *results)  # type: ignore[no-any-return]

    return run
