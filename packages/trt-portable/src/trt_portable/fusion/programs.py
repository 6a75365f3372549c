"""Interpretation: PyTorch's kernels, layer by layer, with neighbours fused where that changes no meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trt_portable.enums import LayerType
from trt_portable.execution.loaded_network import LoadedNetwork
from trt_portable.execution.program import Compute, LayerCall, Program
from trt_portable.fusion.call_graph import Shapes, rewrite
from trt_portable.fusion.neighbours import (
    ClampWithNan,
    Gate,
    LayerNormalization,
    LinearBias,
    LinearProduct,
    SplitOfSlices,
)
from trt_portable.fusion.packed_products import has_prepacked_kernels, prepack_products
from trt_portable.fusion.product_choice import LAYERS, RECURRENT

if TYPE_CHECKING:
    import torch

    from trt_portable.execution.weight_streaming import StreamedProgram
    from trt_portable.fusion.loops import Fuse
    from trt_portable.fusion.product_choice import ProductChoice, Ways
    from trt_portable.fusion.recurrent import MakeRecurrent, RecurrentForm

_FEW_WEIGHTS: Final = 1 << 16

# what only engines on CUDA or with loops need is imported where they are made: others are loaded sooner


def interpreted_program(loaded: LoadedNetwork) -> Program:
    """The program that runs the layers of a network on any device, and that can be traced."""
    return Program(_fused_neighbours(loaded), loaded.inputs, loaded.outputs)


def host_program(loaded: LoadedNetwork) -> Program:
    """The same for running on the CPU, with PyTorch's kernels for recurrent layers."""
    calls = _with_recurrent_layers(_written_out(loaded), loaded.visible, _recurrent_kernel)
    return Program(_in_fewer_calls(calls, loaded.visible), loaded.inputs, loaded.outputs)


def streamed_program(loaded: LoadedNetwork, device: torch.device) -> StreamedProgram:
    """The same for an engine some of whose weights may lie on the host while it runs on a device."""
    from trt_portable.execution.weight_streaming import StreamedProgram

    return StreamedProgram(_fused_neighbours(loaded), loaded.inputs, loaded.outputs, device)


def _fused_neighbours(loaded: LoadedNetwork) -> list[LayerCall]:
    return _in_fewer_calls(_written_out(loaded), loaded.visible)


def _in_fewer_calls(calls: Sequence[LayerCall], visible: frozenset[int]) -> list[LayerCall]:
    """Calls, with one for several, or with less to ask in each run, where PyTorch has a kernel for it."""
    return rewrite(calls, visible, (Gate(), SplitOfSlices(), LayerNormalization()))


def _with_recurrent_layers(calls: list[LayerCall], visible: frozenset[int], make: MakeRecurrent) -> list[LayerCall]:
    """Calls, with one for each loop that is a recurrent layer."""
    if not any(call.kind is LayerType.LOOP_OUTPUT for call in calls):
        return calls
    from trt_portable.fusion.recurrent import RecurrentLayer

    return rewrite(calls, visible, [RecurrentLayer(make)])


def _recurrent_kernel(form: RecurrentForm, product: LayerCall, loop: LayerCall) -> Compute:
    """What computes a recurrent layer as eager PyTorch does; packing a few weights costs next to no memory."""
    return _recurrent_ways(form, product, loop, most_packed=_FEW_WEIGHTS)[RECURRENT]


def _recurrent_ways(form: RecurrentForm, product: LayerCall, loop: LayerCall, *, most_packed: float) -> Ways:
    """What computes a recurrent layer: one kernel, or the product and the loop."""
    from trt_portable.fusion.recurrent import one_by_one, recurrent_kernel

    plain = one_by_one(product, loop)
    return {RECURRENT: recurrent_kernel(form, loop, plain, most_packed=most_packed), LAYERS: plain}


def _written_out(loaded: LoadedNetwork) -> list[LayerCall]:
    """The layers, with one call for what takes several layers to write."""
    return _joined(loaded.calls, loaded.visible, {}, _fused_body)


def _joined(calls: Sequence[LayerCall], visible: frozenset[int], outside: Shapes, fuse_body: Fuse) -> list[LayerCall]:
    """Calls, with one for what takes several layers to write, inside of loops too.

    Args:
        calls: In executable order.
        visible: Ids of tensors that something besides the layers reads.
        outside: Shapes of constants that come from elsewhere.
        fuse_body: Makes of the calls of a loop's body what runs in every iteration.
    """
    joined = rewrite(calls, visible, (LinearProduct(), LinearBias(), ClampWithNan()), outside)
    if not any(call.kind is LayerType.LOOP_OUTPUT for call in joined):
        return joined
    from trt_portable.fusion.loops import LoopOfPrograms

    return rewrite(joined, visible, [LoopOfPrograms(fuse_body)], outside)


def _fused_body(calls: Sequence[LayerCall], visible: frozenset[int], outside: Shapes) -> list[LayerCall]:
    """What runs in every iteration of a loop."""
    return _in_fewer_calls(_joined(calls, visible, outside, _fused_body), visible)


def fused_program(loaded: LoadedNetwork) -> Program:
    """The same for running on CUDA, with what PyTorch has of fused products; compilers fuse by themselves."""
    from trt_portable.fusion.cuda_products import fuse_cuda_products
    from trt_portable.fusion.unaligned_products import split_unaligned_products

    calls = fuse_cuda_products(split_unaligned_products(_written_out(loaded)), loaded.visible)
    return Program(rewrite(calls, loaded.visible, [Gate()]), loaded.inputs, loaded.outputs)


def traced_program(loaded: LoadedNetwork) -> Program:
    """The same for tracing into a graph that is compiled for CUDA."""
    from trt_portable.fusion.cuda_products import fuse_traced_products
    from trt_portable.fusion.unaligned_products import split_traced_unaligned_products

    calls = fuse_traced_products(split_traced_unaligned_products(_written_out(loaded), loaded.outputs), loaded.visible)
    return Program(rewrite(calls, loaded.visible, [Gate()]), loaded.inputs, loaded.outputs)


def prepacked_program(loaded: LoadedNetwork, choose: ProductChoice) -> Program | None:
    """The same with products packed for the CPU; None where there is nothing to pack, or no kernel for it.

    Args:
        loaded: The network.
        choose: Which kernel each product with a matrix, and each recurrent layer has; those in loops come first.
    """
    if not has_prepacked_kernels():
        return None

    def packed_body(calls: Sequence[LayerCall], visible: frozenset[int], outside: Shapes) -> list[LayerCall]:
        joined = _joined(calls, visible, outside, packed_body)
        return _in_fewer_calls(prepack_products(joined, visible, choose) or joined, visible)

    def packed_layer(form: RecurrentForm, product: LayerCall, loop: LayerCall) -> Compute:
        (packed,) = prepack_products([product], frozenset(product.outputs), choose) or [product]
        ways = _recurrent_ways(form, packed, loop, most_packed=math.inf)
        return choose((form, loop.layer._outputs[0].dtype), ways)

    joined = _joined(loaded.calls, loaded.visible, {}, packed_body)
    fused = _with_recurrent_layers(joined, loaded.visible, packed_layer)
    calls = prepack_products(fused, loaded.visible, choose)
    if calls is None and len(fused) == len(joined):
        return None
    return Program(_in_fewer_calls(calls or fused, loaded.visible), loaded.inputs, loaded.outputs)
