"""Models of one operator of ONNX with numbers that nobody would write: attributes, constants, extents and types.

`operators` takes ONNX's own tests of backends, some for each operator, once with operands that are given with the call
and once with constants, changes one number of each, and has the parser read, the builder build and the engine run what
comes of it.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import onnx
import onnx_backend_cases as backend
import onnx_fuzzer
from hostile_files import Act, folder
from onnx import AttributeProto, numpy_helper

Change = Callable[[Any], None]

_OF_EACH: Final = 2
"""Tests of each operator."""
_PART: Final = 4
"""One of how many changes is tried: there are 42,000."""

_MOST_BYTES: Final = 1 << 14
_INTEGERS: Final = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 7, 64, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
_FLOATS: Final = (0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), -float("inf"))
_TEXTS: Final = (b"", b"x", b"\xff\xfe", b"a" * 5000, b"reflect", b"SAME_UPPER", b"ij,jk->ik", b"a,a,a,a,a,a,a,a,a->")


@functools.cache
def _models() -> dict[str, Any]:
    """Models by name: some of each operator, as they are and with constants."""
    found: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for name, case in sorted(backend.all_cases().items(), key=lambda item: (item[1].model.ByteSize(), item[0])):
        kinds = {node.op_type for node in case.model.graph.node}
        if backend.newer_than_the_parser(case.model) or case.model.ByteSize() > _MOST_BYTES:
            continue
        if all(counts[kind] >= _OF_EACH for kind in kinds):
            continue
        counts.update(kinds)
        found[name] = case.model
        is_plain = all(value.type.WhichOneof("value") == "tensor_type" for value in case.model.graph.input)
        constant = backend.with_constants(case) if is_plain else None
        if constant is not None and constant[0].ByteSize() <= _MOST_BYTES:
            found[f"{name}, constants"] = constant[0]
    return found


def operators() -> Iterator[tuple[str, Act]]:
    """Numbers of these models, one after the other."""
    for name, model in _models().items():
        yield f"{name}: as it is", functools.partial(_build, name, lambda model: None)
        for what, change in [*_changes(model)][::_PART]:
            yield f"{name}: {what}", functools.partial(_build, name, change)


def _build(name: str, change: Change) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(_models()[name])
    try:
        change(model)
        content = model.SerializeToString()
    except (ValueError, TypeError):
        return  # what the format cannot say
    onnx_fuzzer.outcome(content, folder() / "model.onnx", _Always(0))


class _Always(random.Random):
    """Chance that builds and runs what can be, and asks for no support: ONNX's own inference takes a second."""

    def random(self) -> float:
        return 0.9


def _changes(model: Any) -> Iterator[tuple[str, Change]]:
    for at, node in enumerate(model.graph.node):
        for number, attribute in enumerate(node.attribute):
            for what, value in _others(attribute):
                yield (
                    f"{node.op_type}.{attribute.name} is {what}",
                    functools.partial(_set_attribute, at=at, number=number, value=value),
                )
        for number in range(len(node.input)):
            for other in (*node.input[:number], *node.output[:1], ""):
                yield (
                    f"{node.op_type} takes {other!r} for {number}",
                    functools.partial(_set_input, at=at, number=number, name=other),
                )
    for at, tensor in enumerate(model.graph.initializer):
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError):
            continue
        for what, other in _other_arrays(array):
            yield f"{tensor.name} is {what}", functools.partial(_set_array, at=at, array=other)
    for at, value in enumerate(model.graph.input):
        dims = value.type.tensor_type.shape.dim
        for axis in range(len(dims)):
            for extent in (0, 1, 3, -1, -5, 2**31, 2**62, "n"):
                yield (
                    f"{value.name} is {extent} along {axis}",
                    functools.partial(_set_extent, at=at, axis=axis, extent=extent),
                )
        for kind in (0, 2, 3, 7, 8, 9, 10, 11, 14, 16, 22, 99):
            yield f"{value.name} is of type {kind}", functools.partial(_set_type, at=at, kind=kind)
        yield f"{value.name} has no axes", functools.partial(_set_rank, at=at, rank=0)
        yield f"{value.name} has another axis", functools.partial(_set_rank, at=at, rank=len(dims) + 1)


def _others(attribute: Any) -> Iterator[tuple[str, Any]]:
    value = onnx.helper.get_attribute_value(attribute)
    kind = attribute.type
    if kind == AttributeProto.INT:
        yield from ((str(one), one) for one in _INTEGERS if one != value)
    elif kind == AttributeProto.FLOAT:
        yield from ((str(one), one) for one in _FLOATS if one != value)
    elif kind == AttributeProto.STRING:
        yield from ((f"{one!r:.20}", one) for one in _TEXTS if one != value)
    elif kind == AttributeProto.INTS:
        for one in _INTEGERS:
            yield f"{one} each", [one] * len(value)
            if len(value) > 1:
                yield f"{one} at last", [*value[:-1], one]
        yield "without the last", list(value)[:-1]
        yield "longer", [*value, 1]
        yield "empty", []
    elif kind == AttributeProto.FLOATS:
        yield from ((f"{one} each", [one] * len(value)) for one in _FLOATS)
        yield "longer", [*value, 1.0]
        yield "empty", []


def _other_arrays(array: Any) -> Iterator[tuple[str, Any]]:
    if array.dtype.kind in "iu" and array.size <= 64:
        bounds = np.iinfo(array.dtype)
        for one in _INTEGERS:
            if bounds.min <= one <= bounds.max:
                yield f"{one} each", np.full_like(array, one)
                if array.size > 1:
                    changed = array.copy()
                    changed.reshape(-1)[0] = one
                    yield f"{one} at first", changed
    elif array.dtype.kind == "f" and array.size:
        yield from ((f"{one} each", np.full_like(array, one)) for one in (0.0, -1.0, np.nan, np.inf))
    flat = array.reshape(-1)
    yield "empty", flat[:0]
    yield "its last element", flat[-1:].reshape(()) if flat.size else flat
    yield "twice as long", np.concatenate([flat, flat])
    if array.ndim:
        yield "deeper", array[None]
        yield "without the last row", array[:-1]


def _set_attribute(model: Any, at: int, number: int, value: Any) -> None:
    node = model.graph.node[at]
    attribute = node.attribute[number]
    if isinstance(value, list):
        made = AttributeProto(name=attribute.name, type=attribute.type)
        (made.ints if attribute.type == AttributeProto.INTS else made.floats).extend(value)
    else:
        made = onnx.helper.make_attribute(attribute.name, value)
    attribute.CopyFrom(made)


def _set_input(model: Any, at: int, number: int, name: str) -> None:
    model.graph.node[at].input[number] = name


def _set_array(model: Any, at: int, array: Any) -> None:
    tensor = model.graph.initializer[at]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _set_extent(model: Any, at: int, axis: int, extent: Any) -> None:
    dim = model.graph.input[at].type.tensor_type.shape.dim[axis]
    dim.Clear()
    if isinstance(extent, str):
        dim.dim_param = extent
    else:
        dim.dim_value = extent


def _set_type(model: Any, at: int, kind: int) -> None:
    model.graph.input[at].type.tensor_type.elem_type = kind


def _set_rank(model: Any, at: int, rank: int) -> None:
    dims = model.graph.input[at].type.tensor_type.shape.dim
    while len(dims) > rank:
        dims.pop()
    while len(dims) < rank:
        dims.add().dim_value = 2
