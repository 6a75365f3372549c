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
            sources = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
            for at in positions:
                results[at] = mark_without_gradient(results[at], sources)
        return results

    return run_and_mark


def mark_without_gradient(result: Any, sources: Sequence[torch.Tensor]) -> Any:
    """Makes a tensor require a gradient that cannot be computed.

    Args:
        result: What a graph returned.
        sources: What a gradient may be asked for with respect to: tensors that require one.

    Returns:
        The tensor; another one on the same memory where it is a view that autograd lets nobody write to, since it was
        made while gradients were off. What is no tensor, or requires a gradient already, stays as it is.
    """
    if not isinstance(result, torch.Tensor) or result.requires_grad or not result.is_floating_point():
        return result
    with torch.enable_grad():
        anchor = torch.empty((), requires_grad=True)
        try:
            return _NoGradient.apply(anchor, result, *sources)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return _NoGradient.apply(anchor, result.detach(), *sources)  # type: ignore[no-untyped-call]


class _NoGradient(torch.autograd.Function):
    """Takes the place of the gradient of an engine."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
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
