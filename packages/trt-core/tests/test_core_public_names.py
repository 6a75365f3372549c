"""The public names of trt-core, and what importing them costs."""

from __future__ import annotations

from fresh_process import run_python

import trt_core

_LOADED = """
import sys, torch
before = set(sys.modules)
import trt_core
new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"trt_core"}
heavy = {"torch._inductor", "torch._dynamo", "torch.export", "sympy", "tensorrt", "trt_portable"}
print(sorted(heavy & (set(sys.modules) - before)), torch.cuda.is_initialized())
"""


def test_all_names_are_sorted_and_exist() -> None:
    assert len(set(trt_core.__all__)) == len(trt_core.__all__)
    assert all(hasattr(trt_core, name) for name in trt_core.__all__)


def test_the_logger_has_the_name_that_scripts_configure() -> None:
    assert trt_core.logger.name == "torch_tensorrt"


def test_importing_loads_nothing_heavy_and_no_cuda() -> None:
    done = run_python(_LOADED, bare=True)
    assert done.stdout.strip() == "[] False", done.stderr
