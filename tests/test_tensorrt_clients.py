"""Clients of TensorRT, unchanged, in a process where this package answers to its name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from fresh_process import run_python

CLIENTS = sorted((Path(__file__).parent / "clients").glob("*.py"))
RUN = """
import runpy, sys
import trt_portable
trt_portable.install_as_tensorrt()
trt_portable.install_as_tensorrt()
trt_portable.set_device("cpu")
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        raise SystemExit(f"{path}: {error!r}") from error
    print("ran", path)
"""
REFUSED = """
import sys, types
sys.modules["tensorrt"] = types.ModuleType("tensorrt")
import trt_portable
try:
    trt_portable.install_as_tensorrt()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="TensorRT itself is installed")
def test_clients_run_unchanged() -> None:
    assert len(CLIENTS) >= 7
    for path in CLIENTS:
        assert "import tensorrt as trt\n" in path.read_text(encoding="utf-8")
    done = run_python(RUN, *map(str, CLIENTS))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran ") == len(CLIENTS)


def test_the_name_of_an_installed_tensorrt_is_not_taken() -> None:
    done = run_python(REFUSED)
    assert "TensorRT itself is installed" in done.stdout
