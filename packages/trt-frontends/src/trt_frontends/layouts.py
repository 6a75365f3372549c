"""Lets the outputs of engines lie in memory as they do in the captured program.

Engines write dense tensors in the order of their axes. An output that lies otherwise, channels last for instance,
leaves its engine with the axes in the order of its memory, and the graph around the engine names them back: a view.
What lies with gaps in the captured program has none when an engine wrote it, so blocks in PyTorch reshape where the
program takes views that depend on gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.extents import depends_on_data
from trt_lowering.node_metadata import insert_call, same_extent

aten = torch.ops.aten

_LAYOUT_BOUND: Final = frozenset({aten.view.default, aten._unsafe_view.default})
"""Reshapes that fail on tensors that lie otherwise than they did when the program was captured."""


def keep_layouts(split: fx.GraphModule, engines: Iterable[str]) -> None:
    """Rewrites engines' blocks, before they are built, and the calls of them.

    An output whose elements do not fill their memory, or overlap in it, such as a part of a larger tensor, stays dense.

    Args:
        split: A graph that calls blocks.
        engines: Names of the blocks that engines will run.
    """
    changed = False
    for name in engines:
        block = split.get_submodule(name)
        assert isinstance(block, fx.GraphModule)
        calls = [node for node in split.graph.nodes if node.op == "call_module" and node.target == name]
        output = block.graph.output_node()
        (result,) = output.args
        if isinstance(result, fx.Node):
            changed |= _relay(block, output, result, calls)
            continue
        assert isinstance(result, (tuple, list))
        for position, item in enumerate(result):
            if isinstance(item, fx.Node):
                users = [user for call in calls for user in call.users if user.args[1:] == (position,)]
                changed |= _relay(block, output, item, users)
    if changed:
        split.recompile()


def reshape_in_pytorch(split: fx.GraphModule, engines: Collection[str]) -> None:
    """Lets blocks in PyTorch copy where a tensor that an engine wrote cannot be viewed as it was in the program.

    Args:
        split: A graph that calls blocks.
        engines: Names of the blocks that engines will run; without any, every tensor lies as it was captured.
    """
    for name, block in split.named_children() if engines else ():
        if name in engines or not isinstance(block, fx.GraphModule):
            continue
        views = [node for target in _LAYOUT_BOUND for node in block.graph.find_nodes(op="call_function", target=target)]
        for node in views:
            node.target = aten.reshape.default
        if views:
            block.recompile()


def memory_order(value: torch.Tensor) -> list[int] | None:
    """Returns the axes of a dense tensor from the outermost in memory to the innermost.

    Returns:
        The axes, in order where they can be: one of extent 1 has no place of its own. None for a tensor with gaps or
        overlaps, and for one of which that cannot be told for every value of its sizes.
    """
    axes = list(range(value.dim()))
    if _lies_in(value, axes):
        return axes
    left = list(reversed(axes))
    order: list[int] = []
    step: int | torch.SymInt = 1
    while left:
        neighbors = [axis for axis in left if _same_step(value.stride(axis), step)]
        neighbors += [axis for axis in left if same_extent(value.shape[axis], 1)]
        if not neighbors:
            return None
        order.insert(0, neighbors[0])
        left.remove(neighbors[0])
        step = step * value.shape[neighbors[0]]
    return order


def _relay(block: fx.GraphModule, output: fx.Node, node: fx.Node, received: Sequence[fx.Node]) -> bool:
    """Relays one output of a block through a permutation; whether it needs one.

    An output whose size depends on data stays dense: no converter would take a permutation of it.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    if any(isinstance(extent, torch.SymInt) and depends_on_data(extent) for extent in value.shape):
        return False
    order = memory_order(value)
    if order is None or order == sorted(order):
        return False
    inverse = [order.index(axis) for axis in range(len(order))]
    with torch.no_grad():
        moved = value.permute(order)
    with block.graph.inserting_before(output):
        leaving = insert_call(block.graph, aten.permute.default, (node, order), value=moved, origin=node)
    output.replace_input_with(node, leaving)
    block.recompile()
    for arriving in received:
        arriving.meta["val"] = moved
        graph = arriving.graph
        with graph.inserting_after(arriving):
            view = insert_call(graph, aten.permute.default, (arriving, inverse), value=value, origin=node)
        for user in list(arriving.users):
            if user is not view:
                user.replace_input_with(arriving, view)
    return True


def _lies_in(value: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the axes follow each other in memory in that order, without gaps; axes of extent 1 do not count."""
    step: int | torch.SymInt = 1
    for axis in reversed(order):
        if same_extent(value.shape[axis], 1):
            continue
        if not _same_step(value.stride(axis), step):
            return False
        step = step * value.shape[axis]
    return True


def _same_step(left: int | torch.SymInt, right: int | torch.SymInt) -> bool:
    """Whether two strides are equal, however their products are written, in a tensor that is not empty.

    PyTorch steps over an axis that may be empty by `Max(1, extent)`.
    """
    if same_extent(left, right):
        return True
    if isinstance(left, int) and isinstance(right, int):
        return False
    return bool((_polynomial(left) - _polynomial(right)).expand() == 0)


def _polynomial(step: int | torch.SymInt) -> Any:
    import sympy  # costly to import, and here already where sizes are symbolic

    from trt_frontends.internals import Max

    if isinstance(step, int):
        return sympy.Integer(step)
    return step.node.expr.replace(
        lambda part: isinstance(part, Max) and len(part.args) == 2 and part.args[0] == 1, lambda part: part.args[1]
    )
