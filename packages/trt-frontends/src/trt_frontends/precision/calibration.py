"""The inputs that precision is decided on: given by the user, or made from the example inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trt_core import InputError
from trt_core.internals import pytree
from trt_core.wording import kind_of
from trt_frontends.comparison.sample_inputs import SampleInputs, read_inputs, sample_inputs
from trt_frontends.example_inputs import ExampleInputs
from trt_runtime.program.input_reader import InputReader

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
            InputError: There are none, one is of the wrong kind, or contains NaN.
        """
        if self.given is None:
            if self.examples is None:
                raise InputError(
                    "there are no inputs to choose precision on",
                    hint="give arg_inputs, or autocast_calibration_dataloader",
                )
            yield from sample_inputs(self.examples, self.device, DRAWN, seed=0, edges=False)
            return
        if isinstance(self.given, (str, bytes, torch.Tensor)) or not isinstance(self.given, Iterable):
            raise InputError(
                f"autocast_calibration_dataloader is {kind_of(self.given)}",
                hint="give an iterable of inputs: a DataLoader, or a list of tuples",
            )
        for case in read_inputs(self.given, "autocast_calibration_dataloader has no inputs"):
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
