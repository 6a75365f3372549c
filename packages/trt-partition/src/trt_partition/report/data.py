"""What dry runs, compiles and `torch.compile` say about a graph, as data: what every rendering reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Final

from trt_core import Reason, Verdict
from trt_core.cached_property import cached_property
from trt_core.files import records, typed
from trt_core.files.records import Form, Grown
from trt_core.precision import KeptInFloat32
from trt_core.process_groups import show_ranks
from trt_partition.bridges import Bridge
from trt_partition.plan import BlockKind
from trt_partition.sweep import Recommendation, Sweep, recommend
from trt_partition.values import Group, NumberSpec, TensorSpec


def _read_size(value: Any, place: str) -> int | float:
    return float("inf") if value == "inf" else typed.integer(value, place)


SIZE: Final = Form(_read_size, lambda size: "inf" if size == float("inf") else int(size))
"""How a `min_block_size` is written, which may be infinite."""


@dataclass(frozen=True)
class ReportData:
    """What a partition plan makes of a graph.

    Attributes:
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        nodes: Every `call_function` node, in graph order.
        blocks: Every block, in topological order.
        edges: What passes between blocks, inputs and outputs of the model.
        min_block_size: Size asked for, possibly infinite.
        settings: Settings as JSON values.
        settings_text: Settings on one line.
        sweep: What other sizes would give.
        bridge: The operator whose support would merge the most engines, or None.
        profiles: The inputs in each optimization profile, where there are several.
    """

    inputs: Group
    outputs: Group
    nodes: tuple[Annotated[NodeReport, Form(_read_node, _node_to_json)], ...]
    blocks: tuple[BlockReport, ...]
    edges: tuple[Transition, ...]
    min_block_size: Annotated[int | float, SIZE]
    settings: Mapping[str, Any]
    settings_text: str
    sweep: Sweep = field(default_factory=Sweep)
    bridge: Bridge | None = None
    profiles: tuple[Group, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> ReportData:
        return self  # nothing in it can change, so copies of a compiled module share it

    @property
    def total_operators(self) -> int:
        """Number of `call_function` nodes in the graph."""
        return len(self.nodes)

    @cached_property
    def supported_operators(self) -> int:
        """Number of nodes that engines could run, whether or not they do."""
        return sum(node.is_convertible for node in self.nodes)

    @property
    def coverage(self) -> float:
        """Supported operators over all operators, 0 to 1; 1 for a graph without operators."""
        return self.supported_operators / self.total_operators if self.nodes else 1.0

    @cached_property
    def engines(self) -> tuple[BlockReport, ...]:
        """The blocks that are engines."""
        return tuple(block for block in self.blocks if block.kind is BlockKind.ENGINE)

    @cached_property
    def torch_nodes(self) -> tuple[NodeReport, ...]:
        """The nodes that run in PyTorch; the verdict of each says why."""
        return tuple(node for node in self.nodes if not node.verdict.supported)

    @cached_property
    def kept_in_float32(self) -> tuple[NodeReport, ...]:
        """The nodes that compute in float32 although computation is reduced; each says why."""
        return tuple(node for node in self.nodes if node.kept_in_float32 is not None)

    @cached_property
    def weights_in_floats(self) -> tuple[NodeReport, ...]:
        """The nodes that read a weight which the model stores in few bits, and engines in floats; each says why."""
        return tuple(node for node in self.nodes if node.weight_in_floats)

    @cached_property
    def collectives(self) -> tuple[NodeReport, ...]:
        """The nodes that communicate with other processes, in the order in which every process runs them."""
        return tuple(node for node in self.nodes if node.communication is not None)

    @cached_property
    def unsupported(self) -> Mapping[str, int]:
        """How often each operator is refused, by name, most first."""
        return count_names(node.op for node in self.nodes if not node.is_convertible)

    @cached_property
    def overrides(self) -> Mapping[str, str]:
        """Operators that converters of other packages take, with the packages."""
        packages: dict[str, set[str]] = {}
        for node in self.nodes:
            if node.converter:
                packages.setdefault(node.op, set()).add(node.converter)
        return MappingProxyType({op: ", ".join(sorted(found)) for op, found in sorted(packages.items())})

    @cached_property
    def transitions(self) -> tuple[Transition, ...]:
        """What passes between PyTorch blocks and engines."""
        kinds = {block.name: block.kind for block in self.blocks}
        return tuple(
            edge
            for edge in self.edges
            if edge.source in kinds and edge.target in kinds and kinds[edge.source] is not kinds[edge.target]
        )

    @cached_property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """Values of `min_block_size` worth knowing, with the number of engines that each gives."""
        return recommend(self.sweep, self.min_block_size, len(self.engines))


def count_names(names: Iterable[str]) -> Mapping[str, int]:
    """Returns how often each name occurs, most first, then by name."""
    ordered = sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))
    return MappingProxyType(dict(ordered))


@dataclass(frozen=True)
class Communication(Grown):
    """What a collective moves between processes.

    Attributes:
        group: PyTorch's name of the process group.
        ranks: The ranks in it, in its order; empty where this process does not know the group.
        sent_bytes: What one rank sends at the opt shapes where the group forms a ring.
        terms: What all ranks have to agree on besides, `sum of float32`; empty in reports that were written before.
    """

    group: str
    ranks: tuple[int, ...]
    sent_bytes: int
    terms: str = ""

    def __str__(self) -> str:
        return f"each rank sends {self.sent_bytes} bytes in group '{self.group}' (ranks {self.ranks_text})"

    @property
    def ranks_text(self) -> str:
        """The ranks as text: `0 to 63`."""
        return show_ranks(self.ranks) or "unknown"


def _read_verdict(value: Any, place: str) -> Verdict:
    code, message, source = (typed.text(value[name], place) for name in ("code", "message", "source"))
    reason = Reason.from_code(code) if code else None
    return Verdict(reason is None, reason, message, source)


def _verdict_to_json(verdict: Verdict) -> dict[str, str]:
    return {"code": verdict.code, "message": verdict.message, "source": verdict.source}


def _read_node(value: Any, place: str) -> NodeReport:
    found = {**typed.mapping(value, place)}
    verdict = {name: found.pop(name) for name in ("code", "message", "source")}
    return records.read(NodeReport, {**found, "verdict": verdict}, place)


def _node_to_json(node: NodeReport) -> dict[str, Any]:
    data = records.write(node)
    return data | data.pop("verdict")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class NodeReport(Grown):
    """One `call_function` node.

    Attributes:
        op: Name of the operator, `torch.ops.aten.relu.default`.
        name: Name of the node.
        location: Module path and node name, `encoder.layer.0/relu_1`.
        block: Name of its block; empty for numbers that only the outputs of the model need.
        inputs: Names of the `call_function` nodes whose results it takes.
        is_convertible: Whether an engine could run the node.
        verdict: Why it runs in PyTorch, or the verdict of support when it runs in an engine.
        flops: Estimated floating-point operations at the opt shapes.
        converter: Package of the converter that takes the node, where it is not the built-in one; else empty.
        kept_in_float32: Why the node was not reduced, where computation is; None where it was, or never could be.
        communication: What it moves between processes; None for all but collectives.
        weight_in_floats: Why a weight of few bits that it reads became floats (`TRT-F035`); empty where none did.
    """

    op: str
    name: str
    location: str
    block: str
    inputs: tuple[str, ...]
    is_convertible: bool
    verdict: Annotated[Verdict, Form(_read_verdict, _verdict_to_json)]
    flops: int
    converter: str = ""
    kept_in_float32: KeptInFloat32 | None = None
    communication: Communication | None = None
    weight_in_floats: str = ""


@dataclass(frozen=True)
class BlockReport:
    """An engine, or a block that runs in PyTorch.

    Attributes:
        name: Name of the submodule, `_run_on_acc_0`.
        kind: Where it runs.
        operators: Number of `call_function` nodes.
        computations: Operators among them that `min_block_size` counts.
        operators_by_kind: Number of nodes by operator name, most first.
        inputs: What the block takes.
        outputs: What it returns.
        parameters: Number of elements of the parameters, buffers and constants that it uses.
        parameter_bytes: Their bytes.
        flops: Estimated floating-point operations at the opt shapes.
        memory_bytes: Bytes that the block reads and writes at least once at the opt shapes: inputs, outputs and
            parameters.
        nodes: Names of the nodes, in graph order.
    """

    name: str
    kind: Annotated[BlockKind, records.by_value(BlockKind)]
    operators: int
    computations: int
    operators_by_kind: Mapping[str, int]
    inputs: tuple[TensorSpec | NumberSpec, ...]
    outputs: tuple[TensorSpec | NumberSpec, ...]
    parameters: int
    parameter_bytes: int
    flops: int
    memory_bytes: int
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators_by_kind", MappingProxyType(dict(self.operators_by_kind)))


@dataclass(frozen=True)
class Transition:
    """Values that pass from one place to another.

    Attributes:
        source: Block that makes them, or `inputs` for the inputs of the model.
        target: Block that takes them, or `outputs` for the outputs of the model.
        tensors: How many values pass.
        bytes: Their bytes at the opt shapes.
    """

    source: str
    target: str
    tensors: int
    bytes: int
