"""What a compiled graph takes first: weights, in the layouts that its kernels want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_portable.plan.engine_info import Shape
from trt_portable.runtime.tracing import TracedProgram


@dataclass(frozen=True)
class WeightOperand:
    """A use of weights as an argument.

    Attributes:
        use: Index of the use among the engine's weight slots.
        shape: Extents; None for the flat tensor.
        channels_last: Whether channels vary fastest in memory.
    """

    use: int
    shape: Shape | None = None
    channels_last: bool = False

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The argument, from the weights as an engine binds them."""
        tensor = flat if self.shape is None else flat.reshape(self.shape)
        return tensor.contiguous(memory_format=torch.channels_last) if self.channels_last else tensor

    def to_json(self) -> dict[str, Any]:
        """How a launch list names it."""
        shape = None if self.shape is None else list(self.shape)
        return {"weights": self.use, "shape": shape, "channels_last": self.channels_last}


def lay_out_weights(traced: TracedProgram) -> tuple[fx.GraphModule, list[WeightOperand]]:
    """Makes a traced graph take kernels of 2-D convolutions with channels last, as fast kernels read them.

    Otherwise every run would copy them to that layout.

    Returns:
        A graph, and its first arguments; inputs follow them.
    """
    graph = traced.graph.graph
    holders = [node for node in graph.nodes if node.op == "placeholder"][: len(traced.uses)]
    use_of = dict(zip(holders, traced.uses, strict=True))
    operands = {holder: WeightOperand(use) for holder, use in use_of.items()}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.convolution.default or node.meta["val"].dim() != 4:
            continue
        kernel = node.args[1]
        if kernel.target is not torch.ops.aten.view.default or kernel.args[0] not in use_of:
            continue
        shape = tuple(int(extent) for extent in kernel.meta["val"].shape)
        with graph.inserting_after(holders[-1]):
            holder = graph.placeholder(f"kernel_{len(operands)}")
        holder.meta = {"val": kernel.meta["val"].contiguous(memory_format=torch.channels_last)}
        operands[holder] = WeightOperand(use_of[kernel.args[0]], shape, channels_last=True)
        holders.append(holder)
        node.update_arg(1, holder)
    graph.eliminate_dead_code()
    for holder in [holder for holder in holders if not holder.users]:
        graph.erase_node(holder)
        del operands[holder]
    return _plain(traced.graph), [operands[node] for node in _holders(graph, operands)]


def _holders(graph: fx.Graph, operands: dict[fx.Node, WeightOperand]) -> Sequence[fx.Node]:
    return [node for node in graph.nodes if node in operands]


def _plain(traced: fx.GraphModule) -> fx.GraphModule:
    """A module that takes its arguments one by one and returns a tuple, with no memory of their structure."""
    traced.graph.set_codegen(fx.graph.CodeGen())
    last = traced.graph.output_node()
    last.args = (tuple(last.args[0]),)  # type: ignore[arg-type]
    traced.graph.lint()
    return fx.GraphModule(traced, traced.graph)
