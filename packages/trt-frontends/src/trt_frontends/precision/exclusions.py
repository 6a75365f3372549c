"""What the settings keep in float32, with what has to be measured for that."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from trt_core import logger
from trt_core.settings_reader import level_of_caller
from trt_frontends.precision.magnitudes import measure_magnitudes
from trt_frontends.weightless import is_weightless
from trt_lowering import DecomposedGraph, PrecisionRules
from trt_lowering.attributes import read_attribute
from trt_lowering.precision_rules import reduced_type


def exclusions(decomposed: DecomposedGraph, inputs: Callable[[], Iterable[Sequence[Any]]]) -> PrecisionRules:
    """Returns the rules that the settings of a graph ask for.

    Args:
        decomposed: The graph.
        inputs: Makes flat inputs of the graph; called only when something has to be measured.

    Raises:
        InputError: Something has to be measured, and there are no inputs for it.
    """
    settings = decomposed.settings
    if settings.autocast_max_output_threshold is None or reduced_type(settings) is None:
        return PrecisionRules.of(settings)
    if not has_weights(decomposed.graph):
        logger.warning("autocast_max_output_threshold is not applied: the model has no weights to measure values with")
        return PrecisionRules.of(settings)
    return PrecisionRules.of(settings, measure_magnitudes(decomposed.graph, inputs()))


def has_weights(gm: fx.GraphModule) -> bool:
    """Whether every tensor that a graph holds has data."""
    held = (read_attribute(gm, str(node.target)) for node in gm.graph.find_nodes(op="get_attr"))
    return not any(isinstance(value, torch.Tensor) and is_weightless(value) for value in held)


def warn_of_unmatched(decomposed: DecomposedGraph) -> None:
    """Warns of exclusions that no node fits. For graphs that hold a whole model.

    Warns:
        UserWarning: An operator or a pattern excludes nothing.
    """
    for name in sorted(decomposed.unmatched_exclusions):
        warnings.warn(
            f"{name!r} excludes nothing from reduced precision: no operator, node or module of the model fits it. "
            "Names are those of the partition report, such as encoder.layer.0/linear_1",
            UserWarning,
            stacklevel=level_of_caller(),
        )
