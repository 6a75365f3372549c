"""`NetworkWriter`: what converters add layers with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from trt_portable.dims import MAX_RANK
from trt_portable.dtypes import FLOATS, FROM_NUMPY, INDICES, nptype
from trt_portable.enums import (
    ActivationType,
    DataType,
    ErrorCode,
    MatrixOperation,
    ReduceOperation,
    SampleMode,
    UnaryOperation,
)
from trt_portable.enums import ElementWiseOperation as Op
from trt_portable.errors import Refusal, present
from trt_portable.layers.sources import IConstantLayer
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.network import INetworkDefinition
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import UINT8, Initializer, as_weights_of

Operand: TypeAlias = ITensor | Initializer
"""A value of the model: a tensor of the network, or a constant that no layer holds yet."""
Extent: TypeAlias = int | ITensor
"""An int, or where it is known only at run time an int64 tensor of shape (1,)."""

L = TypeVar("L", bound=ILayer)
_INT64_MAX: Final = (1 << 63) - 1
_ROOM: Final = 1 << 26
"""Elements of all constants together that a model describes by a few numbers."""
_MOST_LAYERS: Final = 1 << 12
"""Layers of one node: those that add one for each element of an operand have no more elements than that."""


@dataclass
class NodeFacts:
    """The node that is being converted.

    Attributes:
        name: Its name, or one that tells its operator and place.
        operator: Its operator.
        opset: The version of its domain that the model uses.
        num_outputs: How many outputs it has, unused ones in the middle included.
        wanted: Whether each output has a name.
        attributes: Its attributes as Python values, graphs and tensors as ONNX has them.
    """

    name: str
    operator: str
    opset: int
    num_outputs: int = 0
    wanted: tuple[bool, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


class NetworkWriter:
    """Adds layers for one node after the other, each checked and named after its node.

    Args:
        network: The network that grows.
        warn: Takes what a user should know although it is no error.
    """

    def __init__(self, network: INetworkDefinition, warn: Callable[[str], None]) -> None:
        self.network = network
        self.warn = warn
        self.node = NodeFacts("", "", 0, 0)
        self._names: dict[str, int] = {}
        self._held: dict[int, tuple[Operand, ITensor]] = {}
        self._bytes: dict[int, ITensor] = {}
        self._named: dict[str, Initializer] = {}
        self._room = _ROOM
        self._counted, self._layers = self.node, 0

    # --- constants that a model only describes ---------------------------------------------------

    def has_room(self, elements: float) -> bool:
        """Whether a constant may be written out that a model describes by a few numbers; later ones have less room."""
        fits = 0 <= elements <= self._room
        self._room -= int(elements) if fits else 0
        return fits

    def take_room(self, elements: float, what: str) -> None:
        """Takes room for such a constant.

        Raises:
            Unsupported: There is not as much.
        """
        if not self.has_room(elements):
            raise Unsupported(
                f"{what} takes {elements:.0f} numbers, and all that the model describes may take {_ROOM}",
                ErrorCode.UNSUPPORTED_NODE_SHAPE,
            )

    # --- layers ----------------------------------------------------------------------------------

    def layer(self, layer: L | None) -> L:
        """A layer that was just added, named after the node.

        Raises:
            Unsupported: The network refused it, or the node takes too many.
        """
        if layer is None:
            raise Unsupported(f"the network refused a layer of {self.node.name}")
        if self._counted is not self.node:
            self._counted, self._layers = self.node, 0
        self._layers += 1
        if self._layers > _MOST_LAYERS:
            raise Unsupported(
                f"{self.node.name} takes more than {_MOST_LAYERS} layers", ErrorCode.UNSUPPORTED_NODE_SHAPE
            )
        layer.name = self._unique(self.node.name)
        layer.metadata = f"[ONNX Layer: {self.node.name}]"
        return layer

    def output(self, layer: ILayer | None, index: int = 0, **attributes: Any) -> ITensor:
        """An output of a layer that was just added, with its shape inferred, once attributes of the layer are set."""
        made = self.layer(layer)
        for attribute, value in attributes.items():
            setattr(made, attribute, value)
        return present(made.get_output(index))

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

    # --- constants -------------------------------------------------------------------------------

    def tensor(self, operand: Operand) -> ITensor:
        """An operand as a tensor of a type to compute with.

        An initializer becomes a constant layer the first time, and an input of type uint8 is cast to int32.
        """
        if isinstance(operand, ITensor) and operand.dtype is not DataType.UINT8:
            return operand
        held = self._held.get(id(operand))
        if held is None:
            inside = self.cast(operand, DataType.INT32) if isinstance(operand, ITensor) else self._hold(operand)
            held = self._held[id(operand)] = operand, self.mark_byte(inside) if self.is_byte(operand) else inside
        return held[1]

    def _hold(self, constant: Initializer) -> ITensor:
        dtype = constant.dtype
        if len(constant.shape) > MAX_RANK:
            raise Unsupported(
                f"the constant {constant.name!r} has rank {len(constant.shape)}; {MAX_RANK} is the most",
                ErrorCode.UNSUPPORTED_NODE_SHAPE,
            )
        if dtype is DataType.BOOL:  # which constants cannot be
            weights = as_weights_of(constant.array.astype(np.int32), DataType.INT32)
            return self.cast(self._constant_layer(constant.shape, weights, constant.name), DataType.BOOL)
        weights = constant.weights()
        tensor = self._constant_layer(constant.shape, weights, constant.name)
        self.name_weights(constant)
        return tensor

    def _constant_layer(self, shape: Sequence[int], weights: Any, name: str) -> ITensor:
        layer = self.network.add_constant(tuple(shape), weights)
        if layer is None:
            raise Unsupported(f"the network refused the constant {name!r}")
        layer.name = self._unique(name or f"{self.node.name}_constant")
        return present(layer.get_output(0))

    def name_weights(self, constant: Initializer) -> None:
        """Gives weights that a layer took from a constant of the model its name, by which a refit finds them.

        Of constants of the same name, which different scopes may have, the first has it.
        """
        if constant.name and constant.weights().size and self._named.setdefault(constant.name, constant) is constant:
            self.network.set_weights_name(constant.weights(), constant.name)

    def constant(self, numbers: Any, dtype: DataType) -> ITensor:
        """A constant of the converter's own.

        Args:
            numbers: A number, a list or an array; its shape is the tensor's.
            dtype: The type.
        """
        if dtype is DataType.BF16:
            return self.cast(self.constant(numbers, DataType.FLOAT), dtype)
        if dtype is DataType.BOOL:
            return self.cast(self.constant(np.asarray(numbers, np.int32), DataType.INT32), dtype)
        if dtype is DataType.UINT8:
            return self.constant(np.asarray(numbers, np.uint8), DataType.INT32)
        if dtype not in FROM_NUMPY.values():
            raise Unsupported(f"{self.node.operator} of type {dtype.name}", ErrorCode.UNSUPPORTED_NODE_DATATYPE)
        array = np.ascontiguousarray(np.asarray(numbers, dtype=nptype(dtype)))
        shape = np.shape(numbers)
        return self._constant_layer(shape, as_weights_of(array, dtype), "")

    def scalar_like(self, number: float, x: ITensor) -> ITensor:
        """A number as a constant of the type and rank of a tensor, every extent 1."""
        return self.constant(np.full((1,) * len(x.shape), number), x.dtype)

    def numbers(self, operand: Operand | None) -> list[Any] | None:
        """The values of an operand, row by row, if they are known now; else None."""
        if operand is None:
            return None
        if isinstance(operand, Initializer):
            return operand.numbers()
        operand._refresh()
        if operand._host is not None and all(isinstance(number, (int, float)) for number in operand._host):
            return list(operand._host)
        producer = operand._producer
        if isinstance(producer, IConstantLayer) and operand.dtype in FROM_NUMPY.values():
            return np.asarray(producer._roles["CONSTANT"].numpy()).tolist()  # type: ignore[no-any-return]
        return None

    def known_numbers(self, operand: Operand) -> list[Any]:
        """One value for each axis: a number, an expression of extents, or None; the operand becomes a shape tensor.

        Raises:
            Unsupported: There are more values than axes.
        """
        found = self.numbers(operand)
        if found is None and isinstance(operand, ITensor):
            with contextlib.suppress(Refusal):  # which the layer that reads it tells
                self.network._inference.require_host(operand)
            found = self.numbers(operand) or list(operand._host or ())
        count = len(found or ()) or math.prod(operand.shape)
        if count > MAX_RANK:
            raise Unsupported(f"{count} numbers for at most {MAX_RANK} axes", ErrorCode.UNSUPPORTED_NODE_SHAPE)
        return found or [None] * count

    def integers(self, operand: Operand | None, what: str) -> list[int]:
        """The values of an operand, which must be known now.

        Raises:
            Unsupported: They depend on inputs of the network.
        """
        found = self.numbers(operand)
        if found is None:
            raise Unsupported(f"{what} must be constant", ErrorCode.UNSUPPORTED_NODE_INPUT)
        return [int(number) for number in found]

    def number(self, operand: Operand | None, default: float, what: str) -> float:
        """The value of an operand of one element, which must be known now; `default` without the operand.

        Raises:
            Unsupported: It depends on inputs of the network, or there are more.
        """
        if operand is None:
            return default
        found = self.numbers(operand)
        if found is None or len(found) != 1:
            raise Unsupported(f"{what} must be one constant number", ErrorCode.UNSUPPORTED_NODE_INPUT)
        return float(found[0])

    # --- element by element ----------------------------------------------------------------------

    def cast(self, x: ITensor, dtype: DataType) -> ITensor:
        """A tensor as another type; itself if it has that type. What is uint8 in the model is int32 in the network."""
        if x.dtype is dtype:
            return x
        if dtype is DataType.UINT8:
            return x if self.is_byte(x) else self.mark_byte(self._within_bytes(x))
        if x.dtype is DataType.UINT8 and dtype not in FLOATS:  # which converts from and to floats only
            x = self.output(self.network.add_cast(x, DataType.FLOAT))
        return self.output(self.network.add_cast(x, dtype))

    def is_byte(self, operand: Operand | None) -> bool:
        """Whether an operand is of type uint8 in the model."""
        if isinstance(operand, Initializer):
            return operand.elem_type == UINT8
        return operand is not None and (operand.dtype is DataType.UINT8 or id(operand) in self._bytes)

    def mark_byte(self, x: ITensor) -> ITensor:
        """Remembers that a tensor of int32 is of type uint8 in the model."""
        self._bytes[id(x)] = x
        return x

    def byte_like(self, x: ITensor, *sources: Operand) -> ITensor:
        """A tensor with the values of others, which is of type uint8 in the model where all of them are."""
        return self.mark_byte(x) if x.dtype is DataType.INT32 and all(map(self.is_byte, sources)) else x

    def _within_bytes(self, x: ITensor) -> ITensor:
        """A tensor as int32 between 0 and 255: floats end there, of integers the lowest eight bits stay."""
        if x.dtype in FLOATS:
            x = self.activation(x, ActivationType.CLIP, 0.0, 255.0)
        whole = self.cast(x, DataType.INT32)
        if x.dtype in FLOATS or x.dtype is DataType.BOOL:
            return whole
        return self.binary(whole, self.with_number(self.with_number(whole, 256, Op.FLOOR_DIV), 256, Op.PROD), Op.SUB)

    def unary(self, x: ITensor, op: UnaryOperation) -> ITensor:
        """A function of one operand."""
        return self.output(self.network.add_unary(x, op))

    def activation(self, x: ITensor, type: ActivationType, alpha: float = 0.0, beta: float = 0.0) -> ITensor:
        """An activation function with its coefficients."""
        return self.output(self.network.add_activation(x, type), alpha=alpha, beta=beta)

    @staticmethod
    def output_of(layer: ILayer, index: int = 0) -> ITensor:
        """An output of a layer that has its name already."""
        return present(layer.get_output(index))

    def binary(self, left: ITensor, right: ITensor, op: Op) -> ITensor:
        """A function of two operands, the shorter shape extended with ones in front."""
        left, right = self.broadcast(left, right)
        return self.output(self.network.add_elementwise(left, right, op))

    def with_number(self, x: ITensor, number: float, op: Op) -> ITensor:
        """A function of a tensor and a number."""
        return self.output(self.network.add_elementwise(x, self.scalar_like(number, x), op))

    def select(self, condition: ITensor, chosen: ITensor, other: ITensor) -> ITensor:
        """A choice between two tensors, all three broadcast."""
        condition, chosen, other = self.broadcast(condition, chosen, other)
        return self.output(self.network.add_select(condition, chosen, other))

    def broadcast(self, *tensors: ITensor) -> list[ITensor]:
        """Tensors with ones in front of their extents, so that all have the greatest rank."""
        rank = max(len(x.shape) for x in tensors)
        return [self.unsqueeze(x, range(rank - len(x.shape))) if len(x.shape) < rank else x for x in tensors]

    def logical_not(self, x: ITensor) -> ITensor:
        """The opposite of a bool."""
        return self.unary(x, UnaryOperation.NOT)

    # --- extents ---------------------------------------------------------------------------------

    def rank(self, x: Operand) -> int:
        """The number of axes."""
        return len(x.shape)

    def require_rank(self, x: Operand, rank: int, what: str) -> None:
        """Refuses an operand of another number of axes.

        Raises:
            Unsupported: It has another one.
        """
        if self.rank(x) != rank:
            raise Unsupported(f"{what} has rank {self.rank(x)}, not {rank}", ErrorCode.INVALID_NODE)

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front.

        Raises:
            Unsupported: There is none.
        """
        if not -rank <= axis < rank:
            raise Unsupported(f"axis {axis} is outside rank {rank}", ErrorCode.INVALID_NODE)
        return axis % rank

    def axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """Axes counted from the front, which must be distinct.

        Raises:
            Unsupported: One is outside the rank, or there twice.
        """
        found = [self.axis(axis, rank) for axis in axes]
        if len(set(found)) != len(found):
            raise Unsupported(f"axes {found} are not distinct", ErrorCode.INVALID_NODE)
        return found

    def extents(self, x: ITensor) -> list[Extent]:
        """The extents, each an int where it is known."""
        known = list(x.shape)
        if -1 not in known:
            return [*known]
        whole = self.output(self.network.add_shape(x))
        return [
            extent if extent >= 0 else self.output(self.network.add_slice(whole, (axis,), (1,), (1,)))
            for axis, extent in enumerate(known)
        ]

    def vector(self, extents: Sequence[Extent]) -> ITensor:
        """Extents as one int64 tensor."""
        if all(isinstance(extent, int) for extent in extents):
            return self.constant(np.array(extents, np.int64), DataType.INT64)
        return self.concat([self.as_tensor(extent) for extent in extents], 0)

    def as_tensor(self, extent: Extent) -> ITensor:
        """An extent as an int64 tensor of shape (1,)."""
        return self.constant([extent], DataType.INT64) if isinstance(extent, int) else extent

    def combine(self, left: Extent, right: Extent, op: Op) -> Extent:
        """Two extents combined: SUM, SUB, PROD, FLOOR_DIV, MAX or MIN."""
        if isinstance(left, int) and isinstance(right, int):
            return _ON_INTS[op](left, right)
        return self.binary(self.as_tensor(left), self.as_tensor(right), op)

    def product(self, extents: Iterable[Extent]) -> Extent:
        """The product of extents."""
        total: Extent = 1
        for extent in extents:
            total = extent if total == 1 else self.combine(total, extent, Op.PROD)
        return total

    def index_vector(self, operand: Operand) -> ITensor:
        """Indices as an int64 tensor of rank 1."""
        x = self.cast(self.tensor(operand), DataType.INT64)
        return x if len(x.shape) == 1 else self.reshape(x, (-1,))

    def scalar(self, x: ITensor) -> ITensor:
        """A tensor of one element as one of rank 0."""
        return x if len(x.shape) == 0 else self.reshape(x, ())

    # --- movement --------------------------------------------------------------------------------

    def reshape(self, x: ITensor, extents: Sequence[Extent], zero_copies: bool = False) -> ITensor:
        """A tensor with other extents; one may be -1."""
        if not zero_copies and tuple(x.shape) == tuple(extents) and -1 not in x.shape:
            return x
        layer = self.layer(self.network.add_shuffle(x))
        layer.zero_is_placeholder = zero_copies
        if all(isinstance(extent, int) for extent in extents):
            layer.reshape_dims = tuple(extents)
        else:
            layer.set_input(1, self.vector(extents))
        return self.output_of(layer)

    def unsqueeze(self, x: ITensor, axes: Iterable[int]) -> ITensor:
        """A tensor with axes of extent 1, where `axes`, counted in the result, say."""
        chosen = list(axes)
        if not chosen:
            return x
        return self.output(self.network.add_unsqueeze(x, self.constant(chosen, DataType.INT64)))

    def squeeze(self, x: ITensor, axes: Iterable[int]) -> ITensor:
        """A tensor without some axes of extent 1."""
        chosen = list(axes)
        if not chosen:
            return x
        return self.output(self.network.add_squeeze(x, self.constant(chosen, DataType.INT64)))

    def transpose(self, x: ITensor, order: Sequence[int]) -> ITensor:
        """A tensor with its axes in another order."""
        if list(order) == list(range(len(order))):
            return x
        return self.output(self.network.add_shuffle(x), first_transpose=tuple(order))

    def concat(self, tensors: Sequence[ITensor], axis: int) -> ITensor:
        """Tensors joined along an axis."""
        if len(tensors) == 1:
            return tensors[0]
        return self.output(self.network.add_concatenation(list(tensors)), axis=axis)

    def slice(
        self,
        x: ITensor,
        start: Sequence[Extent],
        size: Sequence[Extent],
        stride: Sequence[Extent] | None = None,
        mode: SampleMode = SampleMode.STRICT_BOUNDS,
        fill: ITensor | None = None,
    ) -> ITensor:
        """Part of a tensor; each argument has one number per axis.

        Args:
            x: The tensor.
            start: The first index.
            size: The extents of the result.
            stride: The distances between indices; 1 without them.
            mode: What is read out of bounds.
            fill: What FILL reads there, 0-D.
        """
        parts = (start, size, [1] * len(x.shape) if stride is None else stride)
        fixed: list[Any] = [
            tuple(part) if all(isinstance(e, int) for e in part) else (0,) * len(part) for part in parts
        ]
        layer = self.layer(self.network.add_slice(x, *fixed))
        layer.mode = mode
        for index, part in enumerate(parts, start=1):
            if not all(isinstance(extent, int) for extent in part):
                layer.set_input(index, self.vector(part))
        if fill is not None:
            layer.set_input(4, fill)
        return self.output_of(layer)

    def narrow(self, x: ITensor, axis: int, start: Extent, size: Extent) -> ITensor:
        """Neighbouring elements along one axis."""
        extents = self.extents(x)
        starts: list[Extent] = [0] * len(extents)
        starts[axis], extents[axis] = start, size
        return self.slice(x, starts, extents)

    def expand(self, x: ITensor, extents: Sequence[Extent]) -> ITensor:
        """A tensor repeated along axes of extent 1, to extents of its own rank."""
        known = list(x.shape)
        if all(isinstance(e, int) for e in extents) and tuple(known) == tuple(extents):
            return x
        if not known:
            return x
        own = self.extents(x)
        strides: list[Extent] = []
        for have in own:
            if isinstance(have, int):
                strides.append(0 if have == 1 else 1)
            else:  # min(extent - 1, 1)
                strides.append(self.combine(self.combine(have, 1, Op.SUB), 1, Op.MIN))
        return self.slice(x, [0] * len(known), extents, strides)

    def gather(self, x: ITensor, indices: ITensor, axis: int) -> ITensor:
        """Elements along an axis at indices that count from the front."""
        return self.output(self.network.add_gather(x, indices, axis))

    # --- reductions and products -----------------------------------------------------------------

    def reduce(self, x: ITensor, op: ReduceOperation, axes: Sequence[int], keep: bool) -> ITensor:
        """A reduction along some axes; the tensor itself along none."""
        if not axes:
            return x
        mask = sum(1 << axis for axis in axes)
        return self.output(self.network.add_reduce(x, op, mask, keep))

    def matmul(self, left: ITensor, right: ITensor, transpose: tuple[bool, bool] = (False, False)) -> ITensor:
        """The product of matrices, leading axes broadcast."""
        left, right = self.broadcast(left, right)
        first, second = (MatrixOperation.TRANSPOSE if turned else MatrixOperation.NONE for turned in transpose)
        return self.output(self.network.add_matrix_multiply(left, first, right, second))

    # --- types -----------------------------------------------------------------------------------

    def through(self, x: ITensor, dtype: DataType, compute: Callable[[ITensor], ITensor]) -> ITensor:
        """What a function makes of a tensor in another type, cast back."""
        return self.cast(compute(self.cast(x, dtype)), x.dtype)

    def require_float(self, x: ITensor) -> None:
        """Refuses what is no tensor of floats.

        Raises:
            Unsupported: It is one of integers or bools.
        """
        if x.dtype not in FLOATS:
            raise Unsupported(
                f"{self.node.operator} of type {x.dtype.name}: float types only", ErrorCode.UNSUPPORTED_NODE_DATATYPE
            )

    def index_dtype(self, x: ITensor) -> ITensor:
        """Indices in one of the types that layers take."""
        return x if x.dtype in INDICES else self.cast(x, DataType.INT64)


_ON_INTS: Final[Mapping[Op, Callable[[int, int], int]]] = {
    Op.SUM: lambda a, b: a + b,
    Op.SUB: lambda a, b: a - b,
    Op.PROD: lambda a, b: a * b,
    Op.FLOOR_DIV: lambda a, b: a // b if b else 0,
    Op.DIV: lambda a, b: math.trunc(a / b) if b else 0,
    Op.MAX: max,
    Op.MIN: min,
}


def clamp_int64(number: int) -> int:
    """A number in the range that indices have."""
    return max(-_INT64_MAX - 1, min(_INT64_MAX, number))
