"""Which nodes of a graph share memory, found in one walk."""

from __future__ import annotations

import torch
from torch import fx

from trt_core.internals import OpOverload
from trt_lowering.node_metadata import same_layout
from trt_lowering.operator_traits import may_alias, tensor_value


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
        values = _tensors(node)
        if not values:
            return
        classes = {self._by_storage[key] for key in map(_storage, values) if key in self._by_storage}
        source = None
        if node.op == "call_function" and (not isinstance(node.target, OpOverload) or may_alias(node.target)):
            for operand in node.all_input_nodes:
                if operand in self._class_of and _can_share(node, operand):
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


# Views that can have the layout of their base and still be another part of it, or the same part in another order.
_PARTS = frozenset(
    {
        "aten::select",
        "aten::slice",
        "aten::narrow",
        "aten::split",
        "aten::chunk",
        "aten::unbind",
        "aten::transpose",
        "aten::permute",
        "aten::as_strided",
        "aten::diagonal",
        "aten::flip",
        "aten::real",
        "aten::imag",
    }
)


def _can_share(node: fx.Node, operand: fx.Node) -> bool:
    """Rules out casts and moves: what has another element type or device was copied, unless bits are reinterpreted."""
    mine, other = tensor_value(node), tensor_value(operand)
    if mine is None or other is None or (mine.dtype == other.dtype and mine.device == other.device):
        return True
    if not isinstance(node.target, OpOverload):
        return True
    name = node.target._schema.name
    return name in _PARTS or name.startswith("aten::view")


def _is_view_by_nature(node: fx.Node) -> bool:
    target = node.target
    return not isinstance(target, OpOverload) or target._schema.name in _PARTS


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _offset(value: torch.Tensor) -> str:
    return str(value.storage_offset())
