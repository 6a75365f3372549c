"""Machines without Triton, without Inductor and without a C++ compiler: building, loading and running need none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

SCRIPT: Final = """
import json, sys

for name in ("triton", "torch._inductor.compile_fx"):
    sys.modules[name] = None  # an import of it fails
device, level = sys.argv[1], int(sys.argv[2])
import numpy as np, torch
import trt_portable as trt

class Logger(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
    def log(self, severity, text):
        told.append((severity.name, text))

told = []
logger = Logger()
with trt.device(device):
    builder = trt.Builder(logger)
    network = builder.create_network()
    x = y = network.add_input("x", trt.float32, (4, 16))
    for _ in range(16):
        matrix = network.add_constant((16, 16), np.eye(16, dtype=np.float32)).get_output(0)
        y = network.add_matrix_multiply(y, trt.MatrixOperation.NONE, matrix, trt.MatrixOperation.NONE).get_output(0)
        y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.builder_optimization_level = level
    plan = builder.build_serialized_network(network, config)
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    given, found = torch.randn(4, 16, device=device), torch.empty(4, 16, device=device)
    for _ in range(4):
        done = context.execute_v2([given.data_ptr(), found.data_ptr()])
errors = [text for severity, text in told if severity in ("ERROR", "INTERNAL_ERROR")]
print(json.dumps([done, bool((found == given.relu()).all()), errors]))
"""


def _run(device: str, level: int) -> Any:
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "TRITON_INTERPRET")}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, device, str(level)],
        env={**environment, "PATH": "/nowhere", "CXX": "/nowhere/c++", "CC": "/nowhere/cc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_on_the_cpu() -> None:
    assert _run("cpu", 5) == [True, True, []]


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    assert _run("cuda", 3) == [True, True, []]
