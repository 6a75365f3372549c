"""Which tensors the host needs and which the device needs, found backwards from their uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trt_portable.enums import LayerType
from trt_portable.network.layer import ILayer
from trt_portable.network.tensor import ITensor


class TensorKinds(NamedTuple):
    """Identities (``id``) of tensors by kind; a tensor may be of both kinds or of neither.

    Attributes:
        shape: The host needs the values.
        execution: The device needs the values.
    """

    shape: frozenset[int]
    execution: frozenset[int]


def classify(layers: Sequence[ILayer], outputs: Iterable[ITensor], shape_outputs: Iterable[ITensor]) -> TensorKinds:
    """Finds shape tensors and execution tensors of a network.

    Args:
        layers: All layers.
        outputs: Outputs whose values are data.
        shape_outputs: Outputs whose values are shapes.
    """
    wanted = list(shape_outputs)
    for layer in layers:
        for index in layer._HOST_INPUTS:
            tensor = layer._input(index)
            if tensor is not None:
                wanted.append(tensor)
    shape: set[int] = set()
    while wanted:
        tensor = wanted.pop()
        if id(tensor) in shape:
            continue
        shape.add(id(tensor))
        producer = tensor._producer
        if producer is None or not producer._SHAPE_ALGEBRA or producer._KIND is LayerType.SHAPE:
            continue
        wanted.extend(source for source in producer._inputs if source is not None)
    execution: set[int] = set()
    data = list(outputs)
    for layer in layers:
        if not layer._outputs:  # conditions, which something else waits for
            data.extend(t for at, t in enumerate(layer._inputs) if t is not None and at not in layer._HOST_INPUTS)
    while data:
        tensor = data.pop()
        if id(tensor) in execution:
            continue
        execution.add(id(tensor))
        producer = tensor._producer
        if producer is None or producer._KIND is LayerType.SHAPE:
            continue
        for index, source in enumerate(producer._inputs):
            if source is not None and index not in producer._HOST_INPUTS:
                data.append(source)
    return TensorKinds(frozenset(shape), frozenset(execution))
