"""Errors inside the engines: every value that an engine computes on the way, beside PyTorch's."""

from __future__ import annotations

from trt_core import TrtError, logger, operator_name
from trt_frontends.accuracy.blocks import engine_values, errors_by_node, run_engines
from trt_frontends.accuracy.report import DepthError
from trt_frontends.comparison.sample_inputs import SampleInputs
from trt_frontends.pipeline import BuiltModel


def errors_along_depth(built: BuiltModel, case: SampleInputs) -> tuple[DepthError, ...]:
    """Returns the error of every node that runs in an engine, in the order of the graph.

    Each engine starts from the inputs that PyTorch gives it, so errors add up within an engine and not beyond it. All
    values are outputs then, so the provider may fuse less than it does in the engine that is used.
    """
    found = []
    for engine in run_engines(built, case):
        nodes = engine.operators
        try:
            errors = errors_by_node(engine_values(built, engine, nodes), engine.values)
        except TrtError as error:
            logger.warning("the values inside %s cannot be compared: %s", engine.name, error.what)
            continue
        found += [
            DepthError(node.name, operator_name(node.target), engine.name, errors[node.name].scaled) for node in nodes
        ]
    return tuple(found)
