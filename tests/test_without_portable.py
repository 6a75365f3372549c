"""TensorRT without trt-portable: nothing asks for it where TensorRT is chosen; where neither is there, that is said."""

from __future__ import annotations

from pathlib import Path

from fresh_process import run_python

BLOCKED = """
import enum, importlib.abc, json, sys, types

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "trt_portable":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

WITH_TENSORRT = (
    BLOCKED
    + """
described = json.load(open(sys.argv[1]))
tensorrt = types.ModuleType("tensorrt")  # the names of the bindings: enough for all that comes before a network
tensorrt.__version__ = "11.4.0.1"
for name, members in described["enums"].items():
    setattr(tensorrt, name, enum.IntEnum(name, members))
for name in described["classes"]:
    if not hasattr(tensorrt, name):
        setattr(tensorrt, name, type(name, (), {}))
sys.modules["tensorrt"] = tensorrt

import trt_core
trt_core.set_provider("tensorrt")
import torch, trt_frontends
from trt_frontends.onnx_models import export_onnx
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GELU()).eval()
report = trt_frontends.explain(model, arg_inputs=(torch.ones(1, 3, 8, 8),), min_block_size=1)
assert report.coverage == 1, report
trt_frontends.compiled_module.move(model, torch.device("cpu"))  # as offload_module_to_cpu does
try:
    trt_frontends.compile(model, arg_inputs=(torch.ones(1, 3, 8, 8),), min_block_size=1)
except trt_core.ProviderError as error:
    print(error)
try:
    export_onnx(model, (torch.ones(1, 3, 8, 8),))
except trt_core.InputError as error:
    print(error)
"""
)

WITH_NEITHER = (
    BLOCKED
    + """
import trt_runtime
from trt_core import ProviderError, current_provider
try:
    current_provider()
except ProviderError as error:
    print(error)
"""
)


def test_tensorrt_is_enough() -> None:
    api = Path(__file__).parent / "data/tensorrt/api_11.4.json"
    done = run_python(WITH_TENSORRT, str(api))
    assert done.returncode == 0, done.stderr
    assert "TensorRT cannot run on cpu" in done.stdout
    assert "TensorRT does not show its networks" in done.stdout


def test_an_installation_without_a_provider_says_so() -> None:
    done = run_python(WITH_NEITHER)
    assert done.returncode == 0, done.stderr
    assert "pip install trt-portable" in done.stdout
