"""Whether calls of a module can be recorded as CUDA graphs, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn

from trt_core.errors import ExecutionError
from trt_core.internals import OpOverload
from trt_runtime.header import PlanHeader
from trt_runtime.module import TRTModule


def require_capturable(module: nn.Module) -> None:
    """Checks that calls of a module can be recorded.

    Args:
        module: A compiled model or a loaded program.

    Raises:
        ExecutionError: It runs on the CPU, has sizes that depend on data, or writes to inputs or buffers.
    """
    reasons = list(obstacles(module))
    if reasons:
        shown = reasons[:3] + ([f"and {len(reasons) - 3} more"] if len(reasons) > 3 else [])
        raise ExecutionError(
            "calls of this module cannot be recorded as CUDA graphs",
            why="; ".join(shown),
            hint="call it without CUDA graphs (use_cuda_graphs=False)",
        )


def obstacles(module: nn.Module) -> Iterator[str]:
    """Yields what stands against recording, as far as it is known without a call."""
    for name, child in module.named_modules():
        if isinstance(child, TRTModule):
            yield from _engine_obstacles(child.header)
        elif isinstance(child, fx.GraphModule):
            for node in child.graph.nodes:
                yield from _operator_obstacles(node, name)
    devices = {value.device.type for value in module.parameters()}
    if devices - {"cuda"}:
        yield f"weights lie on {', '.join(sorted(devices - {'cuda'}))}"


def _engine_obstacles(header: PlanHeader) -> Iterator[str]:
    if header.device != "cuda":
        yield f"{header.title} runs on {header.device}"
    for binding in header.outputs:
        if None in binding.shape:
            yield f"the shape of {binding.name!r} of {header.title} depends on data"


def _operator_obstacles(node: fx.Node, block: str) -> Iterator[str]:
    operator: Any = node.target
    if node.op != "call_function" or not isinstance(operator, OpOverload):
        return
    place = f"{operator} in {block}" if block else str(operator)
    if operator._schema.is_mutable:
        yield f"{place} writes to a tensor, and recording would do so more than once"
    if torch.Tag.dynamic_output_shape in operator.tags or torch.Tag.data_dependent_output in operator.tags:
        yield f"the result of {place} has a size or value that the host must wait for"
