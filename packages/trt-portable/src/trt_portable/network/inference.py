"""Shape inference: a layer's own definition, run on tensors without data.

Layers whose inputs have static extents run on meta tensors, others on fake tensors with symbolic extents. What layers
make of symbolic extents alone is said outright, in functions at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch

from trt_portable.dims import MAX_RANK
from trt_portable.dtypes import CARRIERS
from trt_portable.enums import DataType, ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.network.layer import META, Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_volume
from trt_portable.network.symbols import Symbols
from trt_portable.shape_tensors import HOST_LIMIT, HostValues, NotOnHost, Outline, Value, as_tensor

_HOST_TYPES = frozenset({DataType.INT32, DataType.INT64, DataType.BOOL, DataType.FLOAT})


class Inference:
    """Infers the outputs of the layers of one network, remembering what it has inferred before."""

    def __init__(self) -> None:
        self.symbols = Symbols()
        self._known: dict[Any, tuple[Facts, ...]] = {}

    def infer(self, layer: ILayer) -> tuple[Facts, ...]:
        """What a layer produces, given what is known of its inputs.

        Raises:
            Refusal: The layer's definition refuses its inputs, or an output has too many axes.
        """
        sources = layer._facts_source()
        for index in layer._HOST_INPUTS:
            tensor = sources[index] if index < len(sources) else None
            if tensor is not None:
                self.require_host(tensor)
        layer._check(sources)
        key = None
        if layer._CACHEABLE and not layer._DATA_DEPENDENT:
            key = (
                layer._signature(),
                tuple(None if tensor is None else (tensor._extents, tensor._dtype, tensor._host) for tensor in sources),
            )
            found = self._known.get(key)
            if found is not None:
                return found
        facts = self._run(layer, sources)
        for extents, _, _ in facts:
            require(len(extents) <= MAX_RANK, f"the output has rank {len(extents)}; {MAX_RANK} is the most")
            require_volume(extents, "the output")
        if key is not None:
            self._known[key] = facts
        return facts

    def require_host(self, tensor: ITensor) -> None:
        """Makes the values of a tensor known as far as can be; unknown ones become symbols.

        Raises:
            Refusal: It is too large for a shape tensor, or its own extents are not constant.
        """
        if tensor._host is not None:
            return
        count = 1
        for extent in tensor._extents or ():
            if type(extent) is not int:
                raise Refusal(f"the extents of shape tensor {tensor.name!r} must be constant")
            count *= extent
        if count > HOST_LIMIT:
            raise Refusal(f"shape tensor {tensor.name!r} has {count} elements; at most {HOST_LIMIT} are allowed")
        if tensor._dtype not in _HOST_TYPES:
            raise Refusal(
                f"{tensor.name!r} has type {tensor._dtype.name}; a shape tensor is INT32, INT64, BOOL or FLOAT"
            )
        producer = tensor._producer
        if producer is not None and producer._SHAPE_ALGEBRA:
            for source in producer._facts_source():
                if source is not None and source._host is None:
                    try:
                        self.require_host(source)
                    except Refusal:
                        break
            sources = producer._facts_source()
            for output, facts in zip(producer._outputs, self._run(producer, sources), strict=True):
                output._host = facts.host
            if tensor._host is None and (_is_float(tensor) or any(map(_is_float, sources))):
                self._compute_numbers(producer, sources)
        if tensor._host is None:
            tensor._host = tuple(self.symbols.create() for _ in range(count))

    def _compute_numbers(self, layer: ILayer, sources: Sequence[ITensor | None]) -> None:
        """Lets the host know what a layer makes of floats that are numbers: those that an engine would compute."""
        if not all(source is not None and source._host is not None and source._is_static for source in sources):
            return
        values = [
            torch.tensor(source._host, dtype=CARRIERS[source._dtype], device="cpu").reshape(source._extents or ())
            for source in sources
            if source is not None
        ]
        made = layer._known_values() if not values else layer._compute(values)
        for output, value in zip(layer._outputs, made, strict=False):
            output._host = tuple(as_tensor(value).reshape(-1).tolist())

    def _run(self, layer: ILayer, sources: Sequence[ITensor | None]) -> tuple[Facts, ...]:
        symbolic = layer._DATA_DEPENDENT or any(tensor is not None and not tensor._is_static for tensor in sources)
        try:
            known = known_facts(layer, self.symbols)
            if known is not None:
                return known
            if not symbolic:
                return self._facts(layer, layer._compute([self._value(t) for t in sources]))
            outlined = layer._MOVES_ALONE
            with self.symbols.mode():
                return self._facts(layer, layer._compute([self._value(tensor, outlined) for tensor in sources]))
        except Refusal:
            raise
        except NotOnHost:
            raise Refusal("the values of a shape tensor must be known") from None
        except (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError) as error:
            reason = str(error).strip().split("\n")[0]
            raise Refusal(reason, ErrorCodeTRT.INTERNAL_ERROR) from error
        finally:
            if symbolic:
                self.symbols.settle()

    def _value(self, tensor: ITensor | None, outlined: bool = False) -> Value | Outline | None:
        if tensor is None:
            return None
        if tensor._extents is None:
            raise Refusal(f"the shape of {tensor.name!r} is invalid")
        integer = self.symbols.integer
        carrier = CARRIERS[tensor._dtype]
        if tensor._host is not None:
            numbers = [number if isinstance(number, (int, float)) else integer(number) for number in tensor._host]
            return HostValues.of(numbers, tensor._extents, carrier, META)
        shape = tuple(integer(extent) for extent in tensor._extents)
        if outlined:
            return Outline(shape, carrier)
        return torch.empty(shape, dtype=carrier, device=META)

    def _facts(self, layer: ILayer, values: Sequence[Value]) -> tuple[Facts, ...]:
        found = []
        for index, value in enumerate(values):
            extents = tuple(Symbols.expression(extent) for extent in value.shape)
            dtype = layer._output_dtype(index, value.dtype)
            host: tuple[Any, ...] | None = None
            if isinstance(value, HostValues) and value.numel() <= HOST_LIMIT:
                numbers = [self.symbols.noted(number) for number in value.numbers()]
                host = None if any(number is None for number in numbers) else tuple(numbers)
            found.append(Facts(extents, dtype, host))
        return tuple(found)


def _is_float(tensor: ITensor | None) -> bool:
    return tensor is not None and tensor._dtype is DataType.FLOAT


def are_symbolic(tensors: Sequence[ITensor | None]) -> TypeGuard[Sequence[ITensor]]:
    """Whether all shapes are valid, one of them is symbolic, and the host does not know the numbers of all tensors."""
    return (
        all(tensor is not None and tensor._extents is not None for tensor in tensors)
        and not all(tensor is None or tensor._is_static for tensor in tensors)
        and not all(tensor is None or tensor._host is not None for tensor in tensors)
    )


def broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...] | None:
    """The extents of shapes of one rank, broadcast; None where it is not certain that two can be broadcast."""
    return _broadcast(zip(*shapes, strict=True))


def _broadcast(columns: Iterable[Sequence[Any]]) -> tuple[Any, ...] | None:
    """What becomes of extents of the same axis, for each axis; None where it is not certain that they fit."""
    return _agreed([extent for extent in column if type(extent) is not int or extent != 1] or [1] for column in columns)


def _agreed(columns: Iterable[Sequence[Any]]) -> tuple[Any, ...] | None:
    """One extent for each list of extents that have to be the same; None where it is not certain that they can be."""
    found = []
    for column in columns:
        agreed = next((extent for extent in column if type(extent) is int), column[0])
        if not all(may_agree(extent, agreed) for extent in column):
            return None
        found.append(agreed)
    return tuple(found)


def may_agree(one: Any, other: Any) -> bool:
    """Whether extents are the same expression, or one is a symbol, which running may find to be the other."""
    return one == other or any(
        type(symbol) is not int and symbol.is_Symbol and (type(extent) is int or symbol not in extent.free_symbols)
        for symbol, extent in ((one, other), (other, one))
    )


def pointwise(tensors: Sequence[ITensor | None], dtype: DataType) -> tuple[Facts, ...] | None:
    """The output of a layer that broadcasts its inputs."""
    if not are_symbolic(tensors):
        return None
    extents = broadcast([tensor._extents or () for tensor in tensors])
    return None if extents is None else (Facts(extents, dtype, None),)


def known_facts(layer: ILayer, symbols: Symbols) -> tuple[Facts, ...] | None:
    """The outputs of a layer that says what it makes, or that makes what is as its first input is; else None."""
    known = layer._known_facts(symbols)
    if known is not None or not layer._LIKE_FIRST_INPUT:
        return known
    tensors = layer._inputs
    return (Facts(tensors[0]._extents or (), tensors[0]._dtype, None),) if are_symbolic(tensors) else None


def reduced(tensor: ITensor, axes: Sequence[int], keep: bool) -> tuple[Facts, ...] | None:
    """The output of a layer that reduces axes, dropped or kept with extent 1."""
    if not are_symbolic([tensor]):
        return None
    extents = tuple(
        1 if axis in axes else extent for axis, extent in enumerate(tensor._extents or ()) if keep or axis not in axes
    )
    return (Facts(extents, tensor._dtype, None),)


def gathered(data: ITensor, indices: ITensor, axis: int) -> tuple[Facts, ...] | None:
    """The output of a layer that replaces an axis by the axes of indices."""
    if not are_symbolic([data, indices]):
        return None
    around = data._extents or ()
    return (Facts((*around[:axis], *(indices._extents or ()), *around[axis + 1 :]), data._dtype, None),)


def gathered_by_places(data: ITensor, indices: ITensor, shared: int) -> tuple[Facts, ...] | None:
    """The output of a layer that reads at places of several axes each, behind leading axes that both have."""
    if not are_symbolic([data, indices]):
        return None
    extents, places = data._extents or (), indices._extents or ()
    batch = broadcast([places[:shared], extents[:shared]])
    if batch is None:
        return None
    return (Facts((*batch, *places[shared:-1], *extents[shared + places[-1] :]), data._dtype, None),)


def joined(tensors: Sequence[ITensor | None], axis: int, symbols: Symbols) -> tuple[Facts, ...] | None:
    """The output of a layer that joins tensors of one rank."""
    if not are_symbolic(tensors):
        return None
    shapes = [tensor._extents or () for tensor in tensors]
    around = _agreed(zip(*(shape[:axis] + shape[axis + 1 :] for shape in dict.fromkeys(shapes)), strict=True))
    if around is None:
        return None
    total = symbols.total(shape[axis] for shape in shapes)
    return (Facts((*around[:axis], total, *around[axis:]), tensors[0]._dtype, None),)


def summed(tensors: Sequence[ITensor], terms: Sequence[str], result: str) -> tuple[Facts, ...] | None:
    """The output of a sum of products, of which each axis of the tensors and of the result has a label."""
    if not are_symbolic(tensors):
        return None
    columns: dict[str, list[Any]] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for label, extent in zip(term, tensor._extents or (), strict=True):
            columns.setdefault(label, []).append(extent)
    agreed = _broadcast(columns.values())
    if agreed is None:
        return None
    extents = dict(zip(columns, agreed, strict=True))
    return (Facts(tuple(extents[label] for label in result), tensors[0]._dtype, None),)


def multiplied(
    left: ITensor, right: ITensor, leading: int, rows: int | None, columns: int | None
) -> tuple[Facts, ...] | None:
    """The output of a product of matrices.

    Args:
        left: The first operand.
        right: The second one.
        leading: How many axes of both are broadcast.
        rows: The axis of the first operand that stays, -2 or -1; None for a vector.
        columns: The axis of the second operand that stays; None for a vector.
    """
    if not are_symbolic([left, right]):
        return None
    ours, theirs = left._extents or (), right._extents or ()
    batch = broadcast([ours[:leading], theirs[:leading]])
    inner = ours[-2 if rows == -1 else -1], theirs[-1 if columns == -2 else -len(theirs[leading:])]
    if batch is None or not may_agree(*inner):
        return None
    kept = (*(() if rows is None else (ours[rows],)), *(() if columns is None else (theirs[columns],)))
    return (Facts((*batch, *kept), left._dtype, None),)


def attended(query: ITensor, key: ITensor, value: ITensor, mask: ITensor | None) -> tuple[Facts, ...] | None:
    """The output of an attention of padded queries, keys and values, whose heads are repeated where these have fewer.

    Args:
        query: (B, H, S, D).
        key: (B, H', S', D).
        value: (B, H', S', D').
        mask: Broadcast to (B, H, S, S').
    """
    if not are_symbolic([query, key, value, *(() if mask is None else (mask,))]):
        return None
    ours, keys, values = (tensor._extents or () for tensor in (query, key, value))
    around = broadcast([ours[:1], keys[:1], values[:1]])
    if around is None or not may_agree(ours[3], keys[3]):
        return None
    weights: tuple[Any, ...] = (*around, ours[1], ours[2], keys[2])
    if mask is not None:
        pairs = list(zip(weights, mask._extents or (), strict=True))
        if not all(1 in pair or pair[0] == pair[1] for pair in pairs):
            return None  # it depends on the mask's type which of them the definition goes on with
        weights = tuple(own if other == 1 else other for own, other in pairs)
    return (Facts((*weights[:3], values[3]), query._dtype, None),) if may_agree(weights[3], values[2]) else None
