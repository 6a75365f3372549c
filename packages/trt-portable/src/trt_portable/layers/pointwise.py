"""Layers that compute each element from the elements at the same place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from trt_portable.dtypes import FLOATS, INDICES
from trt_portable.enums import ActivationType, DataType, ElementWiseOperation, LayerType, UnaryOperation
from trt_portable.errors import Refusal, present
from trt_portable.kernels.operands import divide
from trt_portable.layer_properties import Attribute, member
from trt_portable.layers.contracts import broadcast
from trt_portable.network.definition import LayerFactory
from trt_portable.network.inference import pointwise
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require_broadcast, require_broadcast_to, require_equal_types, require_type
from trt_portable.pybind import to_number
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_SIGNED: Final = FLOATS | INDICES | {DataType.INT8}
_SELECTABLE: Final = _SIGNED | {DataType.BOOL}


def _finite(value: Any) -> float:
    converted = to_number(value)
    if not math.isfinite(converted):
        raise Refusal(f"alpha and beta must be finite, not {converted}")
    return converted


_DEFAULTS: Final[Mapping[ActivationType, tuple[float, float]]] = {
    ActivationType.LEAKY_RELU: (0.01, 0.0),
    ActivationType.ELU: (1.0, 0.0),
    ActivationType.SELU: (1.6732632423543772, 1.0507009873554805),
    ActivationType.SOFTPLUS: (1.0, 1.0),
    ActivationType.HARD_SIGMOID: (0.2, 0.5),
    ActivationType.SCALED_TANH: (1.0, 1.0),
    ActivationType.THRESHOLDED_RELU: (1.0, 0.0),
}
"""What alpha and beta are before they are set. TensorRT documents none: those of ONNX, and of its parser, which clients
that leave them unset rely on; 0 would make zeros of SOFTPLUS, SCALED_TANH and HARD_SIGMOID in silence."""


class _Coefficient(Attribute[float]):
    """A coefficient of an activation: a finite float; others are reported and ignored.

    Args:
        place: 0 for alpha, 1 for beta.
        doc: What the property's docstring says.
    """

    def __init__(self, place: int, doc: str) -> None:
        super().__init__(_finite, 0.0, doc=doc)
        self._place = place

    def __get__(self, layer: Any, owner: type) -> Any:
        if layer is None:
            return self
        stored = layer.__dict__.get(self.slot)
        return _DEFAULTS.get(layer.type, (0.0, 0.0))[self._place] if stored is None else stored

    def __set__(self, layer: ILayer, value: Any) -> None:
        try:
            super().__set__(layer, value)
        except Refusal as refusal:
            layer._report(refusal)


def representable(limit: float, dtype: torch.dtype) -> float:
    """A limit as a type holds it: infinite beyond the greatest number of a float type."""
    is_held = not dtype.is_floating_point or abs(limit) <= torch.finfo(dtype).max
    return limit if is_held else math.copysign(math.inf, limit)


def _clip(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    # NaN becomes the lower bound, and a lower bound above the upper one wins.
    low, high = representable(low, x.dtype), representable(high, x.dtype)
    if low > high:
        return torch.full_like(x, low)
    return torch.clamp(x, low, high).nan_to_num(nan=low, posinf=math.inf, neginf=-math.inf)


def _elu(x: torch.Tensor, alpha: float, scale: float = 1.0) -> torch.Tensor:
    elu: torch.Tensor = torch.ops.aten.elu(x if x.is_floating_point() else x.float(), alpha, scale)
    return elu


def is_usual_hard_sigmoid(alpha: float, beta: float) -> bool:
    """Whether coefficients are those for which PyTorch has a kernel: ``clamp(x / 6 + 1 / 2, 0, 1)``."""
    return math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point() and is_usual_hard_sigmoid(alpha, beta):
        return F.hardsigmoid(x)
    return torch.clamp(alpha * x + beta, 0, 1)


def _gelu_tanh(x: Any) -> Any:
    is_large = type(x) is torch.Tensor and x.device.type == "cpu" and x.numel() >= _MANY
    if not is_large or x.dtype is not torch.float32:
        return F.gelu(x, approximate="tanh")
    # (1 + tanh(y)) / 2 = sigmoid(2y): five short kernels take a third of the time of PyTorch's one, and less on Intel's
    gate = (x * x).mul_(_TWICE_ROOT * 0.044715).add_(_TWICE_ROOT).mul_(x).sigmoid_()
    return gate.mul_(x)


_TWICE_ROOT: Final = 2 * math.sqrt(2 / math.pi)
_MANY: Final = 1 << 12

_ACTIVATIONS: Final[dict[ActivationType, Callable[[Any, float, float], Any]]] = {
    ActivationType.RELU: lambda x, a, b: torch.relu(x),
    ActivationType.SIGMOID: lambda x, a, b: torch.sigmoid(x),
    ActivationType.TANH: lambda x, a, b: torch.tanh(x),
    ActivationType.LEAKY_RELU: lambda x, a, b: F.leaky_relu(x, a),
    ActivationType.ELU: lambda x, a, b: _elu(x, a),
    ActivationType.SELU: _elu,
    ActivationType.SOFTSIGN: lambda x, a, b: F.softsign(x),
    ActivationType.SOFTPLUS: lambda x, a, b: a * torch.logaddexp(b * x, torch.zeros_like(x)),
    ActivationType.CLIP: _clip,
    ActivationType.HARD_SIGMOID: _hard_sigmoid,
    ActivationType.SCALED_TANH: lambda x, a, b: a * torch.tanh(b * x),
    ActivationType.THRESHOLDED_RELU: lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
    ActivationType.GELU_ERF: lambda x, a, b: F.gelu(x),
    ActivationType.GELU_TANH: lambda x, a, b: _gelu_tanh(x),
}


class IActivationLayer(ILayer):
    """An activation function, element by element; int32 and int64 only for RELU."""

    _KIND = LayerType.ACTIVATION
    _SHAPE_ALGEBRA = True

    type = member(ActivationType, ActivationType.RELU, "The activation function.")
    alpha = _Coefficient(0, "First coefficient, where the function has one.")
    beta = _Coefficient(1, "Second coefficient, where the function has one.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        integers = INDICES if self.type is ActivationType.RELU else frozenset()
        require_type(x, FLOATS | {DataType.INT8} | integers, f"the input of {self.type.name}")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = self._inputs[0]
        # of int8 some functions make floats
        return None if x is None or x._dtype not in FLOATS else pointwise([x], x._dtype)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return (_ACTIVATIONS[self.type](inputs[0], self.alpha, self.beta),)


_FLOAT_UNARY: Final[dict[UnaryOperation, Callable[[Any], Any]]] = {
    UnaryOperation.EXP: torch.exp,
    UnaryOperation.LOG: torch.log,
    UnaryOperation.SQRT: torch.sqrt,
    UnaryOperation.RECIP: torch.reciprocal,
    UnaryOperation.SIN: torch.sin,
    UnaryOperation.COS: torch.cos,
    UnaryOperation.TAN: torch.tan,
    UnaryOperation.SINH: torch.sinh,
    UnaryOperation.COSH: torch.cosh,
    UnaryOperation.ASIN: torch.asin,
    UnaryOperation.ACOS: torch.acos,
    UnaryOperation.ATAN: torch.atan,
    UnaryOperation.ASINH: torch.asinh,
    UnaryOperation.ACOSH: torch.acosh,
    UnaryOperation.ATANH: torch.atanh,
    UnaryOperation.CEIL: torch.ceil,
    UnaryOperation.FLOOR: torch.floor,
    UnaryOperation.ERF: torch.erf,
    UnaryOperation.ROUND: torch.round,
    UnaryOperation.ISINF: torch.isinf,
    UnaryOperation.ISNAN: torch.isnan,
}
_SIGNED_UNARY: Final[dict[UnaryOperation, Callable[[Any], Any]]] = {
    UnaryOperation.ABS: torch.abs,
    UnaryOperation.NEG: torch.neg,
    UnaryOperation.SIGN: torch.sign,
}
_TESTS: Final = frozenset({UnaryOperation.ISINF, UnaryOperation.ISNAN, UnaryOperation.NOT})
_UNARY: Final = {**_FLOAT_UNARY, **_SIGNED_UNARY, UnaryOperation.NOT: torch.logical_not}


class IUnaryLayer(ILayer):
    """A function of one operand, element by element."""

    _KIND = LayerType.UNARY
    _SHAPE_ALGEBRA = True

    op = member(UnaryOperation, UnaryOperation.EXP, "The function.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        if self.op is UnaryOperation.NOT:
            allowed = frozenset({DataType.BOOL})
        else:
            allowed = FLOATS if self.op in _FLOAT_UNARY else _SIGNED
        require_type(x, allowed, f"the input of {self.op.name}")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        x = present(self._inputs[0])
        return pointwise([x], DataType.BOOL if self.op in _TESTS else x._dtype)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return (_UNARY[self.op](inputs[0]),)


def _quotient(left: Any, right: Any) -> Any:
    if left.dtype.is_floating_point:
        return torch.div(left, right)
    return _integer_quotient(left, right, "trunc")


def _floor_quotient(left: Any, right: Any) -> Any:
    if left.dtype.is_floating_point:
        return torch.floor(torch.div(left, right))
    return _integer_quotient(left, right, "floor")


def _integer_quotient(left: Any, right: Any, rounding_mode: str) -> Any:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return divide(as_tensor(left), as_tensor(right), rounding_mode)
    if rounding_mode == "floor":
        return torch.floor_divide(left, right)
    return torch.div(left, right, rounding_mode=rounding_mode)


_ARITHMETIC: Final[dict[ElementWiseOperation, Callable[[Any, Any], Any]]] = {
    ElementWiseOperation.SUM: torch.add,
    ElementWiseOperation.PROD: torch.mul,
    # The operand that is not NaN wins, as in C's fmax and fmin.
    ElementWiseOperation.MAX: torch.fmax,
    ElementWiseOperation.MIN: torch.fmin,
    ElementWiseOperation.SUB: torch.sub,
    ElementWiseOperation.DIV: _quotient,
    ElementWiseOperation.FLOOR_DIV: _floor_quotient,
}
_COMPARISONS: Final[dict[ElementWiseOperation, Callable[[Any, Any], Any]]] = {
    ElementWiseOperation.EQUAL: torch.eq,
    ElementWiseOperation.GREATER: torch.gt,
    ElementWiseOperation.LESS: torch.lt,
}
_LOGIC: Final[dict[ElementWiseOperation, Callable[[Any, Any], Any]]] = {
    ElementWiseOperation.AND: torch.logical_and,
    ElementWiseOperation.OR: torch.logical_or,
    ElementWiseOperation.XOR: torch.logical_xor,
}
_ELEMENTWISE: Final[dict[ElementWiseOperation, Callable[[Any, Any], Any]]] = {
    **_ARITHMETIC,
    **_COMPARISONS,
    **_LOGIC,
    ElementWiseOperation.POW: torch.pow,
}


class IElementWiseLayer(ILayer):
    """A function of two operands of equal type and rank; extents of 1 are broadcast."""

    _KIND = LayerType.ELEMENTWISE
    _SHAPE_ALGEBRA = True

    op = member(ElementWiseOperation, ElementWiseOperation.SUM, "The function.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        left, right = inputs
        require_equal_types((left, right), f"the operands of {self.op.name}")
        if self.op in _LOGIC:
            allowed = frozenset({DataType.BOOL})
        elif self.op is ElementWiseOperation.POW:
            allowed = FLOATS | {DataType.INT8}
        elif self.op in _COMPARISONS:
            allowed = FLOATS | INDICES
        else:
            allowed = _SIGNED
        require_type(left, allowed, f"an operand of {self.op.name}")
        require_broadcast((left, right), f"the operands of {self.op.name}")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        left = present(self._inputs[0])
        dtype = DataType.BOOL if self.op in _COMPARISONS or self.op in _LOGIC else left._dtype
        return pointwise(self._inputs, dtype)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return (_ELEMENTWISE[self.op](inputs[0], inputs[1]),)


class ISelectLayer(ILayer):
    """Picks each element from one of two tensors; condition, then, else are broadcast together."""

    _KIND = LayerType.SELECT
    _SHAPE_ALGEBRA = True

    def _check(self, inputs: Sequence[ITensor]) -> None:
        condition, chosen, other = inputs
        require_type(condition, {DataType.BOOL}, "the condition")
        require_equal_types((chosen, other), "the then and else inputs")
        require_type(chosen, _SELECTABLE, "the then input")
        require_broadcast((condition, chosen, other), "condition, then and else")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        chosen = present(self._inputs[1])
        return pointwise(self._inputs, chosen._dtype)

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        operands: Any = inputs
        return (torch.where(*operands),)


class IParametricReLULayer(ILayer):
    """``x`` where it is not negative, else ``slope * x``; slopes broadcast to the input."""

    _KIND = LayerType.PARAMETRIC_RELU
    _LIKE_FIRST_INPUT = True

    def _check(self, inputs: Sequence[ITensor]) -> None:
        x, slopes = inputs
        require_type(x, FLOATS | {DataType.INT8}, "the input")
        require_equal_types((x, slopes), "input and slopes")
        require_broadcast_to(slopes, x, "slopes")

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        x, slopes = map(as_tensor, inputs)
        return (torch.where(x < 0, slopes * x, x),)


class PointwiseLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_activation(self, input: ITensor, type: ActivationType) -> IActivationLayer | None:
        """Adds an activation function; set ``alpha`` and ``beta`` on the layer.

        Args:
            input: Any shape, float types; int32 and int64 for RELU.
            type: The function.
        """
        return self._add(IActivationLayer._create(type=type), input=input)

    def add_unary(self, input: ITensor, op: UnaryOperation) -> IUnaryLayer | None:
        """Adds a function of one operand.

        Args:
            input: Any shape.
            op: The function; it decides the types allowed.
        """
        return self._add(IUnaryLayer._create(op=op), input=input)

    def add_elementwise(self, input1: ITensor, input2: ITensor, op: ElementWiseOperation) -> IElementWiseLayer | None:
        """Adds a function of two operands of equal type and rank.

        Args:
            input1: Any shape.
            input2: Equal extents, or 1 on either side.
            op: The function; it decides the types allowed.
        """
        return self._add(IElementWiseLayer._create(op=op), input1=input1, input2=input2)

    def add_select(self, condition: ITensor, then_input: ITensor, else_input: ITensor) -> ISelectLayer | None:
        """Adds a choice between two tensors, element by element.

        Args:
            condition: bool.
            then_input: Chosen where the condition holds.
            else_input: Chosen elsewhere; same type as `then_input`.
        """
        return self._add(ISelectLayer._create(), condition=condition, then_input=then_input, else_input=else_input)

    def add_parametric_relu(self, input: ITensor, slopes: ITensor) -> IParametricReLULayer | None:
        """Adds a ReLU whose slope below zero is a tensor.

        Args:
            input: Any shape, float types.
            slopes: Same type and rank; broadcasts to the input.
        """
        return self._add(IParametricReLULayer._create(), input=input, slopes=slopes)
