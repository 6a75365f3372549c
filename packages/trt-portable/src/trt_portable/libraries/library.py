"""What a library must do to be a tactic.

A library gets a network as an ONNX model, written from the layers of a plan. Nothing of its own is saved: an artifact
says which library won at a build, in which version, and whoever loads the plan hands the network over again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from trt_portable.onnx_export import ExportedPlan
from trt_portable.plan.engine_info import EngineInfo, IOTensor, Shape
from trt_portable.plan.extents import evaluate

SWITCH: Final = "TRT_PORTABLE_LIBRARIES"
"""Environment variable: the libraries that may be used, with commas between. Unset, all that are installed are."""


@dataclass(frozen=True)
class Signature:
    """The ends of a model.

    Attributes:
        inputs: In order.
        outputs: In order.
    """

    inputs: tuple[IOTensor, ...]
    outputs: tuple[IOTensor, ...]

    @staticmethod
    def of(info: EngineInfo) -> Signature:
        """That of an engine."""
        inputs, outputs = (tuple(t for t in info.io if t.is_input is is_input) for is_input in (True, False))
        return Signature(inputs, outputs)

    def output_shapes(self, shapes: tuple[Shape, ...]) -> list[Shape | None]:
        """Extents of outputs for those of inputs; None where the plan does not say them."""
        return [_extents(tensor, shapes) for tensor in self.outputs]


def _extents(tensor: IOTensor, shapes: tuple[Shape, ...]) -> Shape | None:
    if not tensor.is_dynamic:
        return tensor.shape
    if not tensor.extents or None in tensor.extents:
        return None
    return tuple(evaluate(extent, shapes) for extent in tensor.extents)


class CompiledModel(Protocol):
    """A model as a library runs it. Any number of threads may run it at once."""

    def run(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
        """Computes the outputs.

        Args:
            inputs: Dense tensors on the host.
            outputs: Memory for each; None where its extents are not known before.

        Returns:
            The outputs, those that had memory in it.
        """


class Library(ABC):
    """A library that compiles ONNX models for the CPU.

    Args:
        name: Of its Python package; stands in plans and in the timing cache.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def version(self) -> str | None:
        """Its version; None where it, or the `onnx` package, is not installed, or it is switched off."""
        allowed = os.environ.get(SWITCH)
        if allowed is not None and self.name not in map(str.strip, allowed.split(",")):
            return None
        return _version(self.name) if _version("onnx") is not None else None

    @abstractmethod
    def compile(self, exported: ExportedPlan, signature: Signature, threads: int) -> CompiledModel:
        """Compiles a model. It may raise whatever it meets.

        Args:
            exported: The model.
            signature: Its ends.
            threads: Threads to run it with.
        """


@functools.cache
def _version(package: str) -> str | None:
    """The version of an installed package, which is not imported for that."""
    if importlib.util.find_spec(package) is None:
        return None
    for distribution in (package, f"{package}-gpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
