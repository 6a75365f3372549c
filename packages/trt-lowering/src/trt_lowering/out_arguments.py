"""Finds tensors given as `out=` that PyTorch's kernels refuse, where fake tensors take them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from trt_core import LoweringError
from trt_core.dtypes import dtype_name
from trt_core.internals import FakeTensorMode, OpOverload, pytree, schema_name
from trt_core.provenance import node_location
from trt_lowering.operator_traits import mutated_arguments
from trt_lowering.trial_operands import trial_operands


def require_out_types(gm: fx.GraphModule) -> None:
    """Refuses a program that lets an operator write its result into a tensor of a type that eager refuses.

    Capture asks fake kernels, of which many take any type. Where types differ, the real one is asked: it runs on zeros.

    Args:
        gm: The graph of a program, in which operators that write are still; regions included.

    Raises:
        LoweringError: There is such a tensor; the message names the operator, and says what its kernel says.
    """
    for region in torch.nn.Module.modules(gm):
        for node in region.graph.nodes if isinstance(region, fx.GraphModule) else ():
            if node.op != "call_function" or not isinstance(node.target, OpOverload) or not _out_names(node.target):
                continue
            made = _made_without(node)
            given = {name: node.kwargs[name].meta.get("val") for name in made}
            if all(made[name].dtype == value.dtype for name, value in given.items()):
                continue
            refusal = _refusal(node, made)
            if refusal is not None:
                types = " and ".join(dtype_name(value.dtype) for value in made.values())
                raise LoweringError(
                    f"the model gives {schema_name(node.target).partition('::')[2]}() an out= that it cannot write to",
                    where=node_location(node),
                    why=f"eager refuses the call: {refusal}",
                    hint=f"give out= of the type of the result, {types}",
                )


@functools.cache
def _out_names(target: OpOverload) -> tuple[str, ...]:
    """The names of an operator's arguments `out=`."""
    arguments = target._schema.arguments
    return tuple(arguments[place].name for place in mutated_arguments(target) if arguments[place].kwarg_only)


@functools.cache
def _returning(target: OpOverload) -> OpOverload | None:
    """Returns the overload that returns what another one writes: `aten.sort.default` for `aten.sort.values`."""
    names = _out_names(target)
    wanted = [(item.name, str(item.type)) for item in target._schema.arguments if item.name not in names]
    packet = target.overloadpacket
    for found in (getattr(packet, name) for name in packet.overloads()):
        if [(item.name, str(item.type)) for item in found._schema.arguments] == wanted and not mutated_arguments(found):
            return found  # type: ignore[no-any-return]
    return None


def _made_without(node: fx.Node) -> dict[str, torch.Tensor]:
    """Returns fake tensors as a node's operator makes them where it isn't given `out=`, by name; none where unknown."""
    names, operands = _out_names(node.target), trial_operands(node)
    returning = _returning(node.target)
    if operands is None or returning is None:
        return {}
    try:
        with FakeTensorMode() as mode, torch.no_grad():
            args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, operands)
            made = pytree.tree_leaves(returning(*args, **_others(kwargs, names)))
    except Exception:  # sizes that depend on data, or a fake kernel that refuses this
        return {}
    return dict(zip(names, made, strict=True)) if all(isinstance(item, torch.Tensor) for item in made) else {}


def _refusal(node: fx.Node, made: Mapping[str, torch.Tensor]) -> str | None:
    """Returns why the kernel of a node refuses what it is to write into; None where it takes that, or refuses zeros."""
    operands = trial_operands(node)
    assert operands is not None
    args, kwargs = operands
    refusal = _error(node.target, args, kwargs)
    if refusal is None:
        return None
    own = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in made.items()}
    is_of_zeros = _error(node.target, args, {**kwargs, **own}) == refusal
    return None if is_of_zeros else refusal


def _error(target: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    with torch.random.fork_rng(devices=()), torch.no_grad():
        try:
            target(*args, **kwargs)
        except Exception as error:
            return str(error).strip().partition("\n")[0]
    return None


def _others(kwargs: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}
