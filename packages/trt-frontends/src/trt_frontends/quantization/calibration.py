"""Calibration: ranges of activations, from running the program on representative inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from trt_core import InputError, TrtError
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
        InputError: Data does not fit the program, activations are NaN or infinite, or hold no elements.
    """
    observers: dict[str, RangeObserver] = {}
    measured: set[str] = set()

    def watch(node: fx.Node, value: torch.Tensor) -> None:
        if value.numel():
            measured.add(node.name)
        observers.setdefault(node.name, make_observer(config)).observe(value)

    watch_activations(program, layers, samples, watch)
    for name in sorted(observers.keys() - measured):
        raise InputError(
            "calibration data makes empty activations alone",
            where=name,
            why="there is nothing to measure a range on",
            hint="give inputs with elements",
        )
    return {name: scale_of(observer.largest(), config.scheme) for name, observer in observers.items()}


def watch_activations(
    program: torch.export.ExportedProgram, layers: Sequence[Layer], samples: Sequence[ExampleInputs], watch: Watch
) -> None:
    """Runs the program on every sample, and shows each activation that a layer reads, once for all its readers."""
    runner = ProgramRunner(program)
    steps = _watching(layers, watch)
    for index, inputs in enumerate(flat_inputs(program, samples)):
        try:
            runner.run(inputs, steps)
        except TrtError:
            raise
        except Exception as error:
            raise InputError(
                "the model fails on calibration data",
                where=f"calibration input {index}",
                why=f"{type(error).__name__}: {error}",
                hint="call the model with this input: it most likely fails there as well",
            ) from error


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
