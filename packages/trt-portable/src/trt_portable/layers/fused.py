"""Layers that only engines have: what the builder makes of neighbours that any device computes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from trt_portable.dtypes import FLOATS
from trt_portable.enums import ActivationType, LayerType
from trt_portable.errors import present
from trt_portable.execution.program import ShapedCompute
from trt_portable.layer_properties import boolean, member, number
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound, broadcast
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_minimum_rank, require_type
from trt_portable.shape_tensors import HostValues, Value, as_tensor, operand

Shape = tuple[int, ...]


class LinearLayer(ILayer):
    """A product with a matrix whose leading extents are 1, plus a number for each column.

    Weights come from constant layers, so a refit reaches them. Inputs: 0 rows (..., M, K); 1 the matrix (1, ..., K, N)
    or, transposed, (1, ..., N, K), over whose leading extents a plain product would broadcast at great cost; optional
    2 the bias (1, ..., 1, N).
    """

    _KIND = LayerType.MATRIX_MULTIPLY
    _PLAN_TYPE = "LINEAR"

    is_transposed = boolean(False, "Whether the matrix is (N, K).")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        rows, matrix, *biases = inputs
        assert len(biases) <= 1
        require_equal_types(inputs, "the operands")
        require_type(rows, FLOATS, "an operand")
        for tensor in (rows, matrix):
            require_minimum_rank(tensor, 2, "an operand")
        *leading, first, second = matrix._extents or ()
        columns, depth = (first, second) if self.is_transposed else (second, first)
        is_known = type(first) is type(second) is int
        require(is_known and set(leading) <= {1}, f"a matrix of extents {tuple(matrix.shape)}")
        inner = (rows._extents or ())[-1]
        require(type(inner) is not int or inner == depth, f"the inner extents {inner} and {depth} differ")
        for bias in biases:
            *ones, count = bias._extents or (0,)
            require(count == columns and set(ones) <= {1}, f"a bias of {tuple(bias.shape)} for {columns} columns")

    def _contract(self, inputs: Sequence[Value]) -> Bound | None:
        return Linear.contract(self._engine_compute(), inputs)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        return self._engine_compute()(inputs)  # type: ignore[return-value]

    def _engine_compute(self) -> Linear:
        matrix = present(self._inputs[1])
        return Linear(tuple(matrix.shape[-2:]), is_transposed=self.is_transposed)


class Linear(ShapedCompute):
    """A product with a matrix, the second operand, plus a bias per column, the third, if there is one.

    Args:
        extents: The last two of the matrix; those before are 1.
        is_transposed: Whether the matrix is (N, K) and not (K, N).
        activate: What the result, in memory of its own, goes through in place.
    """

    def __init__(
        self, extents: Shape, *, is_transposed: bool, activate: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self.is_transposed = is_transposed
        self._activate = activate
        self.shapes = {1: extents, 2: (extents[0 if is_transposed else 1],)}

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.shapes[2][0]

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result."""
        x, matrix, *bias = inputs
        flat = [_shaped(as_tensor(addend), self.shapes[2]) for addend in bias if addend is not None]
        return self.compute_shaped((x, _shaped(as_tensor(matrix), self.shapes[1]), *flat))

    def contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        """How much it takes; see `trt_portable.layers.contracts`."""
        x = operand(inputs[0])
        return contracts.linear(x.shape, *self.shapes[1])

    def compute_shaped(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result of a matrix and a bias as PyTorch takes them."""
        x, weights, *bias = inputs
        rows: torch.Tensor = x.tensor() if isinstance(x, HostValues) else x  # type: ignore[assignment]  # never None
        matrix = weights if self.is_transposed else weights.mT  # type: ignore[union-attr]  # constants are tensors
        if rows.dim() < 3 or rows.is_contiguous():
            made = F.linear(rows, matrix, *bias)  # type: ignore[arg-type]
        else:  # PyTorch multiplies each part of rows that lie apart on its own, which reads the matrix for every part
            flat = F.linear(rows.reshape(-1, rows.shape[-1]), matrix, *bias)  # type: ignore[arg-type]
            made = flat.view(*rows.shape[:-1], self.columns)
        return (made if self._activate is None else self._activate(made),)

    def followed_by(self, activate: Callable[[torch.Tensor], torch.Tensor]) -> Linear:
        """The same with an activation behind, which is computed in place."""
        matrix = self.shapes[1]
        return Linear(matrix, is_transposed=self.is_transposed, activate=activate)


def _shaped(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A tensor in other extents; asking whether it has them takes less time than a view."""
    return tensor if tensor.shape == shape else tensor.reshape(shape)


class GateLayer(ILayer):
    """``x * sigmoid(x)``, or ``x * hard_sigmoid(x)`` with the usual coefficients; one kernel, which rounds once."""

    _KIND = LayerType.ACTIVATION
    _PLAN_TYPE = "GATE"

    activation = member(ActivationType, ActivationType.SIGMOID, "SIGMOID or HARD_SIGMOID.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_type(x, FLOATS, "the input")
        known = (ActivationType.SIGMOID, ActivationType.HARD_SIGMOID)
        require(self.activation in known, f"there is no gate of {self.activation.name}")

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        gate = F.silu if self.activation is ActivationType.SIGMOID else F.hardswish
        return (gate(as_tensor(x)),)


class ClampLayer(ILayer):
    """A tensor within limits, where NaN stays."""

    _KIND = LayerType.ACTIVATION
    _PLAN_TYPE = "CLAMP"

    low = number(0.0, "Least value.")
    high = number(0.0, "Greatest value, not less.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        (x,) = inputs
        require_type(x, FLOATS, "the input")
        require(self.low <= self.high, f"the limits {self.low} and {self.high}")

    _contract = staticmethod(broadcast)

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        (x,) = inputs
        return (torch.clamp(as_tensor(x), self.low, self.high),)
