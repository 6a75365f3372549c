"""Runs the graph of a program in PyTorch, node by node, with somebody watching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from trt_core import InputError
from trt_core.provenance import node_location, source_line

Step = Callable[[fx.Node, Callable[[Any], Any]], Any]
"""Computes a node; the second argument returns the value of an operand, which may be a node."""


class ProgramRunner:
    """Runs a program on flat inputs. Buffers are copied for each run, so that a model with state is left alone.

    Args:
        program: The program.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._module = program.graph_module

    def run(self, inputs: Sequence[Any], steps: Mapping[str, Step]) -> list[torch.Tensor]:
        """Runs the graph once.

        Args:
            inputs: What the caller of the model gives, flattened.
            steps: What computes nodes, by name, in place of the graph.

        Returns:
            The tensors that the model returns.
        """
        given = iter(inputs)
        operands = [next(given) if value is None else value for value in self._held()]
        with torch.no_grad():
            results = _Interpreter(self._module, steps).run(*operands, enable_io_processing=False)
        return [value for value in results if isinstance(value, torch.Tensor)]

    def _held(self) -> list[Any]:
        """Returns the program's own tensors in the order of placeholders, None for what the caller gives."""
        program = self._program
        held: list[Any] = []
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                held.append(None)
                continue
            assert spec.target is not None
            value: Any = program.state_dict.get(spec.target, program.constants.get(spec.target))
            is_state = spec.kind is InputKind.BUFFER and isinstance(value, torch.Tensor)
            held.append(value.clone() if is_state else value)
        return held


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, steps: Mapping[str, Step]) -> None:
        super().__init__(module)
        self._steps = steps

    def run_node(self, n: fx.Node) -> Any:
        step = self._steps.get(n.name)
        if step is None or n.op != "call_function":
            return super().run_node(n)
        return step(n, lambda item: fx.map_arg(item, lambda operand: self.env[operand]))


def compute(node: fx.Node, value: Callable[[Any], Any], replaced: Mapping[fx.Node, torch.Tensor] | None = None) -> Any:
    """Computes a node as the graph does.

    Args:
        node: A call.
        value: Returns the value of an operand.
        replaced: Values to take for operands in place of their own.
    """
    taken = replaced or {}

    def read(item: Any) -> Any:
        return fx.map_arg(item, lambda operand: taken[operand] if operand in taken else value(operand))

    assert callable(node.target)
    return node.target(*read(node.args), **read(node.kwargs))


def require_finite(values: torch.Tensor, node: fx.Node) -> None:
    """Refuses activations with NaN or infinities.

    Raises:
        InputError: There are some.
    """
    if not bool(values.isfinite().all()):
        line = source_line(node)
        raise InputError(
            "the model computes NaN or infinities from the calibration data",
            where=node_location(node) + (f", {line}" if line else ""),
            hint="check that the data is prepared as the model expects it; masks belong after products",
        )
