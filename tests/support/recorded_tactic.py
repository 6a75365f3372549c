"""A tactic for the CPU that records a small network, so that tests have artifacts without a compiler."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.inductor.tactic import LaunchRecorder
from trt_portable.builder.tactic import Subject, Tactic
from trt_portable.plan.artifact import Artifact, machine_of

CPU = torch.device("cpu")


class Recorded(Tactic):
    """Records ATen operators: relu(x) @ weights, on the CPU."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__("recorded", 1)
        self.factor = factor
        self.built = 0

    def is_candidate(self, subject: Subject) -> bool:
        return True

    def build(self, subject: Subject, profile: int) -> Artifact:
        self.built += 1
        (x,) = subject.example_inputs(profile)
        weights = subject.tensors[0]
        recorder = LaunchRecorder([x, weights])
        with torch.no_grad(), recorder:
            y = torch.relu(x) @ weights.view(4, 4) * self.factor
        document = {
            "operands": [{"input": 0}, {"weights": 0, "shape": None, "order": "plain"}],
            "kernels": recorder.kernels,
            "steps": recorder.steps,
            "slots": recorder.num_slots,
            "outputs": [recorder.slot(y)],
        }
        return Artifact(self.name, machine_of(CPU), subject.input_shapes(profile), document, {})


def build_with(
    builder: trt.Builder,
    monkeypatch: Any,
    *tactics: Tactic,
    cache: Any = None,
    flags: Any = (),
    level: int = 3,
    monitor: Any = None,
) -> Any:
    """Builds relu(x) @ matrix for 1 to 8 rows, 2 at best, with the given tactics."""
    monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", tactics)
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (-1, 4))
    relu = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    matrix = network.add_constant((4, 4), np.arange(16, dtype=np.float32))
    matrix.name = "matrix"
    none = trt.MatrixOperation.NONE
    y = network.add_matrix_multiply(relu, none, matrix.get_output(0), none).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    config.progress_monitor = monitor
    for flag in (trt.BuilderFlag.REFIT, *flags):
        config.set_flag(flag)
    if cache is not None:
        assert config.set_timing_cache(cache, False)
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 4), (2, 4), (8, 4))
    config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config)


def wanted(x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
    return torch.relu(x) @ (torch.arange(16.0).reshape(4, 4) + shift)
