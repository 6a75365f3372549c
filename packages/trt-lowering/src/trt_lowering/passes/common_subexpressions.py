"""Merges nodes that compute the same thing."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings
from trt_core.quantization import is_dequantization
from trt_lowering.contract import GraphPass
from trt_lowering.operator_traits import is_kept_in_torch, is_pure
from trt_lowering.passes.normalize_quantization import is_known
from trt_lowering.results import result_bases


class MergeCommonSubexpressions(GraphPass):
    """Lets the first of several equal computations stand for all.

    Two nodes are equal when they call the same pure function on the same nodes and constants, or read the same
    attribute. Layouts count: what differs in strides only stays apart.

    Requires: no in-place operator but write backs.
    Ensures: values on nodes.

    Args:
        settings: Operators in `torch_executed_ops` stay as they are.
    """

    name = "merge_common_subexpressions"

    def __init__(self, settings: CompilationSettings) -> None:
        self._settings = settings

    def call(self, gm: fx.GraphModule) -> int:
        """Merges in one walk; merged operands make later nodes equal too."""
        changes = 0
        seen: dict[Any, fx.Node] = {}
        bases = result_bases(gm.graph)
        for node in list(gm.graph.nodes):
            if not is_pure(node) or is_kept_in_torch(node.target, self._settings):
                continue
            if isinstance(node.meta.get("val"), (torch.SymBool,)):
                continue
            if is_dequantization(node.target) and is_known(node.args[0]):
                continue  # readers in blocks of their own take the weight, not floats made of it elsewhere
            key = _key(node)
            if key is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and not _both_returned(first, node) and not {first, node} <= bases:
                node.replace_all_uses_with(first)
                if node in bases:
                    bases.add(first)
                gm.graph.erase_node(node)
                changes += 1
        return changes


def _both_returned(first: fx.Node, second: fx.Node) -> bool:
    """Two results of a model must not become one tensor: callers may write to either."""
    return all(any(user.op == "output" for user in node.users) for node in (first, second))


def _key(node: fx.Node) -> Any:
    def freeze(item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return tuple(freeze(part) for part in item)
        if isinstance(item, dict):
            return tuple((name, freeze(part)) for name, part in sorted(item.items()))
        if isinstance(item, float):
            return (float, repr(item))
        return item if isinstance(item, fx.Node) else (type(item), item)

    try:
        key = (node.op, node.target, freeze(node.args), freeze(node.kwargs))
        hash(key)
    except TypeError:
        return None
    return key
