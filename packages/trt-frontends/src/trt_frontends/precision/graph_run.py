"""Runs a lowered graph in PyTorch and leaves everything as it was: inputs, buffers, statistics, random state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trt_core.internals import pytree
from trt_frontends.comparison.output_error import tensors_of
from trt_lowering.operator_traits import has_hidden_state

aten = torch.ops.aten


class GraphRun(fx.Interpreter):
    """Runs a functional graph on flat inputs; what it would write back goes nowhere.

    Args:
        gm: The graph; its code need not be up to date.
        see: Called with every node and its value.
    """

    def __init__(self, gm: fx.GraphModule, see: Callable[[fx.Node, Any], None] = lambda node, value: None) -> None:
        super().__init__(gm)
        self._see = see

    def results(self, flat: Sequence[Any]) -> list[torch.Tensor]:
        """Returns the flat outputs, see `tensors_of`; random operators draw the same numbers each time."""
        devices = {leaf.device for leaf in flat if isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda"}
        with torch.no_grad(), torch.random.fork_rng(devices=sorted(devices, key=str)):
            torch.manual_seed(0)
            results = self.run(*flat, enable_io_processing=False)
        return tensors_of(results)

    def run_node(self, n: fx.Node) -> Any:
        """Runs one node and shows its value."""
        value = super().run_node(n)
        self._see(n, value)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operator; a write back gives what would be written."""
        if target is aten.copy_.default:
            state, value = args[:2]
            return value.to(state.dtype).expand_as(state)
        return super().call_function(target, args, kwargs)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Gives copies to operators that update running statistics in place."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if not has_hidden_state(n):
            return args, kwargs
        copied: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
            torch.Tensor, torch.clone, (tuple(args), dict(kwargs))
        )
        return copied
