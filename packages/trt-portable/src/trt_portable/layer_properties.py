"""Settable properties of layers: conversion at the door, one form in JSON, one signal on change."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any, TypeAlias, TypeVar

from trt_portable.dims import Dims, Permutation, as_dims
from trt_portable.enums import DataType, PybindEnum
from trt_portable.pybind import Setting, instance_of, to_boolean, to_integer, to_number, to_text
from trt_portable.weights import as_weights

T = TypeVar("T")
E = TypeVar("E", bound=PybindEnum)


Holder: TypeAlias = Any
"""A layer; `trt_portable.network.layer` reads this module, so its class is not named."""


class Attribute(Setting[T]):
    """A property of a layer that is part of its meaning.

    Args:
        convert: Makes the stored value of what is assigned; raises TypeError or ValueError.
        default: The value before any assignment.
        encode: The JSON form of the stored value.
        decode: The stored value of a JSON form.
        doc: What the property's docstring says.
    """

    def __init__(
        self,
        convert: Callable[[Any], T],
        default: T,
        encode: Callable[[T], Any] = lambda value: value,
        decode: Callable[[Any], T] | None = None,
        doc: str = "",
    ) -> None:
        super().__init__(convert, default, doc)
        self.encode = encode
        self.decode: Callable[[Any], T] = decode or convert

    def store(self, holder: Holder, value: T) -> None:
        """Keeps a converted value and tells the layer."""
        holder.__dict__[self.slot] = value
        holder._changed()


class WeightsAttribute:
    """A settable property that holds host weights; read as a flat numpy view where numpy can."""

    def __init__(self, role: str, doc: str = "") -> None:
        self.role = role
        self.__doc__ = doc

    def __get__(self, layer: Holder | None, owner: type) -> Any:
        if layer is None:
            return self
        weights = layer._roles.get(self.role)
        return None if weights is None else weights.numpy()

    def __set__(self, layer: Holder, value: Any) -> None:
        layer._roles[self.role] = as_weights(value, self.role.lower())
        layer._changed()


def member(kind: type[E], default: E, doc: str = "") -> Attribute[E]:
    """An attribute that holds a member of an enumeration."""
    return Attribute(
        functools.partial(instance_of, kind), default, lambda value: value.name, lambda name: kind[name], doc
    )


def element_type(default: DataType, doc: str = "") -> Attribute[DataType]:
    """An attribute that holds an element type."""
    return member(DataType, default, doc)


def _encode_number(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def integer(default: int, doc: str = "") -> Attribute[int]:
    """An attribute that holds an integer."""
    return Attribute(to_integer, default, doc=doc)


def boolean(default: bool, doc: str = "") -> Attribute[bool]:
    """An attribute that holds a boolean."""
    return Attribute(to_boolean, default, doc=doc)


def number(default: float, doc: str = "") -> Attribute[float]:
    """An attribute that holds a float."""
    return Attribute(to_number, default, _encode_number, lambda value: float(value), doc)


def numbers(doc: str = "") -> Attribute[tuple[float, ...]]:
    """An attribute that holds finite floats, none at first."""
    return Attribute(lambda given: tuple(map(to_number, given)), (), list, doc=doc)


def text(default: str = "", doc: str = "") -> Attribute[str]:
    """An attribute that holds text."""
    return Attribute(to_text, default, doc=doc)


def dims(default: Dims, doc: str = "") -> Attribute[Dims]:
    """An attribute that holds extents."""
    return Attribute(as_dims, default, list, Dims, doc)


def _maybe_dims(value: Any) -> Dims | None:
    return None if value is None else as_dims(value)


def optional_dims(doc: str = "") -> Attribute[Dims | None]:
    """An attribute that holds extents, or None before it is set or while a tensor overrides it."""
    return Attribute(_maybe_dims, None, lambda value: None if value is None else list(value), _maybe_dims, doc)


def _to_permutation(value: Any) -> Permutation:
    return value if isinstance(value, Permutation) else Permutation(value)


def permutation(doc: str = "") -> Attribute[Permutation]:
    """An attribute that holds a permutation of axes, the identity at first."""
    return Attribute(_to_permutation, Permutation(), list, Permutation, doc)


class Overridden(Attribute[T]):
    """A value that an input tensor overrides; assigning it takes the tensor away again.

    Args:
        plain: The attribute without a tensor.
        index: The input.
        meanwhile: What it reads as while the tensor is there.
    """

    def __init__(self, plain: Attribute[T], index: int, meanwhile: Any = None) -> None:
        super().__init__(plain.convert, plain.default, plain.encode, plain.decode, plain.__doc__ or "")
        self.index = index
        self.meanwhile = meanwhile

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is not None and layer._input(self.index) is not None:
            return self.meanwhile
        return super().__get__(layer, owner)

    def __set__(self, layer: Holder, value: Any) -> None:
        if layer._input(self.index) is not None:
            layer._connect(self.index, None)
        super().__set__(layer, value)


class Selective(Attribute[T]):
    """A value of which all but some are ignored, as TensorRT ignores them.

    Args:
        plain: The attribute that takes all.
        accepted: Those that are kept.
    """

    def __init__(self, plain: Attribute[T], accepted: Collection[T]) -> None:
        super().__init__(plain.convert, plain.default, plain.encode, plain.decode, plain.__doc__ or "")
        self.accepted = accepted

    def __set__(self, layer: Holder, value: Any) -> None:
        converted = self.convert(value)
        if converted in self.accepted:
            self.store(layer, converted)
