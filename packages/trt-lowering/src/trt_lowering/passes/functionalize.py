"""Turns in-place operators into functional ones, node by node, where that is enough.

Which nodes share memory is found in one walk; each in-place operator has a functional one that computes what it writes.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.control_flow import is_control_flow
from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import tensors_in
from trt_core.operators import draws_random_numbers
from trt_lowering.contract import GraphPass
from trt_lowering.node_metadata import cast_value, insert_call, same_layout, same_shape
from trt_lowering.operator_traits import may_view, mutated_arguments, tensor_value
from trt_lowering.results import can_share

aten = torch.ops.aten


class Functionalize(GraphPass):
    """Replaces in-place operators by their functional counterparts and redirects later uses.

    Where nothing else is used later that lies in the memory of what is written, the new value simply takes over. Where
    views are, of a value that the graph made, what was written is put into that value, and they are taken of it again.
    Writes to inputs, parameters and buffers become `aten.copy_` write backs at the end of the graph, and a result that
    is what was written to stays the input, parameter or buffer itself. Where such state is written through a view, or
    it cannot be told how views lie in memory, the write is *entangled*: the graph is left as it is
    from there on, `entangled` names the node, and lowering traces the whole program instead.

    Requires: values on nodes.
    Ensures: unless `entangled` is set, no in-place operator is left but write backs at the end (with
        `write_back=False`, none but those on inputs and attributes).

    Args:
        write_back: Whether writes to inputs and attributes become write backs; otherwise they stay as they are.

    Attributes:
        entangled: The first in-place node that could not be rewritten, None when all could.
    """

    name = "functionalize"

    def __init__(self, *, write_back: bool = True) -> None:
        self.write_back = write_back
        self.entangled: fx.Node | None = None

    def call(self, gm: fx.GraphModule) -> int:
        """Rewrites in-place operators in the order of the graph."""
        return self.rewrite(gm.graph)

    def rewrite(self, graph: fx.Graph) -> int:
        """Rewrites a graph that has no module yet; see the class."""
        self.entangled = None
        if not any(_writes(node) for node in graph.nodes):
            return 0
        order = {node: index for index, node in enumerate(graph.nodes)}
        aliases = AliasClasses()
        written: dict[fx.Node, fx.Node] = {}
        changes = 0
        for node in list(graph.nodes):
            if _writes_nothing(node):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
                changes += 1
                continue
            if not _writes(node):
                aliases.add(node)
                continue
            if not self._rewrite_node(graph, node, aliases, order, written):
                if self.entangled is not None:
                    return changes
                aliases.add(node)
                continue
            changes += 1
        changes += _insert_write_backs(graph, written, aliases)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that in-place operators are gone."""
        self.require_values(gm)
        if self.entangled is not None:
            return
        for node in gm.graph.nodes:
            if _writes(node) and self.write_back and node.target is not aten.copy_.default:
                self.fail(node, f"the in-place operator {node.target} is left")

    def _rewrite_node(
        self,
        graph: fx.Graph,
        node: fx.Node,
        aliases: AliasClasses,
        order: dict[fx.Node, int],
        written: dict[fx.Node, fx.Node],
    ) -> bool:
        """Replaces one in-place node; False when it stays (`entangled` says whether that is a problem)."""
        positions = mutated_arguments(node.target)
        target = node.args[0] if positions == (0,) and node.args else None
        if not isinstance(target, fx.Node) or tensor_value(target) is None:
            self.entangled = node
            return False
        state = aliases.state_of(target)
        if state is not None and not self.write_back:
            return False
        now = order[node]
        same = aliases.same_tensor(target)
        if state is not None and state not in same:
            self.entangled = node  # a write through a view of state
            return False
        used_later = [
            member
            for member in aliases.members(target)
            if any(user is not node and order.get(user, -1) > now and _reads_values(user) for user in member.users)
        ]
        views = None
        if not set(used_later) <= set(same):
            views = _Views.of(target, used_later) if state is None else None
            if views is None:
                self.entangled = node
                return False
        replacement = insert_functional(graph, node, target)
        if replacement is None:
            self.entangled = node
            return False
        if views is not None:
            _take_views_again(graph, node, views, replacement, aliases, order)
            return True
        order[replacement] = now
        for member in same:
            for user in list(member.users):
                if user is not node and order.get(user, -1) > now:
                    user.replace_input_with(member, replacement)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)
        aliases.take_over(replacement, target)
        if state is not None:
            written[state] = replacement
        return True


def _reads_values(node: fx.Node) -> bool:
    """Whether a node wants to know more of its operands than their extents and types."""
    return schema_name(node.target) not in _OF_EXTENTS


_OF_EXTENTS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty_like", "full_like", "ones_like", "zeros_like"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "sym_numel", "sym_size"),
    )
)
"""Operators that make something of the shape of a tensor, or tell it, whatever the tensor holds."""


def _writes(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, OpOverload) and bool(mutated_arguments(node.target))


def _writes_nothing(node: fx.Node) -> bool:
    """Whether a node returns its operand as it is: `detach_`, which export puts behind constants, or idle dropout."""
    is_dropout = schema_name(node.target) in _DROPOUTS
    return node.target is aten.detach_.default or (is_dropout and not draws_random_numbers(node))


_DROPOUTS: Final = frozenset(
    f"aten::{name}_" for name in ("alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout")
)


@dataclass(frozen=True)
class _Views:
    """What lies in the memory of a value that the graph made.

    Attributes:
        base: The value.
        written: The views that lead from it to what is written, the last one first.
        paths: The views that lead to each value that is used later, the last one first; none for the base.
    """

    base: fx.Node
    written: list[fx.Node]
    paths: dict[fx.Node, list[fx.Node]]

    @classmethod
    def of(cls, target: fx.Node, used_later: list[fx.Node]) -> _Views | None:
        """Returns them; None where it cannot be told how one of them lies, or how to write through them."""
        base, written = _path(target)
        paths: dict[fx.Node, list[fx.Node]] = {}
        for member in used_later:
            root, paths[member] = _path(member)
            if root is not base:
                return None
        if not isinstance(base.target, OpOverload) or (may_view(base) and not mutated_arguments(base.target)):
            return None
        return cls(base, written, paths) if all(view.target in _SCATTERS for view in written) else None


def _path(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """Returns the value that a node is a view of, as far as views are known, and the views that lead to it."""
    path: list[fx.Node] = []
    while node.target in _VIEWS and isinstance(node.args[0], fx.Node):
        path.append(node)
        node = node.args[0]
    return node, path


_SCATTERS: Final[dict[Any, OpOverload]] = {
    aten.select.int: aten.select_scatter.default,
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
}
"""What puts a view back into its base, by the view."""

_VIEWS: Final = frozenset(
    {
        *_SCATTERS,
        *(aten.alias.default, aten.detach.default, aten.expand.default, aten.permute.default, aten.squeeze.default),
        *(aten.squeeze.dim, aten.squeeze.dims, aten.t.default, aten.transpose.int, aten.unsqueeze.default),
        aten.view.default,
    }
)
"""Operators that return one view of their first operand, whatever its strides."""


def _take_views_again(
    graph: fx.Graph,
    node: fx.Node,
    views: _Views,
    value: fx.Node,
    aliases: AliasClasses,
    order: dict[fx.Node, int],
) -> None:
    """Replaces an in-place node: puts what it writes into the base, and takes of that what is used later."""
    now = order[node]
    with graph.inserting_before(node):
        for view in views.written:
            inside = view.args[0]
            assert isinstance(inside, fx.Node)
            scatter = _SCATTERS[view.target]
            args = (inside, value, *view.args[1:])
            value = insert_call(
                graph, scatter, args, dict(view.kwargs), value=_expanded(inside.meta["val"]), origin=node
            )
        aliases.take_over(value, views.base)
        order[value] = now
        again = {views.base: value}
        for path in [*views.paths.values(), views.written]:
            for view in reversed(path):
                if view in again:
                    continue
                taken = graph.node_copy(view, lambda read: again.get(read, read))
                again[view], order[taken] = taken, now
                aliases.add(taken)
    for member in views.paths:
        for user in list(member.users):
            if user is not node and order.get(user, -1) > now:
                user.replace_input_with(member, again[member])
    node.replace_all_uses_with(again[views.written[0]] if views.written else value)
    graph.erase_node(node)


def _insert_write_backs(graph: fx.Graph, written: dict[fx.Node, fx.Node], aliases: AliasClasses) -> int:
    if not written:
        return 0
    output = graph.output_node()
    with graph.inserting_before(output):
        for state, value in written.items():
            copy: fx.Node = graph.call_function(aten.copy_.default, (state, value))
            meta: dict[str, Any] = {key: item for key, item in value.meta.items() if key != "val"}
            copy.meta.update(meta)
            copy.meta["val"] = state.meta["val"]
    states = {name: state for state in written for name in aliases.same_tensor(state)}
    output.args = fx.map_arg(output.args, lambda node: states.get(node, node))
    return len(written)


class AliasClasses:
    """Partition of the tensor nodes seen so far by the memory that they may share.

    Two sources tell: the storages of the fake tensors that tracing recorded (exact, but lost when a program is saved
    and loaded), and the operators' schemas (which say `may` where an operator copies only when it must). Nodes share
    memory when either says so, which errs on the side of sharing.
    """

    def __init__(self) -> None:
        self._class_of: dict[fx.Node, int] = {}
        self._members: dict[int, list[fx.Node]] = {}
        self._by_storage: dict[int, int] = {}
        self._storages: dict[int, set[int]] = {}
        self._tensor_of: dict[fx.Node, fx.Node] = {}
        self._state: dict[int, fx.Node] = {}
        self._next = 0

    def add(self, node: fx.Node) -> None:
        """Records a node; its inputs must have been recorded before."""
        values = list(tensors_in(node.meta.get("val")))
        if not values or _makes_several(node):
            return
        classes = {self._by_storage[key] for key in map(_storage, values) if key in self._by_storage}
        source = None
        if node.op == "call_function" and not _makes_its_own(node):
            for operand in node.all_input_nodes:
                if operand in self._class_of and can_share(node, operand):
                    classes.add(self._class_of[operand])
                    source = source or operand
        index = self._merge(classes)
        self._insert(node, index)
        for value in values:
            self._hold(_storage(value), index)
        if node.op in ("placeholder", "get_attr"):
            self._state.setdefault(index, node)
        elif source is not None and self._is_same_tensor(node, source):
            self._tensor_of[node] = self._tensor_of.get(source, source)

    def members(self, node: fx.Node) -> list[fx.Node]:
        """Returns the nodes that may share memory with a node, itself included."""
        return self._members[self._class_of[node]]

    def same_tensor(self, node: fx.Node) -> list[fx.Node]:
        """Returns the nodes that name the very same tensor: same memory, same shape and strides."""
        root = self._tensor_of.get(node, node)
        return [member for member in self.members(node) if self._tensor_of.get(member, member) is root]

    def state_of(self, node: fx.Node) -> fx.Node | None:
        """Returns the input or attribute whose memory a node may share, None for values that the graph made."""
        return self._state.get(self._class_of[node])

    def take_over(self, replacement: fx.Node, former: fx.Node) -> None:
        """Records that `replacement` is what the memory of `former` holds from now on.

        Inputs and attributes stay in the class: a later write to the new value is a write to them.
        """
        index = self._class_of[former]
        state = self._state.get(index)
        fresh = self._new_class()
        self._insert(replacement, fresh)
        for key in self._storages.pop(index, ()):
            self._hold(key, fresh)
        if state is not None:
            self._state[fresh] = state
            self._insert(state, fresh)
            self._tensor_of[replacement] = state

    def _is_same_tensor(self, node: fx.Node, source: fx.Node) -> bool:
        mine, other = tensor_value(node), tensor_value(source)
        if mine is None or other is None or not same_layout(mine, other):
            return False
        if _is_view_by_nature(node):
            return False
        return _offset(mine) == _offset(other)

    def _merge(self, classes: set[int]) -> int:
        if not classes:
            return self._new_class()
        first, *others = sorted(classes)
        for other in others:
            for member in self._members.pop(other):
                self._class_of[member] = first
                self._members[first].append(member)
            if other in self._state:
                self._state.setdefault(first, self._state.pop(other))
            for key in self._storages.pop(other, ()):
                self._hold(key, first)
        return first

    def _hold(self, storage: int, index: int) -> None:
        self._by_storage[storage] = index
        self._storages.setdefault(index, set()).add(storage)

    def _new_class(self) -> int:
        self._next += 1
        self._members[self._next] = []
        return self._next

    def _insert(self, node: fx.Node, index: int) -> None:
        self._class_of[node] = index
        self._members[index].append(node)


def _makes_its_own(node: fx.Node) -> bool:
    """Whether results lie in memory of their own; PyTorch holds branches and loops to that."""
    if isinstance(node.target, OpOverload):
        return not may_view(node)
    return is_control_flow(node.target)


def _makes_several(node: fx.Node) -> bool:
    """Whether a node makes tensors that have nothing to do with each other, each of which is taken once."""
    if not isinstance(node.meta["val"], (tuple, list)) or not _makes_its_own(node):
        return False
    taken = [user.args[1] for user in node.users if user.target is operator.getitem]
    return len(taken) == len(set(taken)) == len(node.users)


# Views that can have the layout of their base and still be another part of it, or the same part in another order.
_PARTS = frozenset(
    {
        *("aten::select", "aten::slice", "aten::narrow", "aten::split", "aten::chunk", "aten::unbind"),
        *("aten::transpose", "aten::permute", "aten::as_strided", "aten::diagonal", "aten::flip", "aten::real"),
        "aten::imag",
    }
)


def _is_view_by_nature(node: fx.Node) -> bool:
    target = node.target
    return not isinstance(target, OpOverload) or target._schema.name in _PARTS


def _storage(value: torch.Tensor) -> int:
    try:
        return int(value.untyped_storage()._cdata)
    except NotImplementedError:  # of what a transform wraps, whose operators tell by their schemas alone
        return id(value)


def _offset(value: torch.Tensor) -> str:
    return str(value.storage_offset())


def insert_functional(graph: fx.Graph, node: fx.Node, target: fx.Node) -> fx.Node | None:
    """Inserts, before an in-place node, the functional computation of the value that it writes.

    Args:
        graph: The graph.
        node: The in-place call.
        target: Its first argument, the tensor that is written.

    Returns:
        The node whose value has the written tensor's shape and type, or None when there is no counterpart.
    """
    with graph.inserting_before(node):
        if node.target is aten.copy_.default:
            return _copy(graph, node, target, node.args[1])
        if node.target is aten.zero_.default:
            return _fill(graph, node, target, 0)
        if node.target is aten.fill_.Scalar:
            return _fill(graph, node, target, node.args[1])
        if node.target is aten.fill_.Tensor:
            return _copy(graph, node, target, node.args[1])
        counterpart = functional_operator(node.target)
        if counterpart is None:
            return None
        written = node.meta["val"]
        dtype = _promoted_dtype(node, counterpart, written)
        if dtype is None:
            return None
        if dtype == written.dtype:
            return insert_call(graph, counterpart, node.args, dict(node.kwargs), value=written, origin=node)
        wide = insert_call(
            graph, counterpart, node.args, dict(node.kwargs), value=cast_value(written, dtype), origin=node
        )
        return _cast(graph, wide, written, node)


@functools.cache
def functional_operator(target: OpOverload) -> OpOverload | None:
    """Returns the functional overload of an in-place one: `aten.relu.default` for `aten.relu_.default`.

    None for operators without one, and for those that change a tensor's metadata instead of its contents.
    """
    if torch.Tag.inplace_view in target.tags:
        return None
    namespace, _, name = target._schema.name.partition("::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None)
    if packet is None or target._overloadname not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, target._overloadname)
    given = [(item.name, str(item.type)) for item in target._schema.arguments]
    taken = [(item.name, str(item.type)) for item in found._schema.arguments]
    writes = any(item.alias_info is not None and item.alias_info.is_write for item in found._schema.arguments)
    return found if given == taken and not writes and len(found._schema.returns) == 1 else None


def _promoted_dtype(node: fx.Node, counterpart: OpOverload, written: torch.Tensor) -> torch.dtype | None:
    """Type of the functional result: in-place operators keep their tensor's type, functional ones promote."""
    others = [tensor_value(operand) for operand in node.all_input_nodes[1:]]
    plain = all(other is None or other.dtype == written.dtype for other in others)
    if plain and (written.is_floating_point() or written.is_complex()):
        return written.dtype
    mode = getattr(written, "fake_mode", None)
    if mode is None:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta["val"])
    with mode, torch.no_grad():
        result: torch.Tensor = counterpart(*args, **kwargs)
    return result.dtype


def _copy(graph: fx.Graph, node: fx.Node, target: fx.Node, source: Any) -> fx.Node | None:
    value = tensor_value(source) if isinstance(source, fx.Node) else None
    written = tensor_value(target)
    if value is None or written is None:
        return None
    result: fx.Node = source
    if value.dtype != written.dtype or value.device != written.device:
        result = _cast(graph, source, written, node, shape_like=value)
    if not same_shape(value, written):
        sizes = [_extent(graph, target, axis, node) for axis in range(written.dim())]
        return insert_call(graph, aten.expand.default, (result, sizes), value=_expanded(written), origin=node)
    if result is source:
        return insert_call(graph, aten.clone.default, (source,), value=_expanded(written), origin=node)
    return result


def _fill(graph: fx.Graph, node: fx.Node, target: fx.Node, value: Any) -> fx.Node:
    written = node.meta["val"]
    return insert_call(graph, aten.full_like.default, (target, value), value=_expanded(written), origin=node)


def _cast(
    graph: fx.Graph, source: fx.Node, like: torch.Tensor, origin: fx.Node, shape_like: torch.Tensor | None = None
) -> fx.Node:
    kwargs: dict[str, Any] = {"dtype": like.dtype}
    value = source.meta["val"]
    if value.device != like.device:
        kwargs["device"] = like.device
    shaped = like if shape_like is None else shape_like
    with value.fake_mode, torch.no_grad():
        result = torch.empty_strided(shaped.shape, shaped.stride(), dtype=like.dtype, device=like.device)
    return insert_call(graph, aten._to_copy.default, (source,), kwargs, value=result, origin=origin)


def _extent(graph: fx.Graph, tensor: fx.Node, axis: int, origin: fx.Node) -> Any:
    extent = tensor.meta["val"].shape[axis]
    if isinstance(extent, int):
        return extent
    return insert_call(graph, aten.sym_size.int, (tensor, axis), value=extent, origin=origin)


def _expanded(written: torch.Tensor) -> torch.Tensor:
    mode = getattr(written, "fake_mode", None)
    assert mode is not None
    with mode, torch.no_grad():
        return torch.empty_strided(written.shape, written.stride(), dtype=written.dtype, device=written.device)
