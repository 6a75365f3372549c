"""Calls of models under the same conditions: what one call writes, or draws, does not change what the next returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from trt_core.attributes import read_attribute
from trt_core.internals import pytree
from trt_core.state import is_written
from trt_lowering.operator_traits import has_hidden_state
from trt_runtime import TRTModule

_SEED = 0


def call_alike(function: Callable[..., Any], run: Callable[[], Any], inputs: Any) -> Any:
    """Calls a model, with the random numbers of every other call, and puts back what it writes to its state.

    Args:
        function: The model; its state are the buffers that it writes to, counters and caches.
        run: Calls it.
        inputs: Its inputs; random numbers of GPUs that they are on count as well.

    Returns:
        The result, of which nothing is part of the state.
    """
    devices = {leaf.device for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), _kept(function) as state:
        torch.manual_seed(_SEED)
        memory = {_memory(tensor) for tensor in state}
        return pytree.tree_map_only(
            torch.Tensor,
            lambda item: item.clone() if item.layout is torch.strided and _memory(item) in memory else item,
            run(),
        )


def _memory(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


@contextlib.contextmanager
def _kept(function: Callable[..., Any]) -> Iterator[list[torch.Tensor]]:
    """Puts back the state of a model in the end."""
    state = _state_of(function)
    before = [tensor.detach().clone() for tensor in state]
    try:
        yield state
    finally:
        with torch.no_grad():
            for tensor, value in zip(state, before, strict=True):
                tensor.detach().copy_(value)


def _state_of(function: Callable[..., Any]) -> list[torch.Tensor]:
    """Returns what a model may write to: of a graph what it names, of other modules every buffer."""
    found: dict[int, torch.Tensor] = {}
    for module in function.modules() if isinstance(function, nn.Module) else ():
        if isinstance(module, fx.GraphModule):
            nodes = module.graph.find_nodes(op="get_attr")
            names = [str(node.target) for node in nodes if _is_changed(module, node)]
            held = [read_attribute(module, name) for name in names]
        else:
            held = [] if isinstance(module, TRTModule) else list(module.buffers(recurse=False))
        found.update({id(tensor): tensor for tensor in held if _can_be_kept(tensor)})
    return list(found.values())


def _is_changed(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a graph, or a part of it that is called with the value of a node, writes to that."""
    if is_written(node) or any(has_hidden_state(user) for user in node.users):
        return True
    for user in node.users:
        part = module.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(part, fx.GraphModule):
            taken = part.graph.find_nodes(op="placeholder")
            given = zip(user.args, taken, strict=False)
            if any(value is node and _is_changed(part, parameter) for value, parameter in given):
                return True
    return False


def _can_be_kept(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, nn.Parameter, nn.Buffer) and value.layout is torch.strided and not value.is_meta
    )
