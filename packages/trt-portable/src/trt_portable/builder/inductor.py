"""The tactic `inductor`: the whole program compiled by PyTorch's own compiler, recorded as a list of launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from trt_portable.builder.record_launches import RecordingFailure, record
from trt_portable.builder.tactics import Subject, Tactic
from trt_portable.builder.weight_layouts import lay_out_weights
from trt_portable.plan.artifact import Artifact, machine_of
from trt_portable.runtime.image import load_image
from trt_portable.runtime.tracing import trace_program
from trt_portable.values import as_tensor


class Inductor(Tactic):
    """Inductor on a CUDA device, at a profile's optimal shapes.

    Args:
        name: Stands in the plan and in the timing cache.
        least_level: Builder optimization level from which it is tried.
        options: Inductor's settings beyond its defaults.
    """

    LEAST_STEPS: ClassVar[int] = 12
    """Fewer layers gain less from a compiler than they wait for it; replay serves them."""

    def __init__(self, name: str, least_level: int, options: Mapping[str, Any]) -> None:
        super().__init__(name, least_level)
        self._options = dict(options)

    def is_candidate(self, subject: Subject) -> bool:
        """Whether the program runs on CUDA, reads no numbers on the host, and is long enough to gain."""
        if subject.device.type != "cuda" or any(t.is_host for t in subject.info.io) or subject.info.debug_tensors:
            return False
        kinds = [layer["type"] for layer in subject.structure["layers"]]
        if {"LOW_PRECISION_PRODUCT", "LOW_PRECISION_CONVOLUTION"}.intersection(kinds):
            return True  # quantizing takes many small kernels otherwise, and one if compiled
        return sum(kind not in ("CONSTANT", "SHUFFLE", "IDENTITY") for kind in kinds) >= self.LEAST_STEPS

    def build(self, subject: Subject, profile: int) -> Artifact:
        """Compiles, runs once to tune kernels, and records."""
        from torch._functorch import config as functorch_config
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        image, layers = load_image(subject.structure, subject.info, subject.device)
        traced = trace_program(
            image,
            layers,
            subject.tensors,
            subject.info,
            device=subject.device,
            profile_index=profile,
            dynamic=False,
        )
        graph, weights = lay_out_weights(traced)
        inputs = [as_tensor(value) for value in subject.example_inputs(profile)]
        operands = [operand.of(subject.tensors[operand.use]) for operand in weights]
        compiled: list[Any] = []

        def keep(*arguments: Any, **keywords: Any) -> Any:
            found = compile_fx_inner(*arguments, **keywords)
            compiled.append(found)
            return found

        options = {"triton.cudagraphs": False, "triton.cudagraph_trees": False, "graph_partition": False}
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False), torch.cuda.device(subject.device):
            compile_fx(graph, [*operands, *inputs], inner_compile=keep, config_patches={**options, **self._options})
            if len(compiled) != 1:
                raise RecordingFailure(f"one graph became {len(compiled)}")
            compiled[0]([*operands, *inputs])
            found = record(compiled[0].current_callable, [*operands, *inputs])
        blobs = found.pop("blobs")
        found["operands"] = [
            *(operand.to_json() for operand in weights),
            *({"input": index} for index in range(len(inputs))),
        ]
        shapes = tuple(tuple(value.shape) for value in inputs)
        return Artifact(self.name, machine_of(subject.device), shapes, found, blobs)


TACTICS = (
    Inductor("inductor", 3, {}),
    Inductor("inductor-max-autotune", 4, {"max_autotune": True}),
    Inductor("inductor-coordinate-descent", 5, {"max_autotune": True, "coordinate_descent_tuning": True}),
)
