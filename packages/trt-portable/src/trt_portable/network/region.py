"""Loops and conditionals: scopes with a boundary in a network, layers that run other layers in a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from trt_core.files import typed
from trt_portable.enums import DataType
from trt_portable.network.layer import META, ILayer, ITensor
from trt_portable.plan import tables
from trt_portable.pybind import Sealed
from trt_portable.shape_tensors import Value
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from typing_extensions import Self

    from trt_portable.network.definition import LayerFactory

B = TypeVar("B", bound="BoundaryLayer")
Values = dict[int, Any]
"""Values by the identity of their tensor."""


class _Bounded:
    """What has layers on a boundary."""

    _boundary: Sequence[ILayer]

    def _of(self, kind: type[B]) -> list[B]:
        """The layers of a kind on the boundary."""
        return [layer for layer in self._boundary if isinstance(layer, kind)]


class Region(_Bounded, ILayer):
    """A scope as one layer. Its inputs are all tensors from outside, its outputs those of its exits."""

    _CACHEABLE = False
    _NESTED: ClassVar[tuple[str, ...]] = tables.REGION

    _boundary: tuple[ILayer, ...] = ()
    _body: tuple[ILayer, ...] = ()

    @classmethod
    def _of_scope(cls, name: str, boundary: Sequence[ILayer], body: Sequence[ILayer]) -> Self:
        """A region made of the layers of a network, which it shares with the network."""
        region = cls._create()
        region._name = name
        region._boundary, region._body = tuple(boundary), tuple(body)
        inside = {id(layer) for layer in region._children()}
        seen: set[int] = set()
        for layer in region._children():
            for tensor in layer._inputs:
                if tensor is None or id(tensor) in seen or id(tensor._producer) in inside:
                    continue
                owner = _region_of(tensor, body)
                if owner is None:
                    seen.add(id(tensor))
                    region._inputs.append(tensor)
        region._outputs = [t for layer in region._exits() for t in layer._outputs]
        region._prepare()
        return region

    def _exits(self) -> Sequence[ILayer]:
        """The boundary layers whose outputs leave the region."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Works out once what every run needs."""

    def _children(self) -> tuple[ILayer, ...]:
        return (*self._boundary, *self._body)

    # --- weights of the layers inside, under roles with their number in front ---------------------

    def _weights(self) -> dict[str, Weights]:
        return {
            f"{index}.{role}": weights
            for index, layer in enumerate(self._children())
            for role, weights in layer._weights().items()
        }

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_bound":
            for index, layer in enumerate(self._children()):
                prefix = f"{index}."
                mine: dict[str, torch.Tensor] = {
                    role[len(prefix) :]: tensor for role, tensor in value.items() if role.startswith(prefix)
                }
                if mine:
                    layer._bound = mine
        elif name == "_device" and value is not META:
            for layer in self._children():
                layer._device = value

    # --- plans -----------------------------------------------------------------------------------

    def _nested(self, write: Callable[[ILayer], dict[str, Any]], id_of: Callable[[ITensor], int]) -> dict[str, Any]:
        return {
            "boundary": [write(layer) for layer in self._boundary],
            "body": [write(layer) for layer in self._body],
        }

    def _restore_nested(
        self, entry: Mapping[str, Any], read: Callable[[Mapping[str, Any]], ILayer], tensors: Mapping[int, ITensor]
    ) -> None:
        self._boundary = tuple(read(inner) for inner in typed.items(entry["boundary"], f"the ends of {self._name!r}"))
        self._body = tuple(read(inner) for inner in typed.items(entry["body"], f"the body of {self._name!r}"))
        self._prepare()

    def _weight_spec(self, role: str) -> tuple[DataType, int]:
        index, _, inner = role.partition(".")
        return self._children()[int(index)]._weight_spec(inner)

    # --- running ---------------------------------------------------------------------------------

    def _start(self, inputs: Sequence[Value | None]) -> Values:
        return {id(t): value for t, value in zip(self._inputs, inputs, strict=True)}

    @staticmethod
    def _run(layers: Sequence[ILayer], values: Values) -> None:
        """Computes layers in order, leaving out those that are computed already."""
        for layer in layers:
            outputs = layer._outputs
            if outputs and id(outputs[0]) in values:
                continue
            results = layer._compute([None if t is None else values[id(t)] for t in layer._inputs])
            for tensor, result in zip(outputs, results, strict=True):
                values[id(tensor)] = result

    def _ancestors(self, wanted: Sequence[ITensor]) -> list[ILayer]:
        """The layers of the body that some tensors depend on, in order."""
        needed = {id(tensor) for tensor in wanted}
        found = []
        for layer in reversed(self._body):
            if any(id(tensor) in needed for tensor in layer._outputs):
                found.append(layer)
                needed.update(id(tensor) for tensor in layer._inputs if tensor is not None)
        return found[::-1]


def _region_of(tensor: ITensor, body: Sequence[ILayer]) -> ILayer | None:
    """The region of a body that has a tensor among its outputs."""
    for layer in body:
        if isinstance(layer, Region) and any(tensor is output for output in layer._outputs):
            return layer
    return None


class Scope(_Bounded, Sealed):
    """A part of a network with a boundary: what lies inside is found by following the data.

    Args:
        network: The network.
        name: The name.
    """

    name: str = ""
    """The name."""

    def __init__(self, network: LayerFactory, name: str) -> None:
        self._network = network
        self.name = name
        self._boundary: list[ILayer] = []

    def _entries(self) -> Sequence[ILayer]:
        """Boundary layers whose outputs begin the inside."""
        raise NotImplementedError

    def _exits(self) -> Sequence[ILayer]:
        """Boundary layers whose outputs are outside."""
        raise NotImplementedError

    def _region(self, body: list[ILayer]) -> ILayer:
        """One layer that runs the whole scope.

        Args:
            body: The layers inside, boundary left out, in executable order.
        """
        raise NotImplementedError

    def _add(self, layer: B, **named: ITensor) -> B | None:
        """Adds a layer to the network and to the boundary; None where the network refuses it."""
        added = self._network._add(layer, **named)
        if added is not None:
            added._scope = self
            self._boundary.append(added)
        return added


class BoundaryLayer(ILayer):
    """A layer on the boundary of a scope."""

    _scope: Any = None
