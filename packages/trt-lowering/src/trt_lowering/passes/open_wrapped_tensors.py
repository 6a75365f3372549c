"""Opens tensor subclasses, such as quantized weights of torchao: what they hold becomes attributes of the graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trt_core.weight_recipes import RECIPE, Literal
from trt_lowering.attributes import add_constant, read_attribute
from trt_lowering.contract import GraphPass

_ACCESS = "export::access_subclass_inner_tensor"


class OpenWrappedTensors(GraphPass):
    """Replaces reads of the tensors inside a wrapper by attributes, and drops the wrapper.

    Requires: values on nodes.
    Ensures: no attribute that is read is a wrapper.
    """

    name = "open_wrapped_tensors"

    def call(self, gm: fx.GraphModule) -> int:
        """Follows accesses in the order of the graph, so that wrappers inside of wrappers open too."""
        changes = 0
        for node in list(gm.graph.nodes):
            if not _is_access(node):
                continue
            owner, name = node.args
            if owner.op != "get_attr":
                continue
            inner: Any = getattr(read_attribute(gm, str(owner.target)), name)
            with gm.graph.inserting_before(node):
                opened = gm.graph.get_attr(add_constant(gm, inner))
            opened.meta.update(node.meta)
            opened.meta[RECIPE] = Literal(inner)
            node.replace_all_uses_with(opened)
            gm.graph.erase_node(node)
            changes += 1
        for node in wrapped_attributes(gm):
            if not node.users:
                gm.graph.erase_node(node)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that wrappers are gone."""
        self.require_values(gm)


def wrapped_attributes(gm: fx.GraphModule) -> list[fx.Node]:
    """Returns the nodes that read an attribute whose value is a wrapper of other tensors."""
    return [node for node in gm.graph.find_nodes(op="get_attr") if is_wrapper(read_attribute(gm, str(node.target)))]


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor that holds others, as export sees it."""
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)


def _is_access(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name == _ACCESS
