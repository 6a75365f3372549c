"""Makes tensors on the device that a model moves them to, where it made them on the CPU."""

from __future__ import annotations

from typing import Final

import torch
from torch import fx

from trt_core.internals import FakeTensor, OpOverload, schema_name
from trt_lowering.contract import OperatorPass
from trt_lowering.node_metadata import insert_call
from trt_lowering.operator_traits import is_pure, tensor_value


class MakeOnDevice(OperatorPass):
    """Makes on its device what a model makes on the CPU and then moves: `torch.arange(n).to(x.device)`.

    Positions and masks are made like that. An engine lives on one device, so the move would be a step in PyTorch, and
    one that waits for the device. What is moved has to follow from sizes and constants, without inputs, random
    numbers or effects; what reads the tensor on the CPU as well keeps its own.

    Requires: no in-place operator but write backs; values on nodes.
    Ensures: values on nodes.
    """

    name = "make_on_device"

    def call(self, gm: fx.GraphModule) -> int:
        """Gives every such move a source that is on its device already."""
        changes = 0
        made: dict[tuple[fx.Node, torch.device], fx.Node] = {}
        for node in list(gm.graph.nodes):
            source = None if self.stays(node.target) else _moved(node)
            chain = None if source is None else self._chain(source)
            if source is None or chain is None:
                continue
            device = node.meta["val"].device
            for maker in chain:
                if (maker, device) not in made:
                    made[maker, device] = _made_on(device, maker, made)
            node.replace_input_with(source, made[source, device])
            changes += 1
        return changes

    def _chain(self, source: fx.Node) -> list[fx.Node] | None:
        """What a tensor is computed by, in order; None where it does not follow from sizes and constants."""
        chain: dict[fx.Node, None] = {}
        pending = [source]
        while pending:
            node = pending.pop()
            if node in chain:
                continue
            if not self._is_movable(node):
                return None
            chain[node] = None
            pending += (read for read in node.all_input_nodes if tensor_value(read) is not None)
        return sorted(chain)

    def _is_movable(self, node: fx.Node) -> bool:
        if not _is_on_cpu(node) or not isinstance(node.meta["val"], FakeTensor) or not is_pure(node):
            return False
        if node.op == "get_attr":
            return True
        is_known = isinstance(node.target, OpOverload) and not self.stays(node.target)
        return is_known and not node.meta.get("unbacked_bindings")  # sizes that only the values tell


def _moved(node: fx.Node) -> fx.Node | None:
    """What a node copies from the CPU to another device; None where it does not."""
    place = _COPIES.get(schema_name(node.target))
    source = None if place is None else node.args[place]
    if not isinstance(source, fx.Node) or not _is_on_cpu(source) or _is_on_cpu(node):
        return None
    if source.op == "get_attr":
        return None  # folding moves it
    return source


_COPIES: Final = {"aten::_to_copy": 0, "aten::copy": 1, "aten::to": 0, "aten::type_as": 0}
"""Operators that can bring a tensor to another device, and which of their arguments that is."""


def _is_on_cpu(node: fx.Node) -> bool:
    value = tensor_value(node)
    return value is not None and value.device.type == "cpu"


def _made_on(device: torch.device, node: fx.Node, made: dict[tuple[fx.Node, torch.device], fx.Node]) -> fx.Node:
    """Adds, behind a node, what makes the same on another device."""

    def there(read: fx.Node) -> fx.Node:
        return made.get((read, device), read)

    graph, before = node.graph, node.meta["val"]
    with before.fake_mode, torch.no_grad():
        value = torch.empty_strided(before.shape, before.stride(), dtype=before.dtype, device=device)
    with graph.inserting_after(node):
        if node.op == "get_attr":
            copy = torch.ops.aten._to_copy.default
            return insert_call(graph, copy, (node,), {"device": device}, value=value, origin=node)
        target = node.target
        assert isinstance(target, OpOverload)
        args = [fx.node.map_arg(item, there) for item in node.args]
        kwargs = {name: fx.node.map_arg(item, there) for name, item in node.kwargs.items() if name != "pin_memory"}
        for at, declared in enumerate(target._schema.arguments):
            if declared.name == "device" and at < len(args):
                args[at] = device
            elif declared.name == "device":
                kwargs["device"] = device
        return insert_call(graph, target, tuple(args), kwargs, value=value, origin=node)
