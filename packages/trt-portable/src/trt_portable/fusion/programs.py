"""Interpretation: PyTorch's kernels, layer by layer, with neighbours fused where that changes no meaning."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from trt_portable.enums import LayerType
from trt_portable.execution.loaded_network import LoadedNetwork
from trt_portable.execution.program import Compute, LayerCall, PackingCompute, Program
from trt_portable.fusion.call_graph import CallFusion, CallGraph, CallPattern, rewrite
from trt_portable.fusion.epilogues import LAYERS, RECURRENT, ProductChoice, Ways
from trt_portable.fusion.packed_products import (
    activations_in_place,
    has_prepacked_kernels,
    let_sums_overwrite,
    packed_products,
)
from trt_portable.layers.contracts import Bound, moved
from trt_portable.layers.slicing import narrowed_axis
from trt_portable.shape_tensors import Value, operand

if TYPE_CHECKING:
    from trt_portable.execution.weight_streaming import StreamedProgram
    from trt_portable.fusion.loops import Fuse, MakeRecurrent, RecurrentForm

_FEW_WEIGHTS: Final = 1 << 16

# what only engines on CUDA or with loops need is imported where they are made: others are loaded sooner


def interpreted_program(loaded: LoadedNetwork) -> Program:
    """The program that runs the layers of a network on any device, and that can be traced."""
    return Program(_with_splits(loaded.calls, loaded.visible), loaded.inputs, loaded.outputs)


def streamed_program(loaded: LoadedNetwork, device: torch.device) -> StreamedProgram:
    """The same for an engine some of whose weights may lie on the host while it runs on a device."""
    from trt_portable.execution.weight_streaming import StreamedProgram

    return StreamedProgram(_with_splits(loaded.calls, loaded.visible), loaded.inputs, loaded.outputs, device)


def host_program(loaded: LoadedNetwork) -> Program:
    """The same for running on the CPU, with PyTorch's kernels for recurrent layers."""
    calls = _with_loops(loaded.calls, _with_splits)
    patterns = [*_recurrent_layers(calls, _recurrent_kernel), activations_in_place(), SplitOfSlices()]
    return Program(rewrite(calls, loaded.visible, patterns), loaded.inputs, loaded.outputs)


def _with_splits(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
    """Calls with one for slices side by side, in loops too."""
    return rewrite(_with_loops(calls, _with_splits), visible, [SplitOfSlices()])


def _with_loops(calls: Sequence[LayerCall], fuse_body: Fuse) -> Sequence[LayerCall]:
    """Calls, of which loops run every iteration as a program of what `fuse_body` makes of their body."""
    if not _has_loops(calls):
        return calls
    from trt_portable.fusion.loops import with_programs

    return with_programs(calls, fuse_body)


def _has_loops(calls: Sequence[LayerCall]) -> bool:
    return any(call.kind is LayerType.LOOP_OUTPUT for call in calls)


def _recurrent_layers(calls: Sequence[LayerCall], make: MakeRecurrent) -> list[CallPattern]:
    """What makes one call of each loop that is a recurrent layer; nothing where there are no loops."""
    if not _has_loops(calls):
        return []
    from trt_portable.fusion.loops import RecurrentLayer

    return [RecurrentLayer(make)]


def _recurrent_kernel(form: RecurrentForm, product: LayerCall, loop: LayerCall) -> Compute:
    """What computes a recurrent layer as eager PyTorch does; packing a few weights costs next to no memory."""
    return _recurrent_ways(form, product, loop, most_packed=_FEW_WEIGHTS)[RECURRENT]


def _cudnn_layer(form: RecurrentForm, product: LayerCall, loop: LayerCall) -> Compute:
    from trt_portable.fusion.loops import CudnnLayer, one_by_one

    return CudnnLayer(form, one_by_one(product, loop))


def _recurrent_ways(form: RecurrentForm, product: LayerCall, loop: LayerCall, *, most_packed: float) -> Ways:
    """What computes a recurrent layer: one kernel, or the product and the loop."""
    from trt_portable.fusion.loops import one_by_one, recurrent_kernel

    plain = one_by_one(product, loop)
    return {RECURRENT: recurrent_kernel(form, loop, plain, most_packed=most_packed), LAYERS: plain}


def fused_program(loaded: LoadedNetwork) -> Program:
    """The same for running on CUDA, with what PyTorch has of fused products, and cuDNN's recurrent layers.

    Compilers fuse by themselves.
    """
    from trt_portable.fusion.cuda_products import fuse_cuda_products, split_unaligned_products

    found = _with_loops(loaded.calls, _with_splits)
    calls = split_unaligned_products(rewrite(found, loaded.visible, _recurrent_layers(found, _cudnn_layer)))
    return Program(fuse_cuda_products(calls, loaded.visible), loaded.inputs, loaded.outputs)


def traced_program(loaded: LoadedNetwork) -> Program:
    """The same for tracing into a graph that is compiled for CUDA."""
    from trt_portable.fusion.cuda_products import fuse_traced_products, split_traced_unaligned_products

    calls = split_traced_unaligned_products(_with_loops(loaded.calls, _with_splits), loaded.outputs)
    return Program(fuse_traced_products(calls, loaded.visible), loaded.inputs, loaded.outputs)


def prepacked_program(loaded: LoadedNetwork, choose: ProductChoice) -> Program | None:
    """The same with products packed for the CPU; None where there is nothing to pack, or no kernel for it.

    Args:
        loaded: The network.
        choose: Which kernel each product with a matrix, and each recurrent layer has; those in loops come first.
    """
    if not has_prepacked_kernels():
        return None
    products = packed_products(choose)

    def packed(calls: Sequence[LayerCall], visible: Collection[int], *first: CallPattern) -> list[LayerCall]:
        found = rewrite(calls, visible, [*first, products, SplitOfSlices()])
        let_sums_overwrite(found, visible)
        return found

    def packed_body(calls: Sequence[LayerCall], visible: Collection[int]) -> list[LayerCall]:
        return packed(_with_loops(calls, packed_body), visible)

    def packed_layer(form: RecurrentForm, product: LayerCall, loop: LayerCall) -> Compute:
        (packed,) = rewrite([product], product.outputs, [products])
        ways = _recurrent_ways(form, packed, loop, most_packed=math.inf)
        return choose(loop.layer, (form, loop.layer._outputs[0].dtype), ways)

    looped = _with_loops(loaded.calls, packed_body)
    calls = packed(looped, loaded.visible, *_recurrent_layers(looped, packed_layer))
    known = {id(call.compute) for call in looped}
    if not any(isinstance(call.compute, PackingCompute) and id(call.compute) not in known for call in calls):
        return None  # nothing but loops
    return Program(calls, loaded.inputs, loaded.outputs)


_LEAST_PARTS: Final = 2


class _Part(NamedTuple):
    """A slice that narrows one axis.

    Attributes:
        start: Its first place.
        size: How many places it takes.
        number: Which of them it is, by order of calls.
        call: What makes it.
    """

    start: int
    size: int
    number: int
    call: LayerCall


class SplitOfSlices(CallPattern):
    """Slices of a tensor that follow each other without gaps, from its first place on, are one split."""

    kinds = frozenset({LayerType.SLICE})

    def __init__(self) -> None:
        self._seen: set[tuple[int | None, int]] = set()

    def match(self, call: LayerCall, graph: CallGraph) -> CallFusion | None:
        """The split, where the first of the slices stood."""
        found = _narrowed(call)
        whole = call.inputs[0]
        if found is None or (whole, found[0]) in self._seen:
            return None
        axis = found[0]
        self._seen.add((whole, axis))
        parts: list[_Part] = []
        for reader in graph.all_readers(whole):
            other = _narrowed(reader) if reader.inputs[0] == whole else None
            if other is not None and other[0] == axis:
                parts.append(_Part(*other[1:], len(parts), reader))
        parts.sort()
        if len(parts) < _LEAST_PARTS or not _are_side_by_side(parts):
            return None
        slices = [part.call for part in parts]
        split = replace(
            slices[0],
            outputs=tuple(part.outputs[0] for part in slices),
            output_names=tuple(part.output_names[0] for part in slices),
            compute=Split(axis, [part.size for part in parts], slices),
            name=" | ".join(part.name for part in slices),
        )
        return CallFusion([split], slices, call)


def _narrowed(call: LayerCall) -> tuple[int, int, int] | None:
    """Axis, start and size of a slice that narrows one axis, and runs as it is."""
    return narrowed_axis(call.layer) if call.compute == call.layer._compute else None


def _are_side_by_side(parts: Sequence[_Part]) -> bool:
    """Whether sorted parts begin at the first place, and each where the one before ends."""
    ends = [part.start + part.size for part in parts]
    return [part.start for part in parts] == [0, *ends[:-1]]


class Split:
    """Parts of a tensor, side by side along an axis.

    Args:
        axis: The axis.
        sizes: Of the parts.
        slices: The same, one by one: of numbers that the host knows, and where the parts leave something over.
    """

    def __init__(self, axis: int, sizes: Sequence[int], slices: Sequence[LayerCall]) -> None:
        self._axis = axis
        self._sizes = list(sizes)
        self._extent = sum(sizes)
        self._slices = tuple(slices)

    def contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        """How much it takes; see `trt_portable.layers.contracts`."""
        first = inputs[0]
        if isinstance(first, torch.Tensor) and first.shape[self._axis] == self._extent:
            return moved(inputs)
        return None if any(call.layer._contract(inputs) is None for call in self._slices) else moved(inputs)

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The parts, in order."""
        first = operand(inputs[0])
        if isinstance(first, torch.Tensor) and first.shape[self._axis] == self._extent:
            return first.split_with_sizes(self._sizes, self._axis)
        return [call.compute(inputs)[0] for call in self._slices]
