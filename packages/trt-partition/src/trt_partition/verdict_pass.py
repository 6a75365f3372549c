"""The verdict of every node: what its own check says, and what the numbers it takes allow."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from torch import fx

from trt_core import OperatorSupport, PartitionError, Reason, Verdict
from trt_core.provenance import source_line
from trt_partition.sizes import SizeTable, is_constant, is_number


@dataclass
class VerdictPass:
    """Asks the support check once for every `call_function` node, in graph order.

    An engine computes sizes itself, from the shapes of its inputs. So a node is refused when it takes a number that
    an engine cannot compute: one that comes from the values of a tensor, from an input of the model that no shape
    tells, or from a function that the support check refuses.

    Attributes:
        support: The composed support check.
        sizes: Nodes that compute sizes.
        inputs: Sizes that can be read from inputs of the graph.
    """

    support: OperatorSupport
    sizes: Set[fx.Node]
    inputs: SizeTable

    def __post_init__(self) -> None:
        self._obstacles: dict[fx.Node, str] = {}

    def run(self, graph: fx.Graph) -> dict[fx.Node, Verdict]:
        """Returns the verdicts by node.

        Raises:
            PartitionError: The graph is not flat: it calls modules or methods.
        """
        verdicts: dict[fx.Node, Verdict] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                self._note_input(node)
            elif node.op == "call_function":
                verdicts[node] = self._verdict(node)
            elif node.op not in ("get_attr", "output"):
                raise PartitionError(
                    f"the graph has a {node.op} node",
                    where=node.name,
                    hint="partition what lowering returns: a flat graph of call_function nodes",
                )
        return verdicts

    def _note_input(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if is_number(value) and not is_constant(value) and self.inputs.find(value) is None:
            self._obstacles[node] = f"`{node.name}` is an input of the model that no tensor's shape tells"

    def _verdict(self, node: fx.Node) -> Verdict:
        verdict = self.support.verdict(node)
        if node in self.sizes:
            self._note_size(node, verdict)
            return verdict
        value = node.meta.get("val")
        if is_number(value):
            self._obstacles[node] = f"`{node.name}` is computed from the values of a tensor"
            if verdict.supported:
                message = "it turns the values of a tensor into a number, and engines return tensors"
                return Verdict.refuse(Reason.UNSUPPORTED_VALUE, message, source_line(node))
            return verdict
        if not verdict.supported:
            return verdict
        for operand in node.all_input_nodes:
            obstacle = self._obstacles.get(operand)
            if obstacle is not None:
                return Verdict.refuse(Reason.NOT_CONSTANT, obstacle, source_line(node))
        return verdict

    def _note_size(self, node: fx.Node, verdict: Verdict) -> None:
        if is_constant(node.meta.get("val")):
            return
        if not verdict.supported:
            self._obstacles[node] = f"the number `{node.name}` cannot be computed in an engine: {verdict.message}"
            return
        for operand in node.all_input_nodes:
            obstacle = self._obstacles.get(operand)
            if obstacle is not None:
                self._obstacles[node] = obstacle
                return
