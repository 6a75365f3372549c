"""The executable order of layers; loops and conditionals become one layer each."""

from __future__ import annotations

from collections.abc import Sequence

from trt_portable.errors import Refusal
from trt_portable.network.layer import ILayer
from trt_portable.network.scope import Scope


def schedule(layers: Sequence[ILayer], scopes: Sequence[Scope] = ()) -> list[ILayer]:
    """Puts layers in an order in which every tensor is made before it is read.

    Args:
        layers: All layers of a network.
        scopes: Its loops and conditionals; those without outputs are left out with what is inside.

    Raises:
        Refusal: Layers depend on each other in a circle, or scopes overlap without nesting.
    """
    nodes = list(layers)
    waiting = [scope for scope in scopes if scope._boundary]
    while waiting:
        # The smallest scope has no other one inside.
        inside = {id(scope): _inside(scope, nodes) for scope in waiting}
        scope = min(waiting, key=lambda scope: len(inside[id(scope)]))
        waiting = [other for other in waiting if other is not scope]
        nodes = _contract(scope, inside[id(scope)], nodes)
    return in_order(nodes)


def _inside(scope: Scope, nodes: Sequence[ILayer]) -> list[ILayer]:
    """The layers that depend on the entries of a scope, boundary left out."""
    readers: dict[int, list[ILayer]] = {}
    for layer in nodes:
        for tensor in layer._inputs:
            if tensor is not None:
                readers.setdefault(id(tensor), []).append(layer)
    boundary = {id(layer) for layer in scope._boundary}
    found: dict[int, ILayer] = {}
    pending = [tensor for entry in scope._entries() for tensor in entry._outputs]
    while pending:
        tensor = pending.pop()
        for reader in readers.get(id(tensor), ()):
            if id(reader) in boundary or id(reader) in found:
                continue
            found[id(reader)] = reader
            pending.extend(reader._outputs)
    return list(found.values())


def _contract(scope: Scope, inside: Sequence[ILayer], nodes: Sequence[ILayer]) -> list[ILayer]:
    """Replaces the layers of a scope by one layer."""
    gone = {id(layer) for layer in (*inside, *scope._boundary)}
    kept = [layer for layer in nodes if id(layer) not in gone]
    if not scope._exits():
        return kept
    members = {id(layer) for layer in inside}
    body = in_order([layer for layer in nodes if id(layer) in members])
    return [*kept, scope._region(body)]


def in_order(layers: Sequence[ILayer]) -> list[ILayer]:
    """Layers sorted by their dependencies, otherwise in the order given.

    Raises:
        Refusal: Layers depend on each other in a circle.
    """
    maker = {id(tensor): index for index, layer in enumerate(layers) for tensor in layer._outputs}
    needs = [sorted({maker[id(t)] for t in layer._inputs if t is not None and id(t) in maker}) for layer in layers]
    ordered: list[ILayer] = []
    done, open_ = [False] * len(layers), [False] * len(layers)
    for start in range(len(layers)):
        stack = [start]
        while stack:
            index = stack[-1]
            if done[index]:
                stack.pop()
                continue
            missing = [needed for needed in needs[index] if not done[needed]]
            if not missing:
                stack.pop()
                done[index] = True
                ordered.append(layers[index])
                continue
            if open_[index]:
                raise Refusal(f"layer {layers[index].name!r} depends on its own output")
            open_[index] = True
            stack.extend(reversed(missing))
    return ordered
