"""Lets results lie in memory as they did when the program was captured."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload, pytree, schema_name
from trt_core.sizes.expressions import depends_on_data
from trt_lowering.contract import GraphPass
from trt_lowering.memory_order import lies_in, memory_order
from trt_lowering.node_metadata import graph_results, insert_call, same_shape
from trt_lowering.operator_traits import is_pure, tensor_value
from trt_lowering.results import base_of
from trt_lowering.trial_operands import trial_operands

aten = torch.ops.aten

LAID_OTHERWISE: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("_batch_norm_with_update", "_batch_norm_impl_index", "index", "one_hot", "channel_shuffle", "max_pool1d"),
        *("pad", "reflection_pad2d", "replication_pad2d", "copysign", "div", "floor_divide", "heaviside", "ldexp"),
        *("logaddexp", "logical_and", "logical_or", "logical_xor", "xlogy", "special_xlog1py"),
        *("angle", "isin", "log_sigmoid", "log_sigmoid_forward", "pow"),
    )
)
"""Operators whose kernels on the CPU lay results otherwise than fake tensors say, where axes have another order in
memory: what is normalized becomes dense, what is looked up has the order of its indices. Found by comparing
all of PyTorch's database of operators, with operands transposed, with channels last, with gaps, and expanded.
"""

_TRANSFORMS: Final = ("aten::fft_", "aten::_fft_")
"""How names of Fourier transforms begin; fake tensors of PyTorch 2.11 say that their results are always dense."""


class LayOutResults(GraphPass):
    """Gives results the order in memory that they had in the captured program; what replaces operators has its own.

    Results that share memory with each other, an input or an attribute stay as they are, and so do those with gaps.

    Requires: values on nodes.
    Ensures: values on nodes.

    Args:
        captured: What `captured_results` returned.
    """

    name = "lay_out_results"

    def __init__(self, captured: Sequence[torch.Tensor | None]) -> None:
        self._captured = captured

    def call(self, gm: fx.GraphModule) -> int:
        """Copies results that lie otherwise; returns how many do."""
        changes = 0
        output = gm.graph.output_node()
        own = captured_results(gm.graph)
        for item, made, wanted in zip(graph_results(gm.graph), own, self._captured, strict=True):
            if made is None or wanted is None or not same_shape(made, wanted):
                continue
            order = memory_order(wanted)
            if order is None:
                continue
            if lies_in(made, order):
                if base_of(item) is item:
                    item.meta["val"] = wanted  # strides of axes of extent 1 may differ
                continue
            with gm.graph.inserting_before(output):
                output.replace_input_with(item, _laid_out(gm.graph, item, order))
            changes += 1
        return changes


def captured_results(graph: fx.Graph) -> list[torch.Tensor | None]:
    """Returns the results of a graph that alone lie in memory which the graph made; None in the places of others."""
    results = graph_results(graph)
    uses = Counter(base_of(item) for item in results if isinstance(item, fx.Node))
    return [
        tensor_value(item) if isinstance(item, fx.Node) and uses[base_of(item)] == 1 and _is_made(item) else None
        for item in results
    ]


def correct_layouts(graph: fx.Graph) -> int:
    """Gives nodes the strides that PyTorch's kernels write, where fake tensors say otherwise.

    Kernels are asked: they run on zeros that lie as the operands do. What follows from such a node is asked as well.

    Args:
        graph: A captured graph, with fake values; those of some nodes are replaced.

    Returns:
        How many nodes have other strides.
    """
    changed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.meta.get("val") is None:
            continue
        follows = not changed.isdisjoint(node.all_input_nodes)
        if follows and node.target is operator.getitem:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
            changed.add(node)
        elif follows or _may_lie_otherwise(node):
            leaves, nesting = pytree.tree_flatten(node.meta["val"])
            laid = _laid_as_written(node, leaves)
            if any(old is not new for old, new in zip(leaves, laid, strict=True)):
                node.meta["val"] = pytree.tree_unflatten(laid, nesting)
                changed.add(node)
    return len(changed)


def _may_lie_otherwise(node: fx.Node) -> bool:
    """Whether fake tensors may be wrong about how the results of a node lie."""
    name = schema_name(node.target)
    return name.startswith(_TRANSFORMS) or (name in LAID_OTHERWISE and _has_other_order(node))


def _has_other_order(node: fx.Node) -> bool:
    """Whether an operand's axes lie otherwise than they are numbered."""
    values = map(tensor_value, node.all_input_nodes)
    return any(value is not None and not lies_in(value, range(value.dim())) for value in values)


def _laid_as_written(node: fx.Node, values: Sequence[Any]) -> Sequence[Any]:
    """Returns the values of a node, with other strides where kernels write them so."""
    made = _run_on_zeros(node)
    return values if made is None else [_laid_like(value, real) for value, real in zip(values, made, strict=True)]


def _laid_like(value: Any, real: Any) -> Any:
    """Returns a value whose axes lie as those of a real one; itself where they do, or where that has gaps."""
    order = memory_order(real) if isinstance(real, torch.Tensor) else None
    if order is None or not isinstance(value, torch.Tensor) or lies_in(value, order):
        return value
    with torch.no_grad():
        dense = value.new_empty([value.shape[axis] for axis in order])
        return dense.permute([order.index(axis) for axis in range(len(order))])


def _run_on_zeros(node: fx.Node) -> list[Any] | None:
    """Returns what a node makes of zeros that lie as its operands do; None where it isn't tried, or fails."""
    target: Any = node.target
    operands = trial_operands(node) if isinstance(target, OpOverload) and is_pure(node) else None
    if operands is None:
        return None
    args, kwargs = operands
    try:
        with torch.no_grad():
            return list(pytree.tree_leaves(target(*args, **kwargs)))
    except Exception:  # a kernel that refuses zeros
        return None


def _is_made(item: fx.Node) -> bool:
    value = tensor_value(item)
    if base_of(item).op in ("placeholder", "get_attr") or value is None or value.layout is not torch.strided:
        return False
    return not any(map(depends_on_data, value.shape))


def _laid_out(graph: fx.Graph, item: fx.Node, order: list[int]) -> fx.Node:
    """Adds what copies a tensor into memory in which its axes lie in some order."""

    def call(target: Any, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        with torch.no_grad():
            value = target(node.meta["val"], *args, **kwargs)
        return insert_call(graph, target, (node, *args), kwargs, value=value, origin=item)

    if order == sorted(order):
        return call(aten.clone.default, item, memory_format=torch.contiguous_format)
    moved = call(aten.permute.default, item, order)
    dense = call(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return call(aten.permute.default, dense, [order.index(axis) for axis in range(len(order))])
