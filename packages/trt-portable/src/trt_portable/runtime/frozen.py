"""Layers of engines: nobody sets their attributes any more, so reading one is an instance lookup.

Attributes of layers are descriptors, which convert and announce what is assigned. Reading them costs a
Python call each, many times per run. A frozen layer belongs to a subclass on which the same names are
plain, and its own dictionary holds the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trt_portable.network.layer import ILayer

_FROZEN: Final[dict[type[ILayer], type[ILayer]]] = {}


def freeze(layers: Iterable[ILayer]) -> None:
    """Fixes the attributes of layers that were rebuilt from a plan."""
    for layer in layers:
        kind = type(layer)
        if kind._ATTRIBUTES and not kind._IS_FROZEN:
            values = {attribute.name: getattr(layer, attribute.name) for attribute in kind._ATTRIBUTES}
            layer.__class__ = _FROZEN.get(kind) or _frozen(kind)
            layer.__dict__.update(values)


def _frozen(kind: type[ILayer]) -> type[ILayer]:
    plain = dict.fromkeys(attribute.name for attribute in kind._ATTRIBUTES)
    made = type(kind.__name__, (kind,), {**plain, "_IS_FROZEN": True, "__doc__": kind.__doc__})
    return _FROZEN.setdefault(kind, made)
