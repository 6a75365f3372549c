"""What importing the package loads, and does not load."""

from __future__ import annotations

import subprocess
import sys

import trt_runtime


def test_import_is_light_and_registers_the_operator() -> None:
    script = """
import sys
import torch
before = set(sys.modules)
import trt_runtime
added = set(sys.modules) - before
heavy = ("torch.", "tensorrt", "trt_portable", "trt_lowering", "trt_partition", "trt_converters", "trt_frontends")
print(sorted(name for name in added if name.startswith(heavy)), torch.cuda.is_initialized())
torch.ops.trt.execute_engine.default
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout == "[] False\n", result.stderr


def test_public_names_exist() -> None:
    assert [name for name in trt_runtime.__all__ if not hasattr(trt_runtime, name)] == []
