"""One operator of an engine in an engine of its own: what it gets wrong by itself, and of which layers it is made."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import fx, nn

from trt_converters import BlockInterpreter
from trt_core import TrtError, device_scope, trt
from trt_core.provider_log import provider_logger
from trt_frontends.accuracy.blocks import EngineCase
from trt_frontends.comparison.output_error import measure_error
from trt_frontends.pipeline import LoweredModel


@dataclass(frozen=True)
class LoneOperator:
    """A node of an engine, alone.

    Attributes:
        node: The node.
        engine: An engine of it alone; None where it takes sizes, or converts only beside others.
        operands: Names of the tensors that the engine takes.
        layers: What its converter makes of it, `name (type)`.
    """

    node: fx.Node
    engine: nn.Module | None
    operands: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @classmethod
    def build(cls, node: fx.Node, case: EngineCase, lowered: LoweredModel) -> LoneOperator:
        """Builds the engine of a node; `case` tells which of its operands are tensors."""
        block = _block_of(node, case)
        if block is None:
            return cls(node, None)
        operands = tuple(item.name for item in block.graph.nodes if item.op == "placeholder")
        try:
            return cls(node, lowered.engine(block, "alone"), operands, _layers_of(block, lowered))
        except TrtError:  # it converts in its block, and not alone
            return cls(node, None)

    def error(self, case: EngineCase) -> float | None:
        """Returns the scaled error of its result, given PyTorch's operands; None where there is no engine."""
        if self.engine is None:
            return None
        with torch.no_grad():
            found = self.engine(*(case.values[name] for name in self.operands))
        return measure_error(found, case.values[self.node.name]).scaled


def _layers_of(block: fx.GraphModule, lowered: LoweredModel) -> tuple[str, ...]:
    with device_scope(lowered.settings.device.torch_device):
        network = trt.Builder(provider_logger()).create_network(
            1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        )
        BlockInterpreter(block, network, lowered.settings, lowered.ranges, lowered.registry).run()
        # pooling and activation layers have a `type` of their own, which hides the kind of layer
        kind_of = trt.ILayer.type.fget
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        return tuple(f"{layer.name} ({kind_of(layer).name})" for layer in layers)


def _block_of(node: fx.Node, case: EngineCase) -> fx.GraphModule | None:
    """A block of one node, which takes the tensors that the node takes; weights stay constants."""
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            copies[operand] = graph.node_copy(operand)
        elif operand.name in case.values:
            copies[operand] = graph.placeholder(operand.name)
        else:
            return None
        copies[operand].meta = copy.copy(operand.meta)
    copied = graph.node_copy(node, copies.__getitem__)
    copied.meta, copied.name = copy.copy(node.meta), node.name
    graph.output(copied)
    return fx.GraphModule(case.graph, graph, class_name="alone")
