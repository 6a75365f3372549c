"""Clears a graph of what computes nothing new: identities, operands without elements, equal nodes, unused ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OWN_NAMESPACES, OpOverload, schema_name
from trt_core.operators import argument
from trt_core.process_groups import is_unread
from trt_core.quantization import is_dequantization
from trt_lowering.contract import GraphPass, OperatorPass
from trt_lowering.expansion import call_key
from trt_lowering.node_metadata import insert_call, same_layout, same_shape
from trt_lowering.operator_traits import copies_as_it_lies, is_pure, may_view, mutated_arguments, tensor_value
from trt_lowering.passes.normalize_quantization import is_known
from trt_lowering.results import base_of, result_bases, views_of_results

Test = Callable[[fx.Node, torch.Tensor, torch.Tensor], bool]


class RemoveIdentities(OperatorPass):
    """Removes nodes whose result equals an argument for every input: the first one, of copies the one that is copied.

    Requires: no in-place operator but write backs, so that a copy and what was copied can never differ later.
    Ensures: values on nodes.
    """

    name = "remove_identities"

    def requires(self, gm: fx.GraphModule) -> None:
        """Checks that values are immutable."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if node.target is torch.ops.aten.copy_.default or not isinstance(node.target, OpOverload):
                continue
            if mutated_arguments(node.target):
                self.fail(node, "the graph still has in-place operators")

    def call(self, gm: fx.GraphModule) -> int:
        """Redirects uses of identities to their argument."""
        changes = 0
        written, bases = _written(gm.graph), result_bases(gm.graph)
        views = {view for chain in views_of_results(gm.graph).values() for view in chain}
        for node in list(gm.graph.nodes):
            if not is_identity(node) or self.stays(node.target):
                continue
            source = node.args[_place(node)]
            assert isinstance(source, fx.Node) and isinstance(node.target, OpOverload)
            if base_of(source) in written:
                continue  # a snapshot of state that the graph overwrites when it ends
            if node in bases and not may_view(node) and _is_seen(base_of(source), bases):
                continue  # callers may write to a result, and must not reach inputs, parameters or another result by it
            if node in views and copies_as_it_lies(node) and base_of(source).op == "placeholder":
                continue  # a result that is the input where that lies so, and a copy where it lies otherwise
            if _is_another_object(node, source):
                continue  # callers may resize a result or ask for its gradient, and must not reach an input by it
            if node in bases:
                bases.add(base_of(source))
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
            changes += 1
        return changes


def is_identity(node: fx.Node) -> bool:
    """Whether the node's result equals what it takes in value, shape and type, for every input."""
    test = _TESTS.get(schema_name(node.target))
    if test is None or len(node.args) <= _place(node):
        return False
    source = node.args[_place(node)]
    if not isinstance(source, fx.Node):
        return False
    before, after = tensor_value(source), tensor_value(node)
    if before is None or after is None or before.dtype != after.dtype or before.device != after.device:
        return False
    return same_shape(before, after) and test(node, before, after)


def _place(node: fx.Node) -> int:
    """Position of the argument that an identity returns."""
    return int(node.target is torch.ops.aten.copy.default)


def _written(graph: fx.Graph) -> frozenset[fx.Node]:
    copies = (node for node in graph.nodes if node.target is torch.ops.aten.copy_.default)
    return frozenset(node.args[0] for node in copies if isinstance(node.args[0], fx.Node))


def _is_seen(base: fx.Node, bases: set[fx.Node]) -> bool:
    return base.op != "call_function" or base in bases


def _is_another_object(node: fx.Node, source: fx.Node) -> bool:
    """Whether callers can tell a result from the input, or the other result, that it lies in the memory of."""
    if schema_name(node.target) not in _MAKES_OBJECT or not _is_result(node):
        return False
    return source.op != "call_function" or _is_result(source)


def _is_result(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _always(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    return True


def _is_inference(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    flag: Any = argument(node, "train")
    return flag is False or argument(node, "p") == 0


def _keeps_layout(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    return same_layout(before, after)


def _is_scattered(node: fx.Node, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a copy keeps the layout, or its values are all that anybody takes of it."""
    scatters = (torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default)
    takers = [user.target in scatters and user.args[1] is node and user.args[0] is not node for user in node.users]
    return all(takers) or same_layout(before, after)


_MAKES_OBJECT: Final = frozenset(
    f"aten::{name}" for name in ("alias", "detach", "expand", "expand_as", "reshape", "view", "_unsafe_view")
)
"""Operators that return another tensor for the same memory, where `contiguous` and `to` return what they are given."""

_TESTS: Final[dict[str, Test]] = {
    "aten::alias": _always,
    "aten::alpha_dropout": _is_inference,
    "aten::clone": _keeps_layout,
    "aten::contiguous": _keeps_layout,
    "aten::copy": _is_scattered,
    "aten::detach": _always,
    "aten::detach_copy": _always,
    "aten::dropout": _is_inference,
    "aten::expand": _keeps_layout,
    "aten::expand_as": _keeps_layout,
    "aten::feature_alpha_dropout": _is_inference,
    "aten::feature_dropout": _is_inference,
    "aten::flatten": _keeps_layout,
    "aten::lift": _always,
    "aten::lift_fresh": _always,
    "aten::lift_fresh_copy": _always,
    "aten::_to_copy": _keeps_layout,
    "aten::to": _keeps_layout,
    "aten::type_as": _keeps_layout,
    "aten::reshape": _keeps_layout,
    "aten::view": _keeps_layout,
    "aten::_unsafe_view": _keeps_layout,
}


class MergeCommonSubexpressions(OperatorPass):
    """Lets the first of several equal computations stand for all.

    Two nodes are equal when they call the same pure function on the same nodes and constants, or read the same
    attribute. Layouts count: what differs in strides only stays apart. So do calls of an operator of somebody else, as
    many as the model has: it may draw random numbers, or count, and say so nowhere.

    Requires: no in-place operator but write backs.
    Ensures: values on nodes.
    """

    name = "merge_common_subexpressions"

    def call(self, gm: fx.GraphModule) -> int:
        """Merges in one walk; merged operands make later nodes equal too."""
        changes = 0
        seen: dict[Any, fx.Node] = {}
        bases = result_bases(gm.graph)
        for node in list(gm.graph.nodes):
            if not is_pure(node) or self.stays(node.target) or _is_of_others(node.target):
                continue
            if isinstance(node.meta.get("val"), (torch.SymBool,)):
                continue
            if is_dequantization(node.target) and is_known(node.args[0]):
                continue  # readers in blocks of their own take the weight, not floats made of it elsewhere
            key = call_key(node)
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


_KNOWN: Final = frozenset(
    (
        *(*OWN_NAMESPACES, "trt", "torchvision", "torchao", "quantized_decomposed", "quantized", "tensorrt"),
        *("bitsandbytes", "onednn", "mkldnn", "mkl"),
    )
)
"""Namespaces of operators that are known to compute, and nothing else."""


def _is_of_others(target: Any) -> bool:
    return isinstance(target, OpOverload) and target.namespace not in _KNOWN


def _both_returned(first: fx.Node, second: fx.Node) -> bool:
    """Two results of a model must not become one tensor: callers may write to either."""
    return all(any(user.op == "output" for user in node.users) for node in (first, second))


class EliminateDeadCode(GraphPass):
    """Removes nodes without users that have no effect, on other processes either; inputs stay.

    Requires: nothing.
    Ensures: every node left is an input, the output, used, or has an effect.
    """

    name = "eliminate_dead_code"

    def requires(self, gm: fx.GraphModule) -> None:
        """Accepts every graph."""

    def call(self, gm: fx.GraphModule) -> int:
        """Erases in reverse order, so that one walk is enough."""
        changes = 0
        for node in reversed(gm.graph.nodes):
            if _is_dead(node):
                gm.graph.erase_node(node)
                changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that nothing removable is left."""
        for node in gm.graph.nodes:
            if _is_dead(node):
                self.fail(node, "an unused node is left")


def _is_dead(node: fx.Node) -> bool:
    return not node.users and is_pure(node) and not is_unread(node)


_JOINING: Final = frozenset({"aten::cat", "aten::concat", "aten::concatenate"})
_WRITING: Final = frozenset({"aten::slice_scatter"})


class DropEmptyOperands(OperatorPass):
    """Takes tensors without elements out of concatenations, and makes copies of writes of nothing.

    Models slice their tensors by configuration: a rotary embedding that covers the whole head leaves an empty rest,
    which is joined again at the end. What computed the empty tensors is dead afterwards.

    Requires: values on nodes.
    Ensures: no concatenation has an operand that is known to be empty, unless all of them are.
    """

    name = "drop_empty_operands"

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in one walk."""
        changes = 0
        for node in list(gm.graph.nodes):
            if not isinstance(node.target, OpOverload) or self.stays(node.target):
                continue
            name = node.target._schema.name
            if name in _JOINING:
                changes += self._shorten(node)
            elif name in _WRITING and _writes_nothing(node):
                _copy_instead(node)
                changes += 1
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that the walk left nothing to drop."""
        self.require_values(gm)
        for node in gm.graph.nodes:
            if not isinstance(node.target, OpOverload) or self.stays(node.target):
                continue
            if node.target._schema.name in _JOINING and _filled(node) is not None:
                self.fail(node, "a concatenation still has an empty operand")

    @staticmethod
    def _shorten(node: fx.Node) -> bool:
        filled = _filled(node)
        if filled is None:
            return False
        node.update_arg(0, filled)
        return True


def _filled(node: fx.Node) -> list[fx.Node] | None:
    """Returns the operands with elements, None when there is nothing to drop: types take part in what is joined."""
    operands: Any = node.args[0] if node.args else None
    result = tensor_value(node)
    if not isinstance(operands, (list, tuple)) or result is None:
        return None
    filled = [operand for operand in operands if not _is_empty(tensor_value(operand))]
    if not filled or len(filled) == len(operands):
        return None
    values = [tensor_value(operand) for operand in filled]
    return filled if any(value is not None and value.dtype == result.dtype for value in values) else None


def _copy_instead(node: fx.Node) -> None:
    """Keeps that the node makes a tensor of its own, which matters where it is a result."""
    source = argument(node, "self")
    with node.graph.inserting_before(node):
        copied = insert_call(node.graph, torch.ops.aten.clone.default, (source,), value=node.meta["val"], origin=node)
    node.replace_all_uses_with(copied)
    node.graph.erase_node(node)


def _writes_nothing(node: fx.Node) -> bool:
    source = argument(node, "src")
    return isinstance(source, fx.Node) and _is_empty(tensor_value(source))


def _is_empty(value: torch.Tensor | None) -> bool:
    """Whether a tensor is known to have no elements."""
    return value is not None and any(isinstance(extent, int) and extent == 0 for extent in value.shape)
