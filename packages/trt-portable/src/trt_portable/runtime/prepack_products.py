"""Products on the CPU as kernels with packed weights, each with the activation or sum behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from trt_portable.enums import DataType, LayerType
from trt_portable.layers.convolution import IConvolutionLayer
from trt_portable.runtime.fusion import Linear, linear_form
from trt_portable.runtime.prepacked_kernels import (
    IN_PLACE,
    MklLinear,
    PrepackedConvolution,
    PrepackedLinear,
    PrepackedProduct,
    has_mkl_products,
)
from trt_portable.runtime.product_chains import (
    Epilogue,
    Kernels,
    OneByOne,
    fuse_products,
    is_linear,
    is_plain_convolution,
)
from trt_portable.runtime.product_choice import LAYERS, MKL, ONEDNN, ProductCase, ProductChoice
from trt_portable.runtime.program import Compute, LayerCall

_MAKE_MEMORY: Final = frozenset({LayerType.ELEMENTWISE, LayerType.NORMALIZATION, LayerType.POOLING})


def prepack_products(
    calls: Sequence[LayerCall], visible: Collection[int], choose: ProductChoice
) -> list[LayerCall] | None:
    """Replaces float32 products with constant weights by packed ones, each with what only its result goes through.

    Args:
        calls: Layers in executable order, linear maps fused.
        visible: Ids of tensors that something besides the layers reads.
        choose: Which kernel a product with a matrix has.

    Returns:
        The calls; None where there is nothing to pack.
    """
    packed = fuse_products(calls, visible, _PrepackedKernels(choose))
    if packed is not None:
        _let_sums_overwrite(packed, visible)
    return packed


def _let_sums_overwrite(calls: Sequence[LayerCall], visible: Collection[int]) -> None:
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
    is_plain = call.layer._KIND in _MAKE_MEMORY and call.compute == call.layer._compute
    return is_plain or isinstance(call.compute, PrepackedProduct)


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
            return self._choose(case, {ONEDNN: packed, LAYERS: plain})
        form = linear_form(product)
        assert form is not None and isinstance(product.compute, Linear)
        ways: dict[str, Compute] = {ONEDNN: PrepackedLinear(form, epilogue, plain)}
        if has_mkl_products():
            ways[MKL] = MklLinear(form, plain)
        ways[LAYERS] = plain
        return self._choose(ProductCase(product.compute.columns, form, epilogue), ways)


def _sees_one_place(layer: IConvolutionLayer) -> bool:
    """Whether the images of a convolution have one place: a product, whose result lies alike in either layout."""
    image, result = layer._inputs[0], layer._outputs[0]
    assert image is not None
    return layer.num_groups == 1 and all(extent == 1 for extent in (*image.shape[2:], *result.shape[2:]))
