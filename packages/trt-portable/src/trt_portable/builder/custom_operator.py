"""Operators of our own: how PyTorch and Inductor get to know them, and what recordings must know of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from trt_portable.builder.kernel_launch import KernelLaunch
from trt_portable.internals import OpOverload

Launch: TypeAlias = Callable[..., tuple[torch.Tensor | None, KernelLaunch]]
"""Starts the kernel of an operator; returns the result, None where it got memory for that, and what it started."""


@dataclass(frozen=True)
class OwnOperators:
    """Operators that a list of launches cannot call, and what it does in their place.

    Attributes:
        launched: What starts the kernel of an operator that is written down as that kernel.
        composed: What computes an operator that is written down as all that this runs.
    """

    launched: Mapping[Any, Launch] = field(default_factory=dict)
    composed: Mapping[Any, Callable[..., torch.Tensor]] = field(default_factory=dict)


def define_operator(name: str, schema: str, run: Callable[..., Any], *, writes_to: tuple[str, ...] = ()) -> Any:
    """Makes an operator known to PyTorch.

    Args:
        name: With its namespace.
        schema: Parameters and results.
        run: What computes it, on any device.
        writes_to: The parameters that it writes to.

    Returns:
        The operator.
    """
    define: Any = torch.library.custom_op
    define(name, run, mutates_args=writes_to, schema=schema)
    namespace, _, rest = name.partition("::")
    return getattr(getattr(torch.ops, namespace), rest).default


def teach_compilers(operator: Any, like_result: Callable[..., torch.Tensor]) -> None:
    """Makes an operator known to traces without data, and to Inductor, which calls it as it is.

    Args:
        operator: What `define_operator` made.
        like_result: Memory for the result, from the arguments.
    """
    from trt_portable.internals import constrain_to_fx_strides, make_fallback

    torch.library.register_fake(operator.name(), like_result)
    make_fallback(operator, constrain_to_fx_strides, warn=False)


def calls_of(graph: fx.GraphModule, name: str) -> list[Any]:
    """The nodes that call an operator.

    Args:
        graph: Of operators.
        name: The operator's, with its namespace.
    """
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    return [node for node in calls if isinstance(node.target, OpOverload) and node.target._schema.name == name]


def start_compiling(run: Callable[[], None], device: torch.device) -> threading.Thread:
    """Starts a thread that compiles kernels; whoever runs them waits for it, and hears of what is wrong with them.

    Args:
        run: Starts them on operands that do not matter.
        device: Where.
    """

    def compile_all() -> None:
        with contextlib.suppress(Exception), torch.cuda.device(device), torch.no_grad():
            run()

    thread = threading.Thread(target=compile_all, daemon=True)
    thread.start()
    return thread
