"""Loops and conditionals as networks see them: scopes, and the layers on their boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trt_portable.arguments import to_text
from trt_portable.network.layer import ILayer
from trt_portable.sealed import Sealed

if TYPE_CHECKING:
    from trt_portable.network.definition import LayerFactory


class Scope(Sealed):
    """A part of a network with a boundary: what lies inside is found by following the data.

    Args:
        network: The network.
        name: The name.
    """

    def __init__(self, network: LayerFactory, name: str) -> None:
        self._network = network
        self._name = name
        self._boundary: list[ILayer] = []

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = to_text(name)

    def _entries(self) -> list[ILayer]:
        """Boundary layers whose outputs begin the inside."""
        raise NotImplementedError

    def _exits(self) -> list[ILayer]:
        """Boundary layers whose outputs are outside."""
        raise NotImplementedError

    def _region(self, body: list[ILayer]) -> ILayer:
        """One layer that runs the whole scope.

        Args:
            body: The layers inside, boundary left out, in executable order.
        """
        raise NotImplementedError

    def _join(self, layer: Any) -> Any:
        """Counts a layer that was added to the network among the boundary."""
        if layer is not None:
            layer._scope = self
            self._boundary.append(layer)
        return layer


class BoundaryLayer(ILayer):
    """A layer on the boundary of a scope."""

    _scope: Any = None
