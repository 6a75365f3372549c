"""Results of engines in a place where gradients are recorded: asking for the gradient is an error, not silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

import torch
from torch import fx

from trt_core import ExecutionError


def gradients_needed_at(gm: fx.GraphModule) -> tuple[int, ...]:
    """Returns the positions of the results that eager execution would give a gradient.

    Args:
        gm: A graph that Dynamo captured with gradients enabled.
    """
    results: Any = gm.graph.output_node().args[0]
    values = [item.meta.get("example_value") if isinstance(item, fx.Node) else None for item in results]
    return tuple(at for at, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad)


def refuse_gradients(run: Callable[..., Any], positions: Collection[int]) -> Callable[..., Any]:
    """Returns a callable whose results require gradients like those of eager execution, and whose backward raises.

    Args:
        run: Returns a sequence of results.
        positions: Which of them would have a gradient.
    """

    def run_and_mark(*inputs: Any) -> Any:
        results = list(run(*inputs))
        if torch.is_grad_enabled():
            mark_without_gradient([results[at] for at in positions])
        return results

    return run_and_mark


def mark_without_gradient(tensors: Sequence[Any]) -> None:
    """Makes tensors require a gradient that cannot be computed; those that have one already stay as they are."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.requires_grad and tensor.is_floating_point():
            with torch.enable_grad():
                anchor = torch.empty((), requires_grad=True)
                _NoGradient.apply(anchor, tensor)  # type: ignore[no-untyped-call]


class _NoGradient(torch.autograd.Function):
    """Takes the place of the gradient of an engine."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor itself: marked as written to, it keeps its memory, and gets this function as its past."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        """Says why there is no gradient."""
        raise ExecutionError(
            "engines compute no gradients",
            where="backward() through a model that was compiled into engines",
            hint='run it under torch.no_grad(), or compile it with gradients="pytorch" to run in PyTorch where '
            "gradients are recorded",
        )
