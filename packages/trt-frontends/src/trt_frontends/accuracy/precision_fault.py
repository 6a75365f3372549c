"""Tells whether an error comes from computing in a reduced type, and where."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core import operator_name
from trt_core.dtypes import dtype_name
from trt_core.provenance import module_path, source_line
from trt_frontends.accuracy.bisect_report import Culprit, Remedy, describe_tensor
from trt_frontends.accuracy.experiment import Experiment
from trt_frontends.accuracy.subject import Subject
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import CapturedModel
from trt_frontends.precision.graph_run import GraphRun
from trt_frontends.precision.trials import PrecisionTrials
from trt_lowering.precision_rules import reduced_type


@dataclass(frozen=True)
class PrecisionFault:
    """A model whose settings reduce precision.

    Attributes:
        captured: The model, in its own types.
        trials: Runs it with some nodes in float32 and the rest reduced.
        flat: The first of its inputs.
        reduced_to: The reduced type, by name.
    """

    captured: CapturedModel
    trials: PrecisionTrials
    flat: Sequence[Any]
    reduced_to: str

    @classmethod
    def look(
        cls, subject: Subject, cases: Sequence[SampleInputs], expected: Sequence[Sequence[torch.Tensor]]
    ) -> PrecisionFault | None:
        """Captures a model again; None where its settings reduce nothing."""
        captured = subject.capture()
        dtype = reduced_type(captured.settings)
        if dtype is None:
            return None
        reader = captured.reader(captured.decomposed.graph.graph)
        inputs = [reader.read(case.args, case.kwargs) for case in cases]
        trials = PrecisionTrials(captured.decomposed, captured.settings, captured.rules(), inputs, expected)
        return cls(captured, trials, inputs[0], dtype_name(dtype))

    def is_to_blame(self, allowed: float) -> bool:
        """Whether the result is right once nothing is reduced."""
        return self.trials.error(node.name for node in self.trials.nodes) <= allowed

    def describe(self, nodes: Sequence[fx.Node], experiment: Experiment) -> tuple[Culprit, ...]:
        """Returns what is known of nodes, their operands in float32."""
        values: dict[str, torch.Tensor] = {}
        operands = {operand.name for node in nodes for operand in node.all_input_nodes}

        def see(node: fx.Node, value: Any) -> None:
            if node.name in operands and isinstance(value, torch.Tensor):
                values[node.name] = value

        GraphRun(self.captured.decomposed.graph, see).results(self.flat)
        engines = {node.name: experiment.engine_of(node) for node in experiment.nodes}
        everything = [node.name for node in self.trials.nodes]
        return tuple(
            Culprit(
                node=node.name,
                operator=operator_name(node.target),
                engine=engines.get(node.name, ""),
                module=module_path(node),
                source=source_line(node),
                layers=(),
                error_alone=self.trials.error(name for name in everything if name != node.name),
                inputs=tuple(
                    describe_tensor(operand.name, values[operand.name])
                    for operand in node.all_input_nodes
                    if operand.name in values
                ),
            )
            for node in nodes
        )


def exclusions_of(nodes: Sequence[fx.Node], reducible: Collection[fx.Node]) -> Remedy:
    """Returns the setting that keeps nodes in float32.

    Args:
        nodes: The nodes.
        reducible: Every node that is reduced. Operators are named where they occur nowhere else, nodes otherwise.
    """
    operators = {node.target for node in nodes}
    if {node for node in reducible if node.target in operators} == set(nodes):
        return {"autocast_excluded_ops": tuple(sorted(map(operator_name, operators)))}
    return {"autocast_excluded_nodes": tuple(f"^{node.name}$" for node in nodes)}
