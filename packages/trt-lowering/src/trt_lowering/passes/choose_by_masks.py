"""Writes by a mask of what the same mask chose: selections, where models have as many rows as data tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from typing import Any, Final

import torch
from torch import fx

from trt_core.internals import OpOverload, schema_name
from trt_core.operators import argument
from trt_core.sizes.ranges import largest_extent
from trt_lowering.contract import OperatorPass
from trt_lowering.expansion import no_new_guards
from trt_lowering.node_metadata import fake_mode_of, insert_call, same_shape
from trt_lowering.operator_traits import is_pure, tensor_value

aten: Final = torch.ops.aten

FEW_MASKS: Final = 4
"""Most masks that choose from the same values where products are computed at all places: as many times the work."""

FEW_ROWS: Final = 16
"""Rows that products compute in the time that reading their weights takes, however many masks choose from them."""


class ChooseByMasks(OperatorPass):
    """Computes `x[mask] = f(y[mask])` as `where(mask, f(y), x)`, where `f` computes each place by itself.

    How many places a mask chooses depends on data, and no engine holds a tensor of so many; all places there are is a
    shape like any other. What reads chosen values for something else keeps them, and so do products where many masks
    choose from the same values, unless these are few rows: experts, each of which has a part of them.

    Requires: no in-place operator but write backs; equal masks are one node.
    Ensures: values on nodes.
    """

    name = "choose_by_masks"

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in one walk: what one mask wrote can be what the next one reads."""
        changes = 0
        masks: dict[fx.Node, fx.Node] = {}
        everywhere: dict[fx.Node, fx.Node] = {}
        crowded = _crowded_masks(gm.graph)
        for node in list(gm.graph.nodes):
            if self.stays(node.target) or not isinstance(node.target, OpOverload):
                continue
            if (mask := _chooses_by(node)) is not None:
                masks[node], everywhere[node] = mask, node.args[0]
            elif (mask := _computed_by_place(node, masks, crowded)) is not None:
                masks[node], everywhere[node] = mask, _computed_everywhere(node, everywhere)
            elif (values := _written(node, masks)) is not None:
                _select(node, masks[values], everywhere[values])
                changes += 1
        for node, twin in reversed(everywhere.items()):
            if _chooses_by(node) is None and not twin.users:
                gm.graph.erase_node(twin)
        return changes


def _chooses_by(node: fx.Node) -> fx.Node | None:
    """The mask by which a node reads its first operand; None where it does something else."""
    name = schema_name(node.target)
    if name == "aten::index":
        indices: Any = argument(node, "indices")
        return indices[0] if len(indices) == 1 and _is_mask(indices[0]) else None
    if name == "aten::masked_select":
        mask: Any = argument(node, "mask")
        return mask if _has_shape_of(mask, node.args[0]) else None
    return None


def _is_mask(node: Any) -> bool:
    value = tensor_value(node) if isinstance(node, fx.Node) else None
    return value is not None and value.dtype is torch.bool and value.dim() > 0


def _has_shape_of(mask: Any, other: Any) -> bool:
    return _is_mask(mask) and same_shape(mask.meta["val"], other.meta["val"])


def _crowded_masks(graph: fx.Graph) -> Set[fx.Node]:
    """The masks of many places that choose from values from which many masks choose."""
    choosing: dict[Any, set[fx.Node]] = defaultdict(set)
    for node in graph.nodes:
        mask = _chooses_by(node) if isinstance(node.target, OpOverload) else None
        if mask is not None and not _has_few_places(mask):
            choosing[node.args[0]].add(mask)
    return {mask for masks in choosing.values() if len(masks) > FEW_MASKS for mask in masks}


def _has_few_places(mask: fx.Node) -> bool:
    most = largest_extent(mask.meta["val"].numel())
    return most is not None and most <= FEW_ROWS


def _computed_by_place(node: fx.Node, masks: dict[fx.Node, fx.Node], crowded: Set[fx.Node]) -> fx.Node | None:
    """The mask of a node's operands, where each row of its result follows from that row of them, whatever it holds."""
    chosen = [read for read in node.all_input_nodes if read in masks]
    value, name = tensor_value(node), schema_name(node.target)
    if not chosen or value is None or not isinstance(node.target, OpOverload):
        return None
    if not is_pure(node) or len({masks[read] for read in chosen}) > 1:
        return None
    if any(read.meta["val"].dim() != value.dim() for read in chosen):
        return None
    if name == "aten::linear":
        is_by_row = chosen == [node.args[0]] and value.dim() > 1 and masks[chosen[0]] not in crowded
        return masks[chosen[0]] if is_by_row else None
    if torch.Tag.pointwise not in node.target.tags or (name in _REFUSING and not value.is_floating_point()):
        return None
    others = (tensor_value(read) for read in node.all_input_nodes if read not in masks)
    return masks[chosen[0]] if all(other is None or other.dim() < value.dim() for other in others) else None


_REFUSING: Final = frozenset(f"aten::{name}" for name in ("div", "floor_divide", "fmod", "pow", "remainder"))
"""Operators that refuse some integers, which may stand where the mask chooses nothing."""


def _computed_everywhere(node: fx.Node, everywhere: dict[fx.Node, fx.Node]) -> fx.Node:
    """Adds what computes a node's values at the places that its mask chooses, and some at all others."""

    def value(item: fx.Node) -> Any:
        return item.meta["val"]

    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda read: everywhere.get(read, read))
    mode = fake_mode_of(node.graph)
    assert mode is not None and isinstance(node.target, OpOverload)
    with mode, torch.no_grad(), no_new_guards(mode):
        result = node.target(*fx.node.map_arg(args, value), **fx.node.map_arg(kwargs, value))
    with node.graph.inserting_after(node):
        return insert_call(node.graph, node.target, args, kwargs, value=result, origin=node)


def _written(node: fx.Node, masks: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The values that a node writes by the mask that chose them, a row for each place; None where it does not."""
    name = schema_name(node.target)
    if name == "aten::index_put":
        indices: Any = argument(node, "indices")
        mask, values = indices[0], argument(node, "values")
        is_single = len(indices) == 1 and not argument(node, "accumulate")
    elif name == "aten::masked_scatter":
        mask, values = argument(node, "mask"), argument(node, "source")
        is_single = _has_shape_of(mask, node.args[0])
    else:
        return None
    if not is_single or not isinstance(values, fx.Node) or masks.get(values) is not mask:
        return None
    rows = node.meta["val"].dim() - masks[values].meta["val"].dim() + 1
    return values if values.meta["val"].dim() == rows else None


def _select(node: fx.Node, mask: fx.Node, values: fx.Node) -> None:
    """Puts a selection in the place of a write."""
    graph, result = node.graph, node.meta["val"]
    with graph.inserting_before(node):
        while mask.meta["val"].dim() < result.dim():
            with result.fake_mode:
                wider = mask.meta["val"].unsqueeze(-1)
            mask = insert_call(graph, aten.unsqueeze.default, (mask, -1), value=wider, origin=node)
        chosen = insert_call(graph, aten.where.self, (mask, values, node.args[0]), value=result, origin=node)
    node.replace_all_uses_with(chosen)
    graph.erase_node(node)
