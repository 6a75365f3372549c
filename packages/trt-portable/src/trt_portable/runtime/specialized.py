"""Compiled programs for some shapes, the interpreter for all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trt_portable.runtime.launch_list import CompiledProgram
from trt_portable.runtime.program import Program
from trt_portable.values import Value


class SpecializedProgram:
    """Runs what was compiled for the shapes at hand, or interprets.

    Args:
        compiled: Each for shapes of its own.
        program: Runs any shapes.
    """

    def __init__(self, compiled: Sequence[CompiledProgram], program: Program) -> None:
        self._compiled = tuple(compiled)
        self._by_shapes = {each.shapes: each for each in compiled}
        self._program = program

    @property
    def constants(self) -> object:
        """The constants that a run which starts now reads."""
        return (self._program.constants, *(each.constants for each in self._compiled))

    def load_constants(self) -> None:
        """Takes the engine's weights as they are now."""
        for each in self._compiled:
            each.load_constants()

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs.

        Args:
            values: One per input, in order.
            targets: None, or memory for each output that no input shares.

        Raises:
            LayerFailure: A layer refused its operands or failed.
        """
        found = self._by_shapes.get(tuple(tuple(value.shape) for value in values))
        return (self._program if found is None else found).run(values, targets)
