"""The executable order of layers; loops and conditionals become one layer each."""

from __future__ import annotations

from collections.abc import Sequence

from trt_portable.errors import Refusal
from trt_portable.layer import ILayer


def schedule(layers: Sequence[ILayer]) -> list[ILayer]:
    """Puts layers in an order in which every tensor is made before it is read.

    Raises:
        Refusal: Layers depend on each other in a circle.
    """
    return _in_order(layers)


def _in_order(layers: Sequence[ILayer]) -> list[ILayer]:
    position = {id(layer): index for index, layer in enumerate(layers)}
    waiting = {
        id(layer): {
            id(tensor._producer)
            for tensor in layer._inputs
            if tensor is not None and id(tensor._producer) in position
        }
        for layer in layers
    }
    ordered: list[ILayer] = []
    done: set[int] = set()
    for start in layers:
        stack = [start]
        while stack:
            layer = stack[-1]
            if id(layer) in done:
                stack.pop()
                continue
            missing = waiting[id(layer)] - done
            if not missing:
                stack.pop()
                done.add(id(layer))
                ordered.append(layer)
                continue
            if len(stack) > len(layers):
                raise Refusal(f"layer {layer.name!r} depends on its own output")
            stack.extend(layers[position[needed]] for needed in sorted(missing, key=position.__getitem__))
    return ordered
