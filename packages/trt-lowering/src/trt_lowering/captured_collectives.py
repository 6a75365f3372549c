"""Collectives that models call through `torch.distributed`, as graphs hold them: what is captured in their place."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.temporary import undone


class CaptureRefusal(NotImplementedError):
    """What a model communicates has no form that a graph can hold.

    Args:
        why: What it is.
        hint: What to do.
    """

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


@contextlib.contextmanager
def functional_collectives() -> Iterator[None]:
    """Lets models that call `torch.distributed.all_reduce` and its kin be captured: as a graph can hold them.

    What these functions take, lists, process groups and handles, has no place in one. Other threads that communicate
    meanwhile get PyTorch's own.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    thread = threading.get_ident()
    captured: dict[str, Callable[..., Any]] = dict(_FUNCTIONAL)
    captured |= {name: functools.partial(_refuse, name, hint) for name, hint in _REFUSED.items()}
    known = {name: getattr(dist, name) for name in captured if hasattr(dist, name)}

    def chosen(name: str) -> Callable[..., Any]:
        @functools.wraps(known[name])
        def communicate(*args: Any, **kwargs: Any) -> Any:
            return (captured if threading.get_ident() == thread else known)[name](*args, **kwargs)

        return communicate

    replaced = {name: chosen(name) for name in known}
    inside = [module for name, module in list(sys.modules.items()) if name.partition(".distributed")[0] == "torch"]
    owners = [
        (module, name) for module in inside for name, function in known.items() if vars(module).get(name) is function
    ]

    def undo() -> None:
        for owner, name in owners:
            setattr(owner, name, known[name])

    with undone(undo):
        for owner, name in owners:
            setattr(owner, name, replaced[name])
        yield


def _done(operator: str, *operands: Any) -> torch.Tensor:
    operators: Any = torch.ops._c10d_functional
    made: torch.Tensor = operators.wait_tensor(getattr(operators, operator)(*operands))
    return made


class _Done:
    """What stands for the handle of a collective with `async_op=True`: its result is there, as the graph says.

    Engines start collectives as soon as their operands are there, whatever the order of a script.
    """

    def wait(self, timeout: Any = None) -> bool:
        """Says that it is done."""
        return True

    def is_completed(self) -> bool:
        """Says that it is done."""
        return True


_FUNCTIONAL: Final[dict[str, Callable[..., Any]]] = {}
"""What stands for functions of `torch.distributed` while a model is captured, by name."""


def _stands_for(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Has a function stand for some of `torch.distributed`: it is given the group, and whoever calls it a handle.

    Behind `group`, these take `async_op`, which the function need not.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        taken = list(inspect.signature(function).parameters)
        taken.insert(taken.index("group") + 1, "async_op")

        def communicate(*args: Any, **kwargs: Any) -> _Done | None:
            import torch.distributed as dist

            given = {**dict(zip(taken, args, strict=False)), **kwargs}
            is_async = given.pop("async_op", False)
            if given.get("group") is None:
                given["group"] = dist.group.WORLD
            function(**given)
            return _Done() if is_async else None

        _FUNCTIONAL.update(dict.fromkeys(names, communicate))
        return function

    return register


def _root_of(group: Any, rank: Any, group_rank: Any) -> int:
    """Rank within a group of the one that gives or takes: named among all ranks or its own, the first by default."""
    import torch.distributed as dist

    if group_rank is not None:
        return int(group_rank)
    return dist.get_group_rank(group, 0 if rank is None else rank)


def _reduction_of(op: Any) -> str:
    """Name of a reduction, as functional collectives take it.

    Raises:
        CaptureRefusal: It is a sum with a factor, which PyTorch does not tell.
    """
    import torch.distributed as dist

    if op is None:
        return "sum"
    kinds: Mapping[str, Any] = dist.ReduceOp.RedOpType.__members__
    name = next((name for name, kind in kinds.items() if op == kind), "")
    if name in ("", "PREMUL_SUM"):
        raise CaptureRefusal(
            "it reduces by PREMUL_SUM, whose factor PyTorch does not tell", "multiply by the factor, and reduce by SUM"
        )
    return name.lower()


@_stands_for("all_reduce")
def _all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
    tensor.copy_(_done("all_reduce", tensor.contiguous(), _reduction_of(op), group.group_name))


@_stands_for("all_reduce_coalesced")
def _all_reduce_coalesced(tensors: Sequence[torch.Tensor], op: Any = None, group: Any = None) -> None:
    for tensor in tensors:
        _all_reduce(tensor, op, group)


@_stands_for("all_gather_into_tensor", "all_gather_single", "_all_gather_base")
def _all_gather_into_tensor(output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any = None) -> None:
    made = _done("all_gather_into_tensor", input_tensor.contiguous(), group.size(), group.group_name)
    output_tensor.copy_(made.reshape(output_tensor.shape))


@_stands_for("all_gather")
def _all_gather(tensor_list: Sequence[torch.Tensor], tensor: torch.Tensor, group: Any = None) -> None:
    for own, part in zip(tensor_list, _gathered(tensor, tensor_list, group), strict=True):
        own.copy_(part)


def _gathered(tensor: torch.Tensor, wanted: Sequence[torch.Tensor], group: Any) -> Sequence[torch.Tensor]:
    """What each rank has: one gather where the parts have one size, else a broadcast by each rank.

    Args:
        tensor: What this rank gives.
        wanted: Tensors of the sizes of all parts, in the order of the ranks.
        group: The process group.
    """
    if all(part.shape == tensor.shape for part in wanted):
        made = _done("all_gather_into_tensor", tensor.contiguous()[None], group.size(), group.group_name)
        return made.unbind()
    given = [
        tensor.contiguous() if rank == group.rank() else torch.zeros_like(part) for rank, part in enumerate(wanted)
    ]
    return [_done("broadcast", part, rank, group.group_name) for rank, part in enumerate(given)]


@_stands_for("all_gather_coalesced")
def _all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[torch.Tensor]], input_tensor_list: Sequence[torch.Tensor], group: Any = None
) -> None:
    for index, tensor in enumerate(input_tensor_list):
        _all_gather([parts[index] for parts in output_tensor_lists], tensor, group)


@_stands_for("gather")
def _gather(
    tensor: torch.Tensor, gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
) -> None:
    """No functional collective gathers on one rank: all get the parts, which have one size, and one keeps them."""
    parts = _gathered(tensor, [tensor] * group.size(), group)
    if group.rank() == _root_of(group, dst, group_dst):
        for own, part in zip(gather_list, parts, strict=True):
            own.copy_(part)


@_stands_for("reduce")
def _reduce(tensor: torch.Tensor, dst: Any = None, op: Any = None, group: Any = None, group_dst: Any = None) -> None:
    """No functional collective reduces on one rank: all get the result, and the others keep what they had."""
    made = _done("all_reduce", tensor.contiguous(), _reduction_of(op), group.group_name)
    if group.rank() == _root_of(group, dst, group_dst):
        tensor.copy_(made)


@_stands_for("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base")
def _reduce_scatter_tensor(output: torch.Tensor, input: torch.Tensor, op: Any = None, group: Any = None) -> None:
    given = input.contiguous()
    if input.dim() == output.dim() + 1:  # the ranks have a dimension of their own
        given = given.flatten(0, 1) if output.dim() else given
    made = _done("reduce_scatter_tensor", given, _reduction_of(op), group.size(), group.group_name)
    output.copy_(made.reshape(output.shape))


@_stands_for("reduce_scatter")
def _reduce_scatter(
    output: torch.Tensor, input_list: Sequence[torch.Tensor], op: Any = None, group: Any = None
) -> None:
    reduction = _reduction_of(op)
    if all(part.shape == output.shape for part in input_list):
        given = torch.stack(list(input_list))
        output.copy_(_done("reduce_scatter_tensor", given, reduction, group.size(), group.group_name)[0])
    else:
        parts = [_done("all_reduce", part.contiguous(), reduction, group.group_name) for part in input_list]
        output.copy_(parts[group.rank()])


@_stands_for("all_to_all_single")
def _all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
) -> None:
    ranks = group.size()
    taken = output_split_sizes or [output.shape[0] // ranks] * ranks
    given = input_split_sizes or [input.shape[0] // ranks] * ranks
    output.copy_(_done("all_to_all_single", input.contiguous(), taken, given, group.group_name))


@_stands_for("all_to_all")
def _all_to_all(
    output_tensor_list: Sequence[torch.Tensor], input_tensor_list: Sequence[torch.Tensor], group: Any = None
) -> None:
    """One exchange of all parts: by ranks where they have one size, else number by number."""
    name, parts = "all_to_all_single", (*output_tensor_list, *input_tensor_list)
    if all(part.shape == parts[0].shape for part in parts):
        ones = [1] * group.size()
        made = _done(name, torch.stack(list(input_tensor_list)), ones, ones, group.group_name).unbind()
    else:
        taken, given = ([part.numel() for part in side] for side in (output_tensor_list, input_tensor_list))
        flat = torch.cat([part.reshape(-1) for part in input_tensor_list])
        made = _done(name, flat, taken, given, group.group_name).split(taken)
    for own, part in zip(output_tensor_list, made, strict=True):
        own.copy_(part.reshape(own.shape))


@_stands_for("broadcast")
def _broadcast(tensor: torch.Tensor, src: Any = None, group: Any = None, group_src: Any = None) -> None:
    root = _root_of(group, src, group_src)
    tensor.copy_(_done("broadcast", tensor.contiguous(), root, group.group_name))


@_stands_for("scatter")
def _scatter(
    tensor: torch.Tensor, scatter_list: Any = None, src: Any = None, group: Any = None, group_src: Any = None
) -> None:
    """No functional collective scatters: the root sends the parts of all, and each rank takes its own."""
    root, rank = _root_of(group, src, group_src), group.rank()
    parts = torch.stack(list(scatter_list)) if rank == root else tensor.new_zeros((group.size(), *tensor.shape))
    tensor.copy_(_done("broadcast", parts, root, group.group_name)[rank])


@_stands_for("barrier")
def _barrier(group: Any = None, device_ids: Any = None, timeout: Any = None) -> None:
    """Nothing: what a graph computes is ordered by its data, and its collectives have one order on all ranks."""


@contextlib.contextmanager
def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[_Done]:
    """Collectives within are recorded one by one."""
    yield _Done()


_FUNCTIONAL["_coalescing_manager"] = _coalescing_manager

_BY_PAIRS: Final = (
    "compile the parts between, as torch.distributed.pipelining does with stages, or use "
    'torch.compile(model, backend="torch_tensorrt"), which runs it in PyTorch'
)
_OF_OBJECTS: Final = "exchange objects before, and give the model tensors or numbers"
_REFUSED: Final = {
    **dict.fromkeys(("send", "recv", "isend", "irecv", "batch_isend_irecv"), _BY_PAIRS),
    **dict.fromkeys(
        (
            *("all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list"),
            *("scatter_object_list", "send_object_list"),
        ),
        _OF_OBJECTS,
    ),
    "monitored_barrier": "call it before the model",
}
"""Functions of `torch.distributed` whose effect a graph would lose without a word, and what to do instead."""


def _refuse(name: str, hint: str, *_: Any, **__: Any) -> Any:
    raise CaptureRefusal(f"torch.distributed.{name} has no form that a graph can hold", hint)
