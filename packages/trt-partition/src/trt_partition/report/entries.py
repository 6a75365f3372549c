"""What a report says of one node, one block, and one passage between blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from trt_core import Verdict
from trt_core.precision import KeptInFloat32
from trt_partition.plan import BlockKind
from trt_partition.values import NumberSpec, TensorSpec


@dataclass(frozen=True)
class Communication:
    """What a collective moves between processes.

    Attributes:
        group: PyTorch's name of the process group.
        ranks: The ranks in it, in its order; empty where this process does not know the group.
        sent_bytes: What one rank sends at the opt shapes where the group forms a ring.
    """

    group: str
    ranks: tuple[int, ...]
    sent_bytes: int

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks)) or "unknown"
        return f"each rank sends {self.sent_bytes} bytes in group '{self.group}' (ranks {ranks})"


@dataclass(frozen=True)
class NodeReport:
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
    """

    op: str
    name: str
    location: str
    block: str
    inputs: tuple[str, ...]
    is_convertible: bool
    verdict: Verdict
    flops: int
    converter: str = ""
    kept_in_float32: KeptInFloat32 | None = None
    communication: Communication | None = None


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
    kind: BlockKind
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
