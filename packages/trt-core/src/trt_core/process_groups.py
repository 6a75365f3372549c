"""Process groups of `torch.distributed`, as graphs name them; nothing here needs a group to exist.

Graphs hold the names that PyTorch gave to groups. A name means nothing in another process, so whatever is built or
saved also says the ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_core.errors import ExecutionError
from trt_core.internals import OpOverload, schema_name
from trt_core.nesting import leaves_of, tensors_in

COLLECTIVES: Final = "_c10d_functional"
"""Namespace of the functional collectives, which captured graphs hold."""

WAIT: Final = f"{COLLECTIVES}::wait_tensor"
"""The operator that waits for one of them."""


@dataclass(frozen=True)
class GroupMembers:
    """A process group as a graph refers to it.

    Attributes:
        name: PyTorch's name for it.
        ranks: The global ranks that belong to it, in its order.
    """

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """What an engine or a graph communicates.

    Attributes:
        operation: What messages call it: `ALL_REDUCE`, `all_gather_into_tensor`.
        group: The group that it runs in.
    """

    operation: str
    group: GroupMembers


_MOST_SHOWN: Final = 64


def show_ranks(ranks: Sequence[int]) -> str:
    """Returns ranks as text, those that follow each other in equal steps as one: `0 to 63`, `0 to 56 by 8, 60, 61`."""
    parts: list[str] = []
    at = 0
    while at < len(ranks) and len(parts) < _MOST_SHOWN:
        first = ranks[at]
        step = ranks[at + 1] - first if at + 1 < len(ranks) else 0
        count = 1
        while step > 0 and at + count < len(ranks) and ranks[at + count] == first + count * step:
            count += 1
        if count > 2:
            parts.append(f"{first} to {ranks[at + count - 1]}{f' by {step}' if step > 1 else ''}")
        else:
            count = 1
            parts.append(str(first))
        at += count
    return ", ".join(parts) + (f" and {len(ranks) - at} more" if at < len(ranks) else "")


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


def find_group(members: GroupMembers) -> Any:
    """Returns the process group that has these ranks, in their order: the one of that name, else the oldest.

    So a group may be made after an engine was built, or by the process that loads it.

    Raises:
        LookupError: There is none, or `torch.distributed` is not in use; the message says what to do.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise LookupError(
            f"a collective of the ranks {show_ranks(members.ranks)} runs in a process without process groups: call "
            "torch.distributed.init_process_group first"
        )
    from trt_core.internals import process_groups, resolve_process_group

    resolve: Any = resolve_process_group  # names are strings, which PyTorch types as its own
    if members.name:
        with contextlib.suppress(RuntimeError, ValueError):
            group = resolve(members.name)
            if tuple(dist.get_process_group_ranks(group)) == members.ranks:
                return group
    found = {
        group: tuple(ranks)
        for group, ranks in process_groups.pg_group_ranks.items()
        if not isinstance(group, int)  # stands for one that this rank has made for others
    }
    for group, ranks in found.items():
        if ranks == members.ranks:
            return group
    known = sorted(set(found.values()))
    raise LookupError(
        f"rank {dist.get_rank()} has no process group of the ranks {show_ranks(members.ranks)}; it has "
        f"{'; '.join(map(show_ranks, known))}: make it with torch.distributed.new_group or a device "
        "mesh, on every rank"
    )


def is_distributed(value: Any) -> bool:
    """Whether a value is a `DTensor`, which knows how to shard the parts of a composite operator, and not the whole."""
    return isinstance(value, torch.Tensor) and type(value).__module__.startswith("torch.distributed")


def shard_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this process has of a `DTensor`; any other tensor as it is."""
    if not is_distributed(tensor):
        return tensor
    local: Any = tensor.to_local().detach()  # type: ignore[attr-defined]
    found: torch.Tensor = local.wait() if hasattr(local, "wait") else local  # what a collective has not finished yet
    return torch.nn.Parameter(found, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else found


def own_rank() -> str:
    """Returns what errors call this process: its rank, or that it has none any more."""
    import torch.distributed as dist

    return f"rank {dist.get_rank()}" if dist.is_initialized() else "a process whose groups are gone"


LOOK_AT_OTHERS: Final = "see what the other ranks say: one has failed, is gone, hangs, or runs another program"


def raise_failed_collective(error: RuntimeError) -> None:
    """Raises what to say of a collective that PyTorch ran and that failed; returns where an error is of something else.

    PyTorch says neither whose collective it was nor which: the error of gloo is a plain `RuntimeError` of a connection.

    Raises:
        ExecutionError: A collective failed.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for caller, frame in itertools.pairwise(frames):
        operator = frame.f_locals.get("self")
        if not isinstance(operator, OpOverload) or operator.namespace != COLLECTIVES:
            continue
        name, given = operator.name(), frame.f_locals.get("args")
        if name == WAIT and given:  # variables of generated code are called as the nodes of the graph
            names = (variable for variable, value in caller.f_locals.items() if value is given[0])
            name = next(names, name)
        what = f"the collective {name} failed on {own_rank()}"
        raise ExecutionError(what, why=str(error), hint=LOOK_AT_OTHERS) from error


def has_communicators() -> bool:
    """Whether this PyTorch hands out the communicators of its NCCL process groups; builds without NCCL do not."""
    import torch.distributed as dist

    return dist.is_available() and hasattr(getattr(dist, "ProcessGroupNCCL", None), "_comm_ptr")


def communicator(members: GroupMembers, device: torch.device) -> int:
    """Returns the address of NCCL's communicator (`ncclComm_t`) of a process group for a GPU, the current one.

    PyTorch makes it with the group's first collective; where there was none all ranks of the group make it here,
    together. It belongs to PyTorch, and lives as long as the group.

    Raises:
        LookupError: There is no such group, or it does not run on NCCL; the message says what to do.
    """
    backend = find_group(members)._get_backend(device)
    if not hasattr(backend, "_comm_ptr"):
        raise LookupError(
            f"the process group of the ranks {show_ranks(members.ranks)} has no communicator of NCCL on {device}, it "
            f"is {type(backend).__name__}: make it with the backend 'nccl', and without TORCH_DISTRIBUTED_DEBUG=DETAIL"
        )
    if not backend._comm_ptr():
        backend.eager_connect_single_device(device)
    address = int(backend._comm_ptr())
    if not address:
        raise LookupError(
            f"NCCL has not connected the ranks {show_ranks(members.ranks)} on {device}: run a collective in their "
            "process group first"
        )
    return address


def time_limit(members: GroupMembers, device: torch.device) -> float:
    """Returns how many seconds a process group gives a collective on a device; endless where there is no such group."""
    try:
        options = getattr(find_group(members)._get_backend(device), "options", None)
    except (LookupError, RuntimeError):  # it was destroyed, or has nothing that runs on the device
        return math.inf
    limit = getattr(options, "_timeout", None)
    return math.inf if limit is None else float(limit.total_seconds())


def is_collective(node: fx.Node) -> bool:
    """Whether a node starts a collective."""
    name = schema_name(node.target)
    return name.startswith(f"{COLLECTIVES}::") and name != WAIT


def is_wait(node: fx.Node) -> bool:
    """Whether a node waits for what a collective of the same graph makes."""
    if schema_name(node.target) != WAIT:
        return False
    source = node.args[0] if node.args else None
    return isinstance(source, fx.Node) and is_collective(source)


def is_unread(node: fx.Node) -> bool:
    """Whether a node is a collective, or waits for one, of which nothing here reads the result.

    Other ranks wait for this one all the same, so it is no dead code.
    """
    started = node.args[0] if schema_name(node.target) == WAIT and node.args else node
    if not isinstance(started, fx.Node) or not is_collective(started):
        return False
    return all(is_wait(user) and not user.users for user in started.users)


def group_of(node: fx.Node) -> GroupMembers | None:
    """Returns the group that a collective runs in; None where it is unknown."""
    return _group_of(node.args, node.kwargs)


def terms_of(node: fx.Node) -> str:
    """Returns what ranks of a collective have to agree on beside its operator and amounts: `sum of float32`.

    That is the reduction, or the rank that gives, and the types of operands, as far as they are known.
    """
    names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    values = [operand.meta.get("val") for operand in leaves_of(node.args[0])]
    types = [str(value.dtype).removeprefix("torch.") for value in tensors_in(values)]
    said = [str(given[name]) for name in ("reduce_op", "src") if name in given]
    return " of ".join([*said, ", ".join(types)])


def collective_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Collective | None:
    """Returns what a call of an operator communicates with other ranks; None where that is nothing.

    Args:
        name: Namespace and name of the operator.
        args, kwargs: What it is called with.
    """
    if not name.startswith(f"{COLLECTIVES}::") or name == WAIT:
        return None
    group = _group_of(args, kwargs)
    if group is None or len(group.ranks) < 2:
        return None
    return Collective(name.removeprefix(f"{COLLECTIVES}::"), group)


def _group_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> GroupMembers | None:
    return group_members(kwargs["group_name"] if "group_name" in kwargs else args[-1])  # of every one of them the last


def groups_in(graph: fx.Graph) -> list[GroupMembers]:
    """Returns the group of each collective of a graph, in order; those of one rank communicate nothing."""
    groups = (group_of(node) for node in graph.nodes if is_collective(node))
    return [group for group in groups if group is not None and len(group.ranks) > 1]
