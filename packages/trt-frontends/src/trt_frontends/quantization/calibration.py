"""Calibration: ranges of activations, from running the program on representative inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.quantization.config import QuantizationConfig
from trt_frontends.quantization.layers import Layer
from trt_frontends.quantization.observers import RangeObserver, make_observer, scale_of
from trt_frontends.quantization.running import ProgramRunner, Step, compute, require_finite
from trt_frontends.quantization.samples import flat_inputs

Watch = Callable[[fx.Node, torch.Tensor], None]
"""Called with the node of an activation, and its value."""


def calibrate(
    program: torch.export.ExportedProgram,
    layers: Sequence[Layer],
    samples: Sequence[ExampleInputs],
    config: QuantizationConfig,
) -> dict[str, float]:
    """Measures activations, and returns their scales by the name of the node.

    Args:
        program: The program whose graph has the layers, by name.
        layers: What is quantized.
        samples: Calibration data.
        config: Which observer measures.

    Raises:
        InputError: Data does not fit the program, or activations are NaN or infinite.
    """
    observers: dict[str, RangeObserver] = {}

    def watch(node: fx.Node, value: torch.Tensor) -> None:
        observers.setdefault(node.name, make_observer(config)).observe(value)

    watch_activations(program, layers, samples, watch)
    return {name: scale_of(observer.largest(), config.scheme) for name, observer in observers.items()}


def watch_activations(
    program: torch.export.ExportedProgram, layers: Sequence[Layer], samples: Sequence[ExampleInputs], watch: Watch
) -> None:
    """Runs the program on every sample, and shows each activation that a layer reads, once for all its readers."""
    runner = ProgramRunner(program)
    steps = _watching(layers, watch)
    for inputs in flat_inputs(program, samples):
        runner.run(inputs, steps)


def _watching(layers: Sequence[Layer], watch: Watch) -> dict[str, Step]:
    seen: set[str] = set()
    steps: dict[str, Step] = {}
    for layer in layers:
        fresh = tuple(node for node in dict.fromkeys(layer.operands()) if node.name not in seen)
        seen.update(node.name for node in fresh)
        if fresh:
            steps[layer.node.name] = _step(frozenset(node.name for node in fresh), watch)
    return steps


def _step(names: frozenset[str], watch: Watch) -> Step:
    def run(node: fx.Node, value: Callable[[Any], Any]) -> Any:
        for operand in node.all_input_nodes:
            if operand.name in names:
                activation = value(operand)
                require_finite(activation, operand)
                watch(operand, activation)
        return compute(node, value)

    return run
