"""Products with constant weights on the CPU, by oneDNN or MKL: weights packed once, no code generated.

PyTorch's ordinary kernels read weights as they lie in memory and return before an activation begins. Those that it
ships for its compiler read weights in blocks of the processor's own width. oneDNN's also apply an activation or add
another tensor to a result while it is in registers. MKL's do not, but on Intel's processors they are the faster ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from trt_portable.enums import DataType, LayerType
from trt_portable.errors import present
from trt_portable.execution.paging import page_out, passing_copy
from trt_portable.execution.program import Compute, LayerCall, PackingCompute
from trt_portable.fusion.epilogues import (
    CLAMP,
    LAYERS,
    MKL,
    ONEDNN,
    Epilogue,
    Kernels,
    LinearForm,
    OneByOne,
    ProductCase,
    ProductChoice,
    ProductWithEpilogue,
    is_linear,
    is_plain_convolution,
    linear_form,
)
from trt_portable.kernels.operands import require_operands
from trt_portable.layers.contracts import Bound, both, elements, linear
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.layers.fused import GateLayer, Linear
from trt_portable.layers.normalization import LayerNorm
from trt_portable.shape_tensors import Value, as_tensor, operand

Shape = tuple[int, ...]

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""How kernels of convolutions lie when they are packed, by rank."""

IN_PLACE: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "relu": torch.relu_,
    "leaky_relu": F.leaky_relu_,
    "hardsigmoid": partial(F.hardsigmoid, inplace=True),
    CLAMP: torch.clamp_,
}
"""Activations that follow a kernel in place, by their name in an `Epilogue`: oneDNN's own make numbers of NaN.

The result is still in a cache, so that costs 1 % of ResNet-50.
"""


def convolved_shape(layer: IConvolutionLayer, shape: Sequence[int]) -> Shape:
    """Extents of the result of a convolution with the same explicit padding on both sides."""
    axes = zip(shape[2:], layer.pre_padding, layer._spans(), layer.stride_nd, strict=True)
    extents = ((extent + 2 * padding - span) // stride + 1 for extent, padding, span, stride in axes)
    return (shape[0], layer.num_output_maps, *extents)


def has_prepacked_kernels() -> bool:
    """Whether this PyTorch has the kernels, for this processor."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_mkl_products() -> bool:
    """Whether this PyTorch has MKL, and its products with packed matrices."""
    return torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")


class PrepackedProduct(PackingCompute):
    """A product with weights that are packed for it.

    Weights are packed at the first run, and again when a refit replaced them. The memory of what was packed is given
    back where it is a mapped file's.

    Args:
        plain: Computes the same from the same inputs, layer by layer.
    """

    def __init__(self, plain: OneByOne) -> None:
        self._plain = plain
        self._packed: tuple[torch.Tensor, _Packed] | None = None  # weights, and the same packed

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """Computes the result; layer by layer where the kernel cannot, as of no elements."""
        x = as_tensor(inputs[0])
        found = self._run(x, inputs) if x.numel() else None
        return self._plain(inputs) if found is None else found

    @abstractmethod
    def _run(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        """The result for a first input with elements; None where the kernel cannot compute it."""

    def forget(self) -> int:
        """Gives up the packed weights, and returns how many bytes they were; the next run packs them again."""
        packed, self._packed = self._packed, None
        return 0 if packed is None else packed[0].nbytes

    def _weights(self, found: torch.Tensor, x: torch.Tensor) -> _Packed:
        """Weights, packed for the extents of the first input that came; other extents may use them too."""
        packed = self._packed
        if packed is None or packed[0] is not found:
            arranged = self._arrange(found)
            if arranged.data_ptr() != found.data_ptr():
                page_out(found)  # before as much again is needed for what is packed
            self._packed = packed = (found, self._pack(arranged, x))
            page_out(found)
        return packed[1]

    @abstractmethod
    def _arrange(self, weights: torch.Tensor) -> torch.Tensor:
        """Weights in the order that packing reads: a copy for the time of it, or themselves."""

    @abstractmethod
    def _pack(self, weights: torch.Tensor, x: torch.Tensor) -> _Packed: ...

    def contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        """How much it takes with its weights not packed yet; see `trt_portable.layers.contracts`."""
        x = as_tensor(inputs[0])
        product = self._product(x, inputs)
        if product is None:
            return None
        result = self._result_shape(x, inputs)
        behind = elements([result, *(value.shape for value in inputs[1:] if value is not None)])
        return both(product, both(product, behind))

    @abstractmethod
    def _product(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Bound | None:
        """How much the product takes with weights as they are."""

    @abstractmethod
    def _result_shape(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Shape: ...


class _Packed(NamedTuple):
    """Packed weights.

    Attributes:
        weights: Only their kernel can read them.
        rows: Of the left operand that they were packed for.
    """

    weights: torch.Tensor
    rows: int


class OneDnnProduct(PrepackedProduct):
    """A product and its epilogue as one kernel of oneDNN.

    Args:
        epilogue: What follows the product.
        plain: Computes the same from the same inputs, layer by layer.
    """

    def __init__(self, epilogue: Epilogue, plain: OneByOne) -> None:
        super().__init__(plain)
        self._activate = IN_PLACE.get(epilogue.unary)
        self._coefficients = epilogue.scalars
        self._epilogue = epilogue if self._activate is None else Epilogue(adds=epilogue.adds)

    def _run(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        if not self._epilogue.adds:
            return (self._activated(self._multiply(x, inputs)),)
        other = as_tensor(inputs[-1])
        if other.shape != self._result_shape(x, inputs) or other.dtype is not x.dtype:
            return None  # the sum broadcasts
        return (self._activated(self._multiply_and_add(x, other, inputs)),)

    def _activated(self, made: torch.Tensor) -> torch.Tensor:
        return made if self._activate is None else self._activate(made, *self._coefficients)

    @abstractmethod
    def _multiply(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> torch.Tensor: ...

    @abstractmethod
    def _multiply_and_add(
        self, x: torch.Tensor, other: torch.Tensor, inputs: Sequence[Value | None]
    ) -> torch.Tensor: ...


class PrepackedConvolution(OneDnnProduct):
    """A convolution with its own weights. Its result has channels last in memory, which the next one likes.

    Args:
        layer: Symmetric padding, and one input.
        epilogue: What follows.
        plain: The same, layer by layer.
        overwrites: Whether nobody else reads the tensor that is added, nor anything that shares its memory: then the
            result may take its place, which saves a pass over memory.
    """

    def __init__(
        self,
        layer: IConvolutionLayer,
        epilogue: Epilogue,
        plain: OneByOne,
        *,
        overwrites: bool = False,
    ) -> None:
        super().__init__(epilogue, plain)
        self.overwrites = overwrites
        self._layer = layer
        self._checked: torch.Tensor | None = None  # the kernel whose extents were compared
        self._channels = 0
        self._fitting: Shape | None = None  # the last extents into which the windows fit
        self._paddings = list(layer.pre_padding)
        self._stride, self._dilation = list(layer.stride_nd), list(layer.dilation_nd)

    def _arrange(self, weights: torch.Tensor) -> torch.Tensor:
        order = _CHANNELS_LAST.get(weights.dim())  # else PyTorch copies them into memory that stays with the C library
        if order is None or weights.is_contiguous(memory_format=order):
            return weights
        return passing_copy(weights, torch.empty_like(weights, device="meta", memory_format=order).stride())

    def _pack(self, weights: torch.Tensor, x: torch.Tensor) -> _Packed:
        geometry = (self._paddings, self._stride, self._dilation, self._layer.num_groups)
        packed = torch.ops.mkldnn._reorder_convolution_weight(weights, *geometry, list(x.shape))
        return _Packed(packed, x.shape[0])

    def _operands(self, x: torch.Tensor) -> tuple[Any, ...]:
        kernel, bias = self._layer._own_weights(x)
        if self._checked is not kernel:
            fits = bias is None or (bias.numel() == len(kernel) and bias.dtype is torch.float32)
            require_operands(fits and kernel.dtype is torch.float32, "a convolution", x, kernel, bias)
            self._checked, self._channels = kernel, kernel.shape[1] * self._layer.num_groups
        if x.shape[1] != self._channels or x.dtype is not torch.float32 or x.dim() != kernel.dim():
            require_operands(False, "a convolution with a packed kernel", x, kernel)
        if x.shape != self._fitting:
            require_operands(min(convolved_shape(self._layer, x.shape)) > 0, "a convolution", x, kernel)
            self._fitting = x.shape
        geometry = (self._paddings, self._stride, self._dilation, self._layer.num_groups)
        return (self._weights(kernel, x).weights, bias, *geometry)

    def _multiply(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> torch.Tensor:
        how = self._epilogue
        found: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, *self._operands(x), how.unary, how.scalars, how.algorithm
        )
        return found

    def _multiply_and_add(self, x: torch.Tensor, other: torch.Tensor, inputs: Sequence[Value | None]) -> torch.Tensor:
        if self.overwrites and other.dim() == 4 and other.is_contiguous(memory_format=torch.channels_last):
            sum_: torch.Tensor = torch.ops.mkldnn._convolution_pointwise_.binary(
                other, x, *self._operands(x), "add", 1.0, None, [], None
            )
            return sum_
        found: torch.Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
            x, other, *self._operands(x), "add", 1.0, None, [], None
        )
        return found

    def _result_shape(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Shape:
        return convolved_shape(self._layer, x.shape)

    def _product(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Bound | None:
        return self._layer._contract((x,))


class _MatrixProduct(PrepackedProduct):
    """A product with a constant matrix, the second input, plus a bias, the third, where there is one.

    Args:
        form: How it reads the matrix, and whether there is a bias.
        given: What the other base takes.
    """

    def __init__(self, form: LinearForm, *given: Any) -> None:
        super().__init__(*given)
        self._form = form
        self._matrix = _Matrix(form)

    def _arrange(self, weights: torch.Tensor) -> torch.Tensor:
        columns = _as_columns(weights, self._form)  # row by row
        return columns if self._form.is_transposed else passing_copy(columns, (columns.shape[1], 1))

    def _result_shape(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Shape:
        matrix = operand(inputs[1])
        return (*x.shape[:-1], matrix.shape[-2 if self._form.is_transposed else -1])

    def _product(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Bound | None:
        matrix = operand(inputs[1])
        return linear(x.shape, *matrix.shape[-2:])


class PrepackedLinear(_MatrixProduct, OneDnnProduct):
    """The product, and an epilogue, by oneDNN."""

    def _pack(self, weights: torch.Tensor, x: torch.Tensor) -> _Packed:
        rows = x.numel() // x.shape[-1]
        return _Packed(torch.ops.mkldnn._reorder_linear_weight(weights, rows), rows)

    def _operands(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor | None]:
        matrix, bias = self._matrix.read(x, inputs)
        return self._weights(matrix, x).weights, bias

    def _multiply(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> torch.Tensor:
        how = self._epilogue
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, *self._operands(x, inputs), how.unary, how.scalars, how.algorithm
        )
        return found

    def _multiply_and_add(self, x: torch.Tensor, other: torch.Tensor, inputs: Sequence[Value | None]) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, *self._operands(x, inputs), "add")
        return found


class MklLinear(_MatrixProduct):
    """The same by MKL; what follows runs layer by layer.

    MKL packs for a number of rows. Others, which may come later, are multiplied by the matrix as it lies.
    """

    def _run(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        matrix, bias = self._matrix.read(x, inputs)
        packed = self._weights(matrix, x)
        if x.numel() // x.shape[-1] != packed.rows:
            return None
        columns = _as_columns(matrix, self._form)  # of which the operator reads no more than the extents
        product = torch.ops.mkl._mkl_linear(x, packed.weights, columns, bias, packed.rows)
        return self._plain.finish((product,), inputs)

    def _pack(self, weights: torch.Tensor, x: torch.Tensor) -> _Packed:
        rows = x.numel() // x.shape[-1]
        return _Packed(torch.ops.mkl._mkl_reorder_linear_weight(weights, rows), rows)


class _Matrix:
    """The matrix and the bias that a product reads, which its kernels do not compare with its rows.

    Args:
        form: How the product reads the matrix, and whether there is a bias.
    """

    def __init__(self, form: LinearForm) -> None:
        self._form = form
        self._checked: tuple[Value | None, Value | None] = (None, None)
        self._depth = 0

    def read(self, x: torch.Tensor, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The matrix and the bias for rows.

        Raises:
            Refusal: They do not fit each other.
        """
        matrix, added = inputs[1], inputs[2] if self._form.has_bias else None
        if self._checked[0] is not matrix or self._checked[1] is not added:
            self._check(matrix, added)
        if x.shape[-1] != self._depth or x.dtype is not torch.float32:
            require_operands(False, "a product with a packed matrix", x, as_tensor(matrix))
        return as_tensor(matrix), None if added is None else as_tensor(added).reshape(-1)

    def _check(self, given: Value | None, added: Value | None) -> None:
        """Checks a matrix and a bias that were not there in the last run: they change with a refit alone."""
        matrix, bias = as_tensor(given), None if added is None else as_tensor(added)
        rows, columns = matrix.shape[-2:] if self._form.is_transposed else (matrix.shape[-1], matrix.shape[-2])
        fits = matrix.numel() == rows * columns and matrix.dtype is torch.float32
        fits = fits and (bias is None or (bias.numel() == rows and bias.dtype is torch.float32))
        require_operands(fits, "a product with a packed matrix", matrix, bias)
        self._checked, self._depth = (given, added), columns


def _as_columns(matrix: torch.Tensor, form: LinearForm) -> torch.Tensor:
    """A matrix as (N, K)."""
    flat = matrix.reshape(matrix.shape[-2:])
    return flat if form.is_transposed else flat.mT


_MAKE_MEMORY: Final = frozenset({LayerType.ELEMENTWISE, LayerType.NORMALIZATION, LayerType.POOLING})


def packed_products(choose: ProductChoice) -> ProductWithEpilogue:
    """What packs products in float32 with constant weights, each with what only its result goes through.

    Args:
        choose: Which kernel a product with a matrix has.
    """
    return ProductWithEpilogue(_PrepackedKernels(choose))


def activations_in_place() -> ProductWithEpilogue:
    """What lets an activation behind a linear map, of PyTorch's own product, overwrite the result."""
    return ProductWithEpilogue(_ActivatedInPlace())


def let_sums_overwrite(calls: Sequence[LayerCall], visible: Collection[int]) -> None:
    """Lets a convolution add to a tensor in place that nothing reads afterwards.

    Packed kernels, and layers of some kinds, make memory of their own, and keep none of what they read. Others may hand
    views on.
    """
    last: dict[int | None, LayerCall] = {}
    makers: dict[int, LayerCall] = {}
    readers: dict[int | None, list[LayerCall]] = defaultdict(list)
    for call in calls:
        for tensor in call.inputs:
            readers[tensor].append(call)
            last[tensor] = call
        makers.update(dict.fromkeys(call.outputs, call))
    for call in calls:
        if not isinstance(call.compute, PrepackedConvolution) or len(call.inputs) < 2:
            continue
        other = call.inputs[-1]
        if other is None or other in visible or last[other] is not call or call.inputs.count(other) > 1:
            continue
        around = [makers.get(other), *readers[other]]
        call.compute.overwrites = all(each is not None and _makes_memory(each) for each in around)


def _makes_memory(call: LayerCall) -> bool:
    is_plain = call.kind in _MAKE_MEMORY and call.compute == call.layer._compute
    return is_plain or isinstance(call.layer, GateLayer) or isinstance(call.compute, (LayerNorm, PrepackedProduct))


class _PrepackedKernels(Kernels):
    """oneDNN's: any activation that it has, and sums, behind which activations are computed in place.

    Products with a matrix may have MKL's, or run layer by layer, and so may convolutions of one place.
    """

    def __init__(self, choose: ProductChoice) -> None:
        self._choose = choose

    def takes(self, call: LayerCall) -> bool:
        return is_plain_convolution(call, DataType.FLOAT) or is_linear(call, DataType.FLOAT)

    def fuses(self, product: LayerCall, epilogue: Epilogue) -> bool:
        return not epilogue.adds or epilogue.unary == "none" or epilogue.unary in IN_PLACE

    def make(self, product: LayerCall, epilogue: Epilogue, plain: OneByOne) -> Compute:
        layer = product.layer
        if isinstance(layer, IConvolutionLayer):
            packed = PrepackedConvolution(layer, epilogue, plain)
            if not _sees_one_place(layer):
                return packed
            case = ProductCase(layer.num_output_maps, None, epilogue)
            return self._choose(layer, case, {ONEDNN: packed, LAYERS: plain})
        form = linear_form(product)
        assert form is not None and isinstance(product.compute, Linear)
        ways: dict[str, Compute] = {ONEDNN: PrepackedLinear(form, epilogue, plain)}
        if has_mkl_products():
            ways[MKL] = MklLinear(form, plain)
        ways[LAYERS] = plain
        return self._choose(layer, ProductCase(product.compute.columns, form, epilogue), ways)


class _ActivatedInPlace(Kernels):
    """PyTorch's own product, and behind it an activation in place: less to call, and less memory."""

    def takes(self, call: LayerCall) -> bool:
        return is_linear(call, DataType.FLOAT)

    def fuses(self, product: LayerCall, epilogue: Epilogue) -> bool:
        return not epilogue.adds and epilogue.unary in IN_PLACE

    def make(self, product: LayerCall, epilogue: Epilogue, plain: OneByOne) -> Compute:
        assert isinstance(product.compute, Linear)
        activate, scalars = IN_PLACE[epilogue.unary], epilogue.scalars
        return product.compute.followed_by((lambda made: activate(made, *scalars)) if scalars else activate)


def _sees_one_place(layer: IConvolutionLayer) -> bool:
    """Whether the images of a convolution have one place: a product, whose result lies alike in either layout."""
    image, result = present(layer._inputs[0]), layer._outputs[0]
    return layer.num_groups == 1 and all(extent == 1 for extent in (*image.shape[2:], *result.shape[2:]))
