"""Matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.dtypes import FLOATS
from trt_portable.enums import LayerType, MatrixOperation
from trt_portable.errors import Refusal, present
from trt_portable.layer_properties import Attribute, member
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import multiplied, summed
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_minimum_rank, require_type
from trt_portable.pybind import to_text
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_VECTOR: Final = MatrixOperation.VECTOR
_TRANSPOSE: Final = MatrixOperation.TRANSPOSE


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A matrix product whose leading extents broadcast.

    Args:
        left: (..., M, K).
        right: (..., K, N).

    Returns:
        (..., M, N).
    """
    if left.device.type == "meta" and any(isinstance(e, torch.SymInt) for e in left.shape + right.shape):
        # The same sum of products, in the form whose symbolic extents PyTorch infers fastest.
        return (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)
    if all(type(depth) is int and depth == 1 for depth in (left.shape[-1], right.shape[-2])):
        return left * right  # which compilers join with what is around it
    return torch.matmul(left, right)


class IMatrixMultiplyLayer(ILayer):
    """A product of matrices or vectors over equally many leading dims, which broadcast."""

    _KIND = LayerType.MATRIX_MULTIPLY

    op0 = member(MatrixOperation, MatrixOperation.NONE, "How the first operand is read.")
    op1 = member(MatrixOperation, MatrixOperation.NONE, "How the second operand is read.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        left, right = inputs
        require_equal_types((left, right), "the operands")
        require_type(left, FLOATS, "an operand")
        for tensor, op in ((left, self.op0), (right, self.op1)):
            require_minimum_rank(tensor, 1 if op is _VECTOR else 2, f"an operand with {op.name}")
        leading = [
            (tensor._extents or ())[: -1 if op is _VECTOR else -2]
            for tensor, op in ((left, self.op0), (right, self.op1))
        ]
        require(
            len(leading[0]) == len(leading[1]),
            f"the operands have {len(leading[0])} and {len(leading[1])} leading dims; "
            "they must have equally many, so reshape first",
        )
        for axis, pair in enumerate(zip(*leading, strict=True)):
            fixed = {extent for extent in pair if type(extent) is int and extent != 1}
            require(len(fixed) <= 1, f"leading extents {list(pair)} on axis {axis} do not broadcast")
        inner = (
            (left._extents or ())[-2 if self.op0 is _TRANSPOSE else -1],
            (right._extents or ())[-2 if self.op1 is MatrixOperation.NONE else -1],
        )
        fixed = {extent for extent in inner if type(extent) is int}
        require(len(fixed) <= 1, f"the inner extents {inner[0]} and {inner[1]} differ")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        left, right = map(present, self._inputs)
        rows = {MatrixOperation.NONE: -2, _TRANSPOSE: -1}.get(self.op0)
        columns = {MatrixOperation.NONE: -1, _TRANSPOSE: -2}.get(self.op1)
        return multiplied(left, right, left._rank - (1 if rows is None else 2), rows, columns)

    def _contract(self, inputs: Sequence[Value]) -> Bound | None:
        left, right = inputs
        rows = {MatrixOperation.NONE: -2, _TRANSPOSE: -1}.get(self.op0)
        columns = {MatrixOperation.NONE: -1, _TRANSPOSE: -2}.get(self.op1)
        return contracts.product(
            contracts.joined([left.shape[: -1 if rows is None else -2], right.shape[: -1 if columns is None else -2]]),
            1 if rows is None else left.shape[rows],
            max(left.shape[-2 if self.op0 is _TRANSPOSE else -1], right.shape[-2 if columns == -1 else -1]),
            1 if columns is None else right.shape[columns],
        )

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        left, right = map(as_tensor, inputs)
        op0, op1 = self.op0, self.op1
        if op0 is _TRANSPOSE:
            left = left.mT
        elif op0 is _VECTOR:
            left = left.unsqueeze(-2)
        if op1 is _TRANSPOSE:
            right = right.mT
        elif op1 is _VECTOR:
            right = right.unsqueeze(-1)
        product = multiply(left, right)
        if op1 is _VECTOR:
            product = product.squeeze(-1)
        if op0 is _VECTOR:
            product = product.squeeze(-1 if op1 is _VECTOR else -2)
        return (product,)


def _parse_equation(value: Any) -> str:
    equation = to_text(value).replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    for term in [*terms, result]:
        if not all(label.isascii() and label.islower() for label in term):
            raise Refusal(f"the equation {equation!r} may hold lower-case ASCII labels only")
    for term in terms:
        if len(set(term)) != len(term):
            raise Refusal(f"the equation {equation!r} repeats a label within one operand")
    if arrow and (len(set(result)) != len(result) or not set(result) <= set(operands)):
        raise Refusal(f"the result of the equation {equation!r} has unknown or repeated labels")
    return equation


class _Equation(Attribute[str]):
    """An equation; one that is not valid is ignored, as TensorRT ignores it."""

    def __set__(self, layer: ILayer, value: Any) -> None:
        try:
            super().__set__(layer, value)
        except Refusal as refusal:
            if layer._network is None:
                raise
            layer._report(refusal)


class IEinsumLayer(ILayer):
    """A sum of products in Einstein's notation."""

    _KIND = LayerType.EINSUM

    equation = _Equation(_parse_equation, "", doc="Labels of the operands and of the result.")

    def _check(self, inputs: Sequence[ITensor]) -> None:
        tensors = [tensor for tensor in inputs if tensor is not None]
        require_equal_types(tensors, "the inputs")
        require_type(tensors[0], FLOATS, "an input")
        terms = self.equation.partition("->")[0].split(",")
        require(
            len(terms) == len(tensors),
            f"the equation {self.equation!r} has {len(terms)} operands, the layer {len(tensors)}",
        )
        sizes: dict[str, int] = {}
        for term, tensor in zip(terms, tensors, strict=True):
            if len(term) != tensor._rank:
                raise Refusal(f"operand {term!r} of {self.equation!r} has rank {len(term)}, its input {tensor._rank}")
            for label, extent in zip(term, tensor._extents or (), strict=True):
                if type(extent) is int and extent != 1:
                    known = sizes.setdefault(label, extent)
                    require(known == extent, f"label {label!r} has extents {known} and {extent}")

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        terms, arrow, result = self.equation.partition("->")
        return summed([present(tensor) for tensor in self._inputs], terms.split(","), result) if arrow else None

    def _compute(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        operands = [as_tensor(value) for value in inputs if value is not None]
        return (torch.einsum(self.equation, *operands),)


class ProductLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_matrix_multiply(
        self, input0: ITensor, op0: MatrixOperation, input1: ITensor, op1: MatrixOperation
    ) -> IMatrixMultiplyLayer | None:
        """Adds a matrix product.

        Args:
            input0: (..., M, K), or (..., K, M) with TRANSPOSE, or (..., K) with VECTOR.
            op0: How `input0` is read.
            input1: (..., K, N), or (..., N, K) with TRANSPOSE, or (..., K) with VECTOR.
            op1: How `input1` is read.
        """
        return self._add(IMatrixMultiplyLayer._create(op0=op0, op1=op1), input0=input0, input1=input1)

    def add_einsum(self, inputs: Sequence[ITensor], equation: str) -> IEinsumLayer | None:
        """Adds a sum of products.

        Args:
            inputs: Equal float types.
            equation: For example ``"bij,bjk->bik"``; no ellipsis, no repeated label in an operand.
        """
        tensors = [expect_tensor(tensor, "an element of inputs") for tensor in inputs]
        try:
            layer = IEinsumLayer._create(equation=equation)
        except Refusal as refusal:
            self._reporter.refuse("add_einsum", refusal)
            return None
        return self._add(layer, *tensors)
