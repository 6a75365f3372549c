"""Collectives across devices, on the process groups of `torch.distributed`.

A layer names the ranks that take part. Which process group these are is found when the layer runs: the one that the
layer's metadata names, if it has these ranks, else the first one that was made with them. So an engine may be built
before its groups exist, or be loaded by another process, and every rank finds the same group.

While an engine is built, its layers run on made-up numbers to be timed and compared, a different number of times on
each rank; and before a run is recorded its kernels may plan in one that other ranks do not make. Nothing is
communicated then (`rehearsal`): a stand-in computes results of the right form from what is here.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.process_groups import LOOK_AT_OTHERS, Collective, GroupMembers, find_group, own_rank, show_ranks
from trt_core.temporary import with_value
from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import CollectiveOperation, DataType, ErrorCodeTRT, LayerType, ReduceOperation
from trt_portable.errors import Refusal
from trt_portable.layer_properties import Attribute, integer, member
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_tensor
from trt_portable.pybind import instance_of, to_integer
from trt_portable.shape_tensors import Value, as_tensor

_REDUCING: Final = frozenset(
    {
        CollectiveOperation.ALL_REDUCE,
        CollectiveOperation.REDUCE,
        CollectiveOperation.REDUCE_SCATTER,
    }
)
_ROOTED: Final = frozenset(
    {
        CollectiveOperation.BROADCAST,
        CollectiveOperation.REDUCE,
        CollectiveOperation.GATHER,
        CollectiveOperation.SCATTER,
    }
)
_GROWING: Final = frozenset({CollectiveOperation.ALL_GATHER, CollectiveOperation.GATHER})
_SHRINKING: Final = frozenset({CollectiveOperation.REDUCE_SCATTER, CollectiveOperation.SCATTER})
_REDUCTIONS: Final[Mapping[ReduceOperation, str]] = {
    ReduceOperation.SUM: "sum",
    ReduceOperation.PROD: "product",
    ReduceOperation.MAX: "max",
    ReduceOperation.MIN: "min",
    ReduceOperation.AVG: "avg",
}
_GROUP_NAME: Final = re.compile(r"process group '([^']*)'( of ranks with own sizes)?")

_rehearsing: contextvars.ContextVar[bool] = contextvars.ContextVar("trt_portable_rehearsal", default=False)


def rehearsal() -> contextlib.AbstractContextManager[bool]:
    """Lets collectives of this thread compute stand-ins: each rank runs layers as often as it likes."""
    return with_value(_rehearsing, True)


def is_rehearsing() -> bool:
    """Whether collectives of this thread compute stand-ins."""
    return _rehearsing.get()


def _to_groups(value: Any) -> tuple[int, ...]:
    return () if value is None else tuple(to_integer(rank) for rank in value)


class IDistCollectiveLayer(ILayer):
    """A collective operation of several devices.

    The metadata may name the process group to be preferred among those with the same ranks: ``process group 'tp'``,
    and say that its ranks may run the engine with other sizes than each other: ``process group 'dp' of ranks with own
    sizes``.
    """

    _KIND = LayerType.DIST_COLLECTIVE
    _DEFERRED = True

    _operation = member(CollectiveOperation, CollectiveOperation.ALL_REDUCE)
    _reduction = member(ReduceOperation, ReduceOperation.NONE)
    _root = integer(-1)
    _groups: Attribute[tuple[int, ...]] = Attribute(_to_groups, (), list)

    def _check_operands(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_tensor(x, "the input", FLOATS | INDICES | {DataType.INT8}, least_rank=1)
        operation = self._operation
        reduces = self._reduction is not ReduceOperation.NONE
        require(reduces == (operation in _REDUCING), f"{operation.name} with reduction {self._reduction.name}")
        require((self._root >= 0) == (operation in _ROOTED), f"{operation.name} with root {self._root}")
        ranks = self._groups
        require(len(set(ranks)) == len(ranks) and min(ranks, default=0) >= 0, f"the ranks {list(ranks)}")
        require(self._root < 0 or not ranks or self._root in ranks, f"root {self._root} is none of {list(ranks)}")

    def _check_complete(self) -> None:
        if self._ranks < 2:
            raise Refusal("num_ranks is not set: a collective has two ranks or more")
        if self._groups and len(self._groups) != self._ranks:
            raise Refusal(f"num_ranks is {self._ranks}, and the ranks are {list(self._groups)}")

    @property
    def _is_random(self) -> bool:
        return True  # what it gives depends on other processes, so it is never folded

    @property
    def group_name(self) -> str:
        """The process group that the metadata names; empty for none."""
        found = _GROUP_NAME.search(self._metadata)
        return "" if found is None else found[1]

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part, in their order."""
        return self._groups or tuple(range(self._ranks))

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x = as_tensor(inputs[0])
        first: Any = x.shape[0]
        if self._operation in _SHRINKING or self._operation is CollectiveOperation.ALL_TO_ALL:
            require(
                not isinstance(first, int) or first % self._ranks == 0,
                f"extent {first} is not divisible by {self._ranks} devices",
            )
        if x.device.type == "meta":
            return (_like(x, self._operation, self._ranks),)
        return (
            collective_operator()(
                x,
                self._operation.name,
                _REDUCTIONS.get(self._reduction, ""),
                self._root,
                list(self.members),
                self.group_name,
                self.name,
            ),
        )

    def _can_be_recorded(self) -> bool:
        """Whether runs may become CUDA graphs: NCCL's kernels can, and what goes through the host cannot.

        NCCL wants all ranks to record at once, and each records the second call of a size.
        """
        named = _GROUP_NAME.search(self._metadata)
        if named is not None and named[2]:
            return False
        try:
            group = _find_group(self.members, self.group_name)
        except Refusal:
            return False
        import torch.distributed as dist

        return str(dist.get_backend(group)) == "nccl" or "cuda:nccl" in dist.get_backend_config(group)


def collectives_of(layers: Iterable[ILayer]) -> tuple[Collective, ...]:
    """Returns what layers communicate, in their order."""
    return tuple(
        Collective(layer._operation.name, GroupMembers(layer.group_name, layer.members))
        for layer in layers
        if isinstance(layer, IDistCollectiveLayer)
    )


OPERATOR: Final = "trt_portable::collective"
"""Name of the operator that layers call."""


@functools.cache
def collective_operator() -> Any:
    """The operator that layers call: tracing sees one node, whatever the groups are called when it runs.

    Its label tells collectives of a network apart: all ranks start them in one order. A compiler that moves operators
    keeps it behind the result of another one if that is given.
    """
    library = torch.library.Library("trt_portable", "FRAGMENT")
    library.define(
        "collective(Tensor x, str operation, str reduction, int root, int[] ranks, str group, str label, *, "
        "Tensor? behind=None) -> Tensor",
        tags=(torch.Tag.needs_contiguous_strides,),
    )
    library.impl("collective", _communicate, "CompositeExplicitAutograd")
    library.impl("collective", _like_of, "Meta")
    _LIBRARIES.append(library)
    return torch.ops.trt_portable.collective.default


_LIBRARIES: Final[list[Any]] = []  # an operator lives as long as its library


def _like(x: torch.Tensor, operation: CollectiveOperation, ranks: int) -> torch.Tensor:
    shape: list[Any] = [*x.shape]
    if operation in _GROWING:
        shape[0] = shape[0] * ranks
    elif operation in _SHRINKING:
        shape[0] = shape[0] // ranks
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _like_of(
    x: torch.Tensor, operation: str, reduction: str, root: int, ranks: Sequence[int], group: str, label: str, **_: Any
) -> torch.Tensor:
    return _like(x, CollectiveOperation[operation], len(ranks))


def _communicate(
    x: torch.Tensor, operation: str, reduction: str, root: int, ranks: Sequence[int], group: str, label: str, **_: Any
) -> torch.Tensor:
    return finish(begin(x, operation, reduction, root, ranks, group, label), operation, ranks)


def begin(
    x: torch.Tensor, operation: str, reduction: str, root: int, ranks: Sequence[int], group: str, label: str
) -> torch.Tensor:
    """Starts a collective behind what the current stream does; every rank of the group calls it.

    Returns:
        The result, to be read after `finish`. Until then `x` keeps its value, unless `copies_its_operand` says that
        it need not.

    Raises:
        Refusal: There is no process group of these ranks in this process.
        RuntimeError: It failed: a rank is gone, or has not come within the group's time limit.
    """
    kind = CollectiveOperation[operation]
    if is_rehearsing():
        return _stand_in(x, kind, len(ranks))
    found = _find_group(tuple(ranks), group)
    try:
        return _start(x.contiguous(), kind, reduction, root, ranks, found)
    except RuntimeError as error:
        raise _failure(error, operation, ranks) from error


def finish(started: torch.Tensor, operation: str, ranks: Sequence[int]) -> torch.Tensor:
    """Lets the current stream wait for a collective, and returns its result.

    Args:
        started: What `begin` returned.
        operation, ranks: What it was given.

    Raises:
        RuntimeError: It failed, or took longer than the group's time limit.
    """
    try:
        return torch.ops._c10d_functional.wait_tensor(started)  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise _failure(error, operation, ranks) from error


def _failure(error: RuntimeError, operation: str, ranks: Sequence[int]) -> RuntimeError:
    """What to say of a collective that failed, of which PyTorch says neither which it was nor whose."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    what = f"{operation} of the ranks {show_ranks(ranks)} failed on {own_rank()}"
    return RuntimeError(f"{what}: {error}; {LOOK_AT_OTHERS}")


def copies_its_operand(operation: str) -> bool:
    """Whether the memory of the operand is free as soon as a collective has been started."""
    return CollectiveOperation[operation] in (CollectiveOperation.ALL_REDUCE, CollectiveOperation.BROADCAST)


def _start(
    x: torch.Tensor, kind: CollectiveOperation, reduction: str, root: int, ranks: Sequence[int], group: Any
) -> torch.Tensor:
    functional: Any = torch.ops._c10d_functional
    name, size = group.group_name, len(ranks)
    if kind is CollectiveOperation.ALL_REDUCE:
        return functional.all_reduce(x, reduction, name)  # type: ignore[no-any-return]
    if kind is CollectiveOperation.ALL_GATHER:
        return functional.all_gather_into_tensor(x, size, name)  # type: ignore[no-any-return]
    if kind is CollectiveOperation.REDUCE_SCATTER:
        return functional.reduce_scatter_tensor(x, reduction, size, name)  # type: ignore[no-any-return]
    if kind is CollectiveOperation.ALL_TO_ALL:
        parts = [x.shape[0] // size] * size
        return functional.all_to_all_single(x, parts, parts, name)  # type: ignore[no-any-return]
    if kind is CollectiveOperation.BROADCAST:
        return functional.broadcast(x, list(ranks).index(root), name)  # type: ignore[no-any-return]
    return _rooted(x, kind, reduction, root, size, group)


def _rooted(
    x: torch.Tensor, kind: CollectiveOperation, reduction: str, root: int, size: int, group: Any
) -> torch.Tensor:
    """The collectives whose result belongs to one rank, or comes from one; elsewhere a gathered result is zero."""
    import torch.distributed as dist

    made = torch.zeros_like(_like(x, kind, size))
    is_root = dist.get_rank() == root
    if kind is CollectiveOperation.REDUCE:
        operations: Any = dist.ReduceOp
        made.copy_(x)
        dist.reduce(made, root, op=getattr(operations, reduction.upper()), group=group)
    elif kind is CollectiveOperation.GATHER:
        dist.gather(x, list(made.chunk(size)) if is_root else None, dst=root, group=group)
    else:
        dist.scatter(made, [part.contiguous() for part in x.chunk(size)] if is_root else None, src=root, group=group)
    return made


def _stand_in(x: torch.Tensor, kind: CollectiveOperation, size: int) -> torch.Tensor:
    """What this rank alone makes of it: as if the others had the same numbers, and a reduction kept them."""
    if kind in _GROWING:
        return x.repeat(size, *([1] * (x.dim() - 1)))
    if kind in _SHRINKING:
        return x[: x.shape[0] // size].clone()
    return x.clone()


def _find_group(ranks: tuple[int, ...], name: str) -> Any:
    """The process group of these ranks, in their order.

    Raises:
        Refusal: There is none, or `torch.distributed` is not in use.
    """
    try:
        return find_group(GroupMembers(name, ranks))
    except LookupError as error:
        raise Refusal(str(error), ErrorCodeTRT.FAILED_EXECUTION) from error


class CollectiveLayers(LayerFactory):
    """The method that adds collectives."""

    def add_dist_collective(
        self, input: ITensor, dist_collective_op: CollectiveOperation, reduce_op: object, root: object, groups: object
    ) -> IDistCollectiveLayer | None:
        """Adds a collective; set ``num_ranks`` on the layer.

        Args:
            input: Rank 1 or more. Gathering multiplies its first extent by the number of ranks, scattering divides it.
            dist_collective_op: The operation.
            reduce_op: A `ReduceOperation`, NONE where nothing is reduced.
            root: The root's rank, -1 where there is none.
            groups: Ranks that take part, in their order; None for all.

        Raises:
            RuntimeError: The reduction or the root is of another type.
        """
        tensor, operation = expect_tensor(input, "input"), instance_of(CollectiveOperation, dist_collective_op)
        if not isinstance(reduce_op, ReduceOperation) or not isinstance(root, int):
            raise RuntimeError("reduce_op must be a ReduceOperation and root an int")
        layer = IDistCollectiveLayer._create(_operation=operation, _reduction=reduce_op, _root=root, _groups=groups)
        return self._add(layer, tensor)
