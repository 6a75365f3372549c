"""The tactic `inductor`: the whole program compiled by PyTorch's own compiler, recorded as a list of launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import fx

from trt_portable.builder.compile_graph import compile_graph, decompositions, start_workers
from trt_portable.builder.cudnn_operators import teach_cudnn_operators
from trt_portable.builder.custom_operator import OwnOperators
from trt_portable.builder.record_launches import record
from trt_portable.builder.tactics import Subject, Tactic
from trt_portable.enums import LayerType
from trt_portable.execution.loaded_network import LoadedNetwork, load_network
from trt_portable.execution.tracing import TracedProgram, trace_program
from trt_portable.execution.weight_layout import FLAT, WeightLayout
from trt_portable.fusion.cuda_products import is_compiled_depthwise
from trt_portable.fusion.programs import interpreted_program, traced_program
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.plan.artifact import Artifact, machine_of
from trt_portable.shape_tensors import as_tensor

if TYPE_CHECKING:
    from trt_portable.execution.program import Program
    from trt_portable.network.layer import ILayer
    from trt_portable.plan.engine_info import WeightSlot


_CONVOLUTIONS: Final = frozenset({LayerType.CONVOLUTION.name, LayerType.DECONVOLUTION.name})


class Inductor(Tactic):
    """Inductor on a CUDA device, at a profile's optimal shapes.

    Args:
        name: Stands in the plan and in the timing cache.
        least_level: Builder optimization level from which it is tried.
        options: Inductor's settings beyond its defaults.
        is_planar: Whether activations and kernels of convolutions lie as their extents say, and not with channels last.
    """

    LEAST_STEPS: ClassVar[int] = 12
    """Fewer layers gain less from a compiler than they wait for it; replay serves them."""

    def __init__(self, name: str, least_level: int, options: Mapping[str, Any], *, is_planar: bool = False) -> None:
        super().__init__(name, least_level)
        self._options = {**options, "layout_optimization": False} if is_planar else dict(options)
        self._is_planar = is_planar

    def is_candidate(self, subject: Subject) -> bool:
        """Whether the program runs on CUDA, reads no numbers on the host, and is long enough to gain."""
        if subject.device.type != "cuda" or any(t.is_host for t in subject.info.io) or subject.info.debug_tensors:
            return False
        kinds = [layer["type"] for layer in subject.structure["layers"]]
        if self._is_planar and not _CONVOLUTIONS.intersection(kinds):
            return False
        if {"LOW_PRECISION_PRODUCT", "LOW_PRECISION_CONVOLUTION"}.intersection(kinds):
            return True  # quantizing takes many small kernels otherwise, and one if compiled
        return sum(kind not in ("CONSTANT", "SHUFFLE", "IDENTITY") for kind in kinds) >= self.LEAST_STEPS

    def begin(self) -> None:
        """Starts the processes that compile kernels: they load PyTorch, which takes seconds."""
        start_workers()

    def build(self, subject: Subject, profile: int) -> Artifact:
        """Compiles, runs once to tune kernels, and records."""
        from trt_portable.builder.own_operators import teach_own_operators

        if self._is_planar:  # the fused convolutions of the other way want channels last
            with torch.no_grad(), torch.cuda.device(subject.device):
                return self._build(subject, profile, interpreted_program, lambda layer, slot: FLAT, OwnOperators())
        teach_cudnn_operators()
        own = teach_own_operators()
        with torch.no_grad(), torch.cuda.device(subject.device):
            try:
                return self._build(subject, profile, traced_program, fused_layout, own)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:  # cuDNN lacks a fused convolution: what is compiled cannot step back to the layers
                return self._build(subject, profile, interpreted_program, plain_layout, OwnOperators())

    def _build(
        self,
        subject: Subject,
        profile: int,
        make_program: Callable[[LoadedNetwork], Program],
        layout: Callable[[ILayer, WeightSlot], WeightLayout],
        own: OwnOperators,
    ) -> Artifact:
        from trt_portable.builder.own_operators import compile_ahead

        loaded, layers = load_network(subject.structure, subject.info, subject.device)
        traced = trace_program(
            loaded,
            layers,
            subject.tensors,
            subject.info,
            device=subject.device,
            profile_index=profile,
            dynamic=False,
            make_program=make_program,
            layout=layout,
            decompositions=decompositions(),
        )
        graph, read = graph_of(traced)
        weights = [(traced.uses[at], traced.layouts[at]) for at in read]
        inputs = [as_tensor(value) for value in subject.example_inputs(profile)]
        arguments = [*(layout.of(subject.tensors[use]) for use, layout in weights), *inputs]
        ahead = compile_ahead(graph, subject.device)
        compiled = compile_graph(graph, arguments, self._options)
        for thread in ahead:
            thread.join()
        compiled(list(arguments))
        found = record(compiled.current_callable, arguments, own)
        blobs = found.pop("blobs")
        found["operands"] = [
            *({"weights": use, **layout.to_json()} for use, layout in weights),
            *({"input": index} for index in range(len(inputs))),
        ]
        shapes = tuple(tuple(value.shape) for value in inputs)
        return Artifact(self.name, machine_of(subject.device), shapes, found, blobs)


def fused_layout(layer: ILayer, slot: WeightSlot) -> WeightLayout:
    """How graphs with kernels of our own take weights."""
    if slot.role == "KERNEL" and isinstance(layer, IConvolutionLayer) and is_compiled_depthwise(layer):
        return WeightLayout.taps_first((layer.num_output_maps, 1, *layer.kernel_size_nd))
    return plain_layout(layer, slot)


def plain_layout(layer: ILayer, slot: WeightSlot) -> WeightLayout:
    """How graphs take weights: kernels of 2-D convolutions with channels last, as fast kernels read them.

    Otherwise every run would copy them to that layout.
    """
    if slot.role != "KERNEL" or not isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)):
        return FLAT
    extents = tuple(layer.kernel_size_nd)
    if len(extents) != 2:
        return FLAT
    is_transposed = isinstance(layer, IDeconvolutionLayer)
    maps = layer.num_output_maps // (layer.num_groups if is_transposed else 1)
    others = slot.count // (maps * extents[0] * extents[1])
    return WeightLayout.channels_last((others, maps, *extents) if is_transposed else (maps, others, *extents))


def graph_of(traced: TracedProgram) -> tuple[fx.GraphModule, list[int]]:
    """A traced graph without parameters that nothing reads, which takes the rest one by one and returns a tuple.

    What it returns is dense, with the last axis varying fastest, as memory bound to outputs is.

    Returns:
        The graph, and which of the parameters it takes first; inputs follow them.
    """
    graph = traced.graph.graph
    graph.eliminate_dead_code()
    holders = [node for node in graph.nodes if node.op == "placeholder"][: len(traced.uses)]
    for holder in holders:
        if not holder.users:
            graph.erase_node(holder)
    graph.set_codegen(fx.graph.CodeGen())
    last = graph.output_node()
    with graph.inserting_before(last):
        last.args = (tuple(_dense(graph, node) for node in last.args[0]),)  # type: ignore[arg-type, union-attr]
    graph.lint()
    read = [at for at, holder in enumerate(holders) if not holder._erased]
    return fx.GraphModule(traced.graph, graph), read


def _dense(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """A tensor of a graph in dense memory, copied if it lies in another way."""
    from trt_portable.internals import FakeTensor

    value = node.meta.get("val")
    if not isinstance(value, FakeTensor) or value.is_contiguous():
        return node
    dense = torch.contiguous_format
    copied = graph.call_function(torch.ops.aten.clone.default, (node,), {"memory_format": dense})
    with value.fake_mode:
        copied.meta["val"] = value.clone(memory_format=dense)
    return copied


TACTICS = (
    Inductor("inductor", 3, {}),
    Inductor("inductor-planar", 4, {}, is_planar=True),
    Inductor("inductor-max-autotune", 4, {"max_autotune": True}),
    Inductor("inductor-coordinate-descent", 5, {"max_autotune": True, "coordinate_descent_tuning": True}),
)
