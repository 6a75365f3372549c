"""Process groups of `torch.distributed`, as graphs name them; nothing here needs a group to exist.

Graphs hold the names that PyTorch gave to groups. A name means nothing in another process, so whatever is built or
saved also says the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import fx

from trt_core.internals import OpOverload

COLLECTIVES: Final = "_c10d_functional"
"""Namespace of the functional collectives, which captured graphs hold."""

_WAIT: Final = f"{COLLECTIVES}::wait_tensor"


@dataclass(frozen=True)
class GroupMembers:
    """A process group as a graph refers to it.

    Attributes:
        name: PyTorch's name for it.
        ranks: The global ranks that belong to it, in its order.
    """

    name: str
    ranks: tuple[int, ...]


def group_members(group: Any) -> GroupMembers | None:
    """Returns the group that an argument of a collective names; None where this process knows no such group."""
    import torch.distributed as dist  # costly, and most models have no collectives

    if not dist.is_available() or not dist.is_initialized():
        return None
    from trt_core.internals import resolve_process_group

    resolve: Any = resolve_process_group  # names are strings, which PyTorch types as its own
    try:
        found = resolve(group) if isinstance(group, str) else group
        return GroupMembers(str(found.group_name), tuple(dist.get_process_group_ranks(found)))
    except (AttributeError, RuntimeError, ValueError, KeyError):
        return None


def is_collective(node: fx.Node) -> bool:
    """Whether a node starts a collective."""
    name = _schema_name(node)
    return name.startswith(f"{COLLECTIVES}::") and name != _WAIT


def is_wait(node: fx.Node) -> bool:
    """Whether a node waits for what a collective of the same graph makes."""
    if _schema_name(node) != _WAIT:
        return False
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and is_collective(source)


def group_of(node: fx.Node) -> GroupMembers | None:
    """Returns the group that a collective runs in; None where it is unknown."""
    if "group_name" in node.kwargs:
        return group_members(node.kwargs["group_name"])
    return group_members(node.args[-1])  # the last argument of every one of them


def _schema_name(node: fx.Node) -> str:
    target = node.target
    return target._schema.name if isinstance(target, OpOverload) else ""
