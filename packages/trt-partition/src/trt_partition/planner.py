"""Makes partition plans: which node runs in an engine, which in PyTorch, in which block.

Both strategies run in time linear in nodes plus edges and give the fewest engines that are possible before
`min_block_size` drops the small ones:

- `use_fast_partitioner=True` lets everything join the earliest engine that it can;
- `use_fast_partitioner=False` also tries the latest engine, and keeps what brings more operators into engines, then
  what needs fewer engines, then what lets fewer tensors cross between blocks. Where nodes are free to join one of
  several engines, that fills up engines that would otherwise be too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from trt_core import CompilationSettings, OperatorSupport, Reason, Verdict
from trt_core.held_arguments import held_to_signature
from trt_core.operator_counts import is_product
from trt_core.quantization import is_dequantization
from trt_partition.costs import counts_as_computation, only_moves
from trt_partition.dependence import ENGINE, PASSIVE, TORCH, Dependences, earliest_levels, latest_levels
from trt_partition.effects import Effect
from trt_partition.plan import Block, BlockKind, PartitionPlan, require_complete
from trt_partition.sizes import find_sizes, is_number, placeholder_sizes
from trt_partition.support_rules import VerdictPass, compose_support
from trt_partition.sweep import Sweep, SweepPoint, best_of, better_point

OUTSIDE = -1
"""Level of sizes that only the outputs of the graph need."""


@held_to_signature
def make_plan(graph_module: fx.GraphModule, support: OperatorSupport, settings: CompilationSettings) -> PartitionPlan:
    """Decides which nodes run in engines, and in which.

    Decides only: the graph stays as it is. The same graph, support and settings give the same plan.

    Args:
        graph_module: A flat graph whose nodes have `meta["val"]`; see `docs/design/contracts.md`.
        support: Says of each node whether an engine can run it. The settings `torch_executed_ops` and
            `torch_executed_modules`, and the rules for mutations, randomness, control flow and numbers, are applied
            around it.
        settings: `min_block_size`, `use_fast_partitioner` and `require_full_compilation` are read, too.

    Returns:
        The plan. A graph that engines can run wholly becomes one engine whatever its size, unless `min_block_size` is
        infinite.

    Raises:
        PartitionError: The graph calls modules or methods.
        IncompleteCompilationError: `require_full_compilation` is set, and nodes would run in PyTorch.
    """
    graph = graph_module.graph
    sizes = find_sizes(graph)
    inputs = placeholder_sizes(graph)
    verdicts = VerdictPass(compose_support(support, settings), sizes, inputs).run(graph)
    dependences = Dependences.of_graph(graph, sizes, inputs)
    earliest = Leveling.earliest(dependences, [verdicts[node].supported for node in dependences.nodes])
    candidates = [earliest]
    if not settings.use_fast_partitioner:
        kinds = earliest.kinds
        candidates.append(Leveling.of(dependences, kinds, latest_levels(dependences, kinds)))
    chosen = _choose(candidates, settings.min_block_size)
    plan = chosen.to_plan(
        {node.name: verdict for node, verdict in verdicts.items()},
        settings.min_block_size,
        best_of([candidate.sweep for candidate in candidates]),
    )
    if settings.require_full_compilation:
        require_complete(graph_module, plan)
    return plan


def node_kinds(dependences: Dependences, supported: Sequence[bool]) -> list[int]:
    """Returns on which side each node is: a tuple's producer runs in an engine only if all that unpacks it can."""
    kinds = [ENGINE if able else TORCH for able in supported]
    for node, owner in enumerate(dependences.owner):
        if dependences.is_size[node]:
            kinds[node] = PASSIVE
        elif owner != node:
            if not supported[node]:
                kinds[owner] = TORCH
            kinds[node] = PASSIVE
    return kinds


def _with_feeders(dependences: Dependences, kinds: Sequence[int]) -> list[int]:
    """Returns kinds with what only brings inputs and sizes to nodes in PyTorch there, too.

    That is what moves inputs (`cat`, `select`, casts), and tables that are made of sizes (`arange`, and arithmetic on
    it), as far as a node in PyTorch reads it.
    """
    fed = list(kinds)
    of_sizes, feeds = [False] * len(kinds), [False] * len(kinds)
    for position, node in enumerate(dependences.nodes):
        if dependences.is_size[position]:
            of_sizes[position] = True
            continue
        before = dependences.before[position]
        is_free = dependences.effects[position] is Effect.NONE and not is_dequantization(node.target)
        if kinds[dependences.owner[position]] != ENGINE or not is_free:
            continue
        tensors = [item for item in node.all_input_nodes if item.op == "placeholder" and not is_number(item)]
        of_sizes[position] = not tensors and all(of_sizes[item] for item in before) and not is_product(node.target)
        moved = only_moves(node) and all(of_sizes[item] or feeds[item] for item in before)
        feeds[position] = of_sizes[position] or moved
    for position in reversed(range(len(kinds))):
        if feeds[position] and any(fed[dependences.owner[user]] == TORCH for user in dependences.after[position]):
            fed[dependences.owner[position]] = TORCH
    return fed


@dataclass(frozen=True)
class Leveling:
    """Levels of all nodes, and what follows from them for blocks.

    Attributes:
        dependences: The graph.
        kinds: Sides by index.
        levels: Levels by index; a size has the level of the block that it is reported with.
        computations: Operators that count, by level.
        operators: Operators, by level.
        is_whole: No node has to run in PyTorch.
        sweep: How many engines each `min_block_size` would give.
    """

    dependences: Dependences
    kinds: Sequence[int]
    levels: Sequence[int]
    computations: dict[int, int]
    operators: dict[int, int]
    is_whole: bool
    sweep: Sweep = field(init=False)

    def __post_init__(self) -> None:
        engines = [level for level in self.operators if level % 2 == ENGINE and level >= 0]
        if self.is_whole and engines:
            point = SweepPoint(max(self.computations[engines[0]], 1), 1, self.operators[engines[0]])
            sweep = Sweep((point,), unlimited=True)
        else:
            sweep = Sweep.of_blocks((self.computations[level], self.operators[level]) for level in engines)
        object.__setattr__(self, "sweep", sweep)

    @staticmethod
    def earliest(dependences: Dependences, supported: Sequence[bool]) -> Leveling:
        """Puts everything in engines as early as possible, in as few of them as possible.

        What would only move data for nodes in PyTorch runs there where that leaves fewer engines: a model that
        computes a table in PyTorch from its inputs has that first, and one engine.
        """
        kinds = node_kinds(dependences, supported)
        found = Leveling.of(dependences, kinds, earliest_levels(dependences, kinds))
        fed = _with_feeders(dependences, kinds)
        if fed == kinds:
            return found
        other = Leveling.of(dependences, fed, earliest_levels(dependences, fed))
        return other if 0 < other.sweep.at(1).engines < found.sweep.at(1).engines else found

    @staticmethod
    def of(dependences: Dependences, kinds: Sequence[int], levels: list[int]) -> Leveling:
        """Counts what the levels hold."""
        _settle_sizes(dependences, levels)
        _settle_weights(dependences, levels)
        _settle_updates(dependences, kinds, levels)
        computations: dict[int, int] = {}
        operators: dict[int, int] = {}
        for node, level in enumerate(levels):
            counts = not dependences.is_size[node] and dependences.is_live[node]
            counts = counts and counts_as_computation(dependences.nodes[node])
            computations[level] = computations.get(level, 0) + counts
            operators[level] = operators.get(level, 0) + 1
        is_whole = TORCH not in kinds and any(
            live and kind == ENGINE for live, kind in zip(dependences.is_live, kinds, strict=True)
        )
        return Leveling(dependences, kinds, levels, computations, operators, is_whole)

    def keeps(self, level: int, min_block_size: int | float) -> bool:
        """Whether the nodes of a level become an engine."""
        if level < 0 or level % 2 != ENGINE:
            return False
        if self.is_whole:
            return min_block_size != float("inf")
        return self.computations[level] >= max(min_block_size, 1)

    def group(self, min_block_size: int | float) -> list[tuple[BlockKind, list[int]]]:
        """Returns the blocks in order; what is between two engines, or beside them, is one block in PyTorch."""
        groups: list[tuple[BlockKind, list[int]]] = []
        position: dict[int, int] = {}
        for level in sorted(self.operators):
            if level == OUTSIDE:
                continue
            if self.keeps(level, min_block_size):
                groups.append((BlockKind.ENGINE, []))
            elif not groups or groups[-1][0] is not BlockKind.TORCH:
                groups.append((BlockKind.TORCH, []))
            position[level] = len(groups) - 1
        for node, level in enumerate(self.levels):
            if level != OUTSIDE:
                groups[position[level]][1].append(node)
        return groups

    def crossings(self, min_block_size: int | float) -> int:
        """Returns how many values pass from one block to another."""
        block = {node: number for number, (_, nodes) in enumerate(self.group(min_block_size)) for node in nodes}
        crossing = 0
        for node, dependents in enumerate(self.dependences.after):
            if not self.dependences.is_size[node]:
                takers = {block[taker] for taker in dependents if taker in block}
                crossing += len(takers - {block.get(node)})
        return crossing

    def to_plan(self, verdicts: dict[str, Verdict], min_block_size: int | float, sweep: Sweep) -> PartitionPlan:
        """Names the blocks, and says why nodes that could be in engines are not."""
        names = [node.name for node in self.dependences.nodes]
        blocks: list[Block] = []
        fallbacks: dict[str, Verdict] = {}
        for number, (kind, nodes) in enumerate(self.group(min_block_size)):
            members = tuple(names[node] for node in nodes)
            computations = sum(
                counts_as_computation(self.dependences.nodes[node])
                for node in nodes
                if not self.dependences.is_size[node] and self.dependences.is_live[node]
            )
            blocks.append(Block(f"{kind.prefix}{number}", kind, members, computations))
            if kind is BlockKind.TORCH:
                fallbacks |= {
                    names[node]: self._fallback(node, verdicts, min_block_size)
                    for node in nodes
                    if verdicts[names[node]].supported
                }
        outside = tuple(name for name, level in zip(names, self.levels, strict=True) if level == OUTSIDE)
        aside = Verdict.refuse(Reason.NO_COMPUTATION, "only outputs of the model need this number")
        fallbacks |= {name: aside for name in outside if verdicts[name].supported}
        return PartitionPlan(verdicts, fallbacks, tuple(blocks), outside, sweep)

    def _fallback(self, node: int, verdicts: dict[str, Verdict], min_block_size: int | float) -> Verdict:
        dependences = self.dependences
        level = self.levels[node]
        if level % 2 == ENGINE:
            size = self.computations[level]
            if size == 0:
                return Verdict.refuse(Reason.NO_COMPUTATION)
            message = f"its block has {size} operator(s) that compute, min_block_size is {min_block_size}"
            return Verdict.refuse(Reason.SMALL_BLOCK, message)
        if dependences.is_size[node]:
            return Verdict.refuse(Reason.NO_COMPUTATION, "only nodes in PyTorch need this number")
        if is_dequantization(dependences.nodes[node].target):
            return Verdict.refuse(Reason.NO_COMPUTATION, "only nodes in PyTorch read this weight")
        owner = dependences.nodes[dependences.owner[node]].name
        if not verdicts[owner].supported:
            return Verdict.refuse(Reason.NO_COMPUTATION, f"it unpacks `{owner}`, which runs in PyTorch")
        parts = [item for item in dependences.after[node] if dependences.owner[item] == node]
        if not all(verdicts[dependences.nodes[part].name].supported for part in parts):
            return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"not all results of `{owner}` can be had from an engine")
        return Verdict.refuse(Reason.NO_COMPUTATION, "it brings inputs or sizes to what runs in PyTorch")


def _choose(candidates: Sequence[Leveling], min_block_size: int | float) -> Leveling:
    best = candidates[0]
    for other in candidates[1:]:
        here, there = best.sweep.at(min_block_size), other.sweep.at(min_block_size)
        if better_point(here, there) or (
            not better_point(there, here) and other.crossings(min_block_size) < best.crossings(min_block_size)
        ):
            best = other
    return best


def _settle_sizes(dependences: Dependences, levels: list[int]) -> None:
    """Gives sizes the level of the first engine that needs them, or else of the first block that does."""
    for node in reversed(range(len(levels))):
        if dependences.is_size[node]:
            takers = [levels[taker] for taker in dependences.after[node] if levels[taker] != OUTSIDE]
            engines = [level for level in takers if level % 2 == ENGINE]
            levels[node] = min(engines or takers, default=OUTSIDE)


def _settle_updates(dependences: Dependences, kinds: Sequence[int], levels: list[int]) -> None:
    """Gives writes to caches the level of what computes the rows: together they are one update in place."""
    places = {node: position for position, node in enumerate(dependences.nodes)}
    for position, effect in enumerate(dependences.effects):
        if effect is Effect.UPDATE and kinds[position] == ENGINE:
            levels[position] = levels[places[dependences.nodes[position].args[1]]]  # type: ignore[index]


def _settle_weights(dependences: Dependences, levels: list[int]) -> None:
    """Gives dequantized weights the level of the first node that reads them: elsewhere they would cross as floats."""
    for node in reversed(range(len(levels))):
        if is_dequantization(dependences.nodes[node].target) and not dependences.before[node]:
            takers = [levels[taker] for taker in dependences.after[node] if levels[taker] != OUTSIDE]
            levels[node] = min(takers, default=levels[node])
