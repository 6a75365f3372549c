"""Engines are strongly typed: autocast of whoever builds or runs them changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.builder import builder as building


def test_a_caller_s_autocast_says_nothing_to_an_engine(builder: Any, load: Any, execute: Any, constant: Any) -> None:
    def build() -> Any:
        network = builder.create_network()
        x = network.add_input("x", trt.float32, (4, 32))
        none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        random = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
        first, second = (constant(network, matrix) for matrix in random)
        folded = network.add_matrix_multiply(first, none, second, none).get_output(0)  # by the builder
        network.mark_output(network.add_matrix_multiply(x, none, folded, transpose).get_output(0))
        return load(network).create_execution_context()

    x = torch.randn(4, 32)
    context = build()
    (wanted,) = execute(context, {"x": x}).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = execute(context, {"x": x}).values()
        (built,) = execute(build(), {"x": x}).values()
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(found, wanted)
    torch.testing.assert_close(built, wanted, rtol=1e-5, atol=1e-4)


def test_builds_for_a_gpu_leave_the_autocast_of_the_host_too(builder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "current_device", lambda: torch.device("cuda"))
    with torch.autocast("cpu"):
        assert builder._guarded("a build", lambda: not torch.is_autocast_enabled("cpu"))  # where constants are folded
