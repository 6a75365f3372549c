"""Complex tensors as two real ones, and what writes the nodes that compute with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core.internals import FakeTensorMode, enable_python_dispatcher
from trt_core.weight_recipes import RECIPE, Literal
from trt_lowering.attributes import add_constant
from trt_lowering.expansion import no_new_guards
from trt_lowering.node_metadata import insert_call

aten = torch.ops.aten


class NotExpressible(Exception):
    """A complex operator has no form in real numbers here; the message says why."""


@dataclass(frozen=True)
class Parts:
    """A complex tensor in two real ones of one shape.

    Attributes:
        real: The real part.
        imaginary: The imaginary part; None where it is zero everywhere.
    """

    real: fx.Node
    imaginary: fx.Node | None


class Emitter:
    """Writes the nodes that take the place of others, and remembers them, so that they can be taken back.

    Args:
        gm: The module; constants become its buffers.
        mode: The mode that the fake tensors of its graph belong to.

    Attributes:
        written: What was written since the last `begin`.
    """

    def __init__(self, gm: fx.GraphModule, mode: FakeTensorMode) -> None:
        self.written: list[fx.Node] = []
        self._gm = gm
        self._mode = mode
        self._origin: fx.Node | None = None
        self._before: fx.Node | None = None
        self._constants: dict[Any, fx.Node] = {}
        self._new_constants: list[Any] = []

    def begin(self) -> None:
        """Takes what was written so far for good."""
        self.written.clear()
        self._new_constants.clear()

    def take_back(self) -> None:
        """Erases what was written since the last `begin`."""
        for node in reversed(self.written):
            self._gm.graph.erase_node(node)
        for key in self._new_constants:
            delattr(self._gm, str(self._constants.pop(key).target))
        self.begin()

    def stand_at(self, node: fx.Node, before: fx.Node | None = None) -> None:
        """Says which node the next ones take the place of: they stand before it, and come from where it comes from.

        Args:
            node: The node.
            before: Where they stand instead.
        """
        self._origin, self._before = node, before or node

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Writes a call.

        Raises:
            NotExpressible: It would assume something about a size that varies.
        """
        assert self._origin is not None and self._before is not None
        values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        given, named = values
        try:
            with torch.no_grad(), self._mode, enable_python_dispatcher(), no_new_guards(self._mode):
                value = target(*given, **named)
        except Exception as error:  # whatever shape inference raises
            raise NotExpressible(f"{target} cannot be computed in real numbers: {error}") from error
        with self._gm.graph.inserting_before(self._before):
            node = insert_call(self._gm.graph, target, args, kwargs, value=value, origin=self._origin)
        self.written.append(node)
        return node

    def constant(self, key: Any, make: Callable[[], torch.Tensor], like: fx.Node) -> fx.Node:
        """Returns the node of a constant, on the device of another one; equal keys mean equal constants."""
        device = like.meta["val"].device
        place = (key, device)
        if place not in self._constants:
            tensor = make().to(device)
            with self._gm.graph.inserting_before(first_call(self._gm.graph)):
                node = self._gm.graph.get_attr(add_constant(self._gm, tensor))
            node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
            node.meta[RECIPE] = Literal(tensor)
            self._constants[place] = node
            self._new_constants.append(place)
            self.written.append(node)
        return self._constants[place]

    def zeros_like(self, node: fx.Node) -> fx.Node:
        """Writes zeros of the shape of a tensor."""
        return self(aten.zeros_like.default, node)

    def imaginary(self, parts: Parts) -> fx.Node:
        """Returns the imaginary part as a tensor, also where it is zero."""
        return self.zeros_like(parts.real) if parts.imaginary is None else parts.imaginary


def first_call(graph: fx.Graph) -> fx.Node:
    """Returns the first node after the placeholders."""
    first: fx.Node = next(node for node in graph.nodes if node.op != "placeholder")
    return first
