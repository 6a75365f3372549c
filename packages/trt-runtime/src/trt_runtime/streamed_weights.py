"""Runs models whose weights take more memory than the GPU is to give: some come from the host while engines run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import accumulate

from torch import nn

from trt_core.errors import ExecutionError, InputError
from trt_core.held_arguments import held_to_signature
from trt_runtime.engine import LoadedEngine
from trt_runtime.module import engines_of


class StreamingBudget:
    """The memory that the weights of a module's engines may take on the GPU.

    Args:
        engines: Its engines that were built with `enable_weight_streaming=True`, each once.
    """

    def __init__(self, engines: Sequence[LoadedEngine]) -> None:
        self._engines = tuple(engines)
        self._before = self.of_each()

    def __enter__(self) -> StreamingBudget:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore(self._before)

    @property
    def total_device_budget(self) -> int:
        """Bytes of all weights that may be streamed; a budget of as many streams none."""
        return sum(engine.weight_budget.streamable for engine in self._engines)

    @property
    def device_budget(self) -> int:
        """Bytes of them that stay on the GPU; the rest comes there while the engines run, and takes host memory.

        Engines share it in proportion to their weights. It is set while no call runs.

        Raises:
            InputError: What is set is no number of bytes.
            ExecutionError: An engine is in use.
        """
        return sum(engine.weight_budget.resident for engine in self._engines)

    @device_budget.setter
    def device_budget(self, budget: int) -> None:
        if type(budget) is not int or budget < 0:
            raise InputError(f"a budget is a number of bytes, 0 or more, not {budget!r}")
        total = max(self.total_device_budget, 1)
        ends = [0, *accumulate(engine.weight_budget.streamable for engine in self._engines)]
        shares = [min(budget, total) * end // total for end in ends]
        for engine, begin, end in zip(self._engines, shares[:-1], shares[1:], strict=True):
            engine.weight_budget.resident = end - begin

    def get_automatic_weight_streaming_budget(self) -> int:
        """Bytes that would stay on the GPU if nobody had set a budget: as many as it has memory for now."""
        return sum(engine.weight_budget.proposed() for engine in self._engines)

    def restore(self, budgets: Sequence[int]) -> None:
        """Sets the budget of each engine.

        Raises:
            ExecutionError: An engine is in use.
        """
        for engine, budget in zip(self._engines, budgets, strict=True):
            engine.weight_budget.resident = budget

    def of_each(self) -> list[int]:
        """The budget of each engine."""
        return [engine.weight_budget.resident for engine in self._engines]


@held_to_signature
def weight_streaming(module: nn.Module, device_budget: int | None = None) -> StreamingBudget:
    """Bounds the GPU memory of a module's weights; inside a block, where what is returned is entered by `with`.

    Engines that were compiled with `enable_weight_streaming=True` keep as many weights on the GPU as it has memory for
    when they are first called. From here on they keep as many as they are told.

    Args:
        module: A compiled model or a loaded program.
        device_budget: Bytes of weights that stay on the GPU; None leaves it as it is, to be set on what is yielded.

    Returns:
        What tells and changes the budget. Where it is entered, what it was before comes back when the block ends.

    Raises:
        ExecutionError: No engine of the module was compiled for it, or one is in use.
        InputError: The budget is no number of bytes.

    Example:
        >>> with weight_streaming(compiled) as streaming:  # doctest: +SKIP
        ...     streaming.device_budget = streaming.total_device_budget // 4
        ...     y = compiled(x)
    """
    found = tuple(engine for engine in engines_of(module) if engine.weight_budget.streamable)
    if not found:
        raise ExecutionError(
            "no engine of the module can stream its weights",
            hint="compile the model with enable_weight_streaming=True",
        )
    streaming = StreamingBudget(found)
    if device_budget is not None:
        try:
            streaming.device_budget = device_budget
        except ExecutionError:
            with contextlib.suppress(ExecutionError):  # one engine is in use; the others get back what they had
                streaming.__exit__()
            raise
    return streaming
