"""Modules that `fully_shard` (FSDP2) has wrapped: each process has a part of their weights.

FSDP puts them together in hooks, with memory and streams of its own, which no graph can hold. While such a module is
captured, its hooks rest, and its weights are gathered by collectives of the graph, in FSDP's precision.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from trt_core.internals import pytree


@dataclass(frozen=True)
class Gathering:
    """How a parameter is put together.

    Attributes:
        dtype: What it is cast to before; None for its own type.
        rest: How it goes on to be sharded (the specification of a `DTensor`); None where the whole is a plain tensor.
    """

    dtype: torch.dtype | None
    rest: Any

    def gathered(self, tensor: Any) -> torch.Tensor:
        """Returns the parameter that a module computes with.

        Args:
            tensor: The `DTensor` of a part of it.
        """
        from torch.distributed.tensor import DTensor, Replicate

        given = tensor if self.dtype is None else tensor.to(self.dtype)
        if self.rest is not None and self.rest.mesh == given.device_mesh:
            return given.redistribute(placements=self.rest.placements)  # type: ignore[no-any-return]
        kept = () if self.rest is None else tuple(self.rest.placements)
        own = given.device_mesh.ndim - len(kept)
        whole: torch.Tensor = given.redistribute(placements=(*[Replicate()] * own, *kept)).to_local()
        if self.rest is None:
            return whole
        made: torch.Tensor = DTensor.from_local(
            whole, self.rest.mesh, kept, run_check=False, shape=self.rest.shape, stride=self.rest.stride
        )
        return made


def rest_in_parts(module: nn.Module) -> None:
    """Lets modules that `fully_shard` has wrapped give up weights that a call has put together."""
    for state in _states_of(module):
        for group in _groups_of(state):
            group.reshard()


def gatherings_of(module: nn.Module) -> dict[int, Gathering]:
    """Returns how parameters are put together, by the identity of the parameter."""
    return {
        id(parameter.sharded_param): Gathering(
            state._mp_policy.param_dtype, _other_sharding(parameter) if parameter.is_dtensor else None
        )
        for state in _states_of(module)
        for group in _groups_of(state)
        for parameter in group.fsdp_params
    }


@contextlib.contextmanager
def without_hooks_of_fsdp(module: nn.Module) -> Iterator[None]:
    """Lets a module run with the parameters that it is given: FSDP casts inputs and results, and moves nothing."""
    before = []
    if _is_in_use():
        for child in module.modules():
            before.append((child, child._forward_pre_hooks, child._forward_hooks))
            child._forward_pre_hooks = _replaced(child._forward_pre_hooks, _cast_inputs)
            child._forward_hooks = _replaced(child._forward_hooks, _cast_results)
    try:
        yield
    finally:
        for child, first, last in before:
            child._forward_pre_hooks, child._forward_hooks = first, last


def gather_when_needed(graph: fx.Graph, weights: int) -> None:
    """Moves what puts a weight together to where the weight before it is used: one is on its way, and not all of them.

    Args:
        graph: A trace of a module; what depends on nothing but weights makes them whole.
        weights: How many of its first placeholders are weights.
    """
    alone = set(graph.find_nodes(op="placeholder")[:weights])
    for node in graph.nodes:
        if node.op == "call_function" and node.all_input_nodes and alone.issuperset(node.all_input_nodes):
            alone.add(node)
    order = {node: index for index, node in enumerate(graph.nodes)}
    first_use = {
        node: min((user for user in node.users if user not in alone), key=order.__getitem__)
        for node in alone
        if node.op == "call_function" and not alone.issuperset(node.users)
    }
    by_use = sorted(first_use, key=lambda node: (order[first_use[node]], order[node]))
    moved: set[fx.Node] = set()
    for weight, before in zip(by_use, by_use[:1] + by_use, strict=False):
        for node in sorted(_chain_of(weight, alone) - moved, key=order.__getitem__):
            first_use[before].prepend(node)
            moved.add(node)


def _chain_of(node: fx.Node, alone: set[fx.Node]) -> set[fx.Node]:
    """What makes a weight of a shard."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        last = pending.pop()
        if last.op == "call_function" and last in alone and last not in found:
            found.add(last)
            pending.extend(last.all_input_nodes)
    return found


def _is_in_use() -> bool:
    return "torch.distributed.fsdp" in sys.modules  # else nobody has wrapped anything


def _states_of(module: nn.Module) -> list[Any]:
    if not _is_in_use():
        return []
    from torch.distributed.fsdp import FSDPModule

    found = [child._get_fsdp_state() for child in module.modules() if isinstance(child, FSDPModule)]
    return list({id(state): state for state in found}.values())


def _groups_of(state: Any) -> list[Any]:
    """Groups of parameters that are gathered together: several of a state since PyTorch 2.12."""
    several = getattr(state, "_fsdp_param_groups", None)
    one = [state._fsdp_param_group] if several is None else list(several)
    return [group for group in one if group is not None]


def _other_sharding(parameter: Any) -> Any:
    """How a parameter is sharded besides FSDP's sharding: under another name since PyTorch 2.13."""
    return getattr(parameter, "_unsharded_dtensor_spec", None) or getattr(parameter, "_tp_spec")  # noqa: B009 - it goes


def _replaced(hooks: Any, replacement: Callable[..., Any]) -> Any:
    """Hooks with other ones in place of FSDP's, under the same numbers."""
    found = OrderedDict()
    for number, hook in hooks.items():
        policy = _policy_behind(hook)
        found[number] = hook if policy is None else functools.partial(replacement, policy)
    return found


def _policy_behind(hook: Any) -> Any:
    """Types that FSDP casts to in a hook; None where it is not FSDP's."""
    while hook is not None:
        policy = getattr(getattr(hook, "__self__", None), "_mp_policy", None)
        if policy is not None:
            return policy
        hook = getattr(hook, "__wrapped__", None)
    return None


def _cast_inputs(policy: Any, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if policy.param_dtype is None or not policy.cast_forward_inputs:
        return args, kwargs
    return pytree.tree_map(functools.partial(_cast, dtype=policy.param_dtype), (args, kwargs))  # type: ignore[no-any-return]


def _cast_results(policy: Any, _: nn.Module, __: Any, result: Any) -> Any:
    if policy.output_dtype is None:
        return result
    return pytree.tree_map(functools.partial(_cast, dtype=policy.output_dtype), result)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
