"""What the settings keep in float32, with what has to be measured for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core import InputError, logger
from trt_core.attributes import read_attribute
from trt_core.internals import pytree
from trt_core.nesting import tensors_in
from trt_core.settings_reader import warn_caller
from trt_frontends.capture import is_weightless
from trt_frontends.comparison.sample_inputs import SampleInputs, read_calibration, sample_inputs
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.precision.graph_run import GraphRun
from trt_lowering import DecomposedGraph, PrecisionRules
from trt_lowering.precision_rules import reduced_type
from trt_runtime.program.input_reader import InputReader


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
        warn_caller(
            f"{name!r} excludes nothing from reduced precision: no operator, node or module of the model fits it. "
            "Names are those of the partition report, such as encoder.layer.0/linear_1"
        )


# How large values become ---------------------------------------------------------------------------------------------


def measure_magnitudes(gm: fx.GraphModule, inputs: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Returns the largest magnitude of each node's floating-point value over several inputs, by node name.

    Infinities, NaN and the extremes of a type, which say "masked out", are left out.

    Args:
        gm: A functional graph. Its state is not changed.
        inputs: Flat inputs of the graph, one sequence for each run.
    """
    found: dict[str, float] = {}

    def see(node: fx.Node, value: Any) -> None:
        if node.op == "output":
            return
        for item in tensors_in(value):
            if item.is_floating_point() and item.numel():
                found[node.name] = max(found.get(node.name, 0.0), _largest(item))

    for flat in inputs:
        GraphRun(gm, see).results(flat)
    return found


def _largest(tensor: torch.Tensor) -> float:
    sizes = tensor.detach().abs()
    meant = sizes[sizes < torch.finfo(tensor.dtype).max / 2]  # neither NaN nor infinite
    return float(meant.max()) if meant.numel() else 0.0


# The inputs that precision is decided on -----------------------------------------------------------------------------


DRAWN = 2
"""Random inputs that are drawn where the user gives none, besides example tensors, smallest and largest sizes."""


@dataclass(frozen=True)
class Calibration:
    """Inputs to measure on. Runs over them give the same each time, unless the user's iterable does not.

    Attributes:
        examples: What the model is compiled for; None where nothing was given.
        given: What the user wants measured, in place of what is made from the examples.
        reader: Knows how inputs of a call are brought into the flat order of the graph.
        device: Where the model is.
    """

    examples: ExampleInputs | None
    given: Iterable[Any] | None
    reader: InputReader
    device: torch.device

    def flat(self) -> Iterator[Sequence[Any]]:
        """Yields the inputs flat, in the order of the captured program.

        Raises:
            InputError: There are none, or one does not fit the model or contains NaN.
        """
        for case in self.cases():
            yield self.reader.read(case.args, case.kwargs)

    def cases(self) -> Iterator[SampleInputs]:
        """Yields the inputs as the model is called with them.

        Raises:
            InputError: There are none, or they cannot be read, see `read_calibration`; or one contains NaN.
        """
        if self.given is None:
            if self.examples is None:
                raise InputError(
                    "there are no inputs to choose precision on",
                    hint="give arg_inputs, or autocast_calibration_dataloader",
                )
            yield from sample_inputs(self.examples, self.device, DRAWN, seed=0, edges=False)
            return
        for case in read_calibration(self.given, "autocast_calibration_dataloader"):
            _require_numbers(case)
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._here, (case.args, case.kwargs))
            yield SampleInputs(case.name, args, kwargs)

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)


def _require_numbers(case: SampleInputs) -> None:
    for leaf in pytree.tree_leaves((case.args, case.kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()):
            raise InputError(
                f"autocast_calibration_dataloader: {case.name} contains NaN",
                hint="leave such inputs out: nothing can be measured on them",
            )
