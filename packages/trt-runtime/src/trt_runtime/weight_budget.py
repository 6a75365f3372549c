"""How many bytes of an engine's weights stay on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from trt_core.errors import ExecutionError
from trt_core.provider_log import forget_errors, take_errors
from trt_runtime.context_pool import ContextPool

_MOST_TOLD: Final = 2**31
"""TensorRT's bindings cut its own proposal to 32 bits: for engines with more weights it is worth nothing."""
_SPARED: Final = 0.1
"""The part of free memory that is left alone."""


class WeightBudget:
    """The budget of one engine; it can change while no execution context lives.

    Args:
        native: The provider's engine.
        title: What messages call it.
        device: Where it runs.
        is_tensorrt: Whether TensorRT itself runs it.
        pools: Its execution contexts.
    """

    def __init__(
        self, native: Any, title: str, device: torch.device, *, is_tensorrt: bool, pools: Sequence[ContextPool]
    ) -> None:
        self._native = native
        self._title = title
        self._device = device
        self._is_tensorrt = is_tensorrt
        self._pools = pools
        self._is_settled = False

    @property
    def streamable(self) -> int:
        """Bytes of weights that need not lie on the GPU; 0 unless the engine was built for it."""
        return int(self._native.streamable_weights_size)

    @property
    def resident(self) -> int:
        """Bytes of those that do lie there; until somebody sets it, as many as the GPU has memory for."""
        self.settle()
        return int(self._native.weight_streaming_budget_v2)

    @resident.setter
    def resident(self, budget: int) -> None:
        self._is_settled = True
        self._set(budget)

    def settle(self) -> None:
        """Chooses a budget where nobody has: before the first context, when engines that run have taken their memory.

        Raises:
            ExecutionError: The provider refuses the budget.
        """
        if not self._is_settled:
            self._is_settled = True
            if self.streamable:
                self._set(self._proposed())

    def _set(self, budget: int) -> None:
        """Sets the budget, which only an engine without contexts allows.

        Raises:
            ExecutionError: The engine runs just now, or a CUDA graph holds one of its contexts.
        """
        wanted = min(budget, self.streamable)
        if wanted == self._native.weight_streaming_budget_v2:
            return
        for pool in self._pools:
            pool.clear()
        forget_errors()
        self._native.weight_streaming_budget_v2 = wanted
        if self._native.weight_streaming_budget_v2 != wanted:  # TensorRT's setter says nothing
            raise ExecutionError(
                f"{self._title} refuses to keep {wanted} bytes of weights on the GPU",
                why=take_errors() or "the engine is in use",
                hint="change it while no call runs, and outside of blocks of trt_runtime.cuda_graphs",
            )

    def _proposed(self) -> int:
        size = self.streamable
        if size < _MOST_TOLD or not self._is_tensorrt:
            return min(max(int(self._native.get_weight_streaming_automatic_budget()), 0), size)
        free, _ = torch.cuda.mem_get_info(self._device)
        return min(max(int(free * (1 - _SPARED)) - int(self._native.device_memory_size_v2), 0), size)
